"""Whether runs leave each other alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.bench import Bench
from conformance.candidate import Candidate, expect_same
from conformance.check import check
from conformance.outcome import CheckFailure, SubjectError
from conformance.shapes import TINY
from conformance.weights import make_weights

CAPACITY = TINY.n_positions
SIZES = [6, 4, 1, 1, 1]
LENGTH = sum(SIZES)


def expect_cached_run(candidate: Candidate, ids: Tensor, cache: Any, note: str) -> Any:
    """Run ``ids`` ``[B, LENGTH]`` on an empty cache, fail unless every logit is right, and return the used cache."""
    logits, cache = candidate.extend_in_chunks(ids, SIZES, cache)
    candidate.expect_logits(logits, ids, note=note)
    return cache


@check(
    needs=("cache",),
    cases={"shorter_after_longer": (LENGTH, 7), "longer_after_shorter": (7, LENGTH), "after_full": (CAPACITY, 7)},
)
def test_reset(bench: Bench, lengths: tuple[int, int]) -> None:
    """A run after a reset gives what it gives on a new model, bit for bit."""
    a_length, b_length = lengths
    used, fresh = bench.build(), bench.build()
    rows = used.most_rows(2)
    a, b = used.ids(rows, a_length), used.ids(rows, b_length, seed=1)
    _, cache = used.extend(a, used.init_cache(rows, CAPACITY))
    sizes = (b_length - 2, 1, 1)
    after_reset, _ = used.extend_in_chunks(b, sizes, used.restart(cache, rows, CAPACITY))
    on_new_model, _ = fresh.extend_in_chunks(b, sizes, fresh.init_cache(rows, CAPACITY))
    expect_same(after_reset, on_new_model, "the logits on a new model", "an earlier run and a reset")


@check(needs=("cache",))
def test_a_b_a(bench: Bench) -> None:
    """Runs A, B and A again, with a reset between them, are each right."""
    candidate = bench.build()
    cache = candidate.init_cache(1, CAPACITY)
    for run, seed in (("A", 0), ("B", 1), ("A again", 0)):
        cache = expect_cached_run(candidate, candidate.ids(1, LENGTH, seed), cache, f"run {run}")
        cache = candidate.restart(cache, 1, CAPACITY)


@check(needs=("cache",))
def test_new_cache(bench: Bench) -> None:
    """A new cache is empty, whatever the model has served before."""
    candidate = bench.build()
    for seed in (0, 1):
        ids = candidate.ids(1, LENGTH, seed)
        expect_cached_run(candidate, ids, candidate.init_cache(1, CAPACITY), f"new cache {seed}")


@check(needs=("cache",))
def test_batch_size_changes(bench: Bench) -> None:
    """Runs of one row, five rows and one row again, each on a new cache, are right."""
    candidate = bench.build()
    for rows in (1, 5, 1):
        expect_cached_run(candidate, candidate.ids(rows, LENGTH), candidate.init_cache(rows, CAPACITY), f"{rows} rows")


@check(needs=("cache",))
def test_capacity_changes(bench: Bench) -> None:
    """A cache with more room, made after one with less, has that room."""
    candidate = bench.build()
    for capacity in (LENGTH, CAPACITY):
        ids = candidate.ids(1, capacity)
        logits, _ = candidate.extend_in_chunks(ids, (capacity - 2, 1, 1), candidate.init_cache(1, capacity))
        candidate.expect_logits(logits, ids, note=f"max_length {capacity}")


@check(needs=("cache",))
def test_uncached_after_cached(bench: Bench) -> None:
    """A call without a cache, after a cached run, starts at position 0 and sees no past."""
    candidate = bench.build()
    ids = candidate.ids(1, LENGTH)
    candidate.extend_in_chunks(ids, SIZES, candidate.init_cache(1, CAPACITY))
    other = candidate.ids(1, 7, seed=1)
    candidate.expect_logits(candidate.forward(other), other, note="uncached, after a cached run")


@check(needs=("two_caches",))
def test_uncached_in_the_middle(bench: Bench) -> None:
    """A call without a cache, in the middle of a cached run, is right and leaves the run right."""
    candidate = bench.build()
    ids, other = candidate.ids(1, LENGTH), candidate.ids(1, 7, seed=1)
    head, cache = candidate.extend(ids[:, :6], candidate.init_cache(1, CAPACITY))
    head = head.clone()
    candidate.expect_logits(candidate.forward(other), other, note="the uncached call")
    tail, _ = candidate.extend_in_chunks(ids[:, 6:], SIZES[1:], cache)
    candidate.expect_logits(torch.cat([head, tail], dim=1), ids, note="the cached run around it")


@check(needs=("two_caches",))
def test_interleaved_caches(bench: Bench) -> None:
    """Two caches of one model, used in turns, each give their own sequence's logits."""
    candidate = bench.build()
    expect_interleaved((candidate, candidate))


