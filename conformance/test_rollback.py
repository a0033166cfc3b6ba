"""Whether a cache that is cut back to its first tokens goes on as if the others had never been."""

from __future__ import annotations

import torch

from conformance.bench import Bench
from conformance.check import check
from conformance.shapes import TINY

HELD = 9


@check(needs=("cache", "truncate_cache"), cases={"1": 1, "5": 5, "8": 8, "all": HELD})
def test_truncate(bench: Bench, kept: int) -> None:
    """After truncation to n tokens, other tokens that follow give the reference's logits, by a chunk and by steps."""
    candidate = bench.build()
    ids = candidate.ids(1, HELD)
    _, cache = candidate.extend(ids, candidate.init_cache(1, TINY.n_positions))
    cache = candidate.call("truncate_cache", candidate.model, cache, kept)
    other = candidate.ids(1, 6, seed=1)
    logits, _ = candidate.extend_in_chunks(other, (4, 1, 1), cache)
    whole = torch.cat([ids[:, :kept], other], dim=1)
    candidate.expect_logits(logits, whole, start=kept, note=f"{HELD} tokens truncated to {kept}")
