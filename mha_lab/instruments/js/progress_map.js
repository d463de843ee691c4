// The progress map: see progress_map.py, which makes the same scenes.

import { worded } from "./drawing.js";
import { mount } from "./kit.js";
import { range } from "./layouts.js";
import { fixed, grid, sceneOf, table, words } from "./paint.js";

const pointsOf = (value) => fixed(value, Number.isInteger(value) ? 0 : 1);
const mistakes = (says, count) => count === 1 ? says.one : worded(says.many, { count });

export function scene(data, state) {
  const { sessions, says } = data, look = (entry) => data.looks[entry.status] ?? data.other;
  const every = sessions.flatMap((session) => session.exercises);
  const total = (read) => every.reduce((sum, entry) => sum + read(entry), 0);
  const wide = Math.max(0, ...sessions.map((session) => session.exercises.length));
  const padded = (read, filler) => sessions.flatMap((session) => [...session.exercises.map(read),
    ...Array(wide - session.exercises.length).fill(filler)]);
  const rows = sessions.map(({ number, title }, i) => `${i === state.session ? "▶ " : ""}${number} ${title}`);
  const said = worded(says.sum, { got: pointsOf(total((entry) => entry.best)), all: pointsOf(total((entry) => entry.points)),
    passed: total((entry) => Number(entry.status === "passed")), count: every.length,
    met: mistakes(says, total((entry) => entry.met.length)), beaten: total((entry) => entry.beaten.length) });
  const shown = sessions[state.session];
  return sceneOf(said, [words("sum", [said]),
    grid("map", "exercises, session by session", rows, range(1, wide + 1).map(String),
      padded(look, "void"), padded((entry) => entry.mark, "")),
    table("session", `${shown.number} ${shown.title}`, ["exercise", "last check", "points", "mistakes met (✓ beaten)"],
      shown.exercises.map((entry) => [entry.name, entry.word, `${pointsOf(entry.best)} of ${pointsOf(entry.points)}`,
        entry.met.map((id) => id + (entry.beaten.includes(id) ? " ✓" : "")).join(", ") || "–"]))]);
}

const wideOf = (data) => Math.max(...data.sessions.map((session) => session.exercises.length));

export function probe(data, state, part, index) {
  const wide = wideOf(data), entry = data.sessions[Math.floor(index / wide)].exercises[index % wide];
  if (!entry) return { text: data.says.empty, marks: {} };
  return { text: worded(data.says.probe, { name: entry.name, word: entry.word,
    best: pointsOf(entry.best), points: pointsOf(entry.points), met: entry.met.length, known: entry.known }), marks: {} };
}

export default {
  render: (context) => mount(context, {
    name: "progress-map", title: "Progress", scene, probe,
    hint: "A cell is an exercise. Press Enter or click to list its session.",
    controls: () => {},
    pick: (data, state, part, index) => ({ session: Math.floor(index / wideOf(data)) }),
  }),
};
