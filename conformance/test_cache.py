"""Whether logits computed with a cache are those computed without, however the tokens arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from conformance.bench import Bench
from conformance.candidate import expect_same
from conformance.check import check
from conformance.outcome import CheckFailure, NotRun
from conformance.shapes import GPT2_124M, LONG, TINY

LENGTH = 13


@check(needs=("cache",), cases={"1": 1, "13": 13, "n_positions": TINY.n_positions})
def test_prefill(bench: Bench, length: int) -> None:
    """Prefilling an empty cache gives the reference's logits at every position of the prompt."""
    candidate = bench.build()
    ids = candidate.ids(1, length)
    logits, _ = candidate.extend(ids, candidate.init_cache(1, length))
    candidate.expect_logits(logits, ids)


@check(needs=("cache",), cases={"1": 1, "5": 5, "12": 12})
def test_decode(bench: Bench, prompt: int) -> None:
    """After a prefilled prompt each one-token step gives the reference's logits."""
    candidate = bench.build()
    ids = candidate.ids(1, LENGTH)
    sizes = [prompt] + [1] * (LENGTH - prompt)
    logits, _ = candidate.extend_in_chunks(ids, sizes, candidate.init_cache(1, LENGTH))
    candidate.expect_logits(logits, ids, note=f"prompt of {prompt}, then one token at a time")


@check(needs=("cache",))
def test_token_by_token(bench: Bench) -> None:
    """Fed one token at a time from an empty cache up to n_positions, every logit is the reference's."""
    candidate = bench.build()
    ids = candidate.ids(1, TINY.n_positions)
    cache = candidate.init_cache(1, TINY.n_positions)
    logits, _ = candidate.extend_in_chunks(ids, [1] * TINY.n_positions, cache)
    candidate.expect_logits(logits, ids)


@check(needs=("cache",))
def test_every_split(bench: Bench) -> None:
    """Splitting a prompt in two, at whatever place, leaves every logit unchanged."""
    candidate = bench.build()
    ids = candidate.ids(1, LENGTH)
    for first in range(1, LENGTH):
        sizes = [first, LENGTH - first]
        logits, _ = candidate.extend_in_chunks(ids, sizes, candidate.init_cache(1, LENGTH))
        candidate.expect_logits(logits, ids, note=f"chunks of {first} and {LENGTH - first}")


@check(needs=("cache",), cases={"even": (4, 4, 4), "uneven": (5, 4, 3, 1, 1), "growing": (1, 2, 3, 7)})
def test_chunked(bench: Bench, sizes: Sequence[int]) -> None:
    """Splitting a prompt into chunks leaves every logit unchanged."""
    candidate = bench.build()
    ids = candidate.ids(1, sum(sizes))
    logits, _ = candidate.extend_in_chunks(ids, sizes, candidate.init_cache(1, sum(sizes)))
    candidate.expect_logits(logits, ids, note=f"chunks of {', '.join(map(str, sizes))}")


@check(needs=("cache",))
def test_every_partition(bench: Bench) -> None:
    """All 32 ways to cut six tokens into chunks give the same logits."""
    candidate = bench.build()
    ids = candidate.ids(1, 6)
    for sizes in sorted(_partitions(6), key=len):
        logits, _ = candidate.extend_in_chunks(ids, sizes, candidate.init_cache(1, 6))
        candidate.expect_logits(logits, ids, note=f"chunks of {', '.join(map(str, sizes))}")


@check(needs=("cache",))
def test_batch(bench: Bench) -> None:
    """Every row of a batch has the logits it has alone, prefilled, in chunks and step by step."""
    candidate = bench.build()
    ids = candidate.ids(5, LENGTH)
    logits, _ = candidate.extend_in_chunks(ids, (6, 4, 1, 1, 1), candidate.init_cache(5, LENGTH))
    candidate.expect_logits(logits, ids)


@check(needs=("cache",), cases={"one_more": LENGTH + 1, "n_positions": TINY.n_positions})
def test_capacity(bench: Bench, max_length: int) -> None:
    """A cache with more room than is needed gives the same logits."""
    candidate = bench.build()
    ids = candidate.ids(1, LENGTH)
    logits, _ = candidate.extend_in_chunks(ids, (6, 4, 1, 1, 1), candidate.init_cache(1, max_length))
    candidate.expect_logits(logits, ids, note=f"max_length {max_length} for {LENGTH} tokens")


