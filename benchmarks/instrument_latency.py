"""How long an instrument takes from an input to the change on the page, in a real Chromium.

Real key strokes and pointer moves. `change` is the time from the event's own time stamp to the moment when the page has
changed (a mutation observer), `frame` to the first animation frame after it. Both are wall time and grow with the load
of the machine, so the load average is recorded. `cpu` does not: it is the processor time that the page's thread spent
in the handlers of one input, from a trace. No kernel takes part.
`python benchmarks/instrument_latency.py --repeats 60`.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from mha_lab.instruments import (  # noqa: E402
    AdjointFlow,
    AttentionDesk,
    CacheDesk,
    EvidenceLadder,
    KernelDesk,
    LifecycleStepper,
    StrideExplorer,
)
from tests.instruments.standalone import page as page_html  # noqa: E402

WATCH = """(types) => {
  window.changes = [];
  window.frames = [];
  let started = null;
  for (const type of types) {
    addEventListener(type, (event) => { started ??= event.timeStamp; }, true);
  }
  new MutationObserver(() => {
    if (started === null) return;
    const from = started;
    started = null;
    changes.push(performance.now() - from);
    requestAnimationFrame(() => frames.push(performance.now() - from));
  }).observe(document.querySelector(".mha-kit"),
    { subtree: true, childList: true, attributes: true, characterData: true });
}"""


def keys(where: str, *names: str):
    def act(page, i):
        if i == 0:
            page.locator(where).focus()
        page.keyboard.press(names[i % len(names)])
    return act


def hover(part: str):
    def act(page, i):
        box = page.locator(f"[data-part={part}] svg").bounding_box()
        page.mouse.move(box["x"] + box["width"] * (.3 + .005 * (i % 60)), box["y"] + box["height"] * (.4 + .002 * i))
        page.mouse.move(box["x"] + box["width"] * (.3 + .01 * (i % 50)), box["y"] + box["height"] * .5)
    return act


def typing(page, i):
    if i == 0:
        page.locator("[data-control=chain]").focus()
        page.keyboard.press("End")
    page.keyboard.press("Backspace" if i % 2 else " ")


def click(part: str, inside: float):
    def act(page, i):
        box = page.locator(f"[data-part={part}] svg").bounding_box()
        page.mouse.click(box["x"] + box["width"] * (.3 + inside * (i % 20)), box["y"] + box["height"] * .5)
    return act


def cases():
    small = StrideExplorer(chain="view(B, T, H, D).transpose(1, 2)", versus="view(B, H, T, D)")
    large = StrideExplorer(sizes={"B": 4, "T": 16, "H": 8, "D": 8}, chain="view(B, T, H, D).transpose(1, 2)",
                           versus="view(B, H, T, D)")
    copied = StrideExplorer("B, H, T, D", {"B": 4, "T": 16, "H": 8, "D": 8}, "transpose(1, 2).reshape(B, T, H*D)",
                            "reshape(B, T, H*D)")
    draw = torch.Generator().manual_seed(1)
    desk = AttentionDesk(*(torch.randn(4, 32, 8, generator=draw) for _ in range(3)),
                         torch.randn(32, 32, generator=draw))
    for name, explorer in (("120 cells", small), ("4096 cells", large), ("4096 cells, copied", copied)):
        yield f"stride explorer, {name}", explorer, {}, {
            "extent slider": keys("[data-control=T]", "ArrowLeft", "ArrowRight"), "typing": typing,
            "cursor by key": keys("[data-part=logical]", "ArrowRight", "ArrowDown"), "pointer": hover("logical"),
            "walk": keys("[data-control=walk]", "ArrowRight")}
    for name, instrument in (("105 pairs", AttentionDesk()), ("4096 pairs", desk)):
        yield f"attention desk, {name}", instrument, {}, {
            "mask cell by click": click("mask", .02), "mask cell by key": keys("[data-part=head0]", "Enter"),
            "cursor by key": keys("[data-part=head0]", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"),
            "pointer": hover("head0"), "view": keys("input[value=who]", "ArrowRight")}
    yield "cache desk, meter", CacheDesk(), {}, {"slider": keys("[data-control=heads]", "ArrowLeft", "ArrowRight")}
    yield "cache desk, 128 heads of 64", CacheDesk(), {"view": "head-map", "heads": 128, "kv_heads": 64}, {
        "slider": keys("[data-control=kv_heads]", "ArrowLeft", "ArrowRight"), "pointer": hover("right")}
    yield "adjoint flow", AdjointFlow(), {"drop": "k"}, {
        "output by key": keys("[data-part=output]", "ArrowRight", "Enter", "ArrowLeft", "Enter")}
    yield "lifecycle", LifecycleStepper(), {}, {
        "call": keys("[data-name=inference] button:last-child", "Enter"), "cursor by key": keys(
            "[data-part=machine]", "ArrowDown", "ArrowRight")}
    yield "kernel desk", KernelDesk(), {"kernel": "decode", "block": 2}, {
        "slider": keys("[data-control=program]", "ArrowRight", "ArrowLeft"), "pointer": hover("in")}
    yield "evidence ladder", EvidenceLadder(), {}, {"cursor by key": keys("[data-part=ladder]", "ArrowDown", "ArrowUp")}
    yield "attention desk, 4096 pairs, rank", desk, {"view": "rank"}, {"mask cell by click": click("mask", .02)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "instrument_latency.json")
    args = parser.parse_args()
    measured, load = {}, os.getloadavg()[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
                                             args=["--no-sandbox", "--disable-gpu"])
        for name, instrument, state, actions in cases():
            for action, act in actions.items():
                page = browser.new_page(viewport={"width": 1300, "height": 1600})
                view = instrument.view(**state)
                page.set_content(page_html(view))
                view.close()
                page.wait_for_function("window.ready === true")
                for i in range(3):
                    act(page, i)
                kind = "click" if "click" in action else "pointermove" if action == "pointer" else "keydown"
                page.evaluate(WATCH, [kind])
                browser.start_tracing(page=page, categories=["devtools.timeline"])
                for i in range(args.repeats):
                    act(page, i)
                page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                inputs = args.repeats * (2 if kind == "pointermove" else 1)
                spent = _handlers(json.loads(browser.stop_tracing())) / inputs
                measured[f"{name}: {action}"] = {what: _summary(page.evaluate(f"window.{what}s"))
                                                 for what in ("change", "frame")} | {"cpu": {"mean": round(spent, 1)}}
                page.close()
        version = browser.version
        browser.close()
    record = {"repeats": args.repeats, "unit": "ms", "measured": measured, "chromium": version,
              "load_average_at_start": round(load, 1), "python": platform.python_version(), "torch": torch.__version__,
              "cpus": os.cpu_count(), "machine": platform.machine()}
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


def _handlers(trace: dict) -> float:
    """Milliseconds of processor time in event handlers."""
    return sum(event.get("tdur", 0) for event in trace["traceEvents"] if event["name"] == "EventDispatch") / 1000


def _summary(samples: list[float]) -> dict:
    ordered = sorted(samples)
    return {"count": len(ordered), "median": round(statistics.median(ordered), 1),
            "p95": round(ordered[min(len(ordered) - 1, int(.95 * len(ordered)))], 1), "max": round(ordered[-1], 1)}


if __name__ == "__main__":
    main()
