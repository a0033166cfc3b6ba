"""The model sizes that checks run at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """What a subject's ``build`` is given: GPT-2's own field names, and GPT-2's values where they are not sizes.

    The dropout probabilities are GPT-2's too. A subject in eval mode must not let them show.
    """

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    layer_norm_epsilon: float = 1e-5
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    resid_pdrop: float = 0.1


# Sizes differ pairwise, so that no axis can be mistaken for another, and the vocabulary is a prime.
TINY = Config(vocab_size=101, n_positions=40, n_embd=32, n_layer=3, n_head=4)

# Room for 200 decode steps, and one layer less to compile.
LONG = Config(vocab_size=101, n_positions=251, n_embd=32, n_layer=2, n_head=4)

# The real thing: the shape of the released 124M model.
GPT2_124M = Config(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12)
