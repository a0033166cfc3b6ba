"""A second GPT-2, cut into steps small enough that a planted fault overrides exactly one.

``Twin`` is a conformance subject that claims everything. Unlike ``scratch_gpt`` it is plain functions over a dict of
weights: each method is one decision an author of a GPT-2 takes, and each class in ``conformance.faults`` takes one
wrong.

Shapes: B batch, T new tokens, S past + new, C ``n_embd``, H ``n_head``, D head size, V ``vocab_size``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PREFIX = "transformer."
Pair = tuple[Tensor, Tensor]


class TwinModel(nn.Module):
    """The weights, under Hugging Face's names, and the configuration."""

    compiled: Any = None  # what stands in for `Twin.compute` once the model is compiled

    def __init__(self, config: Any, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        for name, tensor in weights.items():
            self.register_parameter(name.replace(".", "/"), nn.Parameter(tensor, requires_grad=False))

    def __getitem__(self, name: str) -> Tensor:
        return self.get_parameter(name.replace(".", "/"))


class TwinCache:
    """Keys and values per layer, ``[B, H, capacity, D]``, and how many slots are filled."""

    def __init__(self, model: TwinModel, batch_size: int, capacity: int) -> None:
        config, weight = model.config, model["wte.weight"]
        shape = (batch_size, config.n_head, capacity, config.n_embd // config.n_head)
        self.pairs: list[Pair] = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in range(config.n_layer)]
        self.length = 0


class Twin:
    """GPT-2 as a subject; every method is a decision."""

    NAME = "twin"
    DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

    # The weights.

    def build(
        self, config: Any, state_dict: Mapping[str, Tensor], *, device: torch.device, dtype: torch.dtype
    ) -> TwinModel:
        kept = {name: tensor for name, tensor in state_dict.items() if self.is_parameter(name)}
        weights = {name.removeprefix(PREFIX): tensor.clone() for name, tensor in kept.items()}
        return TwinModel(config, self.load(weights)).to(device=device, dtype=dtype).eval()

    def is_parameter(self, name: str) -> bool:
        return not name.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight"))

    def load(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return weights

    def state_dict(self, model: TwinModel) -> dict[str, Tensor]:
        return {PREFIX + name.replace("/", "."): tensor.data for name, tensor in model.named_parameters()}

    # The calls.

    def forward(self, model: TwinModel, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        self.check(model, input_ids, 0, None)
        new = input_ids.shape[1]
        positions = self.positions(0, new, model.config) if position_ids is None else position_ids
        return self.run(model, input_ids, positions, self.visible(0, new), None, None)

    def init_cache(self, model: TwinModel, batch_size: int, max_length: int) -> Any:
        return TwinCache(model, batch_size, max_length)

    def extend(self, model: TwinModel, input_ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        past, new = cache.length, input_ids.shape[1]
        self.check(model, input_ids, past, cache)
        positions = self.positions(past, new, model.config)
        slots, pairs = self.slots(past, new), self.filled(cache, past + new)
        visible = self.visible_with_cache(past, new, pairs)
        logits = self.run(model, input_ids, positions, visible, pairs, slots)
        cache.length = past + new
        return logits, cache

    def check(self, model: TwinModel, input_ids: Tensor, past: int, cache: Any) -> None:
        if input_ids.dim() != 2 or 0 in input_ids.shape or input_ids.is_floating_point():
            raise ValueError("input_ids are integers [batch, tokens], at least one of each")
        if int(input_ids.min()) < 0 or int(input_ids.max()) >= model.config.vocab_size:
            raise ValueError("an id outside the vocabulary")
        if past + input_ids.shape[1] > self.most(model, cache):
            raise ValueError("too many tokens")

    def most(self, model: TwinModel, cache: Any) -> int:
        return model.config.n_positions if cache is None else cache.pairs[0][0].shape[2]

    def reset_cache(self, model: TwinModel, cache: Any) -> Any:
        cache.length = 0
        return cache

    def truncate_cache(self, model: TwinModel, cache: Any, length: int) -> Any:
        cache.length = length
        return cache

    def cache_tensors(self, cache: Any) -> list[Pair]:
        return list(cache.pairs)

    def compile(self, model: TwinModel) -> TwinModel:
        twin = copy.copy(model)
        twin.compiled = torch.compile(self.compute, backend="eager", fullgraph=True)
        return twin

    # The forward pass.

    def run(
        self,
        model: TwinModel,
        input_ids: Tensor,
        positions: Tensor,
        visible: Tensor,
        pairs: list[Pair] | None,
        slots: Any,
    ) -> Tensor:
        return (model.compiled or self.compute)(model, input_ids, positions, visible, pairs, slots)

    def compute(
        self,
        model: TwinModel,
        input_ids: Tensor,
        positions: Tensor,
        visible: Tensor,
        pairs: list[Pair] | None,
        slots: Any,
    ) -> Tensor:
        x = self.embed(model, input_ids, positions)
        for i in range(model.config.n_layer):
            x = self.block(model, i, x, visible, None if pairs is None else pairs[i], slots)
        return self.head(model, self.layer_norm(x, model, "ln_f"))

    def embed(self, model: TwinModel, input_ids: Tensor, positions: Tensor) -> Tensor:
        return model["wte.weight"][input_ids] + model["wpe.weight"][positions]

    def block(
        self, model: TwinModel, i: int, x: Tensor, visible: Tensor, pair: Pair | None, slots: Tensor | None
    ) -> Tensor:
        x = x + self.attention(model, i, self.layer_norm(x, model, f"h.{i}.ln_1"), visible, pair, slots)
        return x + self.mlp(model, i, self.layer_norm(x, model, f"h.{i}.ln_2"))

    def mlp(self, model: TwinModel, i: int, x: Tensor) -> Tensor:
        return self.linear(self.gelu(self.linear(x, model, f"h.{i}.mlp.c_fc")), model, f"h.{i}.mlp.c_proj")

    def attention(
        self, model: TwinModel, i: int, x: Tensor, visible: Tensor, pair: Pair | None, slots: Tensor | None
    ) -> Tensor:
        n_head = model.config.n_head
        q, k, v = (
            self.split_heads(part, n_head) for part in self.split_qkv(self.linear(x, model, f"h.{i}.attn.c_attn"))
        )
        if pair is not None:
            k, v = self.store(pair, k, v, slots)
        scores = self.mask(q @ k.transpose(-2, -1) * self.scale(x.shape[-1], n_head), visible)
        return self.linear(self.merge_heads(torch.softmax(scores, dim=-1) @ v), model, f"h.{i}.attn.c_proj")

    def layer_norm(self, x: Tensor, model: TwinModel, name: str) -> Tensor:
        weight, bias = model[f"{name}.weight"], model[f"{name}.bias"]
        return nn.functional.layer_norm(x, x.shape[-1:], weight, bias, model.config.layer_norm_epsilon)

    def linear(self, x: Tensor, model: TwinModel, name: str) -> Tensor:
        return x @ model[f"{name}.weight"] + model[f"{name}.bias"]

    def gelu(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x, approximate="tanh")

    def split_qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.chunk(3, dim=-1)

    def split_heads(self, x: Tensor, n_head: int) -> Tensor:
        return x.view(*x.shape[:-1], n_head, x.shape[-1] // n_head).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def scale(self, n_embd: int, n_head: int) -> float:
        return 1 / math.sqrt(n_embd // n_head)

    def mask(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.masked_fill(~visible, -torch.inf)

    def head(self, model: TwinModel, x: Tensor) -> Tensor:
        return x @ model["wte.weight"].T

    # What depends on the past.

    def positions(self, past: int, new: int, config: Any) -> Tensor:
        return torch.arange(past, past + new)

    def visible(self, past: int, new: int) -> Tensor:
        return torch.arange(past, past + new)[:, None] >= torch.arange(past + new)

    def visible_with_cache(self, past: int, new: int, pairs: list[Pair]) -> Tensor:
        return self.visible(past, new)

    def slots(self, past: int, new: int) -> Tensor:
        return torch.arange(past, past + new)

    def filled(self, cache: Any, length: int) -> list[Pair]:
        return [(keys[:, :, :length], values[:, :, :length]) for keys, values in cache.pairs]

    def store(self, pair: Pair, k: Tensor, v: Tensor, slots: Any) -> Pair:
        keys, values = pair
        keys.index_copy_(2, slots, k)
        values.index_copy_(2, slots, v)
        return keys, values

    # Generation.

    def generate(
        self,
        model: TwinModel,
        input_ids: Tensor,
        max_new_tokens: int,
        *,
        use_cache: bool,
        stop_token: int | None = None,
    ) -> Tensor:
        self.check_room(model, input_ids.shape[1] + max_new_tokens)
        ids, fed, cache = input_ids, input_ids, self.cache_for(model, input_ids, max_new_tokens)
        stopped = torch.zeros(len(ids), dtype=torch.bool)
        for _ in range(max_new_tokens):
            if use_cache:
                logits, cache = self.extend(model, fed, cache)
            else:
                logits = self.forward(model, self.refed(ids))
            token = self.last(logits).argmax(dim=-1)
            if stop_token is not None:
                token = self.stop(token, stopped, stop_token)
                stopped = stopped | (token == stop_token)
            ids = torch.cat([ids, token[:, None]], dim=1)
            fed = self.next_fed(ids, token)
            if self.finished(stopped):
                break
        return ids

    def check_room(self, model: TwinModel, total: int) -> None:
        if total > model.config.n_positions:
            raise ValueError("prompt and new tokens do not fit")

    def cache_for(self, model: TwinModel, input_ids: Tensor, max_new_tokens: int) -> Any:
        return self.init_cache(model, len(input_ids), model.config.n_positions)

    def refed(self, ids: Tensor) -> Tensor:
        return ids

    def last(self, logits: Tensor) -> Tensor:
        return logits[:, -1]

    def next_fed(self, ids: Tensor, token: Tensor) -> Tensor:
        return token[:, None]

    def stop(self, token: Tensor, stopped: Tensor, stop_token: int) -> Tensor:
        return token.masked_fill(stopped, stop_token)

    def finished(self, stopped: Tensor) -> bool:
        return bool(stopped.all())
