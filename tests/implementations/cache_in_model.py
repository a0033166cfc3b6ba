"""Names of its own and separate queries, keys and values; each attention holds its cache and the model its position."""

import torch
from torch import nn


class LayerNorm(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(emb_dim)), nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, unbiased=False)
        return self.scale * (x - mean) / torch.sqrt(variance + 1e-5) + self.shift


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        n = cfg["emb_dim"]
        self.n_heads = cfg["n_heads"]
        self.query, self.key, self.value = (nn.Linear(n, n, bias=cfg["qkv_bias"]) for _ in range(3))
        self.out = nn.Linear(n, n)
        self.dropout = nn.Dropout(cfg["drop_rate"])
        self.cache_k = self.cache_v = None

    def forward(self, x, use_cache):
        q, k, v = (
            layer(x).unflatten(2, (self.n_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        if use_cache:
            if self.cache_k is not None:
                k, v = torch.cat([self.cache_k, k], dim=2), torch.cat([self.cache_v, v], dim=2)
            self.cache_k, self.cache_v = k, v
        scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        weights = self.dropout(scores.masked_fill(hidden, -torch.inf).softmax(dim=-1))
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        n = cfg["emb_dim"]
        self.att = Attention(cfg)
        self.ff = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(approximate="tanh"), nn.Linear(4 * n, n))
        self.norm1, self.norm2 = LayerNorm(n), LayerNorm(n)
        self.dropout = nn.Dropout(cfg["drop_rate"])

    def forward(self, x, use_cache):
        x = x + self.dropout(self.att(self.norm1(x), use_cache))
        return x + self.dropout(self.ff(self.norm2(x)))


class GPTModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg["vocab_size"], cfg["emb_dim"])
        self.pos_emb = nn.Embedding(cfg["context_length"], cfg["emb_dim"])
        self.dropout = nn.Dropout(cfg["drop_rate"])
        self.blocks = nn.ModuleList(TransformerBlock(cfg) for _ in range(cfg["n_layers"]))
        self.final_norm = LayerNorm(cfg["emb_dim"])
        self.out_head = nn.Linear(cfg["emb_dim"], cfg["vocab_size"], bias=False)
        self.current_pos = 0

    def forward(self, input_ids, use_cache=False):
        if input_ids.dim() != 2 or input_ids.shape[1] == 0:
            raise ValueError("input_ids are [batch, tokens], at least one of them")
        start = self.current_pos if use_cache else 0
        end = start + input_ids.shape[1]
        x = self.dropout(self.tok_emb(input_ids) + self.pos_emb(torch.arange(start, end, device=input_ids.device)))
        for block in self.blocks:
            x = block(x, use_cache)
        if use_cache:
            self.current_pos = end
        return self.out_head(self.final_norm(x))

    def reset_kv_cache(self):
        self.current_pos = 0
        for block in self.blocks:
            block.att.cache_k = block.att.cache_v = None


def generate_text(model, input_ids, max_new_tokens, *, use_cache):
    if input_ids.shape[1] + max_new_tokens > model.pos_emb.num_embeddings:
        raise ValueError("prompt and new tokens are more than the model has positions for")
    model.reset_kv_cache()
    model(input_ids)  # refuses a prompt it cannot serve, whatever max_new_tokens is
    fed = input_ids
    for _ in range(max_new_tokens):
        logits = model(fed if use_cache else input_ids, use_cache=use_cache)
        fed = logits[:, -1:].argmax(dim=-1)
        input_ids = torch.cat([input_ids, fed], dim=1)
    return input_ids


def load_weights_into_gpt(gpt, params):
    def put(parameter, array):
        if parameter.shape != array.shape:
            raise ValueError(f"shape {tuple(parameter.shape)} is not {array.shape}")
        parameter.data = torch.tensor(array)

    def put_linear(layer, weight, bias):
        put(layer.weight, weight.T)
        put(layer.bias, bias)

    def put_norm(layer, params):
        put(layer.scale, params["g"])
        put(layer.shift, params["b"])

    put(gpt.tok_emb.weight, params["wte"])
    put(gpt.pos_emb.weight, params["wpe"])
    put(gpt.out_head.weight, params["wte"])
    put_norm(gpt.final_norm, params)
    for block, of_block in zip(gpt.blocks, params["blocks"], strict=True):
        c_attn, n = of_block["attn"]["c_attn"], len(params["g"])
        for i, layer in enumerate((block.att.query, block.att.key, block.att.value)):
            put_linear(layer, c_attn["w"][:, i * n : (i + 1) * n], c_attn["b"][i * n : (i + 1) * n])
        for layer, of_layer in (
            (block.att.out, of_block["attn"]["c_proj"]),
            (block.ff[0], of_block["mlp"]["c_fc"]),
            (block.ff[2], of_block["mlp"]["c_proj"]),
        ):
            put_linear(layer, of_layer["w"], of_layer["b"])
        put_norm(block.norm1, of_block["ln_1"])
        put_norm(block.norm2, of_block["ln_2"])
