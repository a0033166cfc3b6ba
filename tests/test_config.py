from __future__ import annotations

import dataclasses

import pytest
import torch

from scratch_gpt import GPT2, PRESETS, GPT2Config


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_presets_have_the_released_number_of_parameters(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = GPT2(GPT2Config.preset(name))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="gpt2, gpt2-medium, gpt2-large, gpt2-xl"):
        GPT2Config.preset("gpt3")


def test_presets_share_all_but_their_sizes() -> None:
    for preset in PRESETS.values():
        assert (preset.vocab_size, preset.n_positions, preset.head_dim) == (50257, 1024, 64)


@pytest.mark.parametrize("name", ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head"])
@pytest.mark.parametrize("value", [0, -3, 2.0, "12", True, None])
def test_size_that_is_no_positive_whole_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}; it must be a whole number of at least 1"):
        GPT2Config(**{name: value})


def test_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"n_embd \(770\) is not divisible by n_head \(12\)"):
        GPT2Config(n_embd=770)


@pytest.mark.parametrize("value", [0.0, -1e-5, float("nan"), float("inf"), "1e-5", None])
def test_epsilon_that_is_no_positive_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="layer_norm_epsilon"):
        GPT2Config(layer_norm_epsilon=value)


@pytest.mark.parametrize("name", ["embd_pdrop", "attn_pdrop", "resid_pdrop"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan"), "0.1", None])
def test_dropout_that_is_no_probability_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        GPT2Config(**{name: value})


def test_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPT2Config().n_layer = 3  # type: ignore[misc]
