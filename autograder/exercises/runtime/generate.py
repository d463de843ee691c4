"""Greedy generation with a cache. The model is a scribe: each token depends on every row it was shown, and where."""
from __future__ import annotations

import torch

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch, Observation
from ...worker.scribe import written

NAME = "generate"
VOCABULARY = 97
exercise = Exercise(
    NAME, step=8, points=4, minutes=9, difficulty=3, importance=5,
    summary="Prompt once, then one new row a step at its own position, the cache handed on; the model left as it was.",
    hints=(
        "The first call runs the prompt and gives logits for each of its rows. Which row speaks about the next token, "
        "and what else came back from that call?",
        "Write down for the first three calls: how many rows go in, at which positions they stand, how many the cache "
        "holds before. The row counts should be P, 1, 1.",
        "A model in training mode draws dropout. Let it evaluate while you generate, and put its mode back, whichever "
        "it was and even if something raises.",
    ),
    tensor=False,
    hides="A model whose next token depends on the last one only hides a lost prompt and lost positions; a prompt of "
          "one token hides the wrong row; equal tokens do not show that a cache was used, only the rows that ran do.",
)


def prompt_of(batch, length, seed=0):
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def oracle(prompt, steps):
    """Every token from the whole sequence before it."""
    samples = []
    for sample in prompt.tolist():
        for _ in range(steps):
            sample.append(written([(token, place) for place, token in enumerate(sample)], VOCABULARY))
        samples.append(sample)
    return torch.tensor(samples)


def _calls(report):
    """What the model wrote down, in words."""
    said = [f"{c['rows']} row{'s' if c['rows'] > 1 else ''} from position {c['first']} with {c['cached']} cached"
            for c in report["calls"][:4]]
    return "; ".join(said) + (" ..." if len(report["calls"]) > 4 else "")


def _run(lab, prompt, steps, training=False, seed=0):
    """(tokens, report); the transcript keeps the tokens and a summary of the calls."""
    model = lab.specimen({"vocabulary": VOCABULARY, "training": training})
    got = lab.call(NAME, model, prompt, steps, seed=seed)
    drew, report = lab.last.drew, lab.method(model, "report")
    del lab.transcript[-1]
    calls = report["calls"]
    rows, reused = sum(c["rows"] for c in calls), any(c["cached"] for c in calls)
    lab.transcript.append(Observation("calls", value=(rows > prompt.shape[1] + steps, reused, report["training"],
                                                      any(c["training"] for c in calls), drew)))
    return got, report | {"drew": drew, "rows": rows}


def _tokens(got, prompt, steps, report):
    expect.shape(got, (prompt.shape[0], prompt.shape[1] + steps), "the result", "[B,P+steps]")
    expect.dtype(got, torch.int64)
    want = oracle(prompt, steps)
    wrong = (got != want).nonzero()
    if len(wrong):
        b, t = wrong[wrong[:, 1].argmin()].tolist()
        where = "of the prompt" if t < prompt.shape[1] else f", new token {t - prompt.shape[1] + 1}"
        raise Mismatch(f"token {t} of sample {b}{where}, is {got[b, t].item()}, expected {want[b, t].item()}; the "
                       f"model was shown {_calls(report)}")


def _try(lab, batch, length, steps, seed=0):
    prompt = prompt_of(batch, length, seed)
    got, report = _run(lab, prompt, steps)
    _tokens(got, prompt, steps, report)
    most = length + steps
    if report["rows"] > most:
        raise Mismatch(f"{report['rows']} rows ran for a prompt of {length} and {steps} new tokens; with a cache "
                       f"{most} suffice. The model was shown {_calls(report)}")


@exercise.case("a prompt of 5 and 4 new tokens, two samples")
def plain(lab):
    _try(lab, 2, 5, 4)


@exercise.case("three samples, a prompt of 3 and 6 new tokens")
def longer(lab):
    _try(lab, 3, 3, 6, 1)


