"""Whether the logits of whole sequences, without a cache, are GPT-2's."""

from __future__ import annotations

import torch

from conformance.bench import Bench
from conformance.candidate import expect_same
from conformance.check import check
from conformance.shapes import GPT2_124M, LONG, TINY


@check(cases={"1": 1, "2": 2, "13": 13, "n_positions": TINY.n_positions})
def test_full_sequence(bench: Bench, length: int) -> None:
    """The logits of a whole sequence are the reference's."""
    candidate = bench.build()
    ids = candidate.ids(1, length)
    candidate.expect_logits(candidate.forward(ids), ids)


@check()
def test_batch(bench: Bench) -> None:
    """Every row of a batch has the logits it has alone."""
    candidate = bench.build()
    ids = candidate.ids(5, 13)
    candidate.expect_logits(candidate.forward(ids), ids)


@check()
def test_rows_independent(bench: Bench) -> None:
    """Other ids in one row of a batch leave the other rows' logits as they were, bit for bit."""
    candidate = bench.build()
    ids = candidate.ids(2, 13)
    before = candidate.forward(ids).clone()
    ids[1] = candidate.ids(1, 13, seed=1)
    expect_same(candidate.forward(ids)[:1], before[:1], "the logits of row 0", "other ids in row 1")


@check()
def test_every_id(bench: Bench) -> None:
    """Every id of the vocabulary has its embedding, the first and the last too."""
    candidate = bench.build()
    length = TINY.n_positions - 1
    for ids in torch.split(torch.arange(TINY.vocab_size), length):
        candidate.expect_logits(candidate.forward(ids[None]), ids[None])


@check()
def test_long_sequence(bench: Bench) -> None:
    """The logits of a sequence of some hundred tokens are the reference's to the end."""
    candidate = bench.build(LONG)
    ids = candidate.ids(1, LONG.n_positions)
    candidate.expect_logits(candidate.forward(ids), ids)


@check()
def test_small_weights(bench: Bench) -> None:
    """With activations so small that LayerNorm's epsilon counts, the logits are still the reference's."""
    candidate = bench.build(regime="small")
    ids = candidate.ids(1, 13)
    candidate.expect_logits(candidate.forward(ids), ids)


@check()
def test_float64(bench: Bench) -> None:
    """In float64 the logits agree with the reference to nine digits."""
    bench.need_dtype(torch.float64)
    candidate = bench.build(dtype=torch.float64)
    ids = candidate.ids(1, 13)
    candidate.expect_logits(candidate.forward(ids), ids)


@check(slow=True)
def test_real_shape(bench: Bench) -> None:
    """At the shape of GPT-2 124M the logits are the reference's, also around the last id, <|endoftext|>."""
    candidate = bench.build(GPT2_124M)
    ids = candidate.ids(1, 32)
    ids[0, 9] = GPT2_124M.vocab_size - 1
    candidate.expect_logits(candidate.forward(ids), ids)
