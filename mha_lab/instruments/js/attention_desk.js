// The live attention desk: what attention_desk.py reads from torch, computed in the browser.

import { worded } from "./drawing.js";
import { mount } from "./kit.js";
import { range } from "./layouts.js";
import { bars, fixed, grid, sceneOf, share, signed, words } from "./paint.js";

const total = (numbers) => numbers.reduce((sum, number) => sum + number, 0);
const fixed3 = (value) => fixed(value, 3);

// ---- arithmetic ---------------------------------------------------------------------------------

const PRESETS = {
  cross: () => true,
  causal: (t, s) => s <= t,
  "bottom-right": (t, s, shift) => s <= t + shift,
  padding: (t, s, shift, amount, keys) => s < keys - amount,
  window: (t, s, shift, amount) => s <= t + shift && s > t + shift - amount,
};

const extentsOf = (data) => [data.scores.length, data.targets.length, data.sources.length];

/** [T][S] of true where a query may look. */
function visibleOf(data, state) {
  const [, T, S] = extentsOf(data);
  return range(0, T).map((t) => range(0, S).map((s) =>
    state.cells ? state.cells[t * S + s] === "1" : PRESETS[state.mask](t, s, S - T, state.amount, S)));
}

/** Softmax over the keys that may be seen; NaN where there is none. */
export function softmax(scores, seen) {
  let most = -Infinity;
  scores.forEach((score, i) => { if (seen[i] && score > most) most = score; });
  const powers = scores.map((score, i) => seen[i] ? Math.exp(score - most) : 0), sum = total(powers);
  return powers.map((power) => power / sum);
}

const meanOf = (matrices) => matrices[0].map((row, t) => row.map((_, s) =>
  total(matrices.map((matrix) => matrix[t][s])) / matrices.length));

/** Number of singular values that are not rounding errors, by one-sided Jacobi rotations. */
export function rankOf(rows) {
  if (!rows.length) return 0;
  const tall = rows.length >= rows[0].length, columns = tall ? rows[0].map((_, i) => rows.map((row) => row[i]))
    : rows.map((row) => [...row]);
  for (let sweep = 0, turned = true; turned && sweep < 40; sweep++) {
    turned = false;
    for (let i = 0; i < columns.length; i++) {
      for (let j = i + 1; j < columns.length; j++) {
        const a = columns[i], b = columns[j];
        let aa = 0, bb = 0, ab = 0;
        for (let k = 0; k < a.length; k++) {
          aa += a[k] * a[k];
          bb += b[k] * b[k];
          ab += a[k] * b[k];
        }
        if (Math.abs(ab) <= 1e-15 * Math.sqrt(aa * bb) || ab === 0) continue;
        turned = true;
        const zeta = (bb - aa) / (2 * ab), tan = Math.sign(zeta || 1) / (Math.abs(zeta) + Math.hypot(1, zeta));
        const cos = 1 / Math.hypot(1, tan), sin = cos * tan;
        for (let k = 0; k < a.length; k++) [a[k], b[k]] = [cos * a[k] - sin * b[k], sin * a[k] + cos * b[k]];
      }
    }
  }
  const sizes = columns.map((column) => Math.hypot(...column)), most = Math.max(...sizes);
  return sizes.filter((size) => size > most * Math.max(rows.length, rows[0].length) * 2 ** -52).length;
}

// ---- the scene ----------------------------------------------------------------------------------

/** Weights of every head, and the mask, kept for the state that was asked about last. */
let seenLast = { data: null, key: "", value: null };
function lookAt(data, state) {
  const key = `${state.cells} ${state.mask} ${state.amount}`;
  if (seenLast.data !== data || seenLast.key !== key) {
    const visible = visibleOf(data, state);
    const weights = data.scores.map((head) => head.map((row, t) => softmax(row, visible[t])));
    seenLast = { data, key, value: { visible, weights, mean: meanOf(weights) } };
  }
  return seenLast.value;
}

const chosenHeads = (data, state) => state.head < 0 ? range(0, data.scores.length) : [state.head];

