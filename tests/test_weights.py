from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from conformance.shapes import TINY
from conformance.weights import token_ids
from scratch_gpt import (
    GPT2,
    GPT2Config,
    WeightsError,
    config_from_huggingface,
    from_huggingface,
    load_huggingface_state_dict,
    to_huggingface,
)

IDS = token_ids(TINY, 2, 13)
StateDict = dict[str, Tensor]


@pytest.fixture
def state_dict(huggingface: Any) -> StateDict:
    return {name: tensor.clone() for name, tensor in huggingface.state_dict().items()}


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        output = model(IDS)
    return getattr(output, "logits", output)


def with_mask_buffers(state_dict: StateDict) -> StateDict:
    mask = torch.ones(40, 40, dtype=torch.bool).tril().view(1, 1, 40, 40)
    extra = {f"transformer.h.{i}.attn.bias": mask for i in range(3)}
    return state_dict | extra | {f"transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}


def without_prefix(state_dict: StateDict) -> StateDict:
    return {name.removeprefix("transformer."): tensor for name, tensor in state_dict.items()}


def without_head(state_dict: StateDict) -> StateDict:
    return {name: tensor for name, tensor in state_dict.items() if name != "lm_head.weight"}


@pytest.mark.parametrize(
    "form",
    [
        dict,
        with_mask_buffers,
        without_prefix,
        without_head,
        lambda state_dict: without_head(without_prefix(with_mask_buffers(state_dict))),
    ],
)
def test_every_form_of_a_state_dict_loads(huggingface: Any, state_dict: StateDict, form: Any) -> None:
    model = GPT2(config_from_huggingface(huggingface.config.to_dict())).eval()
    load_huggingface_state_dict(model, form(state_dict))
    assert_close(logits(model), logits(huggingface))


def test_body_without_a_head_loads(huggingface: Any) -> None:
    assert_close(logits(from_huggingface(huggingface.transformer)), logits(huggingface))


def test_loaded_model_is_in_eval_mode_and_owns_its_weights(huggingface: Any) -> None:
    model = from_huggingface(huggingface)
    before = logits(model)
    assert not model.training
    huggingface.transformer.wte.weight.data.zero_()
    assert torch.equal(logits(model), before)


def test_state_dict_goes_back_strictly(model: GPT2, huggingface: Any) -> None:
    other = transformers.GPT2LMHeadModel(huggingface.config).eval()
    other.load_state_dict(to_huggingface(model), strict=True)
    assert_close(logits(other), logits(huggingface), rtol=0, atol=0)


def test_state_dict_shares_the_models_storage(model: GPT2) -> None:
    for tensor in to_huggingface(model).values():
        tensor.zero_()
    assert not logits(model).any()


@pytest.mark.parametrize("safe", [True, False])
def test_folder_loads(huggingface: Any, tmp_path: Path, safe: bool) -> None:
    huggingface.save_pretrained(tmp_path)
    if not safe:
        (tmp_path / "model.safetensors").unlink()
        torch.save(huggingface.state_dict(), tmp_path / "pytorch_model.bin")
    for source in (tmp_path, str(tmp_path)):
        assert_close(logits(from_huggingface(source)), logits(huggingface))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_precision_of_the_file_is_kept_unless_another_is_asked_for(
    huggingface: Any, tmp_path: Path, dtype: torch.dtype
) -> None:
    huggingface.to(dtype).save_pretrained(tmp_path)
    assert {parameter.dtype for parameter in from_huggingface(tmp_path).parameters()} == {dtype}
    wide = from_huggingface(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in wide.parameters()} == {torch.float32}
    assert torch.equal(wide.wte.weight, huggingface.transformer.wte.weight.float())


class Payload:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, ("open('owned', 'w')",)


def test_pickle_with_code_in_it_is_refused(huggingface: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface.config.save_pretrained(tmp_path)
    torch.save({"wte.weight": Payload()}, tmp_path / "pytorch_model.bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is damaged, or not what its name says"):
        from_huggingface(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_every_offending_tensor_is_named_and_nothing_is_loaded(model: GPT2, state_dict: StateDict) -> None:
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    wrong = {name: tensor + 1 for name, tensor in state_dict.items()}
    del wrong["transformer.ln_f.bias"], wrong["transformer.h.2.mlp.c_fc.bias"]
    wrong["transformer.h.3.ln_1.weight"] = torch.ones(32)
    wrong["transformer.h.0.attn.q_proj.weight"] = torch.ones(32)
    wrong["transformer.h.1.attn.c_attn.weight"] = wrong["transformer.h.1.attn.c_attn.weight"].T
    wrong["transformer.wpe.weight"] = torch.ones(39, 32)
    wrong["lm_head.weight"] = state_dict["lm_head.weight"]
    with pytest.raises(WeightsError) as caught:
        load_huggingface_state_dict(model, wrong)
    for complaint in (
        "ln_f.bias is missing",
        "h.2.mlp.c_fc.bias is missing",
        "h.3.ln_1.weight is not a tensor of GPT-2",
        "h.0.attn.q_proj.weight is not a tensor of GPT-2",
        "h.1.attn.c_attn.weight has shape [96, 32] and the configuration asks for [32, 96]",
        "wpe.weight has shape [39, 32] and the configuration asks for [40, 32]",
        "lm_head.weight differs from wte.weight: GPT-2's head is tied to its token embedding",
    ):
        assert complaint in str(caught.value)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "gelu"}, "activation_function is 'gelu', and GPT-2's is 'gelu_new'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"n_inner": 100}, r"n_inner is 100, and GPT-2's is 4 \* n_embd = 128"),
    ],
)
def test_configuration_that_is_not_gpt2s_is_refused(settings: dict[str, Any], message: str) -> None:
    config = transformers.GPT2Config(vocab_size=101, n_positions=40, n_embd=32, n_layer=3, n_head=4, **settings)
    with pytest.raises(WeightsError, match=f"not plain GPT-2: {message}"):
        config_from_huggingface(config.to_dict())


