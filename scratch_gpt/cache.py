"""The KV cache: keys and values of the tokens already seen, so that a step computes only the new ones.

The cache is an object of its own that the caller hands to ``GPT2.forward``; no module hides any state. Buffers
are allocated once, for a fixed capacity, and written by index. A step sees them through ``LayerCache``, one per
layer: new keys and values go in, all keys and values to attend to come out. That call is the whole seam between
attention and cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scratch_gpt.config import GPT2Config, check_whole_number


@dataclass(frozen=True)
class LayerCache:
    """One layer's filled slots for one call of the model.

    ``keys`` and ``values`` are views ``[B, H, S, D]`` of the cache's buffers, where S is past + new: attention never
    sees a slot that is not filled. ``positions`` ``[T]`` are the slots that the new tokens take. It is a tensor, not
    a number, so that one compiled graph serves every step.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new ``[B, H, T, D]`` and return all ``[B, H, S, D]``, in order of position."""
        self.keys.index_copy_(2, self.positions, k)
        self.values.index_copy_(2, self.positions, v)
        return self.keys, self.values


class KVCache:
    """Keys and values of up to ``capacity`` tokens for each of ``batch_size`` sequences.

    Args:
        config: the model's configuration.
        batch_size: the number of sequences, fixed for the life of the cache.
        capacity: the number of tokens it can hold; ``n_positions`` when None.
        dtype, device: those of the model's parameters.

    Raises:
        ValueError: a batch size or capacity below 1, or a capacity beyond ``n_positions``.
    """

    def __init__(
        self,
        config: GPT2Config,
        batch_size: int = 1,
        capacity: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        capacity = config.n_positions if capacity is None else capacity
        check_whole_number("batch_size", batch_size, least=1)
        check_whole_number("capacity", capacity, least=1)
        if capacity > config.n_positions:
            raise ValueError(
                f"capacity is {capacity}; GPT-2 has learned {config.n_positions} positions (n_positions), and more "
                f"tokens than that can never be held"
            )
        shape = (batch_size, config.n_head, capacity, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.n_layer)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.batch_size = batch_size
        self.capacity = capacity
        self._length = 0

    @property
    def length(self) -> int:
        """The number of tokens held: the past length, and the position the next token takes."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers: 2 * n_layer * batch_size * capacity * n_embd * bytes per number."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def reset(self) -> None:
        """Forget every token. Buffers are kept; what they hold is out of reach until it is overwritten."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens and forget the rest.

        Raises:
            ValueError: more tokens than are held, or fewer than none.
        """
        check_whole_number("length", length, least=0)
        if length > self._length:
            raise ValueError(f"cannot truncate to {length} tokens: the cache holds {self._length}")
        self._length = length

    def layers(self, positions: Tensor, length: int) -> list[LayerCache]:
        """Each layer's view of the first ``length`` slots, about to take new tokens at ``positions`` ``[T]``."""
        return [
            LayerCache(keys[:, :, :length], values[:, :, :length], positions)
            for keys, values in zip(self.keys, self.values, strict=True)
        ]

    def advance(self, n_new: int) -> None:
        """Count the tokens a finished call has stored. A call that failed half-way leaves the length as it was."""
        self._length += n_new

    def check_fits(self, config: GPT2Config, dtype: torch.dtype, input_ids: Tensor) -> None:
        """Raise ValueError unless ``input_ids`` ``[B, T]`` of a model with this configuration and precision fit."""
        batch_size, n_new = input_ids.shape
        ours = (len(self.keys), *self.keys[0].shape[1::2])
        theirs = (config.n_layer, config.n_head, config.head_dim)
        if ours != theirs:
            raise ValueError(f"the cache was made for (n_layer, n_head, head size) {ours} and the model has {theirs}")
        if self.keys[0].dtype != dtype:
            raise ValueError(
                f"the cache is in {self.keys[0].dtype} and the model in {dtype}: make it with dtype={dtype}"
            )
        if batch_size != self.batch_size:
            raise ValueError(
                f"input_ids have {batch_size} rows and the cache was made for {self.batch_size}: make one KVCache "
                f"per batch size"
            )
        if self._length + n_new > self.capacity:
            raise ValueError(
                f"the cache holds {self._length} of {self.capacity} tokens and {n_new} more do not fit: make it "
                f"with a larger capacity, or reset or truncate it"
            )
