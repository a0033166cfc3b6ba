"""The compile toggle. What it computes is the conformance suite's matter; here is how it lives beside the model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch.testing import assert_close

from conformance.shapes import TINY
from conformance.weights import token_ids
from scratch_gpt import GPT2, compiled, generate

IDS = token_ids(TINY, 1, 7)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are captured as ever, and run by torch itself instead of generated code."""
    monkeypatch.setattr(torch, "compile", lambda function, **settings: _compile(function, backend="eager", **settings))


_compile = torch.compile


@pytest.mark.usefixtures("quick")
def test_asking_twice_gives_the_same_twin(model: GPT2) -> None:
    assert compiled(model) is compiled(model)
    assert compiled(model) is not model


@pytest.mark.usefixtures("quick")
def test_twin_shares_the_weights_and_leaves_the_model_alone(model: GPT2) -> None:
    twin = compiled(model)
    assert [p.data_ptr() for p in twin.parameters()] == [p.data_ptr() for p in model.parameters()]
    assert model.compute.__func__ is GPT2.compute
    before = twin(IDS)
    model.wte.weight.mul_(2.0)
    assert not torch.equal(twin(IDS), before)
    assert_close(twin(IDS), model(IDS))


@pytest.mark.usefixtures("quick")
def test_weights_replaced_after_compiling_are_honoured(model: GPT2) -> None:
    twin = compiled(model)
    twin(IDS)
    model.ln_f.weight = torch.nn.Parameter(2 * model.ln_f.weight)
    assert_close(twin(IDS), model(IDS))


@pytest.mark.usefixtures("quick")
def test_state_dict_of_the_twin_has_plain_names(model: GPT2) -> None:
    assert compiled(model).state_dict().keys() == model.state_dict().keys()


@pytest.mark.usefixtures("quick")
def test_model_and_twin_are_freed(model: GPT2) -> None:
    other = GPT2(model.config).eval()
    references = [weakref.ref(other), weakref.ref(compiled(other))]
    generate(other, IDS, 3, compile=True)
    del other
    torch._dynamo.reset()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("use_cache", [True, False])
def test_compiled_generation_gives_the_same_tokens(model: GPT2, use_cache: bool) -> None:
    expected = generate(model, IDS, 10)
    assert torch.equal(generate(model, IDS, 10, use_cache=use_cache, compile=True), expected)
