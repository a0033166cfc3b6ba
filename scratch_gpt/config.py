"""The sizes of a GPT-2 model, under the names GPT-2 itself gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class GPT2Config:
    """The hyper-parameters of GPT-2; the defaults are the 124M model's.

    Field names are those of OpenAI's ``hparams.json`` and Hugging Face's ``config.json``.

    Raises:
        ValueError: a value no GPT-2 can have, such as an ``n_embd`` that ``n_head`` does not divide.
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    layer_norm_epsilon: float = 1e-5
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    resid_pdrop: float = 0.1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
            check_whole_number(name, getattr(self, name), least=1)
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd ({self.n_embd}) is not divisible by n_head ({self.n_head}): every head gets "
                f"n_embd / n_head channels, so choose an n_embd that is a multiple of n_head"
            )
        epsilon = self.layer_norm_epsilon
        if not isinstance(epsilon, (int, float)) or not 0 < epsilon < math.inf:
            raise ValueError(f"layer_norm_epsilon is {epsilon!r}; it must be a finite number above 0")
        for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < 1:
                raise ValueError(f"{name} is {value!r}; a dropout probability lies in [0, 1)")

    @property
    def head_dim(self) -> int:
        """Channels per attention head."""
        return self.n_embd // self.n_head

    @classmethod
    def preset(cls, name: str) -> GPT2Config:
        """The configuration of a released model: one of the names in ``PRESETS``.

        Raises:
            ValueError: the name is not a released GPT-2 model.
        """
        if name not in PRESETS:
            raise ValueError(f"no GPT-2 model is called {name!r}; there are {', '.join(PRESETS)}")
        return PRESETS[name]


def check_whole_number(name: str, value: object, *, least: int) -> None:
    """Raise ValueError, naming the argument, unless ``value`` is an ``int`` of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")


PRESETS = {
    "gpt2": GPT2Config(),  # 124M parameters
    "gpt2-medium": GPT2Config(n_embd=1024, n_layer=24, n_head=16),  # 355M
    "gpt2-large": GPT2Config(n_embd=1280, n_layer=36, n_head=20),  # 774M
    "gpt2-xl": GPT2Config(n_embd=1600, n_layer=48, n_head=25),  # 1558M
}
