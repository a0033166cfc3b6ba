"""Whether the subject refuses what it cannot serve, instead of going on silently.

What counts as a refusal is an exception of any type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.bench import Bench
from conformance.check import check
from conformance.outcome import CheckFailure, SubjectError
from conformance.shapes import TINY

N = TINY.n_positions


def expect_refusal(call: Callable[[], Any], what: str) -> None:
    """Fail unless ``call`` raises."""
    try:
        answer = call()
    except SubjectError:
        return
    except CheckFailure as wrong_shape:
        raise CheckFailure(f"{what} raises an error", wrong_shape.actual) from wrong_shape
    shape = f" of shape {list(answer.shape)}" if isinstance(answer, Tensor) else ""
    raise CheckFailure(f"{what} raises an error", f"it was served with an answer{shape}: nothing says that it is wrong")


@check()
def test_one_too_many(bench: Bench) -> None:
    """A sequence of n_positions + 1 tokens raises an error, and the model still serves a shorter one."""
    candidate = bench.build()
    ids = candidate.ids(1, N + 1)
    expect_refusal(lambda: candidate.forward(ids), f"{N + 1} tokens with n_positions {N}")
    candidate.expect_logits(candidate.forward(ids[:, :7]), ids[:, :7])


@check(needs=("cache",), cases={"step": (N, 1), "chunk": (N - 3, 5), "prefill": (0, N + 1)})
def test_cache_beyond_n_positions(bench: Bench, sizes: tuple[int, int]) -> None:
    """A cache that would come to hold more than n_positions tokens raises an error."""
    held, more = sizes
    candidate = bench.build()
    ids = candidate.ids(1, held + more)
    cache = candidate.init_cache(1, N)
    if held:
        _, cache = candidate.extend(ids[:, :held], cache)
    expect_refusal(lambda: candidate.extend(ids[:, held:], cache)[0], f"{more} more after {held} of {N} positions")


@check(needs=("cache",), cases={"step": (6, 1), "chunk": (4, 5), "prefill": (0, 7)})
def test_cache_beyond_max_length(bench: Bench, sizes: tuple[int, int]) -> None:
    """More tokens than max_length raise an error or are served right, never served wrong."""
    held, more = sizes
    candidate = bench.build()
    ids = candidate.ids(1, held + more)
    cache = candidate.init_cache(1, 6)
    if held:
        _, cache = candidate.extend(ids[:, :held], cache)
    try:
        logits, _ = candidate.extend(ids[:, held:], cache)
    except SubjectError:
        return
    candidate.expect_logits(logits, ids, start=held, note="beyond max_length 6")


@check(needs=("generate",), cases={"cached": True, "uncached": False})
def test_generate_beyond_n_positions(bench: Bench, use_cache: bool) -> None:
    """Prompt and new tokens beyond n_positions raise an error."""
    candidate = bench.build()
    ids = candidate.ids(1, N - 4)
    expect_refusal(lambda: candidate.generate(ids, 6, use_cache=use_cache), f"{N - 4} + 6 tokens with n_positions {N}")


@check(cases={"vocab_size": TINY.vocab_size, "negative": -1})
def test_id_out_of_range(bench: Bench, bad_id: int) -> None:
    """An id outside the vocabulary raises an error."""
    candidate = bench.build()
    ids = candidate.ids(1, 7)
    ids[0, 3] = bad_id
    expect_refusal(lambda: candidate.forward(ids), f"id {bad_id} with vocab_size {TINY.vocab_size}")


@check(
    needs=("cache",),
    cases={
        "vocab_size": lambda ids: ids.fill_(TINY.vocab_size),
        "negative": lambda ids: ids.fill_(-1),
        "empty": lambda ids: ids[:, :0],
        "float": lambda ids: ids.float(),
        "other_rows": lambda ids: ids.repeat(2, 1),
    },
)
def test_wrong_extend(bench: Bench, spoil: Callable[[Tensor], Tensor]) -> None:
    """With a cache, ids outside the vocabulary, none, no integers, or another number of rows raise an error."""
    candidate = bench.build()
    ids = candidate.ids(1, 9)
    _, cache = candidate.extend(ids[:, :6], candidate.init_cache(1, N))
    spoilt = spoil(ids[:, 6:].clone())
    expect_refusal(lambda: candidate.extend(spoilt, cache)[0], f"extend with {spoilt.dtype} ids {spoilt.tolist()}")


@check(
    needs=("generate",),
    cases={"vocab_size": lambda ids: ids.fill_(TINY.vocab_size), "negative": lambda ids: ids.fill_(-1)},
)
def test_wrong_prompt(bench: Bench, spoil: Callable[[Tensor], Tensor]) -> None:
    """A prompt with ids outside the vocabulary raises an error."""
    candidate = bench.build()
    prompt = spoil(candidate.ids(1, 5))
    expect_refusal(lambda: candidate.generate(prompt, 3, use_cache=True), f"the prompt {prompt.tolist()}")


@check()
def test_empty_input(bench: Bench) -> None:
    """An input without tokens raises an error."""
    candidate = bench.build()
    expect_refusal(lambda: candidate.forward(torch.empty(1, 0, dtype=torch.long)), "an input of no tokens")


@check()
def test_wrong_dtype(bench: Bench) -> None:
    """Ids that are floating-point numbers raise an error."""
    candidate = bench.build()
    ids = candidate.ids(1, 7).float()
    expect_refusal(lambda: candidate.forward(ids), "ids in float32")


@check()
def test_wrong_rank(bench: Bench) -> None:
    """Ids without a batch axis raise an error or are served as one row, never as anything else."""
    candidate = bench.build()
    ids = candidate.ids(1, 7)
    try:
        answer = candidate.call("forward", candidate.model, ids[0].to(bench.device))
    except SubjectError:
        return
    one_row = ([7, TINY.vocab_size], [1, 7, TINY.vocab_size])
    if not isinstance(answer, Tensor) or list(answer.shape) not in one_row:
        shape = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise CheckFailure(f"ids of shape [7] raise an error or give logits {one_row[1]}", f"an answer of {shape}")
    candidate.expect_logits(answer.view(one_row[1]), ids)
