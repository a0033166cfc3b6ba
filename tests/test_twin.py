"""The twin without a fault is GPT-2: what a planted fault changes is the fault alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from conformance.bench import Bench
from conformance.shapes import TINY
from conformance.twin import Twin


@pytest.mark.parametrize("sizes", [(13,), (6, 4, 1, 1, 1), (1,) * 13])
@pytest.mark.parametrize("regime", ["perturbed", "small", "extreme"])
def test_float64_twin_agrees_with_hugging_face_to_twelve_digits(regime: str, sizes: Sequence[int]) -> None:
    candidate = Bench(Twin()).build(regime=regime, dtype=torch.float64)
    ids = candidate.ids(2, sum(sizes))
    expected = candidate.reference.logits(ids).values
    cached, _ = candidate.extend_in_chunks(ids, sizes, candidate.init_cache(2, TINY.n_positions))
    for logits in (candidate.forward(ids), cached):
        assert float((logits - expected).abs().max() / expected.abs().max()) < 1e-12
