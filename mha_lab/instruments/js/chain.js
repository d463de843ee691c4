// A chain of tensor operations as text, run on layouts: what chain.py reads from real torch tensors.

import { worded } from "./drawing.js";
import { isContiguous, prod, range, rowMajor, viewStrides } from "./layouts.js";

const CALL = /\.?\s*(\w+)\(((?:[^()]|\([^()]*\))*)\)|\[([^\]]*)\]/y;
const FACTOR = /^(-?\d+|[A-Z])$/;

class Refused extends Error {}
const refuse = (says, name, values = {}) => {
  throw new Refused(worded(says[name], values));
};
const listed = (numbers) => numbers.join(", ");

function splitChain(chain, names) {
  const found = [];
  let at = 0;
  chain = chain.trim();
  while (at < chain.length) {
    CALL.lastIndex = at;
    const match = CALL.exec(chain);
    if (!match || (match[1] && !names.includes(match[1]))) break;
    found.push(match[0].replace(/^[. ]+/, ""));
    at = CALL.lastIndex;
    while (chain[at] === " ") at++;
  }
  return [found, chain.slice(at)];
}

function numberOf(text, env) {
  return text.split("*").reduce((product, part) => {
    const factor = part.trim(), letter = /^[A-Z]$/.test(factor);
    if (!FACTOR.test(factor)) refuse(env.says, "read", { text: text.trim(), names: listed(env.names) });
    if (letter && !(factor in env.sizes)) refuse(env.says, "letter", { text: factor });
    return product * (letter ? env.sizes[factor] : Number(factor));
  }, 1);
}

const numbersOf = (text, env) =>
  text.replace(/[()[\]]/g, "").split(",").filter((part) => part.trim()).map((part) => numberOf(part, env));

/** The storage address of every element, in row-major order. */
export function addressesOf({ shape, strides, offset }) {
  let found = [offset];
  shape.forEach((size, axis) => {
    const next = [];
    for (const address of found) for (let i = 0; i < size; i++) next.push(address + i * strides[axis]);
    found = next;
  });
  return found;
}

/** The layout that a chain starts from: `own` is what torch said about a tensor. */
export function firstLayout(own) {
  const cells = own.cells ?? range(0, own.size), origin = Array(cells.length).fill(-1);
  const place = placeOf({ cells, size: own.size });
  addressesOf(own).forEach((address, index) => {
    const at = place(address);
    if (origin[at] === -1) origin[at] = index;
  });
  return { op: "", shape: own.shape, strides: own.strides, offset: own.offset,
    contiguous: isContiguous(own.shape, own.strides), copied: 0, size: own.size, cells, origin, made: "" };
}

/** From an address to its place among the storage cells that are known. */
export function placeOf({ cells, size }) {
  if (cells.length === size) return (address) => address;
  const places = new Map(cells.map((cell, index) => [cell, index]));
  return (address) => places.get(address);
}

/** Every layout of a chain, the start included, and the reason why it stopped early ("" if it did not). */
export function runChain(start, chain, env) {
  const [ops, rest] = splitChain(chain, env.names), layouts = [start];
  try {
    for (const op of ops) {
      const layout = stepOf(layouts.at(-1), op, env);
      const made = layout.copied ? [...layouts.slice(1).map((done) => done.op), op].join(" ") : layout.made;
      layouts.push({ ...layout, made });
    }
    if (rest) refuse(env.says, "read", { text: rest, names: listed(env.names) });
  } catch (refused) {
    if (!(refused instanceof Refused)) throw refused;
    return [layouts, refused.message];
  }
  return [layouts, ""];
}

function stepOf(before, op, env) {
  const { shape, strides, offset } = planOf(before, op, env), count = prod(shape);
  if (count > env.most) refuse(env.says, "cells", { count, most: env.most });
  if (count === 0) refuse(env.says, "slice", { items: op.slice(1, -1), shape: listed(before.shape) });
  if (strides) return { ...before, op, shape, strides, offset, contiguous: isContiguous(shape, strides), copied: 0 };
  const place = placeOf(before);
  return { op, shape, strides: rowMajor(shape), offset: 0, contiguous: true, copied: count * env.itemBytes, size: count,
    cells: range(0, count), origin: addressesOf(before).map((address) => before.origin[place(address)]) };
}

