"""The oracle: Hugging Face's GPT-2 in float64 with eager attention, and its own error in the subject's precision."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from conformance import tolerance
from conformance.shapes import Config
from conformance.weights import Regime, converted, make_weights

# What `GPT2LMHeadModel.forward` calls its cache; transformers 5.24 renamed it.
CACHE_ARGUMENT = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(transformers.GPT2LMHeadModel.forward).parameters
)


def huggingface_model(
    config: Config,
    state_dict: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    attn_implementation: str = "eager",
) -> Any:
    """A ``transformers.GPT2LMHeadModel`` in eval mode with these weights.

    Tensors of the state dict that the model does not have, such as the mask buffers of transformers 4, are passed
    over; a missing one is an error.
    """
    settings = transformers.GPT2Config(
        **asdict(config), attn_implementation=attn_implementation, bos_token_id=None, eos_token_id=None
    )
    model = transformers.GPT2LMHeadModel(settings).to(device=device, dtype=dtype)
    missing = set(model.load_state_dict(state_dict, strict=False).missing_keys) - {"lm_head.weight"}
    if missing:
        raise ValueError(f"the state dict lacks {', '.join(sorted(missing))}")
    return model.eval()


@dataclass(frozen=True)
class Truth:
    """Expected values in float64, the error Hugging Face makes in the subject's precision, and the error allowed."""

    values: Tensor
    own_error: float
    budget: float


class Reference:
    """Hugging Face's GPT-2 with given weights, in float64 and in the subject's precision.

    Both use the weights as rounded to ``dtype``, as the subject does, so that rounding them counts as nobody's error.
    """

    def __init__(self, config: Config, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.config = config
        self.dtype = dtype
        rounded = converted(weights, dtype)
        self._own = huggingface_model(config, rounded, dtype=dtype)
        self._exact = huggingface_model(config, converted(rounded, torch.float64), dtype=torch.float64)
        self._known: dict[Any, Any] = {}

    def logits(self, input_ids: Tensor) -> Truth:
        """``[B, T] -> [B, T, V]``, without a cache."""
        return self._once("logits", input_ids, lambda: self._truth(input_ids, lambda output: output.logits))

    def past(self, input_ids: Tensor) -> tuple[Truth, Truth]:
        """Keys and values after ``input_ids`` ``[B, T]``, each stacked over the layers: ``[n_layer, B, H, T, D]``."""

        def side(name: str) -> Truth:
            return self._truth(
                input_ids,
                lambda output: torch.stack([getattr(layer, name) for layer in output[CACHE_ARGUMENT].layers]),
                use_cache=True,
            )

        return self._once("past", input_ids, lambda: (side("keys"), side("values")))

    def greedy(self, input_ids: Tensor, max_new_tokens: int) -> tuple[Tensor, Tensor]:
        """The prompt and the most likely continuation ``[B, T + new]``, and each step's margin ``[B, new]``.

        The margin is the distance from the largest logit to the second.
        """

        def walk() -> tuple[Tensor, Tensor]:
            ids, margins = input_ids, []
            for _ in range(max_new_tokens):
                best = self.exact(ids)[:, -1].topk(2)
                ids = torch.cat([ids, best.indices[:, :1]], dim=1)
                margins.append(best.values[:, 0] - best.values[:, 1])
            return ids, torch.stack(margins, dim=1) if margins else torch.empty(len(ids), 0)

        return self._once(f"greedy {max_new_tokens}", input_ids, walk)

    @torch.no_grad()
    def exact(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Logits of the float64 model alone, at the usual positions or at others."""
        # Without a mask, transformers takes positions that jump for several sequences packed into one.
        mask = torch.ones_like(input_ids)
        return self._exact(input_ids, position_ids=position_ids, attention_mask=mask, use_cache=False).logits

    def position_used(self, input_ids: Tensor, logits: Tensor) -> tuple[int, float]:
        """Which row of ``wpe`` explains ``logits`` ``[V]`` at the last of ``input_ids`` ``[T]``, and with what error.

        The tokens before it are taken to be at their own positions.
        """
        n_positions, length = self.config.n_positions, len(input_ids)
        position_ids = torch.arange(length).repeat(n_positions, 1)
        position_ids[:, -1] = torch.arange(n_positions)
        candidates = self.exact(input_ids.repeat(n_positions, 1), position_ids)[:, -1]
        errors = (candidates - logits.double()).abs().amax(dim=1)
        best = int(errors.argmin())
        return best, float(errors[best])

    @torch.no_grad()
    def _truth(self, input_ids: Tensor, read: Any, *, use_cache: bool = False) -> Truth:
        values = read(self._exact(input_ids, use_cache=use_cache))
        own = read(self._own(input_ids, use_cache=use_cache))
        largest = float(values.abs().max())
        own_error = tolerance.own_error(self.dtype, float((own.double() - values).abs().max()), largest)
        return Truth(values, own_error, tolerance.budget(self.dtype, own_error, largest))

    def _once(self, what: str, input_ids: Tensor, compute: Any) -> Any:
        key = (what, input_ids.shape, tuple(input_ids.flatten().tolist()))
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]


@functools.lru_cache(maxsize=16)
def reference(config: Config, seed: int, regime: Regime, dtype: torch.dtype) -> Reference:
    """The reference for weights that ``make_weights`` makes; kept, since it never changes."""
    return Reference(config, make_weights(config, seed, regime), dtype)
