"""A minimal, readable GPT-2 with a KV cache and a compile toggle, written out by hand."""

from scratch_gpt.cache import KVCache
from scratch_gpt.compile import CompiledGPT2
from scratch_gpt.config import PRESETS, GPT2Config
from scratch_gpt.generate import generate, stream
from scratch_gpt.model import GPT2
from scratch_gpt.weights import (
    WeightsError,
    config_from_huggingface,
    from_huggingface,
    load_huggingface_state_dict,
    to_huggingface,
)

__version__ = "0.1.0"

__all__ = [
    "GPT2",
    "PRESETS",
    "CompiledGPT2",
    "GPT2Config",
    "KVCache",
    "WeightsError",
    "config_from_huggingface",
    "from_huggingface",
    "generate",
    "load_huggingface_state_dict",
    "stream",
    "to_huggingface",
]