const DRAW = {
  who(data, state, { visible, weights, mean }) {
    const one = (id, title, rows) => {
      const fills = [], labels = [];
      rows.forEach((row, t) => {
        row.forEach((value, s) => {
          fills.push(visible[t][s] ? share(value) : "off");
          labels.push(visible[t][s] ? fixed(value) : "");
        });
        fills.push("none");
        labels.push(fixed(total(row)));
      });
      const columns = data.sources.map((_, s) => total(rows.map((row) => row[s])));
      return grid(id, title, [...data.targets, "Σ"], [...data.sources, "Σ"],
        [...fills, ...Array(columns.length + 1).fill("none")], [...labels, ...columns.map((sum) => fixed(sum)), ""]);
    };
    return [...chosenHeads(data, state).map((h) => one(`head${h}`, worded(data.says.head, { head: h }), weights[h])),
      one("mean", worded(data.says.mean, { heads: weights.length }), mean)];
  },

  lens(data, state, { visible }) {
    const head = Math.max(0, state.head), scores = data.scores[head][state.query], seen = visible[state.query];
    const all = scores.map(() => true);
    const ways = [softmax(scores, seen), softmax(scores.map((score, s) => seen[s] ? score : 0), all),
      softmax(scores, all).map((weight, s) => seen[s] ? weight : 0), softmax(scores, seen.map((one) => !one))];
    const fills = [...seen.map((one) => one ? "none" : "off"), "void"], labels = [...scores.map((v) => fixed(v)), ""];
    for (const way of ways) {
      fills.push(...way.map(share), "none");
      labels.push(...way.map(fixed3), fixed3(total(way)));
    }
    return [grid("lens", worded(data.says.lens, { head, query: data.targets[state.query] }), data.says.lens_rows,
      [...data.sources, "Σ"], fills, labels, { notes: [data.says.lens_note] })];
  },

  one(data, state, { visible, weights, mean }) {
    const { query } = state, seen = visible[query], heads = weights.length;
    const joint = data.sources.map((_, s) => total(data.scores.map((head) => head[query][s])) / Math.sqrt(heads));
    const rows = [softmax(joint, seen), ...weights.map((head) => head[query]), mean[query]];
    const fills = rows.flatMap((row) => [...row.map((value, s) => seen[s] ? share(value) : "off"), "none"]);
    const labels = rows.flatMap((row) => [...row.map((value) => fixed(value)), fixed(total(row))]);
    return [grid("one", worded(data.says.one, { query: data.targets[query] }),
      [data.says.one_row, ...range(0, heads).map((h) => `h${h}`), data.says.mean_row], [...data.sources, "Σ"], fills,
      labels, { notes: [data.says.one_note] })];
  },

  writes(data, state, { weights }) {
    const { query } = state, { says } = data, named = { query: data.targets[query] };
    const mix = (rows) => rows.map((values, h) => values[0].map((_, c) =>
      total(values.map((value, s) => weights[h][query][s] * value[c]))));
    const first = (shown, all) => shown < all ? [worded(says.first_channels, { shown, all })] : [];
    const signedGrid = (id, title, letter, table, names, notes) => {
      const largest = Math.max(0, ...table.flat().filter(Number.isFinite).map(Math.abs));
      return grid(id, title, names, table[0].map((_, i) => `${letter}${i}`),
        table.flat().map((value) => signed(value, largest)), table.flat().map((value) => fixed(value)), { notes });
    };
    const mixed = mix(data.values), read = signedGrid("mixed", worded(says.mixed, named), "d", mixed,
      mixed.map((_, h) => `h${h}`), [says.mixed_note, ...first(mixed[0].length, data.width)]);
    if (!data.writes) return [read, words("no_w_o", [says.no_w_o])];
    const rows = mix(data.writes), biased = data.bias.some((value) => value !== 0);
    if (biased) rows.push(data.bias);
    rows.push(data.bias.map((_, m) => total(rows.map((row) => row[m]))));
    const names = [...range(0, weights.length).map((h) => `h${h}`), ...(biased ? [says.bias_row] : []), "Σ"];
    return [read, signedGrid("writes", worded(says.writes, named), "m", rows, names,
      [says.writes_note, ...first(data.bias.length, data.channels)])];
  },

  rank(data, state, { visible, weights }) {
    const { says } = data, [, T, S] = extentsOf(data), most = Math.min(T, S);
    const items = chosenHeads(data, state).flatMap((h) => {
      const before = data.ranks[h], after = rankOf(weights[h].filter((_, t) => visible[t].some(Boolean)));
      return [[worded(says.before, { head: h }), before, worded(says.of, { rank: before, most }), "w5"],
        [worded(says.after, { head: h }), after, worded(says.of, { rank: after, most }), "w9"]];
    });
    return [bars("rank", says.rank, items, most), words("rank_note", [says.rank_note])];
  },
};

