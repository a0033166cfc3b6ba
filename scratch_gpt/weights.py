"""Weights from and to Hugging Face's GPT-2.

This model keeps GPT-2's parameter names and Hugging Face's ``Conv1D`` layout (see ``scratch_gpt.model.Linear``), so
loading is: drop the ``transformer.`` prefix, leave out what is no parameter, check, copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from scratch_gpt.config import GPT2Config
from scratch_gpt.model import GPT2

_PREFIX = "transformer."
_HEAD = "lm_head.weight"
# Up to transformers 4, checkpoints also carried each layer's causal mask; `bias` here is no bias.
_MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")

# Settings of Hugging Face's GPT2Config that change the arithmetic, and GPT-2's value for each.
_PLAIN_GPT2 = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "add_cross_attention": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}


class WeightsError(ValueError):
    """Weights or a configuration that do not make this GPT-2; the message names every offender."""


def from_huggingface(source: Any, *, dtype: torch.dtype | None = None) -> GPT2:
    """A ``GPT2`` in eval mode with the configuration and weights of ``source``.

    Args:
        source: a ``transformers`` GPT-2 model (``GPT2LMHeadModel`` or ``GPT2Model``), or the path of a local folder
            with ``config.json`` and ``model.safetensors`` or ``pytorch_model.bin``.
        dtype: of the parameters; the source's own when None.

    Raises:
        WeightsError: a configuration that is not plain GPT-2, a file that is damaged, or tensors that are missing,
            unexpected, misshapen or untied.
        FileNotFoundError: the folder or a file in it does not exist.
    """
    if isinstance(source, (str, Path)):
        settings, state_dict = _read_folder(Path(source))
    else:
        settings, state_dict = source.config.to_dict(), source.state_dict()
    model = GPT2(config_from_huggingface(settings))
    if dtype is None:
        embeddings = (tensor for name, tensor in state_dict.items() if name.endswith("wte.weight"))
        dtype = next((tensor.dtype for tensor in embeddings), torch.float32)
    load_huggingface_state_dict(model.to(dtype), state_dict)
    return model.eval()


def config_from_huggingface(settings: Mapping[str, Any]) -> GPT2Config:
    """The configuration in the settings of a Hugging Face ``config.json``.

    Raises:
        WeightsError: a setting that GPT-2 does not have, such as another activation.
    """
    wrong = [
        f"{name} is {settings[name]!r}, and GPT-2's is {plain!r}"
        for name, plain in _PLAIN_GPT2.items()
        if settings.get(name, plain) != plain
    ]
    n_embd = settings.get("n_embd", GPT2Config.n_embd)
    if settings.get("n_inner") not in (None, 4 * n_embd):
        wrong.append(f"n_inner is {settings['n_inner']}, and GPT-2's is 4 * n_embd = {4 * n_embd}")
    if wrong:
        raise WeightsError("this configuration is not plain GPT-2: " + "; ".join(wrong))
    ours = GPT2Config.__dataclass_fields__
    return GPT2Config(**{name: value for name, value in settings.items() if name in ours})


def load_huggingface_state_dict(model: GPT2, state_dict: Mapping[str, Tensor]) -> None:
    """Copy a Hugging Face GPT-2 state dict into ``model``, all of it or, on an error, nothing.

    Names with and without the ``transformer.`` prefix are taken, the mask buffers of transformers 4 are passed
    over, and ``lm_head.weight`` may be there or not: the head is the token embedding.

    Raises:
        WeightsError: tensors that are missing, unexpected, misshapen, or a head that differs from the embedding.
    """
    given = {name.removeprefix(_PREFIX): tensor for name, tensor in state_dict.items()}
    twice = state_dict.keys() & {_PREFIX + name for name in state_dict}
    wrong = [f"{name} is there with the prefix {_PREFIX} and without" for name in twice]
    given = {name: tensor for name, tensor in given.items() if not _MASK_BUFFER.fullmatch(name)}
    head = given.pop(_HEAD, None)
    parameters = dict(model.named_parameters())
    wrong += [f"{name} is missing" for name in parameters.keys() - given.keys()]
    wrong += [f"{name} is not a tensor of GPT-2" for name in given.keys() - parameters.keys()]
    wrong += [
        f"{name} has shape {list(given[name].shape)} and the configuration asks for {list(parameter.shape)}"
        for name, parameter in parameters.items()
        if name in given and given[name].shape != parameter.shape
    ]
    if head is not None and "wte.weight" in given and not torch.equal(head, given["wte.weight"]):
        wrong.append(f"{_HEAD} differs from wte.weight: GPT-2's head is tied to its token embedding")
    if wrong:
        raise WeightsError("these weights do not fit: " + "; ".join(sorted(wrong)))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(given[name])


def to_huggingface(model: GPT2) -> dict[str, Tensor]:
    """The state dict that ``transformers.GPT2LMHeadModel.load_state_dict(strict=True)`` takes.

    The tensors share their storage with the model, as those of ``torch.nn.Module.state_dict`` do.
    """
    state_dict = {_PREFIX + name: parameter.detach() for name, parameter in model.named_parameters()}
    state_dict[_HEAD] = model.wte.weight.detach()
    return state_dict


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; expected one with config.json and the weights")
    settings = folder / "config.json"
    safetensors, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if not settings.is_file():
        raise FileNotFoundError(f"{folder} has no config.json; save_pretrained writes one beside the weights")
    if safetensors.is_file():
        state_dict = _read(safetensors, load_file)
    elif pickled.is_file():
        state_dict = _read(pickled, lambda path: torch.load(path, map_location="cpu", weights_only=True))
    else:
        raise FileNotFoundError(
            f"{folder} has neither {safetensors.name} nor {pickled.name}; weights in several files (shards) have to "
            f"be saved in one"
        )
    return _read(settings, lambda path: json.loads(path.read_text(encoding="utf-8"))), state_dict


def _read(path: Path, read: Callable[[Path], Any]) -> dict[str, Any]:
    """What ``read`` makes of a file, if it is a dict. Each format has exceptions of its own; here they become one."""
    try:
        content = read(path)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{path} is damaged, or not what its name says: {reason}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, and names with values were expected")
    return content
