"""The weights in the forms in which models written from scratch take them.

``build`` is given Hugging Face's names with matrices ``[in, out]``. Each function here turns that state dict into
another form; what it is given stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

PREFIX = "transformer."
MATRICES = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def linear_layout(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same names with matrices ``[out, in]``, as ``torch.nn.Linear`` stores them."""
    return {name: tensor.T.contiguous() if name.endswith(MATRICES) else tensor for name, tensor in state_dict.items()}


def separate_qkv(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``linear_layout`` with ``attn.c_attn`` split into ``attn.q``, ``attn.k`` and ``attn.v``.

    Their weights are ``[n_embd, n_embd]``, ``[out, in]``, and their biases ``[n_embd]``.
    """
    separate = {}
    for name, tensor in linear_layout(state_dict).items():
        before, found, kind = name.partition("c_attn.")
        if not found:
            separate[name] = tensor
            continue
        for part, third in zip("qkv", tensor.chunk(3), strict=True):
            separate[f"{before}{part}.{kind}"] = third
    return separate


def openai_params(state_dict: Mapping[str, Tensor]) -> dict[str, Any]:
    """OpenAI's nested parameters, which the usual ``load_weights_into_gpt(gpt, params)`` functions take.

    ``wte``, ``wpe``; ``blocks``, a list with ``attn``, ``mlp``, ``ln_1`` and ``ln_2`` for each layer; and the last
    LayerNorm twice, as ``ln_f`` and as ``g`` and ``b`` of the whole, since loaders differ there. Weights are called
    ``w``, biases ``b`` and a LayerNorm's factors ``g``. All are NumPy arrays, matrices ``[in, out]``; bfloat16, which
    NumPy lacks, becomes float32 with the same values.
    """
    params: dict[str, Any] = {"blocks": []}
    for name, tensor in state_dict.items():
        if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue  # the first is wte again, the others are no parameters
        *path, last = name.removeprefix(PREFIX).split(".")
        target = params
        if path[0] == "h":
            layer = int(path[1])
            params["blocks"] += [{} for _ in range(layer + 1 - len(params["blocks"]))]
            target, path = params["blocks"][layer], path[2:]
        values = tensor.detach().cpu()
        array = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        if path[0] in ("wte", "wpe"):
            target[path[0]] = array
            continue
        for key in path:
            target = target.setdefault(key, {})
        target["b" if last == "bias" else "g" if path[-1].startswith("ln_") else "w"] = array
    return params | params["ln_f"]
