"""Whether the compiled model is the same model, and is compiled once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._dynamo.utils import counters

from conformance.bench import Bench
from conformance.check import check
from conformance.outcome import CheckFailure, NotRun
from conformance.shapes import LONG
from conformance.test_greedy import expect_greedy
from conformance.weights import HEAD, make_weights

PROMPT = 7
DECODE_STEPS = 200
# Two for the prompt, two for the steps: a first one for the very shape, a second that serves every length.
MOST_GRAPHS = 4


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Graphs compiled for other checks are out of sight meanwhile."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


@check(slow=True, needs=("compile",))
def test_uncached(bench: Bench) -> None:
    """Compiled, the logits of whole sequences of several lengths are the reference's."""
    with fresh_compiler():
        candidate = bench.build(LONG).compiled()
        for length in (13, 29, 1, 13):
            ids = candidate.ids(1, length)
            candidate.expect_logits(candidate.forward(ids), ids, note=f"{length} tokens, compiled")


@check(slow=True, needs=("compile", "cache"))
def test_cached(bench: Bench) -> None:
    """Compiled, prefill, a chunk and steps of a batch give the reference's logits, also in a second run."""
    with fresh_compiler():
        candidate = bench.build(LONG).compiled()
        rows = candidate.most_rows(3)
        cache = candidate.init_cache(rows, 40)
        for run in range(2):
            ids = candidate.ids(rows, PROMPT + 5 + 8, seed=run)
            logits, cache = candidate.extend_in_chunks(ids, [PROMPT, 5] + [1] * 8, cache)
            candidate.expect_logits(logits, ids, note=f"run {run}, compiled")
            cache = candidate.restart(cache, rows, 40)


@check(slow=True, needs=("compile", "generate"), cases={"cached": True, "uncached": False})
def test_greedy(bench: Bench, use_cache: bool) -> None:
    """Compiled, greedy tokens are Hugging Face's, with the cache and without."""
    with fresh_compiler():
        candidate = bench.build(LONG).compiled()
        ids = candidate.ids(1, PROMPT)
        expect_greedy(candidate, ids, 12, lambda ids, n: candidate.generate(ids, n, use_cache=use_cache))


@check(slow=True, needs=("compile", "state_dict"))
def test_new_weights(bench: Bench) -> None:
    """Weights that change after the model was compiled are honoured."""
    other = make_weights(LONG, bench.seed + 1)
    with fresh_compiler():
        original = bench.build(LONG)
        compiled = original.compiled()
        ids = compiled.ids(1, 13)
        compiled.expect_logits(compiled.forward(ids), ids, note="before the weights change")
        held = original.state_dict()
        if any(name not in other or tensor.shape != other[name].shape for name, tensor in held.items()):
            raise NotRun("blocked", "state_dict is wrong: see weights.state_dict_round_trip")
        with torch.inference_mode():  # where tensors made in that mode may be written too
            for name, tensor in held.items():
                tensor.copy_(other[name].to(tensor.dtype))
        held = original.state_dict()
        if not all(torch.equal(held[name].cpu(), other[name].to(held[name].dtype)) for name in held if name != HEAD):
            raise NotRun("skipped", "state_dict gives copies, so that the weights cannot be changed through it")
        expected = bench.build(LONG, weights=other)
        expected.expect_logits(compiled.forward(ids), ids, note="after the weights changed")


@check(slow=True, needs=("compile", "cache"))
def test_graphs(bench: Bench) -> None:
    """200 compiled decode steps take a few graphs, not one each, and none breaks off in the middle of a step."""
    with fresh_compiler():
        candidate = bench.build(LONG).compiled()
        ids = candidate.ids(1, PROMPT + DECODE_STEPS)
        before, breaks_before = Counter(counters["stats"]), Counter(counters["graph_break"])
        cache = candidate.init_cache(1, LONG.n_positions)
        logits, _ = candidate.extend_in_chunks(ids, [PROMPT] + [1] * DECODE_STEPS, cache)
        graphs = (Counter(counters["stats"]) - before)["unique_graphs"]
        breaks = Counter(counters["graph_break"]) - breaks_before
    candidate.expect_logits(logits, ids)
    if breaks:
        reason = str(next(iter(breaks))).strip().splitlines()[0]
        raise CheckFailure("no graph break inside a decode step", f"{breaks.total()}, the first: {reason}")
    if not 1 <= graphs <= MOST_GRAPHS:
        raise CheckFailure(f"1 to {MOST_GRAPHS} graphs for {DECODE_STEPS} steps", f"{graphs} were compiled")
