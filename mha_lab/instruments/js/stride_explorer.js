// The live stride explorer: what stride_explorer.py reads from torch, computed in the browser.

import { worded } from "./drawing.js";
import { addressesOf, firstLayout, placeOf, runChain } from "./chain.js";
import { mount } from "./kit.js";
import { prod, range, rowMajor } from "./layouts.js";
import { grid, sceneOf, table, words } from "./paint.js";

const joined = (numbers) => numbers.join(", ");

// ---- the first tensor and the chains ------------------------------------------------------------

const textsOf = (base) => base.split(",").map((text) => text.trim()).filter(Boolean);
const extentOf = (text, sizes) => prod(text.split("*").map((factor) => sizes[factor.trim()] ?? Number(factor)));

function begin(data, state) {
  if (data.own) return firstLayout(data.own);
  const shape = textsOf(state.base).map((text) => extentOf(text, state.sizes));
  return firstLayout({ shape, strides: rowMajor(shape), offset: 0, size: prod(shape), cells: null });
}

/** What both the picture and the cursor need; kept for the state that was asked about last. */
let last = { key: null, value: null };
function look(data, state) {
  const key = JSON.stringify([data.own, state.base, state.sizes, state.chain, state.versus]);
  if (last.key !== key) {
    const env = { says: data.says, names: data.ops, sizes: state.sizes, most: data.most, itemBytes: data.item_bytes };
    const first = begin(data, state), texts = textsOf(state.base);
    const names = data.names.length ? data.names : data.own ? [...data.letters].slice(0, first.shape.length)
      : texts.map((text) => /^[A-Za-z]$/.test(text) ? text.toLowerCase() : "c");
    const [layouts, refusal] = runChain(first, state.chain, env);
    const [others, wrongRefusal] = state.versus ? runChain(first, state.versus, env) : [null, ""];
    last = { key, value: { first, names, layouts, refusal, wrong: others && others.at(-1), wrongRefusal,
      base: addressesOf(first) } };
  }
  const seen = last.value, { layouts } = seen;
  return { ...seen, shown: layouts.at(state.step), now: (state.step + layouts.length) % layouts.length };
}

export function settleStrides(data, state) {
  const rank = begin(data, state).shape.length, colour = state.colour >= 0 && state.colour < rank ? state.colour
    : Math.max(0, rank - 2);
  const { layouts } = look(data, { ...state, step: -1 }), step = Math.max(-1, Math.min(state.step, layouts.length - 1));
  return { ...state, colour, step, walk: Math.min(Math.max(0, state.walk), prod(layouts.at(step).shape) - 1) };
}

function indexOf(flat, shape) {
  const found = Array(shape.length);
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found[axis] = flat % shape[axis];
    flat = Math.floor(flat / shape[axis]);
  }
  return found;
}

const axesOf = (rank) => [0, 1].map((odd) => range(0, rank).filter((axis) => (rank - axis) % 2 === odd));

/** The row-major number of the element that each cell of the drawn grid holds; -1 for no cell. */
function orderOf(shape) {
  if (shape.length < 2) {
    const count = prod(shape), width = Math.min(16, count);
    return [...range(0, count), ...Array((width - (count % width)) % width).fill(-1)];
  }
  const steps = rowMajor(shape);
  const numbers = (axes) => axes.reduce((found, axis) =>
    found.flatMap((number) => range(0, shape[axis]).map((i) => number + i * steps[axis])), [0]);
  const [down, across] = axesOf(shape.length).map(numbers);
  return down.flatMap((number) => across.map((more) => number + more));
}

// ---- the scene ----------------------------------------------------------------------------------

