// The frame of every instrument of the kit: controls, grids with a cursor, a readout, and one state. See kit.py.

import { CONTROL_KEYS, foldStill, make, radios } from "./dom.js";
import { escape } from "./drawing.js";
import { geometry, paintBars, paintGrid, patterns, tableHtml } from "./paint.js";

/**
 * Controls: each takes { name, label, value(state), set(value) -> changes, shown(state)? } and
 *   slider   values(state) -> list of what can be set
 *   radios   options: { key: label }
 *   select   options(state) -> [[value, label], ...]
 *   check    (value is a bool)
 *   text     wide?: bool; every key stroke is a change
 *   buttons  items: [[label, (state) -> changes or null (then it cannot be pressed)], ...]
 *   stepper  options(state) -> [[value, label], ...]; the chosen one is aria-current
 */
function controlsOf(uid, change) {
  const updates = [], nodes = [];
  function add(control, node, update) {
    node.dataset.name = control.name;
    nodes.push(node);
    updates.push((state) => {
      node.hidden = control.shown ? !control.shown(state) : false;
      if (!node.hidden) update(state);
    });
    return node;
  }
  const labelled = (control, input, ...more) => {
    input.id = `${uid}-${control.name}`;
    input.dataset.control = control.name;
    return make("div", { className: "control" }, make("label", { for: input.id }, control.label), input, ...more);
  };
  return {
    updates, nodes,
    slider(control) {
      const said = make("span", { className: "value", "aria-hidden": "true" });
      const input = make("input", { type: "range", min: 0, step: 1 });
      let values = [];
      input.addEventListener("input", () => change(control.set(values[Number(input.value)])));
      return add(control, labelled(control, input, said), (state) => {
        values = control.values(state);
        const now = control.value(state);
        input.max = values.length - 1;
        input.value = values.indexOf(now);
        input.disabled = values.length < 2;
        input.setAttribute("aria-valuetext", String(now));
        said.textContent = now;
      });
    },
    radios(control) {
      const { set, inputs } = radios(uid, control.name, control.label, control.options,
        (key) => change(control.set(key)));
      return add(control, set, (state) => {
        const input = inputs[control.value(state)];
        if (input) input.checked = true;
      });
    },
    select(control) {
      const input = make("select");
      let listed = "";
      input.addEventListener("change", () => change(control.set(input.value)));
      return add(control, labelled(control, input), (state) => {
        const options = control.options(state), list = JSON.stringify(options);
        if (list !== listed) input.replaceChildren(...options.map(([value, label]) => new Option(label, value)));
        listed = list;
        input.value = control.value(state);
      });
    },
    check(control) {
      const input = make("input", { type: "checkbox" });
      input.addEventListener("change", () => change(control.set(input.checked)));
      return add(control, labelled(control, input), (state) => { input.checked = control.value(state); });
    },
    text(control) {
      const input = make("input", { type: "text", spellcheck: false, autocomplete: "off" });
      input.addEventListener("input", () => change(control.set(input.value)));
      input.addEventListener("keydown", (event) => event.stopPropagation());
      const node = labelled(control, input);
      if (control.wide) node.classList.add("wide");
      return add(control, node, (state) => {
        if (input.value !== control.value(state)) input.value = control.value(state);
      });
    },
    buttons(control) {
      let now = null;
      const made = control.items.map(([label, press]) => {
        const button = make("button", { type: "button" }, label);
        button.addEventListener("click", () => change(press(now)));
        return [button, press];
      });
      const node = make("div", { className: "control", role: "group", "aria-label": control.label },
        ...made.map(([button]) => button));
      return add(control, node, (state) => {
        now = state;
        for (const [button, press] of made) button.disabled = press(state) === null;
      });
    },
    stepper(control) {
      const list = make("ol", { className: "tape", "aria-label": control.label });
      let listed = "";
      return add(control, list, (state) => {
        const options = control.options(state), text = JSON.stringify(options);
        if (text !== listed) {
          list.replaceChildren(...options.map(([value, label]) => {
            const button = make("button", { type: "button", className: "step" }, label);
            button.addEventListener("click", () => change(control.set(value)));
            return make("li", {}, button);
          }));
        }
        listed = text;
        options.forEach(([value], i) => {
          const button = list.children[i].firstChild;
          if (value === control.value(state)) button.setAttribute("aria-current", "step");
          else button.removeAttribute("aria-current");
        });
      });
    },
  };
}