@check(needs=("cache",))
def test_filled_up(bench: Bench) -> None:
    """A long prompt and steps up to n_positions are served, the last position like the first."""
    candidate = bench.build()
    n = TINY.n_positions
    ids = candidate.ids(1, n)
    logits, _ = candidate.extend_in_chunks(ids, (n - 3, 1, 1, 1), candidate.init_cache(1, n))
    candidate.expect_logits(logits, ids)


@check(needs=("cache",))
def test_long_sequence(bench: Bench) -> None:
    """Some hundred tokens in a cache are all seen: by a chunk and by steps at the end."""
    candidate = bench.build(LONG)
    n = LONG.n_positions
    ids = candidate.ids(1, n)
    logits, _ = candidate.extend_in_chunks(ids, (100, n - 105, 1, 1, 1, 1, 1), candidate.init_cache(1, n))
    candidate.expect_logits(logits, ids)


@check(needs=("cache",))
def test_float64(bench: Bench) -> None:
    """In float64 the logits of a cached run agree with the reference to nine digits."""
    bench.need_dtype(torch.float64)
    candidate = bench.build(dtype=torch.float64)
    ids = candidate.ids(1, LENGTH)
    logits, _ = candidate.extend_in_chunks(ids, (6, 4, 1, 1, 1), candidate.init_cache(1, LENGTH))
    candidate.expect_logits(logits, ids)


@check(needs=("cache", "cache_tensors"))
def test_unused_slots(bench: Bench) -> None:
    """What lies in slots that are not filled leaves the logits as they were, bit for bit."""
    candidate = bench.build()
    ids = candidate.ids(1, LENGTH)
    runs = []
    for poison in (0.0, 1e4):
        logits, cache = candidate.extend(ids[:, :6], candidate.init_cache(1, TINY.n_positions))
        with torch.inference_mode():  # where tensors made in that mode may be written too
            for pair in candidate.cache_tensors(cache):
                for tensor in pair:
                    tensor[:, :, 6:] = poison
        if not all(_unused_are(pair, 6, poison) for pair in candidate.cache_tensors(cache)):
            raise NotRun("skipped", "cache_tensors gives copies, or the cache has no unused slots")
        rest, _ = candidate.extend_in_chunks(ids[:, 6:], (4, 1, 1, 1), cache)
        runs.append(torch.cat([logits, rest], dim=1))
    expect_same(runs[1], runs[0], "the logits over zeros", "10,000 in every unused slot")


@check(needs=("cache", "cache_tensors"), cases={"prefill": (13,), "chunks": (5, 4, 1, 1, 1, 1)})
def test_contents(bench: Bench, sizes: Sequence[int]) -> None:
    """The cache holds the reference's keys and values, layer by layer, at the slot of their position."""
    candidate = bench.build()
    ids = candidate.ids(2, sum(sizes))
    _, cache = candidate.extend_in_chunks(ids, sizes, candidate.init_cache(2, sum(sizes)))
    candidate.expect_past(candidate.cache_tensors(cache), ids)


@check(needs=("cache", "cache_tensors"))
def test_precision(bench: Bench) -> None:
    """Keys and values are kept in the model's precision."""
    candidate = bench.build()
    _, cache = candidate.extend(candidate.ids(1, 7), candidate.init_cache(1, 7))
    held = {tensor.dtype for pair in candidate.cache_tensors(cache) for tensor in pair}
    if held != {candidate.dtype}:
        raise CheckFailure(f"keys and values in {candidate.dtype}", f"they are in {', '.join(map(str, held))}")


@check(needs=("cache",), slow=True)
def test_real_shape(bench: Bench) -> None:
    """At the shape of GPT-2 124M prefill, a chunk and steps give the reference's logits."""
    candidate = bench.build(GPT2_124M)
    ids = candidate.ids(1, 32)
    logits, _ = candidate.extend_in_chunks(ids, (20, 8, 1, 1, 1, 1), candidate.init_cache(1, 32))
    candidate.expect_logits(logits, ids)


def _partitions(total: int) -> Iterator[list[int]]:
    if total == 0:
        yield []
    for first in range(1, total + 1):
        yield from ([first, *rest] for rest in _partitions(total - first))


def _unused_are(pair: Sequence[torch.Tensor], filled: int, value: float) -> bool:
    return all(tensor.shape[2] > filled and bool((tensor[:, :, filled:] == value).all()) for tensor in pair)
