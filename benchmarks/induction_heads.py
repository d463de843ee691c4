"""Induction heads, found and removed: what a map, a slope and a removal say about the same heads, over seeds.

Trains small attention-only models (mha_lab/induction.py), chooses heads on the calibration split, and measures on the
test split, which nothing was chosen on. Also times one masked and one smaller layer. Needs no GPU and no network.

    python benchmarks/induction_heads.py --seeds 8     # about a minute and a half on one core
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from mha_lab.induction import (
    AttentionOnly,
    Head,
    Sequences,
    Setup,
    fine_tune,
    gates,
    losses,
    pattern_scores,
    slopes,
    split,
    train,
)

OUT = Path(__file__).parent / "results" / "induction_heads.json"
INDUCTION_FROM = 0.25
EXAMPLES = {"calibration": 256, "test": 512}
TUNING_STEPS = 100


def measure(setup: Setup, seed: int) -> dict[str, float]:
    """One model of two layers and one of one layer: losses on the test split in nats, and increases by removals."""
    model, shallow = train(setup, seed), train(replace(setup, layers=1), seed)
    calibration, test = (split(setup, name, number, seed) for name, number in EXAMPLES.items())
    scores, slope = pattern_scores(model, calibration), slopes(model, calibration)
    first = [(0, h) for h in scores["previous"][0].argsort(descending=True).tolist()]
    second = [(1, h) for h in scores["induction"][1].argsort(descending=True).tolist()]
    induction = [head for head in second if scores["induction"][head] >= INDUCTION_FROM]
    intact = _loss(model, test)

    def rise(*removed: Head) -> float:
        return _loss(model, test, removed) - intact
    single = {head: rise(head) for head in first + second}
    half = len(first) // 2
    all_but_one = induction[1:]
    tuned, tuned_intact = (fine_tune(model, removed, TUNING_STEPS, seed) for removed in (all_but_one, []))
    return {
        "loss_two_layers": intact,
        "loss_one_layer": _loss(shallow, test),
        "previous_score_of_the_upper_half": scores["previous"][0].topk(half).values.mean().item(),
        "induction_score_of_the_best": scores["induction"][induction[0]].item(),
        "induction_heads": len(induction),
        "rise_without_previous_heads": rise(*first[:half]),
        "rise_without_the_other_heads_of_layer_0": rise(*first[half:]),
        "rise_without_the_best_induction_head": single[induction[0]],
        "rise_without_all_induction_heads": rise(*induction),
        "sum_of_their_single_rises": sum(single[head] for head in induction),
        "rise_with_only_the_best_of_them": rise(*all_but_one),
        "loss_intact_and_trained_on": _loss(tuned_intact, test),
        "loss_with_only_the_best_and_trained_on": _loss(tuned, test, all_but_one),
        "rank_correlation_slope_and_rise": _ranks([slope[head].item() for head in single], list(single.values())),
        "largest_rise_of_one_head": max(single.values()),
        "first_order_prediction_for_it": slope[max(single, key=single.get)].item(),
    }


def _loss(model: AttentionOnly, data: Sequences, removed: Sequence[Head] = ()) -> float:
    with torch.no_grad():
        return losses(model, data, gates(model.setup, removed)).mean().item()


def _ranks(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    ranked = torch.stack([torch.as_tensor(x).argsort().argsort().double() for x in (a, b)])
    return torch.corrcoef(ranked)[0, 1].item()


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Mean over seeds with a 95 % interval by Student's t, and the extremes."""
    mean, spread = statistics.mean(samples), statistics.stdev(samples)
    reach = student(len(samples) - 1) * spread / len(samples) ** 0.5
    return {key: round(value, 4) for key, value in dict(
        mean=mean, low=mean - reach, high=mean + reach, smallest=min(samples), largest=max(samples)).items()}


