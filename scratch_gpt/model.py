"""GPT-2, written out by hand.

The architecture of "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019), with the
parameter names and the ``[in, out]`` weight layout of OpenAI's release, which Hugging Face kept as ``Conv1D``.
Read it from top to bottom: every part is its formula.

Shapes: B batch, T new tokens, S all tokens attended to (past + new), C ``n_embd``, H ``n_head``, D head size,
V ``vocab_size``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from scratch_gpt.cache import KVCache, LayerCache
from scratch_gpt.config import GPT2Config


class Linear(nn.Module):
    """y = x W + b, with W stored ``[in, out]``.

    OpenAI's checkpoint and Hugging Face's ``Conv1D`` store W this way round and ``torch.nn.Linear`` the other.
    Keeping GPT-2's own layout means that no weight is ever transposed, here or in the loaders.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_out))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)  # [B * T, out]
        return rows.view(*x.shape[:-1], -1)


class LayerNorm(nn.Module):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias, over the channels (Ba et al., 2016).

    The variance is the biased one (divided by C, not C - 1) and eps stands inside the root. Sixteen-bit input
    is normalised in float32, as ``torch.nn.LayerNorm`` does: its squares would overflow or lose their digits.
    """

    def __init__(self, n_embd: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(n_embd))
        self.bias = nn.Parameter(torch.empty(n_embd))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        centred = wide - wide.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        normed = centred / torch.sqrt(variance + self.eps)
        return (normed * self.weight + self.bias).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU (Hendrycks & Gimpel, 2016), which GPT-2 was trained with; ``gelu_new`` elsewhere."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3))))


class Attention(nn.Module):
    """Causal multi-head attention: softmax(q k^T / sqrt(D)) v in each head, heads concatenated, projected."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.head_dim = config.head_dim
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def split_heads(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, H, T, D]``: head h owns the channels h * D to (h + 1) * D."""
        return x.view(*x.shape[:-1], self.n_head, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, visible: Tensor, cache: LayerCache | None) -> Tensor:
        q, k, v = map(self.split_heads, self.c_attn(x).chunk(3, dim=-1))  # [B, H, T, D] each
        if cache is not None:
            k, v = cache.update(k, v)  # [B, H, S, D]: the past, then these
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)  # [B, H, T, S]
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = self.attn_dropout(torch.softmax(scores, dim=-1))
        heads = weights @ v  # [B, H, T, D]
        joined = heads.transpose(1, 2).reshape(x.shape)  # [B, T, C]
        return self.resid_dropout(self.c_proj(joined))


class MLP(nn.Module):
    """The feed-forward half of a block: widen to 4 C, GELU, back to C, each position by itself."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(gelu(self.c_fc(x))))


class Block(nn.Module):
    """Pre-norm: each half reads a normalised copy and adds its result to the residual stream itself."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, visible: Tensor, cache: LayerCache | None) -> Tensor:
        x = x + self.attn(self.ln_1(x), visible, cache)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """GPT-2 with its tied head: the output layer is the token embedding, transposed, without a bias.

    A new model has GPT-2's own initialisation and is in training mode, as every ``torch.nn.Module`` is; call
    ``eval()`` before using it, or load weights with ``scratch_gpt.from_huggingface``.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw new weights: normal(0, 0.02), residual projections smaller by sqrt(2 n_layer), biases zero."""
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
            elif "ln_" in name:
                parameter.fill_(1.0)
            elif name.endswith("c_proj.weight"):
                parameter.normal_(std=0.02 / math.sqrt(2 * self.config.n_layer))
            else:
                parameter.normal_(std=0.02)

    def forward(self, input_ids: Tensor, cache: KVCache | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        """Logits for the next token at every position.

        Args:
            input_ids: ``[B, T]``, int64 or int32, T >= 1. With a cache only the tokens it does not hold yet.
            cache: filled in place with the T new keys and values; its length grows by T.
            logits_to_keep: compute the head for the last so many positions only; all of them when None.

        Returns:
            ``[B, T, V]`` logits, or ``[B, logits_to_keep, V]``. They carry gradients when no cache is given.

        Raises:
            ValueError: ids of the wrong rank, dtype or range, an empty input, more positions than
                ``n_positions`` or the cache's capacity holds, a cache made for another batch size, model or
                precision, or a cache while gradients are recorded (a cache is overwritten in place; use
                ``torch.no_grad()``).
        """
        return self.run(self.compute, input_ids, cache, logits_to_keep)

    def run(
        self,
        compute: Callable[..., Tensor],
        input_ids: Tensor,
        cache: KVCache | None,
        logits_to_keep: int | None,
    ) -> Tensor:
        """``forward`` with the arithmetic done by ``compute``: the method of that name, or the same compiled."""
        self.check_input(input_ids, cache, logits_to_keep)
        n_new = input_ids.shape[1]
        past = 0 if cache is None else cache.length
        positions = torch.arange(past, past + n_new, device=input_ids.device)
        layers = None if cache is None else cache.layers(positions, past + n_new)
        logits = compute(input_ids, positions, layers, logits_to_keep)
        if cache is not None:
            cache.advance(n_new)
        return logits

    def compute(
        self,
        input_ids: Tensor,
        positions: Tensor,
        layers: list[LayerCache] | None,
        logits_to_keep: int | None,
    ) -> Tensor:
        """The arithmetic of ``forward`` alone: tensors in, tensors out, so that it compiles to one graph."""
        x = self.drop(self.wte(input_ids) + self.wpe(positions))  # [B, T, C]
        n_keys = len(positions) if layers is None else layers[0].keys.shape[2]
        visible = positions[:, None] >= torch.arange(n_keys, device=positions.device)  # [T, S]
        for i, block in enumerate(self.h):
            x = block(x, visible, None if layers is None else layers[i])
        if logits_to_keep is not None:
            x = x[:, -logits_to_keep:]
        return self.ln_f(x) @ self.wte.weight.T

    def check_input(self, input_ids: Tensor, cache: KVCache | None = None, logits_to_keep: int | None = None) -> None:
        """Raise the ValueError that ``forward`` would, and compute nothing."""
        if input_ids.dim() != 2 or 0 in input_ids.shape:
            raise ValueError(
                f"input_ids has shape {list(input_ids.shape)}; expected [batch, tokens] with at least one of "
                f"each (a single sequence is input_ids[None])"
            )
        if input_ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"input_ids are {input_ids.dtype}; token ids are torch.int64 or torch.int32")
        low, high = (int(extreme) for extreme in torch.aminmax(input_ids))
        if low < 0 or high >= self.config.vocab_size:
            raise ValueError(
                f"input_ids run from {low} to {high}; the vocabulary has the ids 0 to {self.config.vocab_size - 1}"
            )
        if logits_to_keep is not None and not 1 <= logits_to_keep <= input_ids.shape[1]:
            raise ValueError(f"logits_to_keep is {logits_to_keep}; there are {input_ids.shape[1]} positions")
        if cache is not None:
            if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
                raise ValueError(
                    "a KV cache cannot carry gradients: call the model under torch.no_grad(), or without a cache"
                )
            cache.check_fits(self.config, self.wte.weight.dtype, input_ids)
        total = input_ids.shape[1] + (0 if cache is None else cache.length)
        if total > self.config.n_positions:
            raise ValueError(
                f"{total} positions are needed and GPT-2 has learned {self.config.n_positions} (n_positions): "
                f"shorten the input"
            )
