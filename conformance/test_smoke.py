"""Whether the subject can be checked at all, and answers like a function of its input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.models.gpt2 import modeling_gpt2

from conformance.bench import Bench
from conformance.candidate import expect_same
from conformance.check import check
from conformance.outcome import CheckFailure, NotRun
from conformance.shapes import TINY
from conformance.weights import make_weights


@check(prerequisite=True)
def test_loads(bench: Bench) -> None:
    """The adapter is importable and has the names that the protocol requires."""
    bench.subject  # noqa: B018 - loading it is the check


@check(prerequisite=True)
def test_builds(bench: Bench) -> None:
    """A model is built from a configuration and weights."""
    bench.build()


@check(prerequisite=True)
def test_logits_shape(bench: Bench) -> None:
    """The logits of [B, T] ids are [B, T, vocab_size], in the model's precision, and finite."""
    candidate = bench.build()
    logits = candidate.forward(candidate.ids(1, 7))
    if logits.dtype != candidate.dtype:
        raise CheckFailure(f"logits in {candidate.dtype}, as build was asked for", f"they are in {logits.dtype}")
    if not logits.isfinite().all():
        raise CheckFailure("every logit is finite", f"{int((~logits.isfinite()).sum())} are NaN or infinite")


@check()
def test_repeatable(bench: Bench) -> None:
    """The same call twice gives the same logits bit for bit: no dropout, no state."""
    candidate = bench.build()
    ids = candidate.ids(1, 13)
    first = candidate.forward(ids).clone()
    expect_same(candidate.forward(ids), first, "the logits of the first call", "calling again")


@check()
def test_depends_on_input(bench: Bench) -> None:
    """Other ids give other logits."""
    candidate = bench.build()
    ids = candidate.ids(1, 7)
    other = (ids + 1) % candidate.config.vocab_size
    if torch.equal(candidate.forward(ids).clone(), candidate.forward(other)):
        raise CheckFailure("other logits for other ids", "the very same logits")


@check()
def test_not_the_reference(bench: Bench) -> None:
    """The subject is not Hugging Face's GPT-2 itself."""
    if bench.subject.uses_huggingface:
        raise NotRun("skipped", "the subject says that it runs Hugging Face's GPT-2 (USES_HUGGINGFACE)")
    with _modules_that_run() as seen:
        candidate = bench.build()
        candidate.forward(candidate.ids(1, 7))
    if any(type(module).__module__ == modeling_gpt2.__name__ for module in seen):
        raise CheckFailure(
            "no module of transformers' GPT-2 runs in forward",
            "one does: the reference would be compared with itself; say USES_HUGGINGFACE = True if that is meant",
        )


@check()
def test_weights_unchanged(bench: Bench) -> None:
    """Building and running a model leaves the weights that it was given as they were."""
    given: dict[str, torch.Tensor] = {}
    candidate = bench.build(given=lambda state_dict: given.update(state_dict) or state_dict)
    ids = candidate.ids(1, 7)
    candidate.forward(ids)
    if bench.subject.claims("cache"):
        candidate.extend(ids, candidate.init_cache(1, 7))
    expected = make_weights(TINY, bench.seed)
    changed = [name for name, tensor in given.items() if not torch.equal(tensor, expected[name].to(tensor.dtype))]
    if changed:
        raise CheckFailure("the tensors handed to build keep their values", f"changed: {', '.join(changed)}")


@check()
def test_ids_unchanged(bench: Bench) -> None:
    """Running a model leaves the ids that it was given as they were."""
    candidate = bench.build()
    kept = candidate.ids(1, 7)
    ids = kept.to(bench.device, copy=True)
    candidate.call("forward", candidate.model, ids)
    if bench.subject.claims("cache"):
        candidate.call("extend", candidate.model, ids, candidate.init_cache(1, 7))
    if bench.subject.claims("generate"):
        candidate.call("generate", candidate.model, ids, 3, use_cache=False)
    if not torch.equal(ids.cpu(), kept):
        raise CheckFailure(f"the ids stay {kept.tolist()}", f"they became {ids.tolist()}")


@contextmanager
def _modules_that_run() -> Iterator[list[nn.Module]]:
    """The modules whose forward is called meanwhile."""
    seen: list[nn.Module] = []

    def remember(module: nn.Module, inputs: Any) -> None:
        seen.append(module)

    handle = nn.modules.module.register_module_forward_pre_hook(remember)
    try:
        yield seen
    finally:
        handle.remove()