/** Shape, strides and offset of the result; without strides it is a copy. */
function planOf(before, op, env) {
  if (op.startsWith("[")) return planSlice(before, op, env);
  const { shape, strides, offset } = before, rank = shape.length, count = prod(shape), { says } = env;
  const name = op.slice(0, op.indexOf("(")), given = op.slice(op.indexOf("(") + 1, -1);
  if (name === "as_strided") return planStrided(before, given, env);
  const args = numbersOf(given, env);
  const axisOf = (axis, rooms = rank) => {
    if (!(axis >= -rooms && axis < rooms)) refuse(says, "axis", { axis, rank: rooms });
    return axis < 0 ? axis + rooms : axis;
  };
  const arity = (least, most) => {
    if (args.length < least || args.length > most) refuse(says, "arguments", { op: name });
  };
  const fold = (sizes) => {
    const made = rank ? viewStrides(shape, strides, sizes) : sizes.map(() => 1);
    return { shape: sizes, strides: made, offset };
  };
  if (name === "view" || name === "reshape") {
    if (args.filter((size) => size === -1).length === 1) {
      const known = -prod(args);
      if (known > 0 && count % known === 0) args[args.indexOf(-1)] = count / known;
    }
    if (args.some((size) => size < 1)) refuse(says, "positive");
    if (prod(args) !== count) refuse(says, "count", { shape: listed(shape), have: count, want: prod(args) });
    const made = fold(args);
    if (name === "view" && !made.strides) {
      refuse(says, "merge", { strides: listed(strides), bytes: count * env.itemBytes });
    }
    return made;
  }
  if (name === "expand") {
    const lead = args.length - rank;
    const filled = args.map((size, i) => size !== -1 || i < lead ? size : shape[i - lead]);
    if (lead < 0 || filled.some((size) => size < 1)
      || shape.some((old, i) => old !== 1 && old !== filled[lead + i])) {
      refuse(says, "expand", { shape: listed(shape), want: listed(args) });
    }
    const steps = [];
    for (let i = filled.length - 1; i >= 0; i--) {
      const [old, own] = i < lead ? [1, (filled[i + 1] ?? 1) * (steps[i + 1] ?? 1)] : [shape[i - lead], strides[i - lead]];
      steps[i] = old === filled[i] ? own : 0;
    }
    return { shape: filled, strides: steps, offset };
  }
  if (name === "contiguous") {
    arity(0, 0);
    return before.contiguous ? before : { shape, strides: null };
  }
  if (name === "permute") {
    const axes = args.map((axis) => axis < 0 ? axis + rank : axis);
    if (listed([...axes].sort((a, b) => a - b)) !== listed(range(0, rank))) refuse(says, "permute", { rank });
    return { shape: axes.map((axis) => shape[axis]), strides: axes.map((axis) => strides[axis]), offset };
  }
  if (name === "transpose") {
    arity(2, 2);
    const [a, b] = args.map((axis) => axisOf(axis)), swap = (list) => {
      const next = [...list];
      [next[a], next[b]] = [list[b], list[a]];
      return next;
    };
    return { shape: swap(shape), strides: swap(strides), offset };
  }
  if (name === "unsqueeze") {
    arity(1, 1);
    const axis = axisOf(args[0], rank + 1), step = axis < rank ? shape[axis] * strides[axis] : 1;
    return { shape: shape.toSpliced(axis, 0, 1), strides: strides.toSpliced(axis, 0, step), offset };
  }
  arity(0, 2);
  const [from, to] = [args[0] ?? 0, args[1] ?? -1].map((axis, i) => args.length > i || rank ? axisOf(axis) : 0);
  if (from > to && rank) refuse(says, "arguments", { op: name });
  if (!rank) return { shape: [1], strides: [1], offset };
  if (from === to) return before;
  return fold([...shape.slice(0, from), prod(shape.slice(from, to + 1)), ...shape.slice(to + 1)]);
}

function planStrided(before, given, env) {
  const { says } = env, groups = [...given.matchAll(/\(([^()]*)\)/g)].map((match) => match[1]);
  const rest = numbersOf(given.replace(/\([^()]*\)/g, ""), env);
  if (groups.length !== 2 || rest.length > 1) refuse(says, "arguments", { op: "as_strided" });
  const [shape, strides] = groups.map((group) => numbersOf(group, env)), offset = rest[0] ?? before.offset;
  if (shape.some((size) => size < 1)) refuse(says, "positive");
  if (shape.length !== strides.length || strides.some((stride) => stride < 0) || offset < 0) refuse(says, "strided");
  if (before.cells.length !== before.size) refuse(says, "window");
  const last = shape.reduce((sum, size, i) => sum + (size - 1) * strides[i], offset);
  if (last >= before.size) refuse(says, "outside", { address: last, size: before.size });
  return { shape, strides, offset };
}

function planSlice(before, op, env) {
  const reason = { items: op.slice(1, -1), shape: listed(before.shape) }, rank = before.shape.length;
  const items = op.slice(1, -1).split(",").map((item) => item.trim()).filter(Boolean);
  const dots = items.filter((item) => item === "...").length;
  if (dots > 1 || items.length - dots > rank) refuse(env.says, "slice", reason);
  if (!dots) items.push("...");
  items.splice(items.indexOf("..."), 1, ...Array(rank - items.length + 1).fill(":"));
  const shape = [], strides = [];
  let { offset } = before;
  items.forEach((item, axis) => {
    const size = before.shape[axis], stride = before.strides[axis];
    const bounds = item.split(":").map((part) => part.trim() ? numberOf(part, env) : null);
    if (bounds.length === 1) {
      const [index] = bounds;
      if (index === null || !(index >= -size && index < size)) refuse(env.says, "slice", reason);
      offset += (index < 0 ? index + size : index) * stride;
      return;
    }
    const step = bounds[2] ?? 1;
    if (bounds.length > 3 || step < 1) refuse(env.says, "slice", reason);
    const clip = (bound) => Math.min(size, Math.max(0, bound < 0 ? bound + size : bound));
    const from = clip(bounds[0] ?? 0), to = clip(bounds[1] ?? size);
    shape.push(Math.max(0, Math.ceil((to - from) / step)));
    strides.push(stride * step);
    offset += from * stride;
  });
  return { shape, strides, offset };
}