@exercise.case("a prompt of one token")
def one_token(lab):
    _try(lab, 2, 1, 5, 2)


@exercise.case("one new token")
def one_step(lab):
    _try(lab, 2, 4, 1, 3)


@exercise.case("no new token: the prompt comes back", CONTRACT)
def no_step(lab):
    _try(lab, 2, 4, 0, 4)


@exercise.case("a model in training evaluates meanwhile, and is in training again", CONTRACT)
def from_training(lab):
    prompt = prompt_of(2, 4, 5)
    got, report = _run(lab, prompt, 3, training=True, seed=11)
    if any(c["training"] for c in report["calls"]):
        raise Mismatch("the model ran in training mode: its dropout drew, and the next run would write something else")
    _tokens(got, prompt, 3, report)
    expect.true(report["training"], "the model was in training before the call, and is not afterwards")


@exercise.case("a model in evaluation stays there, and no random number is drawn", CONTRACT)
def from_evaluation(lab):
    prompt = prompt_of(2, 4, 6)
    got, report = _run(lab, prompt, 3)
    _tokens(got, prompt, 3, report)
    expect.true(not report["training"], "the model was in evaluation before the call, and is not afterwards")
    expect.true(not report["drew"], "torch's global generator has moved: greedy generation draws nothing")


@exercise.case("no graph is recorded", CONTRACT)
def no_graph(lab):
    _, report = _run(lab, prompt_of(2, 4, 7), 2)
    expect.true(not any(c["graph"] for c in report["calls"]),
                "the model ran with autograd on: the graph of every step is kept until the end")


@exercise.case("refuses a negative number of steps", CONTRACT)
def refuses(lab):
    model = lab.specimen({"vocabulary": VOCABULARY, "training": False})
    lab.raises(ValueError, "steps", NAME, model, prompt_of(2, 3), -1)


class evaluating:
    """The model in evaluation and autograd off, both put back."""

    def __init__(self, model):
        self.model, self.mode, self.grad = model, model.training, torch.no_grad()

    def __enter__(self):
        self.model.eval()
        self.grad.__enter__()

    def __exit__(self, *error):
        self.grad.__exit__(*error)
        self.model.train(self.mode)


def check(steps):
    if steps < 0:
        raise ValueError("steps cannot be negative")


def grow(model, prompt, steps, first=lambda model, prompt: model(prompt, torch.arange(prompt.shape[1]), None),
         then=lambda model, tokens, cache: model(tokens[:, -1:], torch.tensor([tokens.shape[1] - 1]), cache),
         row=-1):
    """The loop, with its two calls and the row it reads replaceable."""
    check(steps)
    tokens = prompt
    with evaluating(model):
        for step in range(steps):
            logits, cache = first(model, tokens) if step == 0 else then(model, tokens, cache)
            tokens = torch.cat([tokens, logits[:, row].argmax(-1, keepdim=True)], 1)
    return tokens


@exercise.right
def prompt_then_rows(model, prompt, steps):
    return grow(model, prompt, steps)


@exercise.right
def a_list_of_tokens(model, prompt, steps):
    check(steps)
    was, new = model.training, []
    try:
        model.train(False)
        with torch.inference_mode():
            logits, cache = model(prompt, positions=torch.arange(prompt.size(1)).expand(prompt.shape), cache=None)
            for step in range(steps):
                new.append(logits[:, -1].max(-1).indices)
                place = torch.full((len(prompt), 1), prompt.size(1) + step)
                logits, cache = model(new[-1].unsqueeze(1), positions=place, cache=cache)
    finally:
        model.train(was)
    return torch.stack([*prompt.unbind(1), *new], 1).clone()


