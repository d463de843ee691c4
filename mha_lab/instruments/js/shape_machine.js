// The live shape machine: native, labelled controls over a model with get, set, on and save_changes.

import { CONTROL_KEYS, foldStill, make, radios } from "./dom.js";
import { draw, escape } from "./drawing.js";
import { figure } from "./figures.js";
import { choices, grouped, ledger, settle, sizesOf } from "./layouts.js";

const STATE = ["batch", "q_len", "k_len", "d_model", "num_heads", "d_v", "cross", "stage", "tensor", "head"];
const SLIDERS = { batch: "B", q_len: "T", k_len: "S", d_model: "M", num_heads: "H", d_v: "D_v" };
const TENSORS = { q: "Q", k: "K", v: "V" };

/** A letter in the colour of its axis; a packed axis such as H·D is half and half. */
function axisChip(spec, axis, size = null) {
  const colours = axis.split("·").map((letter) => spec.axes[letter].colour);
  const [from, to] = [colours[0], colours.at(-1)];
  return `<span class="chip" style="background:linear-gradient(90deg,${from} 50%,${to} 50%)">`
    + `${escape(axis)}${size === null ? "" : ` ${size}`}</span>`;
}

const chips = (spec, tensor, shape) => tensor.axes.map((axis, i) => axisChip(spec, axis, shape[i])).join("");
const storageText = (shares) => shares === null ? "input" : shares ? "same as before" : "new";

function slider(spec, uid, name, label, letter, onIndex) {
  const value = make("span", { className: "value", "aria-hidden": "true" });
  const input = make("input", { type: "range", id: `${uid}-${name}`, min: 0, step: 1 });
  input.dataset.control = name;
  input.addEventListener("input", () => onIndex(Number(input.value)));
  const title = make("label", { for: input.id, innerHTML: (letter ? axisChip(spec, letter) : "") + escape(label) });
  return { input, value, row: make("div", { className: "control" }, title, input, value) };
}

function place(control, values, now) {
  control.input.max = values.length - 1;
  control.input.value = values.indexOf(now);
  control.input.setAttribute("aria-valuetext", String(now));
  control.value.textContent = now;
}

function tableHtml(spec, step, tensors, facts) {
  const wrong = (tensor) => step.wrong.includes(tensor);
  const row = (name, cell) => `<tr><th scope="row">${name}</th>${tensors.map((tensor) =>
    `<td${wrong(tensor) ? ' class="miss"' : ""}>${cell(facts[tensor.name], tensor)}</td>`).join("")}</tr>`;
  return `<caption>Ledger of this step (float32)</caption><thead><tr><td></td>${tensors.map((tensor) =>
    `<th scope="col"${wrong(tensor) ? ' class="miss"' : ""}>${wrong(tensor) ? "✗ " : ""}${tensor.name}</th>`).join("")}
    </tr></thead><tbody>`
    + row("shape", (fact, tensor) => chips(spec, tensor, fact.shape))
    + row("strides", (fact) => `(${fact.strides.join(", ")})`)
    + row("storage offset", (fact) => fact.offset)
    + row("contiguous", (fact) => fact.contiguous ? "yes" : "no")
    + row("storage", (fact) => storageText(fact.shares_storage))
    + row("elements", (fact) => grouped(fact.elements))
    + row("bytes", (fact) => grouped(fact.bytes))
    + row("MACs", (fact) => grouped(fact.macs))
    + row("weights + biases", (fact) => fact.weights ? `${grouped(fact.weights)} + ${grouped(fact.biases)}` : "none")
    + "</tbody>";
}

