"""What a model answered during one check, call by call, so that two implementations can be held side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance import tolerance


@dataclass(frozen=True)
class Answer:
    """One answer: a copy on the CPU, or a word for what came in place of a tensor."""

    call: str
    value: Tensor | str

    def same(self, other: Answer) -> bool:
        """Whether two implementations with the same fault would give both, each with its own rounding."""
        mine, theirs = self.value, other.value
        if self.call != other.call or isinstance(mine, str) or isinstance(theirs, str):
            return self.call == other.call and isinstance(mine, str) and mine == theirs
        if mine.shape != theirs.shape:
            return False
        if not mine.is_floating_point() or not theirs.is_floating_point():
            return torch.equal(mine.long(), theirs.long())
        dtype = max((mine.dtype, theirs.dtype), key=lambda dtype: torch.finfo(dtype).eps)
        a, b = mine.double(), theirs.double()
        finite = b[b.isfinite()]
        allowed = tolerance.same_fault(dtype, float(finite.abs().max()) if finite.numel() else 0.0)
        return bool(torch.isclose(a, b, rtol=0.0, atol=allowed, equal_nan=True).all())


def answer(call: str, value: Any) -> Answer:
    """What a call gave: the tensor in it, or what kind of thing it is."""
    if call == "extend" and isinstance(value, (tuple, list)) and len(value) == 2:
        value = value[0]
    if call == "state_dict" and isinstance(value, Mapping):
        tensors = [value[name] for name in sorted(value, key=str) if isinstance(value[name], Tensor)]
        value = torch.cat([tensor.detach().flatten().cpu().double() for tensor in tensors]) if tensors else "nothing"
    if isinstance(value, Tensor):
        return Answer(call, value.detach().cpu().clone())
    return Answer(call, type(value).__name__)


def same(mine: Sequence[Answer], theirs: Sequence[Answer]) -> bool:
    """Whether two runs of a check went the same way, answer by answer."""
    return len(mine) == len(theirs) and all(a.same(b) for a, b in zip(mine, theirs, strict=True))
