// The cache desk: see cache_desk.py, which makes the same scenes.

import { worded } from "./drawing.js";
import { mount } from "./kit.js";
import { divisors, grouped, range } from "./layouts.js";
import { bars, fixed, grid, sceneOf, table, words } from "./paint.js";

const GIB = 2 ** 30;
const gib = (number) => `${fixed(number / GIB, 3)} GiB`;
const schemeName = (scheme, s) => scheme + { MHA: ` ${s.heads} heads`, GQA: ` ${s.kv_heads} heads`, MQA: " 1 head",
  MLA: ` ${s.latent} + ${s.rope_dim}` }[scheme];

export function bytesOf(scheme, s, length = s.length) {
  const kept = Math.min(length, s.layer_window || length);
  const tokens = (s.layers - s.local_layers) * length + s.local_layers * kept;
  const heads = { MHA: s.heads, GQA: s.kv_heads, MQA: 1 }[scheme];
  return tokens * s.batch * (heads ? heads * (s.d_qk + s.d_v) : s.latent + s.rope_dim) * s.bytes;
}

function windowMacs(length, window, local, others, width) {
  const exactLocal = length * window - (window * (window - 1)) / 2;
  const exact = (local * exactLocal + (others * length * (length + 1)) / 2) * width;
  return [(local * length * window + others * length ** 2) * width, exact, (local + others) * length ** 2 * width];
}

const VIEWS = {
  "cache-meter"(data, s) {
    const { says } = data, own = data.models[s.model], lengths = data.choices.length.filter((_, i) => i % 2 === 0);
    const lines = [worded(says.terms, { ...s, length: grouped(s.length), kv: s.kv_heads, total: grouped(bytesOf("GQA", s)) })];
    if (s.local_layers) lines.push(worded(says.local, { local: s.local_layers, window: grouped(s.layer_window) }));
    const fits = Math.floor((s.card * GIB) / bytesOf("GQA", { ...s, batch: 1 }));
    lines.push(worded(says.card, { card: s.card, fits: grouped(fits), length: grouped(s.length) }));
    lines.push(own ? worded(says.source, { model: s.model, source: own.source }) : says.own);
    return [lines, [bars("schemes", "the same model with other heads", Object.entries(data.fills).map(([scheme, fill]) =>
      [schemeName(scheme, s), bytesOf(scheme, s) / GIB, gib(bytesOf(scheme, s)), fill])),
    bars("lengths", "the cache over the context length", lengths.map((length) =>
      [grouped(length), bytesOf("GQA", s, length) / GIB, gib(bytesOf("GQA", s, length)), "t1"]))]];
  },
  "head-map"(data, s) {
    const { heads, kv_heads: kv } = s, group = heads / kv;
    const part = (id, title, reads, verdict) => grid(id, title, range(0, kv).map((g) => `kv${g}`),
      range(0, heads).map((h) => `q${h}`), range(0, kv).flatMap((g) => range(0, heads).map((h) => reads(h) === g ? `t${g % 8}` : "none")),
      [], { verdict, col_block: group });
    return [[worded(data.says.heads, { heads, kv, group })], [
      part("right", `h // ${group}`, (h) => Math.floor(h / group), "right"), part("wrong", `h mod ${kv}`, (h) => h % kv, "wrong")]];
  },
  "window-map"(data, s) {
    const { T, heads, D } = data.window, { window, local } = s;
    const fills = range(0, T).flatMap((q) => range(0, T).map((k) => q - k >= 0 && q - k < window ? "w8" : k < q ? "off" : "none"));
    const rows = [["shown", T, window, local, heads - local, D], ["T2048 W256, 6 + 2 heads", 2048, 256, 6, 2, 64]].map(
      ([name, ...sizes]) => [name, ...windowMacs(...sizes).map(grouped)]);
    const exact = T * window - (window * (window - 1)) / 2;
    return [[worded(data.says.window, { exact, dense: (T * (T + 1)) / 2, window, length: T })], [
      grid("map", `a local head, window ${window}`, range(0, T).map((i) => `q${i}`), range(0, T).map((i) => `k${i}`), fills),
      table("macs", "products of one matmul, all heads", ["sizes", "leading", "exact causal", "dense"], rows)]];
  },
  crossover(data) {
    const width = data.map.d_model, bar = (name, value, fill) => [name, value, grouped(value), fill];
    const items = [256, 512, 1024, 2048].flatMap((length) => [
      bar(`S ${length} projections`, 4 * length * width ** 2, "t0"), bar(`S ${length} attention`, 2 * length ** 2 * width, "t1")]);
    const full = [1, 2, 4, 8].map((heads) => bar(`${heads} heads of ${width}`, 4 * heads * width ** 2, "t2"));
    return [[data.says.crossover], [bars("macs", "multiply-accumulates, M = 512", items),
      bars("weights", "weights, if every head had the full width", [bar(`8 heads of ${data.map.d}`, 4 * width ** 2, "t3"), ...full])]];
  },
  "shared-width"(data, s) {
    const { d_model: M, heads: H, length: T } = data.map, D = s.width;
    const classic = [2 * M * M, 2 * T * M * M + T * T * M];
    const shared = [2 * M * D + H * D, 2 * T * M * D + H * T * D + H * T * T * D];
    const titles = [["weights", "Q/K weights, M = 512, 8 heads of 64"], ["macs", "products up to the scores, 128 tokens"]];
    return [[worded(data.says.shared, { width: D, weights: grouped(shared[0]), classic: grouped(classic[0]), length: T })],
      titles.map(([id, title], i) => bars(id, title, [["classic", classic[i], grouped(classic[i]), "t0"],
        [`shared, D̃ ${D}`, shared[i], grouped(shared[i]), "t1"]]))];
  },
  "forbidden-map"(data, s) {
    const { length } = s, heads = 32, dense = length * length * heads * heads * 2;
    const scores = length * length * heads * 2, factors = 2 * length * (2 * heads * 2 + heads) * 2;
    const bar = (name, value, fill) => [name, value / GIB, gib(value), fill];
    return [[worded(data.says.forbidden, { length: grouped(length), dense: fixed(dense / GIB, 3), factors: fixed(factors / GIB, 3) })],
      [bars("maps", "32 heads, one sample, 2 bytes", [bar("a dense map", dense, "bad"), bar("all scores", scores, "t0"),
        bar("the factors", factors, "t1")])]];
  },
};

