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
from scratch_gpt import GPT2, KVCache, compiled, generate, load_huggingface_state_dict, to_huggingface

IDS = token_ids(TINY, 1, 7)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # reset leaves them as they are
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


@pytest.mark.usefixtures("quick")
def test_decode_steps_share_one_graph(model: GPT2) -> None:
    twin, cache = compiled(model), KVCache(model.config)
    twin(IDS, cache)
    graphs = []
    for _ in range(30):
        twin(IDS[:, :1], cache)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs[2:] == [graphs[2]] * 28


@pytest.mark.usefixtures("quick")
def test_weights_loaded_after_compiling_are_honoured(model: GPT2) -> None:
    twin, other = compiled(model), GPT2(model.config).eval()
    assert not torch.equal(twin(IDS), other(IDS))
    load_huggingface_state_dict(model, to_huggingface(other))
    assert_close(twin(IDS), other(IDS))


@pytest.mark.usefixtures("quick")
def test_generation_without_the_toggle_compiles_nothing(model: GPT2) -> None:
    generate(model, IDS, 3)
    assert not torch._dynamo.utils.counters["stats"]
    generate(model, IDS, 3, compile=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
