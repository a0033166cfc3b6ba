"""The compile toggle. What it computes is the conformance suite's matter; here is how it lives beside the model."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from conformance.shapes import TINY
from conformance.weights import token_ids
from scratch_gpt import GPT2, CompiledGPT2, KVCache, generate, load_huggingface_state_dict, to_huggingface

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
def test_compiling_again_makes_no_new_graph(model: GPT2) -> None:
    generate(model, IDS, 5, compile=True)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    generate(model, IDS, 5, compile=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0


@pytest.mark.usefixtures("quick")
def test_model_itself_stays_as_it_was(model: GPT2) -> None:
    names = set(vars(model))
    CompiledGPT2(model)(IDS)
    assert set(vars(model)) == names


@pytest.mark.usefixtures("quick")
def test_weights_changed_in_place_or_replaced_are_honoured(model: GPT2) -> None:
    compiled = CompiledGPT2(model)
    before = compiled(IDS)
    model.wte.weight.mul_(2.0)
    model.ln_f.weight = torch.nn.Parameter(3 * model.ln_f.weight)
    assert not torch.equal(compiled(IDS), before)
    assert_close(compiled(IDS), model(IDS))


@pytest.mark.usefixtures("quick")
def test_mode_is_the_models(model: GPT2) -> None:
    compiled = CompiledGPT2(model.train())
    assert not torch.equal(compiled(IDS), compiled(IDS))
    model.eval()
    assert torch.equal(compiled(IDS), compiled(IDS))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda compiled: pickle.loads(pickle.dumps(compiled))])
def test_copy_has_weights_of_its_own(model: GPT2, clone: Any) -> None:
    compiled = CompiledGPT2(model)
    expected = compiled(IDS)
    copied = clone(compiled)
    model.wte.weight.zero_()
    assert_close(copied(IDS), expected)


class Doubled(GPT2):
    def compute(self, *arguments: Any) -> torch.Tensor:
        return 2 * super().compute(*arguments)


@pytest.mark.usefixtures("quick")
def test_subclass_computes_its_own_way(model: GPT2) -> None:
    doubled = Doubled(model.config).eval()
    doubled.load_state_dict(model.state_dict())
    assert_close(CompiledGPT2(doubled)(IDS), 2 * model(IDS))


@pytest.mark.usefixtures("quick")
def test_bad_input_is_refused_as_by_the_model(model: GPT2) -> None:
    with pytest.raises(ValueError, match="the vocabulary has the ids 0 to 100"):
        CompiledGPT2(model)(IDS + 100)


@pytest.mark.usefixtures("quick")
def test_more_kinds_of_calls_than_torch_keeps_graphs_for_are_served(model: GPT2) -> None:
    for rows in (1, 2, 3, 4):
        for length in (1, 2, 7):
            for use_cache in (True, False):
                ids = token_ids(TINY, rows, length)
                expected = generate(model, ids, 4)
                assert torch.equal(generate(model, ids, 4, use_cache=use_cache, compile=True), expected)


@pytest.mark.usefixtures("quick")
def test_model_is_freed(model: GPT2) -> None:
    other = GPT2(model.config).eval()
    reference = weakref.ref(other)
    generate(other, IDS, 3, compile=True)
    del other
    torch._dynamo.reset()
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("use_cache", [True, False])
def test_compiled_generation_gives_the_same_tokens(model: GPT2, use_cache: bool) -> None:
    expected = generate(model, IDS, 10)
    assert torch.equal(generate(model, IDS, 10, use_cache=use_cache, compile=True), expected)


@pytest.mark.usefixtures("quick")
def test_decode_steps_share_one_graph(model: GPT2) -> None:
    compiled, cache = CompiledGPT2(model), KVCache(model.config)
    compiled(IDS, cache)
    graphs = []
    for _ in range(30):
        compiled(IDS[:, :1], cache)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs[2:] == [graphs[2]] * 28


@pytest.mark.usefixtures("quick")
def test_weights_loaded_after_compiling_are_honoured(model: GPT2) -> None:
    compiled, other = CompiledGPT2(model), GPT2(model.config).eval()
    assert not torch.equal(compiled(IDS), other(IDS))
    load_huggingface_state_dict(model, to_huggingface(other))
    assert_close(compiled(IDS), other(IDS))


@pytest.mark.usefixtures("quick")
def test_generation_without_the_toggle_compiles_nothing(model: GPT2) -> None:
    generate(model, IDS, 3)
    assert not torch._dynamo.utils.counters["stats"]
    generate(model, IDS, 3, compile=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