const axisIndex = (state, seen, number) => indexOf(number, seen.first.shape)[state.colour];
function fillOf(state, seen, number) {
  if (number < 0) return "none";
  return seen.first.shape.length ? `t${axisIndex(state, seen, number) % 8}` : "t0";
}
function labelOf(state, seen, number) {
  if (number < 0) return "";
  if (state.label === "value" || !seen.first.shape.length) return String(seen.base[number]);
  return `${seen.names[state.colour]}${axisIndex(state, seen, number)}`;
}
const holdsOf = (data, seen, number) => number < 0 ? data.says.nothing
  : indexOf(number, seen.first.shape).map((i, axis) => `${seen.names[axis]}${i}`).join(" ");
const originsOf = (layout) => {
  const place = placeOf(layout);
  return addressesOf(layout).map((address) => layout.origin[place(address)]);
};

function logical(data, state, seen, id, layout, verdict, notes = []) {
  const { shape } = layout, held = originsOf(layout), order = orderOf(shape), { says, letters } = data;
  const fills = order.map((flat) => flat < 0 ? "void" : fillOf(state, seen, held[flat]));
  const labels = order.map((flat) => flat < 0 ? "" : labelOf(state, seen, held[flat]));
  let [rows, cols, row_block, col_block] = [[], [], 0, 0], title = worded(says.logical, { shape: joined(shape) });
  if (shape.length < 2) {
    const width = Math.min(16, held.length);
    rows = range(0, order.length / width).map((i) => String(i * width));
    cols = range(0, width).map((i) => `+${i}`);
  } else {
    const [down, across] = axesOf(shape.length);
    [rows, cols] = [down, across].map((axes) => {
      const sizes = axes.map((axis) => shape[axis]);
      return range(0, prod(sizes)).map((i) => indexOf(i, sizes).join(","));
    });
    [row_block, col_block] = [down.length > 1 ? shape.at(-2) : 0, across.length > 1 ? shape.at(-1) : 0];
    const named = (axes) => axes.map((axis) => letters[axis]).join("");
    title = worded(says.logical_axes, { shape: joined(shape), rows: named(down), cols: named(across) });
  }
  return grid(id, title, rows, cols, fills, labels, { verdict, row_block, col_block, notes });
}

function storage(data, state, seen, id, layout) {
  const read = new Set(addressesOf(layout)), { strides } = layout.made ? layout : seen.first, { says } = data;
  const steps = strides.filter((stride) => stride > 1 && stride <= data.widest), count = layout.cells.length;
  const width = Math.min(steps.length ? Math.max(...steps) : 16, count), pad = (width - (count % width)) % width;
  const fills = layout.cells.map((cell, i) => read.has(cell) ? fillOf(state, seen, layout.origin[i]) : "none");
  const labels = layout.origin.map((number) => labelOf(state, seen, number));
  const notes = count > read.size ? [worded(says.unread_cells, { count: count - read.size })] : [];
  return grid(id, worded(layout.made ? says.storage_copied : says.storage, { size: layout.size }),
    range(0, Math.ceil(count / width)).map((i) => `@${layout.cells[i * width]}`), range(0, width).map((i) => `+${i}`),
    [...fills, ...Array(pad).fill("void")], [...labels, ...Array(pad).fill("")], { notes });
}

function compare(data, right, wrong) {
  if (joined(right.shape) !== joined(wrong.shape)) {
    return worded(data.says.other_shape, { right: joined(right.shape), wrong: joined(wrong.shape) });
  }
  const [ours, theirs] = [right, wrong].map(originsOf), differ = ours.filter((number, i) => number !== theirs[i]).length;
  return worded(differ ? data.says.differ : data.says.agree, { differ, total: ours.length });
}