@check(needs=("cache",))
def test_interleaved_models(bench: Bench) -> None:
    """Two models with other weights, used in turns, each give their own logits."""
    expect_interleaved((bench.build(), bench.build(weights=make_weights(TINY, bench.seed + 1))))


def expect_interleaved(candidates: tuple[Candidate, Candidate]) -> None:
    """Run two sequences chunk by chunk in turns and fail unless both are right."""
    ids = [candidate.ids(1, LENGTH, seed) for seed, candidate in enumerate(candidates)]
    caches = [candidate.init_cache(1, CAPACITY) for candidate in candidates]
    pieces: list[list[Tensor]] = [[], []]
    for chunks in zip(*(torch.split(sequence, SIZES, dim=1) for sequence in ids), strict=True):
        for i, candidate in enumerate(candidates):
            logits, caches[i] = candidate.extend(chunks[i], caches[i])
            pieces[i].append(logits.clone())
    for i, candidate in enumerate(candidates):
        candidate.expect_logits(torch.cat(pieces[i], dim=1), ids[i], note=f"sequence {i} of two in turns")


@check(needs=("cache",))
def test_after_an_error(bench: Bench) -> None:
    """After a call that fails, and a reset, a run is right."""
    candidate = bench.build()
    ids = candidate.ids(1, LENGTH)
    _, cache = candidate.extend(ids[:, :6], candidate.init_cache(1, CAPACITY))
    try:
        candidate.extend(torch.full((1, 2), TINY.vocab_size), cache)
    except SubjectError:
        pass
    else:
        raise CheckFailure(f"id {TINY.vocab_size} raises an error", "extend returned: see limits.id_out_of_range")
    expect_cached_run(candidate, ids, candidate.restart(cache, 1, CAPACITY), "after an error and a reset")


@check(needs=("cache",))
def test_logits_stay(bench: Bench) -> None:
    """Logits that were handed out do not change when the model goes on."""
    candidate = bench.build()
    ids = candidate.ids(1, LENGTH)
    cache = candidate.init_cache(1, CAPACITY)
    handed_out: list[tuple[str, Tensor, Tensor]] = []
    for i, piece in enumerate(torch.split(ids, SIZES, dim=1)):
        logits, cache = candidate.extend(piece, cache)
        handed_out.append((f"the logits of call {i}", logits, logits.clone()))
    uncached = candidate.forward(ids)
    handed_out.append(("the logits of the uncached call", uncached, uncached.clone()))
    candidate.forward(candidate.ids(1, LENGTH, seed=1))
    for what, logits, kept in handed_out:
        expect_same(logits, kept, what, "later calls")


@check(needs=("two_caches", "generate"))
def test_generate_leaves_caches_alone(bench: Bench) -> None:
    """A whole generation in the middle of a cached run leaves the run right."""
    candidate = bench.build()
    ids = candidate.ids(1, LENGTH)
    head, cache = candidate.extend(ids[:, :6], candidate.init_cache(1, CAPACITY))
    head = head.clone()
    candidate.generate(candidate.ids(1, 7, seed=1), 5, use_cache=True)
    tail, _ = candidate.extend_in_chunks(ids[:, 6:], SIZES[1:], cache)
    candidate.expect_logits(torch.cat([head, tail], dim=1), ids, note="a generation after position 5")
