// The picture of a stage as plain data: the same as `figures.figure` in Python makes from real tensors.

import { worded } from "./drawing.js";
import { grouped, ledger, range, unique } from "./layouts.js";

const ROWS = 10, COLUMNS = 24, COMPARED_COLUMNS = 12, HEAD_COLUMNS = 8;

export function shown(count, limit, first = 0, last = 0) {
  if (count <= limit) return range(0, count);
  const room = limit - 4;
  let focus = range(first, last);
  if (focus.length > room) {
    focus = [...focus.slice(0, Math.floor(room / 2)), ...focus.slice(focus.length - room + Math.floor(room / 2))];
  }
  const picked = unique([0, 1, count - 2, count - 1, ...focus]);
  return picked.flatMap((index, i) => i && index !== picked[i - 1] + 1 ? [null, index] : [index]);
}

export function tokensText(letter, tokens) {
  const names = tokens.map((token) => `${letter}${token}`);
  return (names.length <= 4 ? names : [...names.slice(0, 3), "…", names.at(-1)]).join(", ");
}

const span = (axis, text, short, indices) => ({ axis, text, short, from: indices[0], to: indices.at(-1) });
const bar = (axis, cols, size) => span(axis, `${axis} = ${size}`, axis, range(0, cols.length));
const cellOf = (letter, token, colLetter, channel) =>
  [token, `${letter.toLowerCase()}${token}`, `${colLetter}${channel}`, true];

function panel(title, axis, length, cols, bars, colLetter, cell, more = {}) {
  const rows = shown(length, ROWS, 0, ROWS - 4), number = more.colNumber ?? ((col) => col);
  return {
    title, row_axis: axis,
    rows: rows.map((row) => row === null ? null : more.plainRows ? `${row}` : `${axis.toLowerCase()}${row}`),
    groups: more.groups ?? null,
    cols: cols.map((col) => col === null ? null : `${colLetter}${number(col)}`),
    bars,
    cells: rows.map((row) => cols.map((col) => row === null || col === null ? null : cell(row, col))),
    side: rows.map((row) => more.side && row !== null ? more.side(row) : ""),
  };
}