export function scene(data, state) {
  const { says, letters } = data, seen = look(data, state), { layouts, shown, wrong, refusal, wrongRefusal } = seen;
  const stored = (layout, first) => layout.copied ? worded(says.copied, { bytes: layout.copied }) : first ? "" : says.same;
  const rows = layouts.map((layout, i) => [String(i), layout.op || says.first, `[${joined(layout.shape)}]`,
    `(${joined(layout.strides)})`, String(layout.offset), layout.contiguous ? "yes" : "no", stored(layout, i === 0)]);
  const formula = [String(shown.offset), ...shown.strides.map((stride, i) => `${letters[i]}·${stride}`)].join(" + ");
  const parts = [table("steps", says.steps, says.columns, rows, { now: seen.now }),
    words("formula", [worded(says.formula, { formula }), ...data.notes])];
  if (refusal) parts.push(words("refusal", [refusal], true));
  const notes = wrong && !wrongRefusal && !refusal ? [compare(data, layouts.at(-1), wrong)] : [];
  parts.push(logical(data, state, seen, "logical", shown, wrong ? "right" : ""));
  if (wrong) {
    parts.push(logical(data, state, seen, "wrong", wrong, "wrong",
      [state.versus, ...(wrongRefusal ? [wrongRefusal] : notes)]));
  }
  parts.push(storage(data, state, seen, "storage", shown));
  if (wrong && wrong.made !== shown.made) parts.push(storage(data, state, seen, "wrong_storage", wrong));
  const said = worded(says.alt, { op: shown.op || says.first, shape: joined(shown.shape), strides: joined(shown.strides),
    offset: shown.offset, storage: stored(shown, false) });
  return sceneOf([said, refusal, ...notes].filter(Boolean).join(" "), parts);
}

export function probe(data, state, part, index) {
  const { says } = data, seen = look(data, state), other = part.startsWith("wrong");
  const layout = other ? seen.wrong : seen.shown, place = placeOf(layout), addresses = addressesOf(layout);
  const cells = other ? "wrong" : "logical", order = orderOf(layout.shape);
  const line = other && layout.made !== seen.shown.made ? "wrong_storage" : "storage";
  if (part.endsWith("storage")) {
    if (index >= layout.cells.length) return null;
    const readers = addresses.flatMap((address, flat) => place(address) === index ? [flat] : []);
    const drawn = new Map(order.map((flat, i) => [flat, i]));
    const text = worded(says[readers.length ? "read_by" : "unread"], { address: layout.cells[index],
      holds: holdsOf(data, seen, layout.origin[index]), count: readers.length,
      readers: readers.slice(0, 6).map((flat) => `[${joined(indexOf(flat, layout.shape))}]`).join(" ")
        + (readers.length > 6 ? " …" : "") });
    return { text, marks: { [cells]: readers.map((flat) => drawn.get(flat)) }, tip: `${layout.cells[index]}` };
  }
  const flat = order[index] ?? -1;
  if (flat < 0) return null;
  const at = indexOf(flat, layout.shape), address = addresses[flat];
  const sum = [String(layout.offset), ...at.map((i, axis) => `${i}·${layout.strides[axis]}`)].join(" + ");
  let text = worded(says.cell, { index: joined(at), sum, address, holds: holdsOf(data, seen, layout.origin[place(address)]) });
  if (flat + 1 < addresses.length) {
    const jump = addresses[flat + 1] - address;
    text += ` ${worded(says.jump, { jump: jump >= 0 ? `+${jump}` : `−${-jump}` })}`;
  }
  return { text, marks: { [line]: [place(address)] }, tip: `${address}` };
}

// ---- controls -----------------------------------------------------------------------------------

/** Operations that the last tensor of the chain accepts, for those who rather choose than type. */
function offers(data, state) {
  const { layouts } = look(data, state), { shape } = layouts.at(-1), rank = shape.length, found = [];
  range(0, rank).forEach((a) => range(a + 1, rank).forEach((b) => found.push(`transpose(${a}, ${b})`)));
  if (rank > 2) found.push(`permute(${joined(range(0, rank).reverse())})`);
  found.push("contiguous()", "unsqueeze(0)");
  if (rank > 1) found.push(`reshape(${prod(shape)})`);
  range(0, rank).forEach((axis) => {
    const skip = axis ? `${":, ".repeat(axis)}` : "";
    if (shape[axis] > 1) found.push(`[${skip}1:]`);
    if (shape[axis] > 2) found.push(`[${skip}::2]`);
    if (shape[axis] === 1 && 3 * prod(shape) <= data.most) {
      found.push(`expand(${joined(shape.map((size, i) => i === axis ? 3 : size))})`);
    }
  });
  return found;
}

