// Sizes, shapes, strides and the ledger of the shape machine: what torch would say, computed in the browser.
// The torch-backed model emits the cases that these functions are tested against.

export const prod = (list) => list.reduce((product, size) => product * size, 1);
export const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
export const unique = (list) => [...new Set(list)].sort((a, b) => a - b);
export const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");

// ---- sizes ----------------------------------------------------------------------------------

export const divisors = (number) => range(1, number + 1).filter((count) => number % count === 0);

/** The nearest legal state: H divides M, the head exists. */
export function settle(state) {
  const heads = Math.max(...divisors(state.d_model).filter((count) => count <= state.num_heads));
  return { ...state, num_heads: heads, head: Math.min(state.head, heads - 1) };
}

export function sizesOf(state) {
  const D = state.d_model / state.num_heads;
  return { B: state.batch, T: state.q_len, S: state.cross ? state.k_len : state.q_len, M: state.d_model,
    H: state.num_heads, D, D_v: state.d_v ?? D };
}

export const sizeOf = (axis, sizes) => prod(axis.split("·").map((letter) => sizes[letter]));

/** The values that a control can take in this state; nothing else can be set. */
export function choices(name, state, spec) {
  const sizes = sizesOf(state);
  const now = { batch: sizes.B, q_len: sizes.T, k_len: sizes.S, d_model: sizes.M, num_heads: sizes.H, d_v: sizes.D_v };
  const listed = name === "num_heads" ? divisors(sizes.M).filter((count) => count <= spec.max_heads)
    : spec.choices[name];
  const extra = name === "d_v" ? [sizes.D] : [];
  return unique([...listed, ...extra, now[name]]).filter((value) => value === now[name]
    || largest(sizesOf(settle({ ...state, [name]: value })), spec) <= spec.max_elements);
}

function largest(sizes, spec) {
  const tensors = spec.stages.flatMap((stage) => stage.tensors);
  return Math.max(sizes.M * sizes.M, sizes.M * sizes.H * sizes.D_v,
    ...tensors.map((tensor) => prod(tensor.axes.map((axis) => sizeOf(axis, sizes)))));
}

// ---- layouts --------------------------------------------------------------------------------

export function rowMajor(shape) {
  return shape.map((_, axis) => prod(shape.slice(axis + 1)));
}

export function isContiguous(shape, strides) {
  const expected = rowMajor(shape);
  return shape.every((size, axis) => size === 1 || strides[axis] === expected[axis]);
}

/** Strides of a view in a new shape, or null when the old axes do not tile into the new ones. */
export function viewStrides(shape, strides, newShape) {
  const result = Array(newShape.length);
  let axis = newShape.length - 1, base = strides.at(-1), block = 1, tiled = 1;
  for (let old = shape.length - 1; old >= 0; old--) {
    block *= shape[old];
    if (old && (shape[old - 1] === 1 || strides[old - 1] === block * base)) continue;
    for (; axis >= 0 && (tiled < block || newShape[axis] === 1); axis--) {
      result[axis] = tiled * base;
      tiled *= newShape[axis];
    }
    if (tiled !== block) return null;
    [base, block, tiled] = [strides[old - 1], 1, 1];
  }
  return axis === -1 ? result : null;
}

const fresh = (shape) => ({ shape, strides: rowMajor(shape), storage: {} });
const view = (tensor, shape) => ({ ...tensor, shape, strides: viewStrides(tensor.shape, tensor.strides, shape) });
const reshape = (tensor, shape) => viewStrides(tensor.shape, tensor.strides, shape) ? view(tensor, shape) : fresh(shape);
const swapped = ([a, b, c, d]) => [a, c, b, d];
const headsFirst = (t) => ({ ...t, shape: swapped(t.shape), strides: swapped(t.strides) });

/** Facts of every tensor by name, and the totals: what torch would say, computed here. */
export function ledger(sizes, spec) {
  const { B, T, S, M, H, D, D_v } = sizes;
  const query = fresh([B, T, M]), source = fresh([B, S, M]);
  const made = { query_in: query, key_in: source, value_in: source };
  for (const [letter, length, width] of [["q", T, D], ["k", S, D], ["v", S, D_v]]) {
    const packed = made[`${letter}_packed`] = fresh([B, length, H * width]);
    const split = made[`${letter}_split`] = view(packed, [B, length, H, width]);
    made[`${letter}_heads`] = headsFirst(split);
    made[`${letter}_wrong`] = view(packed, [B, H, length, width]);
  }
  made.scores = fresh([B, H, T, S]);
  made.probabilities = fresh([B, H, T, S]);
  made.head_output = fresh([B, H, T, D_v]);
  made.token_major = headsFirst(made.head_output);
  made.merged = reshape(made.token_major, [B, T, H * D_v]);
  made.merged_wrong = reshape(made.head_output, [B, T, H * D_v]);
  made.output = fresh([B, T, M]);
  const products = { q_packed: [B * T, M, H * D], k_packed: [B * S, M, H * D], v_packed: [B * S, M, H * D_v],
    output: [B * T, H * D_v, M] };
  const macs = { scores: B * H * T * S * D, head_output: B * H * T * S * D_v };
  const facts = {}, totals = { macs: 0, weights: 0, biases: 0 };
  for (const tensor of spec.stages.flatMap((stage) => [...stage.tensors, ...stage.wrong])) {
    const { shape, strides, storage } = made[tensor.name], product = products[tensor.name];
    const fact = facts[tensor.name] = {
      shape, strides, offset: 0, contiguous: isContiguous(shape, strides),
      shares_storage: tensor.parents.length ? tensor.parents.some((name) => made[name].storage === storage) : null,
      elements: prod(shape), bytes: 4 * prod(shape),
      macs: product ? prod(product) : macs[tensor.name] ?? 0,
      weights: product ? product[1] * product[2] : 0, biases: product ? product[2] : 0,
    };
    for (const key in totals) totals[key] += fact[key];
  }
  return { facts, totals };
}