/** The parts of a scene on the page: each keeps its element, and is written again only when its markup changed. */
class Stage {
  constructor(box, uid, fills, onAim, onPick) {
    Object.assign(this, { box, uid, fills, onAim, onPick, holders: new Map() });
    this.tip = make("div", { className: "tip", hidden: true, "aria-hidden": "true" });
  }

  show(parts) {
    const wanted = new Set(parts.map((part) => `${part.kind} ${part.id}`));
    for (const [key, holder] of this.holders) {
      if (!wanted.has(key)) {
        holder.node.remove();
        this.holders.delete(key);
      }
    }
    let after = null;
    for (const part of parts) {
      const key = `${part.kind} ${part.id}`;
      if (!this.holders.has(key)) this.holders.set(key, this.create(part));
      const holder = this.holders.get(key);
      this.write(holder, part);
      const next = after ? after.nextSibling : this.box.firstChild;
      if (next !== holder.node) this.box.insertBefore(holder.node, next);
      after = holder.node;
    }
  }

  create(part) {
    const node = make("div", { className: `part ${part.kind}` });
    node.dataset.part = part.id;
    const holder = { node, markup: "", at: null, part };
    if (part.kind === "grid") {
      node.tabIndex = 0;
      node.setAttribute("role", "application");
      node.setAttribute("aria-roledescription", "grid of cells");
      node.addEventListener("pointermove", (event) => {
        const index = this.hit(holder, event);
        if (index === null) this.onAim(null);
        else this.onAim(holder.part.id, index, false);
      });
      node.addEventListener("pointerleave", () => this.onAim(null));
      node.addEventListener("click", (event) => {
        const index = this.hit(holder, event);
        if (index === null) return;
        this.onAim(holder.part.id, index, true);
        this.onPick(holder.part.id, index);
      });
      node.addEventListener("focus", () => this.onAim(holder.part.id, "focus", true));
      node.addEventListener("blur", () => this.onAim(null, null, true));
      node.addEventListener("keydown", (event) => this.key(holder, event));
    } else if (part.kind === "table") {
      node.tabIndex = 0;
      node.setAttribute("role", "region");
    }
    return holder;
  }

  write(holder, part) {
    holder.part = part;
    let markup;
    if (part.kind === "table") markup = tableHtml(part);
    else if (part.kind === "words") {
      markup = part.lines.map((line) => `<p${part.bad ? ' class="miss"' : ""}>${escape(line)}</p>`).join("");
    } else {
      const uid = `${this.uid}-${part.id}-`, at = holder.at = part.kind === "grid" ? geometry(part) : null;
      const [body, width, height] = at ? paintGrid(part, uid, this.fills, at) : paintBars(part, this.fills);
      const said = [part.verdict, part.title, ...(part.notes ?? [])].filter(Boolean).join(". ");
      markup = `<svg role="img" aria-label="${escape(said)}" viewBox="-1 -1 ${width + 2} ${height + 2}" `
        + `style="width:${width + 2}px">${patterns(uid)}${body}<g class="marks"></g></svg>`;
    }
    if (markup === holder.markup) return;
    holder.markup = markup;
    holder.node.innerHTML = markup;
    if (part.title) {
      const cells = part.kind === "grid" ? `, ${part.rows.length} × ${part.cols.length} cells, arrow keys move` : "";
      if (part.kind !== "bars") holder.node.setAttribute("aria-label", part.title + cells);
    }
  }

  hit(holder, event) {
    const svg = holder.node.firstChild, box = svg.getBoundingClientRect(), seen = svg.viewBox.baseVal;
    const x = ((event.clientX - box.left) * seen.width) / box.width - 1;
    const y = ((event.clientY - box.top) * seen.height) / box.height - 1;
    const { xs, ys, w, h } = holder.at;
    const col = xs.findLastIndex((edge) => edge <= x), row = ys.findLastIndex((edge) => edge <= y);
    return col < 0 || row < 0 || x >= xs[col] + w || y >= ys[row] + h ? null : row * xs.length + col;
  }

