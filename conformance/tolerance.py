"""The only numbers that decide whether an error is too large.

An error is measured against the float64 reference with the same weights. What is allowed is a multiple of the error
that Hugging Face's own model makes in the subject's precision on the same input, so that a budget follows the
weights, the length and the precision by itself. In float32 correct variants (attention written out, fused, compiled,
cached, in chunks) stay below twice that error, and the smallest planted fault lies far above eight times.
"""

from __future__ import annotations

import torch

# How many times the reference's own error a subject may err. In half precision faults and correct code overlap, so
# there only gross errors are told.
FACTOR = {torch.float32: 8.0, torch.bfloat16: 4.0, torch.float16: 4.0}

# On a short input the reference can be right by luck. Its own error counts as half a unit in the last place of the
# largest value at least: the rounding that nobody can avoid.
LEAST_ULPS = 0.5

# The reference itself is float64, so there its own error says nothing.
FLOAT64_RELATIVE = 1e-9

# Two implementations of one fault differ by rounding alone, here relative to the largest value. A fault may amplify
# rounding, so this is wider than what passes as GPT-2.
SAME_FAULT = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}

# Two errors of one budget each can bring two logits this many budgets closer.
TIE_BUDGETS = 2.0


def own_error(dtype: torch.dtype, measured: float, largest: float) -> float:
    """The reference's own error, no smaller than rounding explains.

    Args:
        dtype: the precision of the subject.
        measured: the greatest error of Hugging Face's model in that precision on the same input.
        largest: the greatest magnitude among the expected values.
    """
    return max(measured, LEAST_ULPS * torch.finfo(dtype).eps * largest)


def budget(dtype: torch.dtype, own: float, largest: float) -> float:
    """The largest error that passes, given what ``own_error`` gave."""
    if dtype == torch.float64:
        return FLOAT64_RELATIVE * max(1.0, largest)
    return FACTOR[dtype] * own


def same_fault(dtype: torch.dtype, largest: float) -> float:
    """The largest difference between two implementations that have the same fault."""
    return SAME_FAULT[dtype] * largest
