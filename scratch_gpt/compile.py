"""The compile toggle: the same model and the same weights, with its arithmetic run by ``torch.compile``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scratch_gpt.cache import KVCache
from scratch_gpt.model import GPT2


class CompiledGPT2:
    """A ``GPT2`` whose ``compute`` is compiled into one graph per kind of call; called as the model is.

    Everything but the arithmetic is the model's own, ``model``: its weights, so that those loaded or changed later are
    honoured and nothing is copied, and its mode. The first call of each kind (uncached, prefill, decode) compiles for
    some seconds; after that one graph serves every decode step, whatever the past length. torch keeps the graphs, so
    compiling a model again costs nothing, and keeps eight of them (``torch._dynamo.config.recompile_limit``): calls of
    further kinds, such as yet other batch sizes, give the same logits uncompiled, with a warning. A copy, deep or
    pickled, compiles its copy of the model.

    Raises:
        torch._dynamo.exc.BackendCompilerFailed: on the first call, when no C++ compiler is installed.
    """

    def __init__(self, model: GPT2) -> None:
        self.model = model
        self._compute = torch.compile(model.compute)

    def __call__(self, input_ids: Tensor, cache: KVCache | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        """Logits, as ``GPT2.forward`` gives them."""
        return self.model.run(self._compute, input_ids, cache, logits_to_keep)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledGPT2, (self.model,)