  key(holder, event) {
    const columns = holder.part.cols.length, last = holder.part.fills.length - 1, index = holder.index ?? 0;
    const row = Math.floor(index / columns);
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, ArrowDown: index + columns, ArrowUp: index - columns,
      Home: row * columns, End: row * columns + columns - 1, PageUp: index % columns,
      PageDown: last - (columns - 1) + (index % columns) }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      if (to >= 0 && to <= last) this.onAim(holder.part.id, to, true);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.onPick(holder.part.id, index);
    }
  }

  grid(id) { return this.holders.get(`grid ${id}`); }

  /** Marks cells: the one under the cursor, and its partners in every grid. */
  mark(here, marks, tip) {
    for (const holder of this.holders.values()) {
      if (!holder.at) continue;
      const { xs, ys, w, h } = holder.at, id = holder.part.id;
      const rect = (index, kind) => `<rect x="${xs[index % xs.length] - 1}" y="${ys[Math.floor(index / xs.length)] - 1}" `
        + `width="${w}" height="${h}" class="mark ${kind}" data-index="${index}"/>`;
      const partners = (marks[id] ?? []).map((index) => rect(index, "partner")).join("");
      holder.node.querySelector(".marks").innerHTML = partners
        + (here && here.id === id ? rect(here.index, "here") : "");
    }
    const holder = here && this.grid(here.id);
    this.tip.hidden = !holder || !tip;
    if (this.tip.hidden) return;
    this.tip.textContent = tip;
    const svg = holder.node.firstChild.getBoundingClientRect(), frame = this.box.getBoundingClientRect();
    const scale = svg.width / holder.node.firstChild.viewBox.baseVal.width, { xs, ys, h } = holder.at;
    const x = svg.left - frame.left + scale * xs[here.index % xs.length];
    const y = svg.top - frame.top + scale * (ys[Math.floor(here.index / xs.length)] + h + 4);
    this.tip.style.transform = `translate(${Math.round(Math.max(0, Math.min(x, frame.width - 8 * tip.length)))}px,${Math.round(y)}px)`;
  }
}

/** Runs an instrument in `el` over `model`; gives the function that takes it down. */
export function mount({ model, el }, spec) {
  const data = model.get("data"), uid = `mha-${Math.random().toString(36).slice(2)}`;
  const settle = (next) => spec.settle ? spec.settle(data, next) : next;
  let state = settle(model.get("state")), changing = false, hovered = null, kept = null;

  function change(changes) {
    if (!changes) return;
    state = settle({ ...state, ...changes });
    changing = true;
    model.set("state", state);
    changing = false;
    model.save_changes();
    redraw();
  }

  const controls = controlsOf(uid, change);
  spec.controls(controls, data);
  const box = make("div", { className: "parts" });
  const readout = make("output", { className: "readout", "aria-live": "polite" });
  const stage = new Stage(box, uid, model.get("fills"), aim, (id, index) => {
    if (spec.pick) change(spec.pick(data, state, id, index));
  });

  /** The pointer only borrows the cursor; focus keeps it. */
  function aim(id, index, keep) {
    if (index === "focus") index = stage.grid(id).index ?? 0;
    const cell = id === null ? null : { id, index };
    if (keep) kept = cell;
    hovered = keep ? null : cell;
    if (keep && cell) stage.grid(id).index = index;
    point();
  }

  function point() {
    const cell = [hovered, kept].find((one) => one && stage.grid(one.id)?.part.fills.length > one.index) ?? null;
    const found = cell && spec.probe ? spec.probe(data, state, cell.id, cell.index) : null;
    stage.mark(cell, found?.marks ?? {}, found?.tip ?? "");
    readout.textContent = found?.text ?? spec.hint ?? "";
  }

  function redraw() {
    const made = spec.scene(data, state);
    for (const update of controls.updates) update(state);
    stage.show(made.parts);
    root.setAttribute("aria-label", `${spec.title}. ${made.alt}`);
    point();
  }

  const root = make("div", { className: `mha-kit mha-${spec.name}`, role: "group" },
    make("div", { className: "controls" }, ...controls.nodes), readout, make("div", { className: "stage" }, box, stage.tip));
  root.addEventListener("keydown", (event) => { if (CONTROL_KEYS.test(event.key)) event.stopPropagation(); });
  el.replaceChildren(root);
  const onChange = () => {
    if (changing) return;
    state = settle(model.get("state"));
    redraw();
  };
  model.on("change:state", onChange);
  const unfold = foldStill(model.get("still_key"));
  redraw();
  return () => {
    unfold();
    model.off?.("change:state", onChange);
  };
}