def test_configuration_keeps_every_size(huggingface: Any) -> None:
    huggingface.config.layer_norm_epsilon = 3e-5
    huggingface.config.n_inner = 128
    config = config_from_huggingface(huggingface.config.to_dict())
    assert (config.vocab_size, config.n_positions, config.n_embd, config.n_layer, config.n_head) == (101, 40, 32, 3, 4)
    assert config.layer_norm_epsilon == 3e-5


@pytest.mark.parametrize("missing", ["folder", "config.json", "weights"])
def test_what_a_folder_lacks_is_named(huggingface: Any, tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "gpt2"
    if missing != "folder":
        huggingface.save_pretrained(folder)
        (folder / {"config.json": "config.json", "weights": "model.safetensors"}[missing]).unlink()
    expected = {
        "folder": "gpt2 is not a folder",
        "config.json": "has no config.json",
        "weights": "has neither model.safetensors nor pytorch_model.bin",
    }
    with pytest.raises(FileNotFoundError, match=expected[missing]):
        from_huggingface(folder)


def test_configuration_without_a_setting_takes_gpt2s(tmp_path: Path) -> None:
    settings = json.loads('{"n_layer": 6, "model_type": "gpt2"}')
    config = config_from_huggingface(settings)
    assert (config.n_layer, config.n_embd, config.vocab_size) == (6, 768, 50257)


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.uint8, torch.float32])
def test_mask_buffers_of_every_layer_are_passed_over(mask_dtype: torch.dtype) -> None:
    config = GPT2Config(vocab_size=11, n_positions=5, n_embd=4, n_layer=12, n_head=2)  # layers of two digits too
    source, target = GPT2(config), GPT2(config)
    mask = torch.ones(1, 1, 5, 5).tril().to(mask_dtype)
    masks = {f"transformer.h.{i}.attn.bias": mask for i in range(12)}
    masks |= {f"transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(12)}
    load_huggingface_state_dict(target, to_huggingface(source) | masks)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(target.parameters(), source.parameters(), strict=True))


def test_several_wrong_settings_are_all_named() -> None:
    with pytest.raises(WeightsError, match=r"activation_function is 'relu'.*add_cross_attention is True.*n_inner is 7"):
        config_from_huggingface({"activation_function": "relu", "add_cross_attention": True, "n_inner": 7})


def test_configuration_keeps_the_dropout_rates() -> None:
    config = config_from_huggingface({"embd_pdrop": 0.2, "attn_pdrop": 0.3, "resid_pdrop": 0.4})
    assert (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop) == (0.2, 0.3, 0.4)


def test_safetensors_go_before_a_pickle(huggingface: Any, tmp_path: Path) -> None:
    huggingface.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a pickle")
    assert_close(logits(from_huggingface(tmp_path)), logits(huggingface))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precision_of_a_model_is_kept(huggingface: Any, dtype: torch.dtype) -> None:
    model = from_huggingface(huggingface.to(dtype))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert torch.equal(model.wte.weight, huggingface.transformer.wte.weight)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{broken", r"config\.json is damaged, or not what its name says: Expecting"),
        ("config.json", b"", r"config\.json is damaged"),
        ("config.json", b"[1, 2]", r"config\.json holds a list"),
        ("config.json", b"\xff\xfe\x00", r"config\.json is damaged"),
        ("model.safetensors", b"version https://git-lfs", r"model\.safetensors is damaged"),
    ],
)
def test_damaged_file_is_named(huggingface: Any, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    huggingface.save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        from_huggingface(tmp_path)


def test_truncated_file_is_named(huggingface: Any, tmp_path: Path) -> None:
    huggingface.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged"):
        from_huggingface(tmp_path)


def test_other_architecture_is_refused() -> None:
    with pytest.raises(WeightsError, match="model_type is 'gpt_neo', and GPT-2's is 'gpt2'"):
        config_from_huggingface({"model_type": "gpt_neo"})


def test_name_with_and_without_the_prefix_is_refused(model: GPT2, state_dict: StateDict) -> None:
    twice = state_dict | {"ln_f.bias": state_dict["transformer.ln_f.bias"] + 1}
    with pytest.raises(WeightsError, match=r"ln_f\.bias is there with the prefix transformer\. and without"):
        load_huggingface_state_dict(model, twice)


def test_precision_is_that_of_the_weights_not_of_the_mask_buffers(huggingface: Any, tmp_path: Path) -> None:
    huggingface.half().save_pretrained(tmp_path)
    buffers = {"h.0.attn.masked_bias": torch.tensor(-1e4), "h.0.attn.bias": torch.ones(1, 1, 40, 40)}
    path = tmp_path / "model.safetensors"
    save_file(buffers | load_file(path), path)
    assert {parameter.dtype for parameter in from_huggingface(tmp_path).parameters()} == {torch.float16}