export function scene(data, state) {
  const { says } = data, seen = lookAt(data, state), { visible } = seen, [heads, t, s] = extentsOf(data);
  const empty = data.targets.filter((_, i) => !visible[i].some(Boolean)), cells = visible.flat();
  const rows = empty.length ? worded(says.no_key, { rows: empty.join(", ") }) : says.sums;
  const parts = [grid("mask", says.mask, data.targets, data.sources, cells.map((one) => one ? "good" : "off"),
    cells.map((one) => one ? "✓" : "·")), ...DRAW[state.view](data, state, seen)];
  if (empty.length) parts.unshift(words("empty", [rows], true));
  return sceneOf(worded(says.alt, { view: data.views[state.view], heads, t, s, seen: cells.filter(Boolean).length,
    all: t * s, rows }), parts);
}

export function probe(data, state, part, index) {
  const { says } = data, [, T, S] = extentsOf(data), columns = part === "mask" ? S : S + 1;
  if (part !== "mask" && part !== "mean" && !part.startsWith("head")) return null;
  const row = Math.floor(index / columns), key = index % columns, chosen = chosenHeads(data, state);
  const { visible, weights, mean } = lookAt(data, state), head = part.startsWith("head") ? Number(part.slice(4)) : -1;
  const rows = head < 0 ? mean : weights[head];
  if (row === T || key === S) {
    if (row === T && key === S) return null;
    const sum = fixed3(total(key === S ? rows[row] : rows.map((one) => one[key])));
    const text = key === S ? worded(says.row_sum, { name: data.targets[row], sum })
      : worded(says.column_sum, { name: data.sources[key], sum });
    return { text, marks: {}, tip: "" };
  }
  const pairs = (head < 0 ? chosen : [head]).slice(0, 8).map((h) => worded(says.pair, { head: h,
    score: fixed(data.scores[h][row][key]), weight: fixed3(weights[h][row][key]) }));
  const text = worded(visible[row][key] ? says.reads : says.hidden,
    { query: data.targets[row], key: data.sources[key], pairs: pairs.join("; ") });
  const marks = { mask: [row * S + key] };
  if (state.view === "who") for (const id of [...chosen.map((h) => `head${h}`), "mean"]) marks[id] = [row * (S + 1) + key];
  return { text, marks, tip: fixed3(rows[row][key]) };
}

/** A click on a pair shows or hides it. */
function pick(data, state, part, index) {
  const [, T, S] = extentsOf(data), columns = part === "mask" ? S : S + 1;
  if (part !== "mask" && part !== "mean" && !part.startsWith("head")) return null;
  const row = Math.floor(index / columns), key = index % columns;
  if (row === T || key === S) return null;
  const cells = visibleOf(data, state).flat();
  cells[row * S + key] = !cells[row * S + key];
  return { cells: cells.map((one) => one ? "1" : "0").join("") };
}

// ---- controls -----------------------------------------------------------------------------------

function controls(kit, data) {
  const [heads, T, S] = extentsOf(data), single = (state) => ["lens", "one", "writes"].includes(state.view);
  kit.radios({ name: "view", label: "View", options: data.views, value: (state) => state.view, set: (view) => ({ view }) });
  kit.select({ name: "mask", label: "mask", options: (state) => [...(state.cells ? [["", "drawn by hand"]] : []),
    ...Object.entries(data.masks)], value: (state) => state.cells ? "" : state.mask,
    set: (mask) => mask && { mask, cells: "" } });
  kit.slider({ name: "amount", label: "amount", values: () => range(0, S + 1), value: (state) => state.amount,
    set: (amount) => ({ amount }), shown: (state) => !state.cells && ["padding", "window"].includes(state.mask) });
  kit.select({ name: "head", label: "head", options: (state) => [
    ...(["who", "rank"].includes(state.view) ? [["-1", "all"]] : []), ...range(0, heads).map((h) => [String(h), String(h)])],
    value: (state) => String(["who", "rank"].includes(state.view) ? state.head : Math.max(0, state.head)),
    set: (head) => ({ head: Number(head) }), shown: (state) => ["who", "rank", "lens"].includes(state.view) });
  kit.slider({ name: "query", label: "query", values: () => range(0, T), value: (state) => state.query,
    set: (query) => ({ query }), shown: single });
}

export default { render: (context) => mount(context, { name: "attention-desk", title: "The attention desk", scene, probe,
  pick, controls, hint: "Point at a cell or move with the arrow keys; click, Enter or Space shows or hides a pair." }) };
