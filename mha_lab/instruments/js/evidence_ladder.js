// The evidence ladder: see evidence_ladder.py, which makes the same scenes.

import { worded } from "./drawing.js";
import { mount } from "./kit.js";
import { grid, sceneOf, table, words } from "./paint.js";


function sentencesOf(data, kind, claim) {
  const [changes, carries, open] = data.rungs[kind], { says } = data;
  const lines = [worded(carries === claim ? says.yes : says.no,
    { kind, changes, claim, open, carries: carries || says.nothing })];
  if (!Object.values(data.rungs).some((rung) => rung[1] === claim)) lines.push(worded(says.alone, { claim }));
  return lines;
}

export function scene(data, state) {
  const { kind, claim } = state, kinds = Object.keys(data.rungs), lines = sentencesOf(data, kind, claim);
  const cells = data.claims.flatMap((about) => kinds.map((name) => [name, about]));
  const carried = ([name, about]) => data.rungs[name][1] === about;
  const chosen = ([name, about]) => name === kind && about === claim;
  return sceneOf(lines.join(" "), [words("say", lines),
    grid("ladder", "claims, and the experiments that carry them",
      data.claims.map((about) => about === claim ? `▶ ${about}` : about),
      kinds.map((name) => name === kind ? `▶${name}` : name),
      cells.map((cell) => carried(cell) ? "good" : chosen(cell) ? "t1" : "none"),
      cells.map((cell) => carried(cell) ? "yes" : chosen(cell) ? "no" : "")),
    table("rungs", "what each changes, and leaves open", ["experiment", "changes", "leaves open"],
      kinds.map((row) => [row, data.rungs[row][0], data.rungs[row][2]]), { now: kinds.indexOf(kind) })]);
}

function pairAt(data, index) {
  const kinds = Object.keys(data.rungs);
  return { kind: kinds[index % kinds.length], claim: data.claims[Math.floor(index / kinds.length)] };
}

export function probe(data, state, part, index) {
  const { kind, claim } = pairAt(data, index);
  return { text: sentencesOf(data, kind, claim).join(" "), marks: {} };
}

export default {
  render: (context) => mount(context, {
    name: "evidence-ladder", title: "The evidence ladder", scene, probe,
    hint: "Choose an experiment and a claim, here or in the grid.",
    controls: (kit, data) => {
      kit.select({ name: "kind", label: "experiment", options: () => Object.keys(data.rungs).map((kind) => [kind, kind]),
        value: (state) => state.kind, set: (kind) => ({ kind }) });
      kit.select({ name: "claim", label: "claim", options: () => data.claims.map((claim) => [claim, claim]),
        value: (state) => state.claim, set: (claim) => ({ claim }) });
    },
    pick: (data, state, part, index) => pairAt(data, index),
  }),
};
