"""Fixtures of the tests of ``scratch_gpt``: a small Hugging Face model in which every tensor matters, and its twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import scratch_gpt
from conformance.reference import huggingface_model
from conformance.shapes import TINY
from conformance.weights import make_weights

# Tests run side by side, and their models are too small to gain from threads.
torch.set_num_threads(1)


@pytest.fixture
def huggingface() -> Any:
    """``transformers.GPT2LMHeadModel``, float32, in eval mode."""
    return huggingface_model(TINY, make_weights(TINY, seed=0), dtype=torch.float32)


@pytest.fixture
def model(huggingface: Any) -> scratch_gpt.GPT2:
    """``scratch_gpt.GPT2`` with the weights of ``huggingface``."""
    return scratch_gpt.from_huggingface(huggingface)