/** The same plain data as `figures.figure` in Python makes from real tensors. */
export function figure(sizes, spec, stage, tensor = "q", head = 0) {
  const { T, S, M, H, D, D_v } = sizes, facts = ledger(sizes, spec).facts;
  const step = spec.stages.find((candidate) => candidate.id === stage);
  const chosen = step.tensors.length === 3 ? step.tensors["qkv".indexOf(tensor)] : step.tensors[0];
  const name = chosen.name, says = spec.sentences;
  const [length, letter] = tensor === "q" ? [T, "T"] : [S, "S"];
  const [width, axis] = tensor === "v" ? [D_v, "D_v"] : [D, "D"];
  const at = (which, ...index) => index.reduce((sum, i, k) => sum + i * facts[which].strides[k + 1], 0);
  const packedOrigin = (address) => [Math.floor(address / (H * width)), address % (H * width)];
  const headOrigin = (address) => {
    const row = Math.floor(address / D_v);
    return [row % T, Math.floor(row / T) * D_v + address % D_v];
  };
  const tokens = (addresses, origin) => unique(addresses.map((address) => origin(address)[0]));
  const named = (lettered, [token, channel]) => cellOf(lettered, token, "c", channel);
  const titled = `${name}[0, ${head}]`;

  function plain() {
    if (stage === "inputs" || stage === "output") {
      const rowAxis = stage === "output" ? "T" : letter, cols = shown(M, COLUMNS);
      return panel(`${name}[0]`, rowAxis, sizes[rowAxis], cols, [[bar("M", cols, M)]], "m",
        (r, c) => cellOf(rowAxis, r, "m", c));
    }
    if (stage === "packed" || stage === "split") return sideBySide(letter, length, axis, width, packedOrigin);
    if (stage === "token_major") return sideBySide("T", T, "D_v", D_v, headOrigin);
    if (stage === "head_output") {
      const cols = shown(D_v, HEAD_COLUMNS);
      return panel(titled, "T", T, cols, [[bar("D_v", cols, D_v)]], "d",
        (r, c) => named("T", headOrigin(at(name, head, r, c))));
    }
    const cols = shown(S, ROWS);
    return panel(titled, "T", T, cols, [[bar("S", cols, S)]], "s", (r, c) => cellOf("T", r, "s", c),
      stage === "probabilities" ? { side: () => "Σ over S = 1" } : {});
  }

  function sideBySide(rowAxis, rows, colAxis, wide, origin) {
    const cols = shown(H * wide, COLUMNS, head * wide, (head + 1) * wide), split = stage !== "packed";
    const address = (r, c) => split ? at(name, r, Math.floor(c / wide), c % wide) : at(name, r, c);
    const cell = (r, c) => named(rowAxis, origin(address(r, c)));
    if (!split) return panel(`${name}[0]`, rowAxis, rows, cols, [[bar(`H·${colAxis}`, cols, H * wide)]], "c", cell);
    const groups = cols.map((col) => col === null ? null : Math.floor(col / wide));
    const spans = range(0, H).map((h) => [h, range(0, cols.length).filter((index) => groups[index] === h)])
      .filter(([, indices]) => indices.length);
    const bars = [spans.map(([h, indices]) => span("H", `h${h}`, `h${h}`, indices)),
      spans.map(([, indices]) => span(colAxis, `${colAxis} = ${wide}`, colAxis, indices))];
    return panel(`${name}[0]`, rowAxis, rows, cols, bars, "d", cell, { groups, colNumber: (col) => col % wide });
  }

  function compareSplit() {
    const ways = ["heads", "wrong"].map((way) => (h, r, c) => at(`${tensor}_${way}`, h, r, c));
    const all = range(0, H).flatMap((h) => range(0, length).flatMap((r) => range(0, width).map((c) => [h, r, c])));
    const differ = all.filter((index) => ways[0](...index) !== ways[1](...index)).length;
    const first = head * width, held = all.filter(([h]) => h === head).map((index) => ways[1](...index));
    const captions = [worded(says.split_right, { head, first, last: first + width - 1 }), differ
      ? worded(says.split_wrong, { head, differ: grouped(differ), total: grouped(all.length),
        tokens: tokensText(letter.toLowerCase(), tokens(held, packedOrigin)) }) : says.agree];
    const headings = [`packed.view(B, ${letter}, H, ${axis}).transpose(1, 2)`, step.wrong["qkv".indexOf(tensor)].op];
    return ways.map((way, i) => ({ verdict: ["right", "wrong"][i], heading: headings[i], caption: captions[i],
      panels: [takers(way, all), headRows(way, ["heads", "wrong"][i])] }));
  }

  function takers(way, all) {
    const taker = new Map(all.map((index) => [way(...index), index[0]]));
    const cols = shown(H * width, COMPARED_COLUMNS, head * width, (head + 1) * width);
    return panel(`${tensor}_packed[0]: which head takes a cell`, letter, length, cols,
      [[bar(`H·${axis}`, cols, H * width)]], "c", (r, c) => {
        const owner = taker.get(r * H * width + c);
        return [r, `h${owner}`, "", owner === head];
      });
  }

  function headRows(way, what) {
    const cols = shown(width, HEAD_COLUMNS);
    const side = (r) => "holds " + tokensText(letter.toLowerCase(),
      tokens(range(0, width).map((c) => way(head, r, c)), packedOrigin));
    return panel(`${tensor}_${what}[0, ${head}]: what head ${head} then holds`, letter, length, cols,
      [[bar(axis, cols, width)]], "d", (r, c) => named(letter, packedOrigin(way(head, r, c))), { side, plainRows: true });
  }

  function compareMerge() {
    const channels = H * D_v, ways = [(r, c) => at("token_major", r, Math.floor(c / D_v), c % D_v),
      (r, c) => at("merged_wrong", r, c)];
    const all = range(0, T).flatMap((r) => range(0, channels).map((c) => [r, c]));
    const differ = all.filter((index) => ways[0](...index) !== ways[1](...index)).length;
    const cols = shown(channels, COMPARED_COLUMNS, head * D_v, (head + 1) * D_v);
    const held = (way, r) => tokensText("t", tokens(range(0, channels).map((c) => way(r, c)), headOrigin));
    const captions = [worded(says.merge_right, { last: channels - 1 }), differ
      ? worded(says.merge_wrong, { differ: grouped(differ), total: grouped(all.length), tokens: held(ways[1], 0) })
      : says.agree];
    const headings = ["head_output.transpose(1, 2).reshape(B, T, H * D_v)", step.wrong[0].op];
    return ways.map((way, i) => ({ verdict: ["right", "wrong"][i], heading: headings[i], caption: captions[i],
      panels: [panel(`${["merged", "merged_wrong"][i]}[0]`, "T", T, cols, [[bar("H·D_v", cols, channels)]], "c",
        (r, c) => named("T", headOrigin(way(r, c))), { side: (r) => "holds " + held(way, r), plainRows: true })] }));
  }

  const columns = stage === "heads" ? compareSplit() : stage === "merged" ? compareMerge()
    : [{ verdict: null, heading: "", caption: "", panels: [plain()] }];
  const captions = columns.filter((column) => column.verdict)
    .map(({ verdict, caption }) => `${verdict === "right" ? "Right" : "Wrong"}: ${caption}`).join(" ");
  const alt = `${step.title}: ${name}, shape [${facts[name].shape.join(", ")}]. ${captions}`.trim();
  return { stage, alt, columns };
}