const append = (chain, op) => chain.trim() + (op.startsWith("[") || !chain.trim() ? op : `.${op}`);

function withoutLast(data, state) {
  const ops = look(data, state).layouts.slice(1).map((layout) => layout.op);
  if (look(data, state).refusal) return ops.reduce(append, "");
  return ops.length ? ops.slice(0, -1).reduce(append, "") : null;
}

function controls(kit, data) {
  const examples = Object.fromEntries(data.examples.map((example) => [example.id, example]));
  if (data.examples.length) {
    kit.select({ name: "example", label: "Example",
      options: () => [["", "your own"], ...data.examples.map((example) => [example.id, example.title])],
      value: (state) => data.examples.find((one) => one.base === state.base && one.chain === state.chain
        && one.versus === state.versus)?.id ?? "",
      set: (id) => id && { base: examples[id].base, sizes: examples[id].sizes, chain: examples[id].chain,
        versus: examples[id].versus, step: -1, colour: -1, walk: 0 } });
  }
  for (const letter of "BTSHGRDACEFIJKLMNOPQUVWXYZ") {
    const fits = (state, size) => prod(textsOf(state.base)
      .map((text) => extentOf(text, { ...state.sizes, [letter]: size }))) <= data.most;
    kit.slider({ name: letter, label: letter, shown: (state) => letter in state.sizes,
      values: (state) => [...new Set([...range(1, data.most_size + 1), 16, 32, 64, state.sizes[letter]])]
        .sort((a, b) => a - b).filter((size) => size === state.sizes[letter] || fits(state, size)),
      value: (state) => state.sizes[letter], set: (size) => (state) => ({ sizes: { ...state.sizes, [letter]: size } }) });
  }
  kit.text({ name: "chain", label: "operations", wide: true, value: (state) => state.chain,
    set: (chain) => ({ chain, step: -1 }) });
  kit.select({ name: "add", label: "add", options: (state) => [["", "an operation …"],
    ...offers(data, state).map((op) => [op, op])], value: () => "",
    set: (op) => op && ((state) => ({ chain: append(state.chain, op), step: -1 })) });
  kit.buttons({ name: "undo", label: "chain", items: [["remove the last", (state) => {
    const chain = withoutLast(data, state);
    return chain === null ? null : { chain, step: -1 };
  }], ["forget the wrong one", (state) => state.versus ? { versus: "" } : null]] });
  kit.stepper({ name: "step", label: "Steps", options: (state) => {
    const { layouts } = look(data, state);
    return layouts.map((layout, i) => [i === layouts.length - 1 ? -1 : i, layout.op || data.says.first]);
  }, value: (state) => state.step, set: (step) => ({ step, walk: 0 }) });
  kit.select({ name: "colour", label: "colour by", options: (state) =>
    look(data, state).names.map((name, axis) => [String(axis), `axis ${axis} (${name})`]),
    value: (state) => String(state.colour), set: (axis) => ({ colour: Number(axis) }) });
  kit.radios({ name: "label", label: "Cells say", options: { row: "their row", value: "their first address" },
    value: (state) => state.label, set: (label) => ({ label }) });
  kit.slider({ name: "walk", label: "walk to element", values: (state) => range(0, prod(look(data, state).shown.shape)),
    value: (state) => state.walk, set: (walk) => ({ walk }) });
}

export default { render: (context) => mount(context, { name: "stride-explorer", title: "The stride explorer", scene, settle: settleStrides,
  probe, controls, home: (data, state) => ({ id: "logical", index: orderOf(look(data, state).shown.shape).indexOf(state.walk) }),
}) };