export function scene(data, state) {
  const [lines, parts] = VIEWS[state.view](data, state);
  return sceneOf(lines.join(" "), [words("say", lines), ...parts]);
}

export function settleDesk(data, state) {
  const fits = divisors(state.heads);
  return state.heads % state.kv_heads ? { ...state, kv_heads: fits.findLast((kv) => kv <= state.kv_heads) } : state;
}

export function probe(data, state, part, index) {
  if (part === "map") {
    const { T } = data.window, q = Math.floor(index / T), k = index % T;
    const seen = k > q ? "comes later" : q - k < state.window ? "is seen" : "lies before the window";
    return { text: `query ${q}: key ${k} ${seen}`, marks: {} };
  }
  const kv = Math.floor(index / state.heads), head = index % state.heads, group = state.heads / state.kv_heads;
  const right = Math.floor(head / group), tiled = head % state.kv_heads;
  return { text: `query head ${head} reads K/V head ${right}; tiled it would read ${tiled}. This cell is K/V head ${kv}.`,
    marks: { right: [right * state.heads + head], wrong: [tiled * state.heads + head] } };
}

export default {
  render: (context) => mount(context, {
    name: "cache-desk", title: "The cache desk", scene, settle: settleDesk, probe,
    hint: "Every term is a slider; in the maps, hover a cell or move with the arrow keys.",
    controls: (kit, data) => {
      const meter = (state) => state.view === "cache-meter", near = (values, now) =>
        [...new Set([...values, now])].sort((a, b) => a - b);
      kit.radios({ name: "view", label: "view", options: data.views, value: (state) => state.view, set: (view) => ({ view }) });
      kit.select({ name: "model", label: "model", shown: (state) => meter(state) || state.view === "head-map",
        options: () => [["", "own sizes"], ...Object.keys(data.models).map((name) => [name, name])],
        value: (state) => state.model, set: (model) => model ? data.models[model].sizes : { model } });
      const term = (name, label, shown = meter, own = true) => kit.slider({ name, label, shown,
        values: (state) => near(name === "kv_heads" ? divisors(state.heads)
          : data.choices[name], state[name]),
        value: (state) => state[name], set: (value) => ({ [name]: value, ...(own ? { model: "" } : {}) }) });
      term("layers", "layers");
      term("heads", "query heads", (state) => meter(state) || state.view === "head-map");
      term("kv_heads", "K/V heads", (state) => meter(state) || state.view === "head-map");
      term("d_qk", "key width");
      term("d_v", "value width");
      term("latent", "latent width (MLA)");
      term("rope_dim", "rotary key (MLA)");
      term("length", "tokens", (state) => meter(state) || state.view === "forbidden-map", false);
      term("batch", "requests", meter, false);
      term("bytes", "bytes an element", meter, false);
      term("card", "GiB left on the card", meter, false);
      term("window", "window", (state) => state.view === "window-map", false);
      term("local", "local heads of 8", (state) => state.view === "window-map", false);
      term("width", "shared width D̃", (state) => state.view === "shared-width", false);
    },
  }),
};
