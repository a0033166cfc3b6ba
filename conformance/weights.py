"""Weights that hide nothing.

A freshly initialised GPT-2 has zero biases, LayerNorms that are the identity and near-flat attention: most bugs
leave its output unchanged. Here every tensor is random and large enough to matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from conformance.shapes import Config

Regime = Literal["perturbed", "small", "extreme"]

HEAD = "lm_head.weight"
EMBEDDING = "transformer.wte.weight"


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Hugging Face's name and shape of each parameter; matrices are ``[in, out]``, as its ``Conv1D`` has them."""
    n = config.n_embd
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, n),
        "transformer.wpe.weight": (config.n_positions, n),
    }
    block = {"ln_1": (n,), "attn.c_attn": (n, 3 * n), "attn.c_proj": (n, n)}
    block |= {"ln_2": (n,), "mlp.c_fc": (n, 4 * n), "mlp.c_proj": (4 * n, n)}
    for i in range(config.n_layer):
        for name, shape in block.items():
            shapes[f"transformer.h.{i}.{name}.weight"] = shape
            shapes[f"transformer.h.{i}.{name}.bias"] = shape[-1:]
    return shapes | {"transformer.ln_f.weight": (n,), "transformer.ln_f.bias": (n,)}


def make_weights(config: Config, seed: int, regime: Regime = "perturbed") -> dict[str, Tensor]:
    """A float32 state dict with Hugging Face's names; ``lm_head.weight`` is the very tensor ``wte`` is.

    Args:
        seed: the same seed gives the same weights.
        regime: ``perturbed``, every tensor large enough to matter. ``small``, embeddings and biases so small that
            LayerNorm's epsilon matters. ``extreme``, queries and keys so large that scores pass any finite mask value
            of a few thousand.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    weights = {}
    for name, shape in parameter_shapes(config).items():
        noise = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        weights[name] = _scaled(name, noise, small=regime == "small")
        if regime == "extreme" and name.endswith("attn.c_attn.weight"):
            weights[name][:, : 2 * config.n_embd] *= 100.0
    weights[HEAD] = weights[EMBEDDING]
    return weights


def _scaled(name: str, noise: Tensor, *, small: bool) -> Tensor:
    if name.endswith(".bias"):
        return noise * (0.001 if small else 0.1)
    if "ln_" in name:
        return 1.0 + 0.25 * noise
    if name == EMBEDDING:
        return noise * (0.01 if small else 0.2)
    if name.endswith("wpe.weight"):
        return noise * (0.01 if small else 1.0)
    return noise * ((0.02 if small else 1.5) / math.sqrt(noise.shape[0]))


def converted(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """A copy in another precision that shares no storage with ``weights``, with its head still tied."""
    copy = {name: tensor.to(dtype, copy=True) for name, tensor in weights.items() if name != HEAD}
    if HEAD in weights:
        copy[HEAD] = copy[EMBEDDING]
    return copy


def token_ids(config: Config, batch_size: int, length: int, seed: int = 0) -> Tensor:
    """Random ids ``[B, T]`` over the whole vocabulary; the same arguments give the same ids."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(config.vocab_size, (batch_size, length), generator=generator, device="cpu")