@exercise.right
def fills_a_buffer(model, prompt, steps):
    check(steps)
    length = prompt.shape[1]
    out = torch.empty(prompt.shape[0], length + steps, dtype=prompt.dtype)
    out[:, :length] = prompt
    done, cache = 0, None
    with evaluating(model):
        for place in range(length, length + steps):
            logits, cache = model(out[:, done:place], torch.arange(done, place), cache)
            out[:, place] = logits[:, -1].topk(1).indices[:, 0]
            done = place
    return out


@exercise.right
def one_row_at_a_time_from_the_start(model, prompt, steps):
    """The prompt too goes in row by row."""
    check(steps)
    tokens, cache = prompt, None
    with evaluating(model):
        for place in range(prompt.shape[1] + steps - 1):
            logits, cache = model(tokens[:, place:place + 1], torch.tensor([place]), cache)
            if place >= prompt.shape[1] - 1:
                tokens = torch.cat([tokens, logits[:, -1].argmax(-1)[:, None]], 1)
    return tokens


@exercise.wrong
def cache_unused(model, prompt, steps):
    """The tokens are right, but every step ran the whole prefix again: the cache was not used."""
    return grow(model, prompt, steps, then=lambda model, tokens, cache: model(tokens, torch.arange(tokens.shape[1]),
                                                                              None))


@exercise.wrong
def first_token_lost(model, prompt, steps):
    """The prompt's keys and values never entered the cache: from the second new token on, the model has forgotten how
    the text began."""
    held = []

    def then(model, tokens, cache):
        logits, kept = model(tokens[:, -1:], torch.tensor([tokens.shape[1] - 1]), held[0] if held else None)
        held[:] = [kept]
        return logits, kept
    return grow(model, prompt, steps, then=then)


@exercise.wrong(id="first-token-lost")
def the_cache_is_the_prompt_for_ever(model, prompt, steps):
    held = []

    def then(model, tokens, cache):
        held[:] = held or [cache]
        return model(tokens[:, -1:], torch.tensor([tokens.shape[1] - 1]), held[0])
    return grow(model, prompt, steps, then=then)


@exercise.wrong(id="first-token-lost")
def never_hands_the_cache_on(model, prompt, steps):
    return grow(model, prompt, steps, then=lambda model, tokens, cache: model(
        tokens[:, -1:], torch.tensor([tokens.shape[1] - 1]), None))


@exercise.wrong(id="first-token-lost")
def only_the_last_token_of_the_prompt(model, prompt, steps):
    return grow(model, prompt, steps, first=lambda model, prompt: model(
        prompt[:, -1:], torch.tensor([prompt.shape[1] - 1]), None))


@exercise.wrong
def positions_restart(model, prompt, steps):
    """New tokens got position 0. The cache does not say where a new row stands; the caller does."""
    return grow(model, prompt, steps, then=lambda model, tokens, cache: model(tokens[:, -1:], None, cache))


@exercise.wrong(id="positions-restart")
def positions_count_new_tokens(model, prompt, steps):
    return grow(model, prompt, steps, then=lambda model, tokens, cache: model(
        tokens[:, -1:], torch.tensor([tokens.shape[1] - prompt.shape[1] - 1]), cache))


@exercise.wrong(id="positions-restart")
def positions_one_too_far(model, prompt, steps):
    return grow(model, prompt, steps, then=lambda model, tokens, cache: model(
        tokens[:, -1:], torch.tensor([tokens.shape[1]]), cache))


@exercise.wrong
def wrong_row(model, prompt, steps):
    """Take the logits of the last row: the first row predicts the second token of the prompt."""
    return grow(model, prompt, steps, row=0)


@exercise.recognise("cache-unused")
def the_whole_prefix_again(trials):
    """Tokens as expected, far too many rows, and never a row in a cache."""
    seen = [o.value for t in trials for o in t.transcript if o.asked == "calls"]
    failing = [t for t in trials if not t.passed and t.case.kind != CONTRACT]
    return bool(failing) and all("rows ran" in t.message for t in failing) and not any(s[1] for s in seen)


