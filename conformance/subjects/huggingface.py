"""Hugging Face's own GPT-2 as a subject, with the attention and the cache it uses by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

from conformance.reference import CACHE_ARGUMENT, huggingface_model

NAME = "Hugging Face GPT-2"
VERSION = transformers.__version__
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
USES_HUGGINGFACE = True


def build(config: Any, state_dict: Mapping[str, Tensor], *, device: torch.device, dtype: torch.dtype) -> Any:
    return huggingface_model(config, state_dict, dtype=dtype, device=device, attn_implementation="sdpa")


def forward(model: Any, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
    if position_ids is None:
        return model(input_ids, use_cache=False).logits
    # Without a mask, transformers takes positions that jump for several sequences packed into one.
    mask = torch.ones_like(input_ids)
    return model(input_ids, position_ids=position_ids, attention_mask=mask, use_cache=False).logits


def init_cache(model: Any, batch_size: int, max_length: int) -> Any:
    return transformers.DynamicCache(config=model.config)


def extend(model: Any, input_ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
    output = model(input_ids, use_cache=True, **{CACHE_ARGUMENT: cache})
    return output.logits, output[CACHE_ARGUMENT]


def truncate_cache(model: Any, cache: Any, length: int) -> Any:
    surplus = cache.get_seq_length() - length
    if surplus:  # releases differ in what zero and positive numbers mean to `crop`
        cache.crop(-surplus)
    return cache


def cache_tensors(cache: Any) -> list[tuple[Tensor, Tensor]]:
    return [(layer.keys, layer.values) for layer in cache.layers]


def generate(
    model: Any, input_ids: Tensor, max_new_tokens: int, *, use_cache: bool, stop_token: int | None = None
) -> Tensor:
    if max_new_tokens == 0:  # which `generate` refuses
        return input_ids.clone()
    return model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=use_cache,
        eos_token_id=stop_token,
        pad_token_id=stop_token,
    )


def state_dict(model: Any) -> dict[str, Tensor]:
    return dict(model.state_dict())
