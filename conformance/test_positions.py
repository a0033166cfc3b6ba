"""Whether every token gets the embedding of its own position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from conformance.bench import Bench
from conformance.candidate import Candidate
from conformance.check import check
from conformance.outcome import CheckFailure
from conformance.shapes import TINY


def expect_positions(candidate: Candidate, logits: Tensor, ids: Tensor, note: str) -> None:
    """Fail unless ``logits`` ``[1, T, V]`` are right; say which position was used where one explains the error."""
    try:
        candidate.expect_logits(logits, ids, note=note)
    except CheckFailure as failure:
        truth = candidate.reference.logits(ids)
        wrong = candidate.first_wrong(logits, truth.values, truth)
        if wrong is None or wrong[1] >= ids.shape[1]:
            raise
        position = wrong[1]
        used, error = candidate.reference.position_used(ids[0, : position + 1], logits[0, position].cpu())
        if error > truth.budget:
            raise
        raise CheckFailure(
            f"the token after a past of {position} gets wpe[{position}]",
            f"it got wpe[{used}], which explains its logits to {error:.1e}",
            first_wrong=failure.first_wrong,
            error=failure.error,
        ) from failure


@check()
def test_uncached(bench: Bench) -> None:
    """Without a cache, position p of a sequence gets wpe[p], for every p."""
    candidate = bench.build()
    ids = candidate.ids(1, TINY.n_positions)
    expect_positions(candidate, candidate.forward(ids), ids, "uncached")


@check(
    needs=("cache",),
    cases={
        "steps_from_empty": [1] * TINY.n_positions,
        "steps_after_prompt": [7] + [1] * (TINY.n_positions - 7),
        "chunk_after_prompt": [7, 5, 11],
    },
)
def test_after_past(bench: Bench, sizes: Sequence[int]) -> None:
    """With p tokens in the cache the next one gets wpe[p], for every p, by steps and by chunks."""
    candidate = bench.build()
    ids = candidate.ids(1, sum(sizes))
    logits, _ = candidate.extend_in_chunks(ids, sizes, candidate.init_cache(1, TINY.n_positions))
    expect_positions(candidate, logits, ids, "cached")


@check(needs=("cache",))
def test_start_over(bench: Bench) -> None:
    """After a reset the first token gets wpe[0] again."""
    candidate = bench.build()
    cache = candidate.init_cache(1, TINY.n_positions)
    _, cache = candidate.extend(candidate.ids(1, 9), cache)
    ids = candidate.ids(1, 5, seed=1)
    logits, _ = candidate.extend_in_chunks(ids, [1] * 5, candidate.restart(cache, 1, TINY.n_positions))
    expect_positions(candidate, logits, ids, "after a reset")


@check(needs=("position_ids",))
def test_explicit(bench: Bench) -> None:
    """Positions that are given are the positions that are used."""
    candidate = bench.build()
    rows = candidate.most_rows(2)
    ids = candidate.ids(rows, 7)
    positions = torch.tensor([[3, 4, 5, 6, 20, 21, 39], [0, 1, 2, 3, 4, 5, 6]])[:rows]
    logits = candidate.forward(ids, position_ids=positions)
    usual = candidate.reference.logits(ids)
    error = float((logits.cpu().double() - candidate.reference.exact(ids, positions)).abs().max())
    if error > usual.budget:
        ignored = candidate.first_wrong(logits, usual.values, usual) is None
        raise CheckFailure(
            f"the logits at positions {positions.tolist()}",
            "those at positions 0 to 6: position_ids is ignored" if ignored else "others",
            error=f"{error:.1e}; {usual.budget:.1e} is allowed",
        )
