// Scenes of the kit as plain data, and grids and bars as SVG: the same as `kit.py` and `paint.py` make in Python.

import { escape, text, wrap } from "./drawing.js";

const MOST_LABELS = 640, MINUS = "−";
const STROKES = { 1: "M-2 8L8 -2M4 14L14 4", 2: "M0 3H12M0 9H12", 3: "M-2 4L8 14M4 -2L14 8", 4: "M0 0L12 12M12 0L0 12" };
const longestOf = (labels) => labels.reduce((most, label) => Math.max(most, label.length), 0);
const halved = (number) => Math.floor(number / 2);

// ---- plain data ---------------------------------------------------------------------------------

/** A number with that many digits, half away from zero. */
export function fixed(value, digits = 2) {
  if (!Number.isFinite(value)) return "–";
  const scaled = Math.floor(Math.abs(value) * 10 ** digits + 0.5 + 1e-7), sign = value < 0 && scaled ? MINUS : "";
  const whole = String(Math.floor(scaled / 10 ** digits));
  return sign + whole + (digits ? `.${String(scaled % 10 ** digits).padStart(digits, "0")}` : "");
}

/** The fill of a share from 0 to 1. */
export const share = (value) =>
  Number.isFinite(value) ? `w${Math.floor(Math.min(1, Math.max(0, value)) * 10 + 0.5 + 1e-7)}` : "off";

/** The fill of a signed size, relative to the largest absolute one. */
export function signed(value, largest) {
  const level = largest > 0 ? Math.ceil((4 * Math.abs(value)) / largest - 1e-7) : 0;
  return level >= 1 ? `${value > 0 ? "p" : "n"}${Math.min(4, level)}` : "none";
}

export const scene = (alt, parts) => ({ alt, parts });
export const grid = (id, title, rows, cols, fills, labels = [], more = {}) => ({ kind: "grid", id, title, rows, cols,
  fills, labels, verdict: "", row_block: 0, col_block: 0, notes: [], ...more });
export const table = (id, title, head, rows, more = {}) =>
  ({ kind: "table", id, title, head, rows, bad: [], now: -1, ...more });
export const bars = (id, title, items, largest = 0) => ({ kind: "bars", id, title, items,
  largest: largest || Math.max(0, ...items.map((item) => item[1])) || 1 });
export const words = (id, lines, bad = false) => ({ kind: "words", id, lines, bad });

// ---- painting -----------------------------------------------------------------------------------

export function patterns(uid) {
  const one = ([kind, strokes]) => `<pattern id="${uid}h${kind}" width="12" height="12" patternUnits="userSpaceOnUse">`
    + `<path d="${strokes}" fill="none" stroke="#000" stroke-opacity="${kind === "4" ? ".4" : ".2"}" `
    + `stroke-width="1.5"/></pattern>`;
  return `<defs>${Object.entries(STROKES).map(one).join("")}</defs>`;
}

/** Where the cells of a grid lie: the left and top edge of every column and row, and the size of a cell. */
export function geometry(part) {
  const labelled = part.labels.length > 0 && part.fills.length <= MOST_LABELS;
  const w = labelled ? Math.max(26, 7 * Math.max(longestOf(part.labels), longestOf(part.cols)) + 8) : 12;
  const h = labelled ? 22 : 12, left = 7 * longestOf(part.rows) + 8, top = (part.verdict ? 24 : 0) + 36;
  const edges = (start, labels, size, block) =>
    labels.map((_, i) => start + i * size + (block ? Math.floor(i / block) * 8 : 0));
  const xs = edges(left, part.cols, w, part.col_block), ys = edges(top, part.rows, h, part.row_block);
  const right = xs.length ? xs.at(-1) + w : left, bottom = ys.length ? ys.at(-1) + h : top;
  return { labelled, w, h, xs, ys, left, top, width: Math.max(right, 7 * part.title.length), height: bottom, right };
}

/** A grid at the origin; cells of one fill are one path, so that 4096 cells are a few dozen elements. */
export function paintGrid(part, uid, fills, at = geometry(part)) {
  const columns = part.cols.length, inset = at.labelled ? 2 : 1, w = at.w - inset, h = at.h - inset;
  let out = "";
  if (part.verdict) {
    const right = part.verdict === "right";
    out += text(0, 14, right ? "✓ Right" : "✗ Wrong", right ? "ok" : "bad");
  }
  out += text(0, at.top - 24, part.title, "name");
  const step = Math.ceil((7 * longestOf(part.cols) + 4) / at.w) || 1;
  part.cols.forEach((label, i) => {
    if (i % step === 0) out += text(at.xs[i] + halved(at.w), at.top - 6, label, "head", "middle");
  });
  part.rows.forEach((label, i) => { out += text(at.left - 5, at.ys[i] + halved(at.h) + 3, label, "head", "end"); });
  const boxes = new Map();
  part.fills.forEach((key, index) => {
    const box = `M${at.xs[index % columns]} ${at.ys[Math.floor(index / columns)]}h${w}v${h}h-${w}z`;
    boxes.set(key, (boxes.get(key) ?? "") + box);
  });
  for (const [key, path] of boxes) {
    const [colour, hatching] = fills[key];
    out += `<path d="${path}" fill="${colour}" class="${key === "none" ? "off" : "on"}" data-fill="${key}"/>`;
    if (hatching) out += `<path d="${path}" fill="url(#${uid}h${hatching})"/>`;
  }
  if (at.labelled) {
    part.labels.forEach((label, index) => {
      if (label) {
        out += text(at.xs[index % columns] + halved(w), at.ys[Math.floor(index / columns)] + halved(h) + 4, label,
          part.fills[index] === "none" ? "head" : "cell", "middle");
      }
    });
  }
  let height = at.height, width = at.width;
  const limit = Math.max(36, Math.floor((2 * at.width) / 13));
  for (const note of part.notes) {
    for (const line of wrap(note, limit)) {
      height += 17;
      out += text(0, height, line, "say");
    }
    width = Math.max(width, 7 * Math.min([...note].length, limit));
  }
  return [out, width, height + 4];
}

export function paintBars(part, fills) {
  const left = 7 * longestOf(part.items.map((item) => item[0])) + 8;
  let out = text(0, 12, part.title, "name"), y = 20;
  for (const [label, value, said, key] of part.items) {
    const long = Math.floor(240 * Math.min(1, value / part.largest) + 0.5);
    out += text(left - 5, y + 14, label, "head", "end")
      + `<rect x="${left}" y="${y + 3}" width="${Math.max(1, long)}" height="14" fill="${fills[key][0]}" class="on" `
      + `data-fill="${key}"/>` + text(left + long + 6, y + 14, said, "num");
    y += 20;
  }
  const widest = 7 * longestOf(part.items.map((item) => item[2]));
  return [out, Math.max(left + 246 + widest, 7 * part.title.length), y + 4];
}

export const tableHtml = (part) => `<table><caption>${escape(part.title)}</caption><thead><tr>`
  + part.head.map((label) => `<th scope="col">${escape(label)}</th>`).join("") + "</tr></thead><tbody>"
  + part.rows.map((row, index) => `<tr${part.bad.includes(index) ? ' class="miss"' : ""}`
    + `${index === part.now ? ' aria-current="true"' : ""}>`
    + row.map((cell) => `<td>${escape(cell)}</td>`).join("") + "</tr>").join("") + "</tbody></table>";
