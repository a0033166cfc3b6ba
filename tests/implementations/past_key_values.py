"""torch's own layers under GPT-2's names; the past goes in and comes out as a tuple of keys and values per layer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        n = config.n_embd
        self.n_head = config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(n, 3 * n), "c_proj": nn.Linear(n, n)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(n, 4 * n), "c_proj": nn.Linear(4 * n, n)})

    def attend(self, x, past):
        q, k, v = (t.unflatten(2, (self.n_head, -1)).transpose(1, 2) for t in self.attn["c_attn"](x).chunk(3, dim=2))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        new, total = q.shape[2], k.shape[2]
        mask = torch.ones(new, total, dtype=torch.bool, device=x.device).tril(total - new)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.attn["c_proj"](y.transpose(1, 2).flatten(2)), (k, v)

    def forward(self, x, past):
        attended, present = self.attend(self.ln_1(x), past)
        x = x + attended
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden), present


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
                "ln_f": nn.LayerNorm(config.n_embd),
            }
        )

    def forward(self, input_ids, past_key_values=None):
        if input_ids.dim() != 2 or input_ids.shape[1] == 0:
            raise ValueError("input_ids are [batch, tokens], at least one of them")
        pasts = past_key_values or [None] * len(self.transformer["h"])
        held = 0 if past_key_values is None else pasts[0][0].shape[2]
        positions = torch.arange(held, held + input_ids.shape[1], device=input_ids.device)
        x = self.transformer["wte"](input_ids) + self.transformer["wpe"](positions)
        presents = []
        for block, past in zip(self.transformer["h"], pasts, strict=True):
            x, present = block(x, past)
            presents.append(present)
        return self.transformer["ln_f"](x) @ self.transformer["wte"].weight.T, tuple(presents)
