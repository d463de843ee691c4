// Adjoint flow: see adjoint_flow.py, which makes the same scenes.

import { worded } from "./drawing.js";
import { mount } from "./kit.js";
import { range } from "./layouts.js";
import { fixed, grid, sceneOf, signed, table, words } from "./paint.js";

const flowRows = (letter, count) => range(0, count).map((i) => `${letter}${i}`);
const carries = (value) => Math.abs(value) > 1e-6;

function gradientGrid(data, id, title, values, call, largest, verdict = "") {
  const letter = id === "q" || call === "self" ? "t" : "s", { M } = data.sizes;
  return grid(id, title, flowRows(letter, values.length / M), flowRows("c", M), values.map((v) => signed(v, largest)),
    values.map((v) => carries(v) ? fixed(v) : "0"), { verdict });
}

function flowTotal(call, grads, drop) {
  const ends = call === "self" ? ["q", "k", "v"] : ["k", "v"];
  const kept = drop === "last" ? [ends.at(-1)] : ends.filter((role) => role !== drop);
  return grads[kept[0]].map((_, i) => kept.reduce((sum, role) => sum + grads[role][i], 0));
}

function reachedRows(data, values) {
  const { M } = data.sizes, rows = [];
  for (let i = 0; i < values.length / M; i++) if (values.slice(i * M, (i + 1) * M).some(carries)) rows.push(i);
  return rows.join(", ") || data.says.nothing;
}

export function scene(data, state) {
  const { call, cell, drop } = state, { T, M } = data.sizes, { says } = data;
  const flow = data.flows[`${call} ${state.mask}`], roles = Object.keys(data.paths);
  const grads = Object.fromEntries(roles.map((role) => [role, flow.paths[role][cell]]));
  let largest = Math.max(...roles.flatMap((role) => grads[role].map(Math.abs)));
  const out = `output[${Math.floor(cell / M)},${cell % M}]`, cells = range(0, T * M);
  const parts = [grid("output", `output: ${out}`, flowRows("t", T), flowRows("c", M),
    cells.map((i) => i === cell ? "t1" : "none"), cells.map((i) => i === cell ? "1" : ""))];
  for (const role of roles) parts.push(gradientGrid(data, role, data.paths[role], grads[role], call, largest));
  const whole = flowTotal(call, grads, ""), wrong = flowTotal(call, grads, drop);
  const what = call === "self" ? "x: the sum of three paths" : "source: key path + value path";
  largest = Math.max(largest, ...whole.map(Math.abs));
  parts.push(gradientGrid(data, "sum", what, whole, call, largest, drop ? "right" : ""));
  const reached = Object.fromEntries(roles.map((role) => [role, reachedRows(data, grads[role])]));
  const lines = [worded(says[call], { out, ...reached })];
  if (drop) {
    parts.push(gradientGrid(data, "wrong", `forgotten: ${data.drops[drop]}`, wrong, call, largest, "wrong"));
    const off = whole.map((value, i) => Math.abs(value - wrong[i])), count = off.filter((o) => o > 1e-6).length;
    lines.push(count ? worded(says.wrong, { off: fixed(Math.max(...off)), cells: count, all: off.length })
      : says["still right"]);
  }
  parts.push(table("way", "the way back: shapes, and how much arrives", ["tensor", "shape", "sum of |gradient|"],
    flow.nodes.map((node, i) => [...node, fixed(flow.sizes[cell][i])])));
  parts.push(words("say", lines));
  return sceneOf(lines.join(" "), parts);
}

export function probe(data, state, part, index) {
  const { M } = data.sizes, flow = data.flows[`${state.call} ${state.mask}`];
  const grads = Object.fromEntries(Object.keys(data.paths).map((role) => [role, flow.paths[role][state.cell]]));
  const values = part === "output" ? null : grads[part] ?? flowTotal(state.call, grads, part === "wrong" ? state.drop : "");
  const row = Math.floor(index / M), channel = index % M;
  const title = data.paths[part] ?? part, value = values ? fixed(values[index], 4) : index === state.cell ? "1" : "press Enter";
  const ends = state.call === "self" ? ["q", "k", "v", "sum", "wrong"] : ["k", "v", "sum", "wrong"];
  const marks = ends.includes(part) ? Object.fromEntries(ends.map((id) => [id, [index]])) : {};
  return { text: worded(data.says.probe, { part: title, row, channel, value }), marks };
}

export default {
  render: (context) => mount(context, {
    name: "adjoint-flow", title: "Adjoint flow", scene, probe,
    hint: "Choose a number of the output with a click, or with the arrow keys and Enter.",
    controls: (kit, data) => {
      kit.radios({ name: "call", label: "call", options: data.calls, value: (state) => state.call,
        set: (call) => ({ call }) });
      kit.radios({ name: "mask", label: "mask", options: data.masks, value: (state) => state.mask,
        set: (mask) => ({ mask }) });
      kit.radios({ name: "drop", label: "a backward pass that forgets", options: data.drops,
        value: (state) => state.drop, set: (drop) => ({ drop }) });
    },
    pick: (data, state, part, index) => part === "output" ? { cell: index } : null,
  }),
};