def student(freedom: int) -> float:
    """The two-sided 95 % point of Student's t, by bisection on its integral."""
    x = torch.linspace(0, 1, 20_001, dtype=torch.float64)

    def covered(t: float) -> float:
        density = (1 + (x * t) ** 2 / freedom) ** (-(freedom + 1) / 2)
        return 2 * t * torch.trapezoid(density, x).item()
    log_norm = torch.lgamma(torch.tensor([(freedom + 1) / 2, freedom / 2], dtype=torch.float64))
    whole = (freedom * torch.pi) ** 0.5 * (log_norm[1] - log_norm[0]).exp().item()
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if covered(middle) / whole < 0.95 else (low, middle)
    return low


def timed_surgery(pairs: int, batch: int = 4, length: int = 128, width: int = 512, heads: int = 8,
                  kept: int = 4) -> dict:
    """One layer dense, with half its heads masked, and without them: medians of interleaved rounds, one thread."""
    d = width // heads
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, length, width, generator=generator)

    def layer(count: int, mask: Tensor | None) -> Callable[[], Tensor]:
        q, k, v = (torch.randn(count * d, width, generator=generator) / width**0.5 for _ in range(3))
        o = torch.randn(width, count * d, generator=generator) / width**0.5

        def call() -> Tensor:
            rows = [(x @ w.T).unflatten(-1, (count, d)).transpose(1, 2) for w in (q, k, v)]
            mixed = torch.nn.functional.scaled_dot_product_attention(*rows)
            if mask is not None:
                mixed = mixed * mask[:, None, None]
            return mixed.transpose(1, 2).flatten(2) @ o.T
        return call
    mask = (torch.arange(heads) < kept).float()
    programs = {"dense": layer(heads, None), "masked": layer(heads, mask), "smaller": layer(kept, None)}
    times: dict[str, list[float]] = {name: [] for name in programs}
    with torch.no_grad():
        for turn in range(pairs + 3):
            for name, program in programs.items():
                start = time.perf_counter()
                program()
                if turn >= 3:
                    times[name].append((time.perf_counter() - start) * 1000)
    medians = {name: round(statistics.median(samples), 3) for name, samples in times.items()}
    ratios = {f"{name}_over_dense": round(statistics.median(
        t / dense for t, dense in zip(times[name], times["dense"], strict=True)), 3) for name in ("masked", "smaller")}
    sizes = dict(batch=batch, length=length, width=width, heads=heads, kept=kept, dtype="float32", rounds=pairs)
    return {"sizes": sizes, "median_ms": medians} | ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="at least 2")
    parser.add_argument("--steps", type=int, default=Setup.steps)
    parser.add_argument("--rounds", type=int, default=60, help="of the timed layer")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("an interval over seeds needs at least 2 of them")
    torch.set_num_threads(1)
    setup, start = Setup(steps=args.steps), time.perf_counter()
    runs = []
    for seed in range(args.seeds):
        runs.append(measure(setup, seed))
        print(f"seed {seed}: loss {runs[-1]['loss_two_layers']:.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time()
    record = {
        "what": "losses in nats on the test split; a rise is the loss without some heads, less the intact loss",
        "setup": asdict(setup), "seeds": list(range(args.seeds)), "examples": EXAMPLES,
        "chosen_on": "calibration", "measured_on": "test", "induction_head_from": INDUCTION_FROM,
        "tuning_steps": TUNING_STEPS, "interval": "95 %, Student's t over seeds",
        "over_seeds": {key: summary([run[key] for run in runs]) for key in runs[0]},
        "each_seed": [{key: round(value, 4) for key, value in run.items()} for run in runs],
        "timed_layer": timed_surgery(args.rounds),
        "wall_seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1),
        "load_average": round(os.getloadavg()[0], 1), "python": platform.python_version(), "torch": torch.__version__,
        "threads": torch.get_num_threads(), "cpus": os.cpu_count(), "machine": platform.machine(),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for key, found in record["over_seeds"].items():
        print(f"{key:48} {found['mean']:8.4f}  [{found['low']:.4f}, {found['high']:.4f}]")
    print(json.dumps(record["timed_layer"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
