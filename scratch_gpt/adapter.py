"""This model as a conformance subject; the protocol is described in ``conformance.subject``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

import scratch_gpt
from scratch_gpt import GPT2, CompiledGPT2, GPT2Config, KVCache

Model = GPT2 | CompiledGPT2

NAME = "scratch_gpt"
VERSION = scratch_gpt.__version__
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def build(config: Any, state_dict: Mapping[str, Tensor], *, device: torch.device, dtype: torch.dtype) -> GPT2:
    model = GPT2(GPT2Config(**{field.name: getattr(config, field.name) for field in fields(GPT2Config)}))
    model.to(device=device, dtype=dtype)
    scratch_gpt.load_huggingface_state_dict(model, state_dict)
    return model.eval()


def forward(model: Model, input_ids: Tensor) -> Tensor:
    return model(input_ids)


def plain(model: Model) -> GPT2:
    return model.model if isinstance(model, CompiledGPT2) else model


def init_cache(model: Model, batch_size: int, max_length: int) -> KVCache:
    weight = plain(model).wte.weight
    return KVCache(plain(model).config, batch_size, max_length, dtype=weight.dtype, device=weight.device)


def extend(model: Model, input_ids: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
    return model(input_ids, cache), cache


def reset_cache(model: Model, cache: KVCache) -> KVCache:
    cache.reset()
    return cache


def truncate_cache(model: Model, cache: KVCache, length: int) -> KVCache:
    cache.truncate(length)
    return cache


def cache_tensors(cache: KVCache) -> list[tuple[Tensor, Tensor]]:
    return list(zip(cache.keys, cache.values, strict=True))


def generate(
    model: Model,
    input_ids: Tensor,
    max_new_tokens: int,
    *,
    use_cache: bool,
    stop_token: int | None = None,
) -> Tensor:
    return scratch_gpt.generate(
        plain(model),
        input_ids,
        max_new_tokens,
        stop_token=stop_token,
        use_cache=use_cache,
        compile=isinstance(model, CompiledGPT2),
    )


def compile(model: GPT2) -> CompiledGPT2:  # noqa: A001 - the protocol's name
    return CompiledGPT2(model)


def state_dict(model: Model) -> dict[str, Tensor]:
    return scratch_gpt.to_huggingface(plain(model))
