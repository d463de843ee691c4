// The lifecycle stepper: see lifecycle.py, which makes the same scenes.

import { worded } from "./drawing.js";
import { mount } from "./kit.js";
import { grid, sceneOf, table, words } from "./paint.js";

const listed = (numbers) => `[${numbers.join(",")}]`;

function refusalOf(data, now, move, call, why) {
  const [legal, , needs] = data.calls[call], { says } = data;
  if (!legal.includes(now.state)) return worded(says.is, { why: needs, state: now.state });
  if (move === "consume_training" && now.made !== now.version) {
    return worded(says.version, { made: now.made, now: now.version });
  }
  if (move === "rollback_target" && !now.target) return says.short;
  return why;
}

function carryOut(data, now, move, call) {
  now.state = data.calls[call][1] || now.state;
  if (call === "project" || call === "project_training") now.made = now.version;
  if (call === "share_beams" || call === "expand_beams") now.rows = data.map.map((_, i) => i);
  if (move === "reorder") now.rows = data.order.map((row) => now.rows[row]);
  if (move === "read") now.target += 1;
  if (move === "rollback_target") now.target -= 1;
  return now.state;
}

export function after(data, history, field) {
  const now = { state: "EMPTY", version: 7, made: 0, target: 0, rows: data.map.map((_, i) => i), log: [] };
  for (const move of history) {
    const [label, call, why] = data.moves[move].map((part) => part.replaceAll("{field}", field));
    let outcome;
    if (move === "optimizer_step") {
      now.version += 1;
      outcome = `weights are at version ${now.version}`;
    } else {
      const refusal = refusalOf(data, now, move, call, why);
      outcome = refusal ? worded(data.says.refused, { why: refusal }) : carryOut(data, now, move, call);
    }
    now.log.push([String(now.log.length + 1), label, outcome]);
  }
  return now;
}

export function scene(data, state) {
  const now = after(data, state.history, state.field), calls = Object.keys(data.calls), { says } = data;
  const cells = calls.flatMap((call) => Object.keys(data.states).map((name) => [name, data.calls[call][0].includes(name)]));
  const fills = cells.map(([name, legal]) => !legal ? "none" : name === now.state ? "good" : "w2");
  const cols = Object.entries(data.states).map(([name, label]) => name === now.state ? `▶${label}` : label);
  const lines = [worded(says.now, { state: now.state })], last = state.history.at(-1) ?? "";
  const refused = (entry) => entry[2].startsWith("refused");
  if (["reorder", "rollback_target"].includes(last) && !refused(now.log.at(-1))) lines.push(says.kept);
  if (["RELEASED", "INVALIDATED"].includes(now.state)) lines.push(says.gone);
  const beams = ["BEAM_SHARED", "BEAM_EXPANDED"].includes(now.state);
  const facts = [["target rows", String(now.target)], ["version of the weights", String(now.version)],
    ["version of the pair", now.made ? String(now.made) : "–"],
    ["beam row is old row", beams ? listed(now.rows) : "–"],
    ["beam row reads source", beams ? listed(now.rows.map((row) => data.map[row])) : "–"],
    ["copies of the source pair",
      { BEAM_SHARED: "1 each, read by index", BEAM_EXPANDED: "3 each" }[now.state] ?? "1 each"]];
  const log = now.log.slice(-8), bad = log.flatMap((entry, i) => refused(entry) ? [i] : []);
  return sceneOf(lines.join(" "), [words("say", lines),
    table("log", "what was called", ["step", "call", "outcome"], log.length ? log : [["", "nothing yet", ""]], { bad }),
    table("facts", "the pair and its target", ["fact", "value"], facts),
    grid("machine", "calls, and the states in which they are legal", calls, cols, fills,
      cells.map(([, legal]) => legal ? "yes" : ""))]);
}

export function probe(data, state, part, index) {
  const states = Object.keys(data.states), row = states[index % states.length];
  const call = Object.keys(data.calls)[Math.floor(index / states.length)], [legal, next, needs] = data.calls[call];
  return { text: legal.includes(row) ? worded(data.says.legal, { call, state: row, next: next || row })
    : worded(data.says.illegal, { call, state: row, why: needs }), marks: {} };
}

const movesOf = (data, names) => names.map((name) => [data.moves[name][0].replace("({field})", "").replace("{field}", "field"),
  (state) => ({ history: [...state.history, name] })]);

export default {
  render: (context) => mount(context, {
    name: "lifecycle", title: "The life of a cross-attention pair", scene, probe,
    hint: "Press a call. What is refused says why, and changes nothing.",
    controls: (kit, data) => {
      const group = (name, label, names) => kit.buttons({ name, label, items: movesOf(data, names) });
      group("inference", "inference lane", ["bind", "project", "attach", "attach_other", "read"]);
      group("beams", "beams", ["share_beams", "expand_beams", "reorder", "reorder_far"]);
      group("target", "target and end", ["rollback_target", "rollback_far", "release_read", "release"]);
      group("training", "training lane",
        ["project_training", "optimizer_step", "consume_training", "finish_backward"]);
      kit.select({ name: "field", label: "identity field", options: () => data.fields.map((field) => [field, field]),
        value: (state) => state.field, set: (field) => ({ field }) });
      group("drift", "drift", ["drift"]);
      kit.buttons({ name: "again", label: "history", items: [
        ["step back", (state) => state.history.length ? { history: state.history.slice(0, -1) } : null],
        ["start again", (state) => state.history.length ? { history: [] } : null]] });
    },
  }),
};
