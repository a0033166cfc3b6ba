"""Whether a position sees its past and itself, and nothing after."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from conformance.bench import Bench
from conformance.candidate import Candidate, expect_same
from conformance.check import check
from conformance.outcome import NotRun, SubjectError
from conformance.shapes import TINY
from conformance.weights import converted, make_weights

LENGTH = 13


def expect_future_unseen(candidate: Candidate, ids: Tensor, future: Tensor, cut: int) -> None:
    """Fail unless logits before ``cut`` stay the same when ``ids`` ``[1, T]`` go on with ``future`` from there."""
    before = candidate.forward(ids)[:, :cut].clone()
    changed = torch.cat([ids[:, :cut], future[:, cut:]], dim=1)
    because = f"other ids from position {cut} on"
    expect_same(candidate.forward(changed)[:, :cut], before, f"the logits before position {cut}", because)


@check(cases={str(cut): cut for cut in (1, 5, LENGTH - 1)})
def test_future_ids(bench: Bench, cut: int) -> None:
    """Changing later ids leaves the logits of earlier positions as they were, bit for bit."""
    candidate = bench.build()
    expect_future_unseen(candidate, candidate.ids(1, LENGTH), candidate.ids(1, LENGTH, seed=1), cut)


@check(needs=("cache",), cases={"prefill": 0, "chunk": 6})
def test_future_ids_cached(bench: Bench, past: int) -> None:
    """With a cache too, other ids later in a chunk leave the logits of earlier ones as they were, bit for bit."""
    candidate = bench.build()
    ids, future = candidate.ids(1, LENGTH), candidate.ids(1, LENGTH, seed=1)
    cut = past + 3
    changed = torch.cat([ids[:, :cut], future[:, cut:]], dim=1)
    runs = []
    for sequence in (ids, changed):
        cache = candidate.init_cache(1, LENGTH)
        if past:
            _, cache = candidate.extend(sequence[:, :past], cache)
        logits, _ = candidate.extend(sequence[:, past:], cache)
        runs.append(logits[:, :3].clone())
    because = f"other ids from the chunk's fourth on, after a past of {past},"
    expect_same(runs[1], runs[0], "the logits of a chunk's first three ids", because)


@check()
def test_extreme_scores(bench: Bench) -> None:
    """With attention scores of many thousands the future is still unseen: the mask is no mere large number."""
    candidate = bench.build(regime="extreme")
    expect_future_unseen(candidate, candidate.ids(1, LENGTH), candidate.ids(1, LENGTH, seed=1), 5)


@check()
def test_deep_copy(bench: Bench) -> None:
    """A deep copy of the model gives the same logits bit for bit, and shares nothing with the original."""
    candidate = bench.build()
    original = need_module(candidate)
    ids = candidate.ids(1, LENGTH)
    before = candidate.forward(ids).clone()
    try:
        candidate.model = copy.deepcopy(original)
    except Exception as error:
        raise SubjectError("copy.deepcopy", error) from error
    for parameter in original.parameters():
        parameter.data.zero_()
    expect_same(
        candidate.forward(ids), before, "the logits of the original", "copying the model and zeroing the original"
    )


@check()
def test_dtype_round_trip(bench: Bench) -> None:
    """A model moved to bfloat16 and back, with weights that survive it, gives the same logits bit for bit."""
    weights = converted(converted(make_weights(TINY, bench.seed), torch.bfloat16), torch.float32)
    candidate = bench.build(weights=weights)
    original = need_module(candidate)
    ids = candidate.ids(1, LENGTH)
    before = candidate.forward(ids).clone()
    try:
        candidate.model = original.to(torch.bfloat16).to(candidate.dtype)
    except Exception as error:
        raise SubjectError("model.to", error) from error
    expect_same(candidate.forward(ids), before, "the logits before", "moving the model to bfloat16 and back")


def need_module(candidate: Candidate) -> nn.Module:
    """The subject's model, if it is a ``torch.nn.Module``: others have no ``to`` and need not be copied."""
    if not isinstance(candidate.model, nn.Module):
        raise NotRun("unsupported", "the model is no torch.nn.Module")
    return candidate.model
