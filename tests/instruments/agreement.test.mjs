// Run by test_javascript.py: the browser's functions against cases that the torch-backed model emitted.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const { MHA_CASES: casesFile, MHA_MODULES: folder } = process.env;
const load = (name) => import(pathToFileURL(`${folder}/${name}`));
const { choices, ledger, settle, sizesOf, viewStrides } = await load("layouts.js");
const { figure, shown } = await load("figures.js");
const { draw, wrap } = await load("drawing.js");
const { spec, machines, figures, views, wraps, windows } = JSON.parse(readFileSync(casesFile, "utf8"));

test("sizes, facts and totals are torch's", () => {
  assert.ok(machines.length > 50);
  for (const { state, sizes, facts, totals } of machines) {
    assert.deepEqual(sizesOf(state), sizes);
    assert.deepEqual(ledger(sizes, spec), { facts, totals }, JSON.stringify(state));
  }
});

test("view strides are torch's", () => {
  assert.ok(views.length > 300);
  for (const { shape, strides, target, expected } of views) {
    assert.deepEqual(viewStrides(shape, strides, target), expected, JSON.stringify({ shape, strides, target }));
  }
});

test("figures and drawings are the model's", () => {
  assert.ok(figures.length > 100);
  for (const { sizes, stage, tensor, head, data, drawn } of figures) {
    const made = figure(sizes, spec, stage, tensor, head);
    assert.deepEqual(made, data, JSON.stringify({ sizes, stage, tensor, head }));
    for (const [stacked, expected] of Object.entries(drawn)) {
      const { body, width, height } = draw(made, spec, stacked === "stacked");
      assert.deepEqual([body, width, height], expected);
    }
  }
});

test("windows and line breaks are the model's", () => {
  for (const { count, limit, first, last, expected } of windows) {
    assert.deepEqual(shown(count, limit, first, last), expected);
  }
  for (const { sentence, limit, lines } of wraps) assert.deepEqual(wrap(sentence, limit), lines);
});

test("no control can leave the legal states", () => {
  const start = { batch: 2, q_len: 5, k_len: 7, d_model: 12, num_heads: 3, d_v: null, cross: true,
    stage: "heads", tensor: "q", head: 2 };
  const names = ["batch", "q_len", "k_len", "d_model", "num_heads", "d_v"];
  let state = start, seed = 1;
  const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
  for (let step = 0; step < 400; step++) {
    const name = names[random(names.length)], values = choices(name, state, spec);
    state = settle({ ...state, [name]: values[random(values.length)], cross: random(2) === 0 });
    assert.equal(state.d_model % state.num_heads, 0);
    assert.ok(state.head >= 0 && state.head < state.num_heads);
    const { facts } = ledger(sizesOf(state), spec);
    for (const fact of Object.values(facts)) {
      assert.ok(fact.elements > 0 && fact.elements <= spec.max_elements && fact.weights <= spec.max_elements);
    }
  }
  assert.deepEqual(choices("num_heads", start, spec), [1, 2, 3, 4, 6, 12]);
  assert.equal(settle({ ...start, d_model: 16 }).num_heads, 2);
});