function render({ model, el }) {
  const spec = model.get("spec"), uid = `mha-${Math.random().toString(36).slice(2)}`;
  const read = () => settle(Object.fromEntries(STATE.map((name) => [name, model.get(name)])));
  let state = read(), changing = false;

  function change(changes) {
    const next = settle({ ...state, ...changes });
    changing = true;
    for (const name of STATE) if (next[name] !== model.get(name)) model.set(name, next[name]);
    changing = false;
    model.save_changes();
    redraw();
  }
  const move = (by) => {
    const index = spec.stages.findIndex((step) => step.id === state.stage) + by;
    if (spec.stages[index]) change({ stage: spec.stages[index].id });
  };

  const controls = Object.fromEntries(Object.entries(SLIDERS).map(([name, letter]) =>
    [name, slider(spec, uid, name, spec.axes[letter].means, letter,
      (index) => change({ [name]: choices(name, state, spec)[index] }))]));
  const head = slider(spec, uid, "head", "show head", "", (index) => change({ head: index }));
  const kind = radios(uid, "kind", "Attention", { self: "self (S = T)", cross: "cross" },
    (key) => change({ cross: key === "cross" }));
  const tensor = radios(uid, "tensor", "Show", TENSORS, (key) => change({ tensor: key }));
  const follow = make("input", { type: "checkbox" });
  follow.addEventListener("change", () => change({ d_v: follow.checked ? null : sizesOf(state).D_v }));
  const derived = make("span", { className: "derived" });

  const steps = spec.stages.map((step, index) => {
    const letters = step.tensors[0].axes.map((axis) => axisChip(spec, axis)).join("");
    const button = make("button", { type: "button", className: "step",
      innerHTML: `<span class="step-title">${index + 1}. ${step.title}</span><span class="chips">${letters}</span>` });
    button.dataset.stage = step.id;
    button.addEventListener("click", () => change({ stage: step.id }));
    return button;
  });
  const back = make("button", { type: "button", className: "walk" }, "◀ Back");
  const next = make("button", { type: "button", className: "walk" }, "Next ▶");
  back.addEventListener("click", () => move(-1));
  next.addEventListener("click", () => move(1));
  const status = make("output", { className: "status", "aria-live": "polite" });
  const flow = make("div", { className: "flow" }), explain = make("p", { className: "explain" });
  const picture = make("div", { className: "picture", tabIndex: 0, role: "region", "aria-label": "Picture of the step" });
  const batchNote = make("span");
  const table = make("table"), totals = make("p", { className: "totals" });
  const tableBox = make("div", { className: "ledger", tabIndex: 0, role: "region", "aria-label": "Ledger of the step" },
    table, totals);

  function redraw() {
    state = read();
    const sizes = sizesOf(state), { facts, totals: sums } = ledger(sizes, spec);
    const index = spec.stages.findIndex((step) => step.id === state.stage), step = spec.stages[index];
    const three = step.tensors.length === 3;
    const chosen = three ? step.tensors["qkv".indexOf(state.tensor)] : step.tensors[0], fact = facts[chosen.name];
    const now = { batch: sizes.B, q_len: sizes.T, k_len: sizes.S, d_model: sizes.M, num_heads: sizes.H, d_v: sizes.D_v };
    for (const name in controls) place(controls[name], choices(name, state, spec), now[name]);
    controls.k_len.input.disabled = !state.cross;
    place(head, Array.from({ length: sizes.H }, (_, i) => i), state.head);
    kind.inputs[state.cross ? "cross" : "self"].checked = true;
    tensor.inputs[state.tensor].checked = true;
    tensor.set.hidden = !three;
    head.row.hidden = ["inputs", "output"].includes(step.id);
    batchNote.textContent = `Drawn: batch item 0 of ${sizes.B}.`;
    follow.checked = state.d_v === null;
    derived.innerHTML = `${axisChip(spec, "D", sizes.D)} = M / H`;
    steps.forEach((button, i) => {
      if (i === index) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
    back.disabled = index === 0;
    next.disabled = index === steps.length - 1;
    status.textContent = `Step ${index + 1} of ${steps.length}, ${step.title}: ${chosen.name} has shape `
      + `[${fact.shape.join(", ")}] and strides (${fact.strides.join(", ")}); storage: ${storageText(fact.shares_storage)}.`;
    const before = chosen.parents.map((name) => chips(spec,
      spec.stages.flatMap((one) => one.tensors).find((one) => one.name === name), facts[name].shape));
    flow.innerHTML = `${before.map((part) => `<span class="chips">${part}</span>`).join("<b>and</b>")}`
      + `<code>${escape(chosen.op)}</code>${before.length ? "<b>gives</b>" : ""}`
      + `<span class="chips now">${chips(spec, chosen, fact.shape)}</span>`;
    explain.textContent = step.explain;
    const wrong = step.wrong.length === 3 ? [step.wrong["qkv".indexOf(state.tensor)]] : step.wrong;
    table.innerHTML = tableHtml(spec, step, [...step.tensors, ...wrong], facts);
    totals.textContent = `Whole machine: ${grouped(sums.weights)} weights, ${grouped(sums.biases)} biases, `
      + `${grouped(sums.macs)} multiply-accumulates.`;
    drawPicture();
  }

  function drawPicture() {
    const data = figure(sizesOf(state), spec, state.stage, state.tensor, state.head);
    const room = el.clientWidth || 900;
    let drawn = draw(data, spec);
    if (drawn.width > room * 1.25) drawn = draw(data, spec, true);
    const { body, width, height } = drawn;
    picture.innerHTML = `<svg role="img" aria-label="${escape(data.alt)}" viewBox="-1 -1 ${width + 2} ${height + 2}" `
      + `style="width:${width + 2}px;min-width:${Math.round(0.7 * width)}px">${body}</svg>`;
  }

  const machine = make("div", { className: "mha-shape-machine", role: "group", "aria-label": "The shape machine" },
    make("ol", { className: "tape" }, ...steps.map((button) => make("li", {}, button))),
    make("div", { className: "sizes" }, kind.set,
      make("fieldset", { className: "sliders" }, make("legend", {}, "Sizes"),
        ...Object.values(controls).map((control) => control.row),
        make("div", { className: "control extra" }, derived, make("label", {}, follow, " D_v = D")))),
    make("div", { className: "walkers" }, back, next, status), flow, explain,
    make("div", { className: "which" }, tensor.set, head.row, batchNote),
    make("div", { className: "shown" }, make("div", { className: "drawn" }, picture,
      make("p", { className: "key" }, spec.sentences.key)), tableBox));
  // JupyterLab listens on the document and would take these keys from the focused control.
  machine.addEventListener("keydown", (event) => { if (CONTROL_KEYS.test(event.key)) event.stopPropagation(); });
  el.replaceChildren(machine);
  for (const name of STATE) model.on(`change:${name}`, onChange);
  function onChange() { if (!changing) redraw(); }
  const resized = new ResizeObserver(() => drawPicture());
  resized.observe(el);
  const unfold = foldStill(model.get("still_key"));
  redraw();
  return () => {
    resized.disconnect();
    unfold();
    for (const name of STATE) model.off?.(`change:${name}`, onChange);
  };
}

export default { render };
