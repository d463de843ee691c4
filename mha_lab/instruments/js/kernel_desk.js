// The kernel desk: see kernel_desk.py, which makes the same scenes.

import { worded } from "./drawing.js";
import { mount } from "./kit.js";
import { bars, fixed, grid, sceneOf, table, words } from "./paint.js";

const runOf = (data, state) => data.runs[`${state.kernel} ${state.variant} ${state.block}`];
const ownersOf = (run) => new Map(run.programs.flatMap(([, , stores], i) => stores.map((index) => [index, i])));
const times = (list, index) => list.reduce((count, one) => count + Number(one === index), 0);

export function scene(data, state) {
  const run = runOf(data, state), [name, loads, stores] = run.programs[state.program], { says } = data, { ridge } = state;
  const intensity = run.operations / run.moved, least = run.operations / run.least;
  const sizes = run.programs.map(([label, a, b]) => [label, a.length * run.cell[0], b.length * run.cell[1]]);
  const lines = [worded(says.traffic, { programs: run.programs.length, moved: run.moved, least: run.least,
    ratio: fixed(run.moved / run.least) }),
  worded(says.roof, { intensity: fixed(intensity), ridge, bound: intensity < ridge ? "memory" : "arithmetic" })];
  const [, loaded, stored] = sizes[state.program];
  const one = worded(says.program, { program: name, loads: loaded, stores: stored });
  const every = run.programs.flatMap(([, found]) => found), owners = ownersOf(run);
  const cellsOf = ([, rows, cols]) => rows.flatMap((_, r) => cols.map((_, c) => r * cols.length + c));
  const bar = (label, value, fill) => [label, Math.min(1, value / ridge), `${fixed(100 * Math.min(1, value / ridge), 0)} %`, fill];
  return sceneOf(lines.join(" "), [words("say", [...lines, one]),
    grid("in", ...run.in, cellsOf(run.in).map((i) => loads.includes(i) ? "t1" : every.includes(i) ? "w1" : "none"),
      cellsOf(run.in).map((i) => String(times(every, i)))),
    grid("out", ...run.out, cellsOf(run.out).map((i) => owners.has(i) ? `t${owners.get(i) % 8}` : "none"),
      cellsOf(run.out).map((i) => stores.includes(i) ? "●" : String(owners.get(i) ?? ""))),
    bars("traffic", "numbers moved", [["the least", run.least, String(run.least), "w5"],
      ["this grid", run.moved, String(run.moved), "t1"]]),
    bars("roof", "share of the arithmetic that memory lets through",
      [bar("at the least", least, "w5"), bar("this grid", intensity, "t1")], 1),
    table("programs", "the grid", ["program", "loads", "stores"], sizes.map((row) => row.map(String)),
      { now: state.program })]);
}

export function probe(data, state, part, index) {
  const run = runOf(data, state), [title, rows, cols] = run[part], owner = ownersOf(run).get(index);
  const row = rows[Math.floor(index / cols.length)], col = cols[index % cols.length], place = `${row}, ${col}`;
  const loaders = run.programs.filter(([, loads]) => loads.includes(index)).map(([label]) => label);
  return { text: part === "in" ? worded(data.says.loaded, { place, title, programs: loaders.join(" ") || data.says.nobody })
    : worded(data.says.stored, { place, title, program: owner === undefined ? data.says.nobody : run.programs[owner][0] }),
  marks: {} };
}

export function settleKernel(data, state) {
  const variant = data.variants[state.kernel].includes(state.variant) ? state.variant : data.variants[state.kernel][0];
  const count = runOf(data, { ...state, variant }).programs.length;
  return { ...state, variant, program: Math.min(state.program, count - 1) };
}

export default {
  render: (context) => mount(context, {
    name: "kernel-desk", title: "The kernel desk", scene, settle: settleKernel, probe,
    hint: "Point at a cell: who loads it, who stores it? Enter or a click follows its program.",
    controls: (kit, data) => {
      kit.radios({ name: "kernel", label: "kernel", options: data.kernels, value: (state) => state.kernel,
        set: (kernel) => ({ kernel }) });
      kit.select({ name: "variant", label: "variant", value: (state) => state.variant, set: (variant) => ({ variant }),
        options: (state) => data.variants[state.kernel].map((variant) => [variant, variant]) });
      kit.slider({ name: "block", label: "block (tokens, rows or splits)", values: () => data.blocks,
        value: (state) => state.block, set: (block) => ({ block }) });
      kit.slider({ name: "program", label: "program", value: (state) => state.program, set: (program) => ({ program }),
        values: (state) => runOf(data, state).programs.map((_, i) => i) });
      kit.slider({ name: "ridge", label: "ridge, operations a number", values: () => data.ridges,
        value: (state) => state.ridge, set: (ridge) => ({ ridge }) });
    },
    pick: (data, state, part, index) => {
      const run = runOf(data, state);
      const program = part === "out" ? ownersOf(run).get(index) : run.programs.findIndex(([, loads]) => loads.includes(index));
      return program === undefined || program < 0 ? null : { program };
    },
  }),
};
