"""Whether the subject works in half precision. Faults and correct code overlap there: only gross errors are told."""

from __future__ import annotations

import torch

from conformance.bench import Bench
from conformance.candidate import Candidate
from conformance.check import check
from conformance.outcome import CheckFailure

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTH = 13


def build(bench: Bench, dtype: torch.dtype) -> Candidate:
    """A model in a precision that the subject claims and the run includes."""
    bench.need_dtype(dtype)
    return bench.build(dtype=dtype)


@check(cases=DTYPES)
def test_uncached(bench: Bench, dtype: torch.dtype) -> None:
    """In half precision the logits have no gross error."""
    candidate = build(bench, dtype)
    ids = candidate.ids(candidate.most_rows(3), LENGTH)
    candidate.expect_logits(candidate.forward(ids), ids)


@check(needs=("cache",), cases=DTYPES)
def test_cached(bench: Bench, dtype: torch.dtype) -> None:
    """In half precision the logits of a cached run have no gross error."""
    candidate = build(bench, dtype)
    rows = candidate.most_rows(3)
    ids = candidate.ids(rows, LENGTH)
    logits, _ = candidate.extend_in_chunks(ids, (6, 4, 1, 1, 1), candidate.init_cache(rows, LENGTH))
    candidate.expect_logits(logits, ids)


@check(needs=("cache", "cache_tensors"), cases=DTYPES)
def test_cache_precision(bench: Bench, dtype: torch.dtype) -> None:
    """In half precision the cache is in the model's precision."""
    candidate = build(bench, dtype)
    _, cache = candidate.extend(candidate.ids(1, 7), candidate.init_cache(1, 7))
    held = {tensor.dtype for pair in candidate.cache_tensors(cache) for tensor in pair}
    if held != {dtype}:
        raise CheckFailure(f"keys and values in {dtype}", f"they are in {', '.join(map(str, held))}")
