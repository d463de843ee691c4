// Draws the plain data of a figure: the same strings as `drawing.draw` makes in Python.

import { range } from "./layouts.js";

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };

/** A sentence with its {names} filled in. */
export const worded = (sentence, values = {}) => sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);

export const escape = (text) => String(text).replace(/[&<>"']/g, (char) => ESCAPES[char]);
const half = (number) => Math.floor(number / 2);
export const text = (x, y, content, kind, anchor = "start") =>
  `<text x="${x}" y="${y}" class="${kind}" text-anchor="${anchor}">${escape(content)}</text>`;

function chip(spec, x, y, width, height, axis, label) {
  const colours = axis.split("·").map((letter) => spec.axes[letter].colour);
  const part = Math.floor(width / colours.length);
  return colours.map((colour, i) => {
    const wide = i + 1 < colours.length ? part : width - i * part;
    return `<rect x="${x + i * part}" y="${y}" width="${wide}" height="${height}" fill="${colour}"/>`;
  }).join("") + text(x + half(width), y + half(height) + 4, label, "bar", "middle");
}

export function wrap(sentence, limit) {
  const lines = [];
  for (const word of sentence.split(" ")) {
    if (lines.length && [...lines.at(-1)].length + 1 + [...word].length <= limit) lines[lines.length - 1] += ` ${word}`;
    else lines.push(word);
  }
  return lines;
}

export function draw(picture, spec, stacked = false) {
  const gap = 32;
  let x = 0, y = 0, width = 0, height = 0, body = "";
  for (const column of picture.columns) {
    const [drawn, w, h] = drawColumn(spec, column, x, y);
    body += drawn;
    [width, height] = [Math.max(width, x + w), Math.max(height, y + h)];
    if (stacked) y += h + gap;
    else x += w + gap;
  }
  return { body, width, height };
}

function drawColumn(spec, column, x, y) {
  const top = y;
  let body = "", width = Math.max(180, 7 * column.heading.length + 4);
  if (column.verdict) {
    const right = column.verdict === "right";
    body += text(x, y + 14, right ? "✓ Right" : "✗ Wrong", right ? "ok" : "bad");
    y += 22;
  }
  if (column.heading) {
    body += text(x, y + 12, column.heading, "code");
    y += 24;
  }
  for (const part of column.panels) {
    const [drawn, w, h] = drawPanel(spec, part, x, y);
    body += drawn;
    [width, y] = [Math.max(width, w), y + h + 14];
  }
  for (const line of column.caption ? wrap(column.caption, Math.floor((2 * width) / 13)) : []) {
    body += text(x, y + 12, line, "say");
    y += 17;
  }
  return [body, width, y - top];
}

function drawPanel(spec, part, x, y) {
  const cells = part.cells.flat().filter(Boolean), top = y;
  const longest = Math.max(...cells.flatMap((cell) => [cell[1].length, cell[2].length]),
    ...part.cols.filter(Boolean).map((label) => label.length));
  const w = Math.max(28, 7 * longest + 10), h = cells.some((cell) => cell[2]) ? 34 : 22;
  const left = x + 28 + 7 * Math.max(...part.rows.filter(Boolean).map((label) => label.length));
  const xs = [];
  let cursor = left, body = text(x, y + 12, part.title, "name");
  part.cols.forEach((col, i) => {
    const pair = part.groups && i ? part.groups.slice(i - 1, i + 1) : [null];
    if (!pair.includes(null) && pair[0] !== pair[1]) cursor += 10;
    xs.push(cursor);
    cursor += col === null ? 20 : w;
  });
  const side = Math.max(...part.side.map((line) => line.length));
  const width = Math.max(cursor - x + (side ? 7 * side + 10 : 0), 7 * part.title.length);
  y += 20;
  for (const level of part.bars) {
    for (const one of level) {
      const wide = xs[one.to] + w - 2 - xs[one.from];
      body += chip(spec, xs[one.from], y, wide, 18, one.axis, 7 * one.text.length + 6 <= wide ? one.text : one.short);
    }
    y += 20;
  }
  part.cols.forEach((col, i) => {
    body += text(xs[i] + (col === null ? 9 : half(w) - 1), y + 11, col ?? "⋯", "head", "middle");
  });
  y += 16;
  const first = y;
  part.rows.forEach((label, r) => {
    if (label === null) {
      body += text(left - 8, y + 13, "⋮", "head", "end");
      y += 18;
      return;
    }
    body += text(left - 6, y + half(h) + 3, label, "head", "end");
    part.cells[r].forEach((cell, i) => {
      body += cell ? drawCell(spec, cell, xs[i], y, w - 2, h - 2)
        : text(xs[i] + 9, y + half(h) + 3, "⋯", "head", "middle");
    });
    if (part.side[r]) body += text(cursor + 8, y + half(h) + 3, part.side[r], "side");
    y += h;
  });
  body += chip(spec, x, first, 16, y - first - 2, part.row_axis, part.row_axis);
  return [body, width, y - top];
}

function drawCell(spec, [token, top, bottom, coloured], x, y, w, h) {
  const box = `<rect x="${x}" y="${y}" width="${w}" height="${h}"`, middle = x + half(w);
  if (!coloured) return `${box} class="off"/>` + text(middle, y + half(h) + 4, top, "soft", "middle");
  const colour = spec.fills[token % spec.fills.length], strokes = hatch(token % 4, x, y, w, h);
  return `${box} fill="${colour}" class="on" data-token="${token}"/>`
    + (strokes ? `<path d="${strokes}" class="hatch"/>` : "")
    + (bottom ? text(middle, y + 14, top, "cell", "middle") + text(middle, y + 27, bottom, "chan", "middle")
      : text(middle, y + half(h) + 4, top, "cell", "middle"));
}

function hatch(kind, x, y, w, h) {
  if (!kind) return "";
  const every = (from, to, step) => range(0, Math.ceil((to - from) / step)).map((i) => from + i * step);
  if (kind === 2) return every(6, h, 7).map((step) => `M${x} ${y + step}h${w}`).join("");
  return every(-h + 4, w, 9).map((start) => {
    const low = Math.max(0, -start), high = Math.min(h, w - start);
    return kind === 1 ? `M${x + start + low} ${y + h - low}L${x + start + high} ${y + h - high}`
      : `M${x + start + low} ${y + low}L${x + start + high} ${y + high}`;
  }).join("");
}
