"""The model, part by part against torch's and transformers' own, and as a whole, forward and backward."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

from conformance.reference import huggingface_model
from conformance.shapes import TINY
from conformance.weights import converted, make_weights, token_ids
from scratch_gpt import GPT2, GPT2Config, KVCache, from_huggingface
from scratch_gpt.model import LayerNorm, Linear, gelu

IDS = token_ids(TINY, 2, 13)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 0.0])
def test_layer_norm_is_torchs(spread: float) -> None:
    x = 3.0 + spread * torch.randn(4, 7, 32, dtype=torch.float64)
    ours, theirs = LayerNorm(32, 1e-5).double(), nn.LayerNorm(32, 1e-5, dtype=torch.float64)
    with torch.no_grad():
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            parameter.copy_(other.normal_())
    assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


def test_layer_norm_of_large_float16_does_not_overflow() -> None:
    norm = LayerNorm(32, 1e-5).half()
    nn.init.ones_(norm.weight)
    nn.init.zeros_(norm.bias)
    x = 1000 * torch.randn(3, 32).half()
    assert norm(x).dtype == torch.float16
    assert_close(norm(x).float(), nn.functional.layer_norm(x.float(), (32,)), rtol=1e-3, atol=1e-3)


def test_gelu_is_the_tanh_form() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    assert_close(gelu(x), nn.functional.gelu(x, approximate="tanh"), rtol=1e-12, atol=1e-12)


def test_linear_is_conv1d() -> None:
    ours, theirs = Linear(5, 3), transformers.pytorch_utils.Conv1D(3, 5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 5)
    assert_close(ours(x), theirs(x))


def test_logits_are_hugging_faces_in_float64() -> None:
    weights = converted(make_weights(TINY, 0), torch.float64)
    huggingface = huggingface_model(TINY, weights, dtype=torch.float64)
    with torch.no_grad():
        assert_close(from_huggingface(huggingface)(IDS), huggingface(IDS).logits, rtol=0, atol=1e-12)


def test_every_gradient_is_hugging_faces() -> None:
    huggingface = huggingface_model(TINY, converted(make_weights(TINY, 0), torch.float64), dtype=torch.float64)
    model = from_huggingface(huggingface)
    targets = token_ids(TINY, 2, 13, seed=1)
    for logits in (model(IDS), huggingface(IDS).logits):
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    theirs = {name.removeprefix("transformer."): p.grad for name, p in huggingface.named_parameters()}
    ours = {name: p.grad for name, p in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert gradient.abs().max() > 0, name
        assert_close(gradient, theirs[name], rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("only", ["embd_pdrop", "attn_pdrop", "resid_pdrop"])
def test_each_dropout_is_active_in_training_and_off_in_eval(only: str) -> None:
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0) | {only: 0.5}
    model = GPT2(dataclasses.replace(GPT2Config(101, 40, 32, 3, 4), **rates))
    assert model.training
    assert not torch.equal(model(IDS), model(IDS))
    model.eval()
    assert torch.equal(model(IDS), model(IDS))


def test_every_dropout_is_used_once() -> None:
    model = GPT2(GPT2Config(101, 40, 32, 3, 4))
    used = []
    dropouts = [name for name, module in model.named_modules() if isinstance(module, nn.Dropout)]
    for name in dropouts:
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: used.append(name))
    model(IDS)
    assert len(dropouts) == 1 + 3 * 3
    assert sorted(used) == sorted(dropouts)


def test_head_is_the_embedding(model: GPT2) -> None:
    assert not any("lm_head" in name for name in model.state_dict())
    before = model(IDS)[..., 7].detach()
    with torch.no_grad():
        model.wte.weight[7] = 0
    ids = IDS.masked_fill(IDS == 7, 8)
    assert before.any()
    assert not model(ids)[..., 7].any()


@pytest.mark.parametrize("keep", [1, 3, 13])
def test_logits_to_keep_are_the_last(model: GPT2, keep: int) -> None:
    with torch.no_grad():
        assert_close(model(IDS, logits_to_keep=keep), model(IDS)[:, -keep:])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ids_of_both_integer_types_give_the_same(model: GPT2, dtype: torch.dtype) -> None:
    assert torch.equal(model(IDS.to(dtype)), model(IDS))


@pytest.mark.parametrize(
    ("input_ids", "message"),
    [
        (IDS[0], r"input_ids has shape \[13\]; expected \[batch, tokens\]"),
        (IDS[None], r"input_ids has shape \[1, 2, 13\]"),
        (IDS[:, :0], r"input_ids has shape \[2, 0\]"),
        (IDS.float(), "input_ids are torch.float32; token ids are torch.int64 or torch.int32"),
        (IDS.bool(), "input_ids are torch.bool"),
        (torch.tensor([[3, 101]]), "input_ids run from 3 to 101; the vocabulary has the ids 0 to 100"),
        (torch.tensor([[3, -1]]), "input_ids run from -1 to 3"),
        (token_ids(TINY, 1, 41), "41 positions are needed and GPT-2 has learned 40"),
    ],
)
def test_wrong_ids_are_refused(model: GPT2, input_ids: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(input_ids)


@pytest.mark.parametrize("keep", [0, -1, 14])
def test_wrong_logits_to_keep_are_refused(model: GPT2, keep: int) -> None:
    with pytest.raises(ValueError, match=f"logits_to_keep is {keep}; there are 13 positions"):
        model(IDS, logits_to_keep=keep)


def test_cache_while_gradients_are_recorded_is_refused(model: GPT2) -> None:
    cache = KVCache(model.config, 2)
    with pytest.raises(ValueError, match=r"a KV cache cannot carry gradients: .* torch\.no_grad"):
        model(IDS, cache)
    model.requires_grad_(False)
    model(IDS, cache)
    assert cache.length == 13


def test_new_model_has_gpt2s_initialisation() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=1009, n_embd=128, n_layer=8, n_head=4))
    deviations: dict[str, Any] = {name: p.std().item() for name, p in model.named_parameters() if p.dim() == 2}
    for name, deviation in deviations.items():
        expected = 0.02 / 4 if name.endswith("c_proj.weight") else 0.02  # sqrt(2 * 8) = 4
        assert deviation == pytest.approx(expected, rel=0.05), name
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(parameter, torch.full_like(parameter, float("ln_" in name and "weight" in name))), name


def test_head_takes_no_storage_of_its_own(model: GPT2) -> None:
    assert sum(p.numel() for p in model.state_dict().values()) == sum(p.numel() for p in model.parameters())
    assert len({p.data_ptr() for p in model.state_dict().values()}) == len(model.state_dict())
