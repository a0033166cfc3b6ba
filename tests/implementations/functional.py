"""Plain functions over nested parameters, as picoGPT has them; a call returns a new cache and leaves the old one."""

import math

import torch


def load_params(params, *, device, dtype):
    if isinstance(params, dict):
        return {name: load_params(value, device=device, dtype=dtype) for name, value in params.items()}
    if isinstance(params, list):
        return [load_params(value, device=device, dtype=dtype) for value in params]
    return torch.tensor(params, device=device, dtype=dtype)


def init_kv_cache(config):
    return [None] * config.n_layer


def layer_norm(x, g, b, eps):
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return g * (x - mean) / torch.sqrt(variance + eps) + b


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(x, c_attn, c_proj, n_head, held):
    q, k, v = (part.unflatten(2, (n_head, -1)).transpose(1, 2) for part in (x @ c_attn["w"] + c_attn["b"]).chunk(3, 2))
    if held is not None:
        k, v = torch.cat([held[0], k], dim=2), torch.cat([held[1], v], dim=2)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    rows = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=x.device)[:, None]
    hidden = torch.arange(k.shape[2], device=x.device) > rows
    y = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v
    return y.transpose(1, 2).flatten(2) @ c_proj["w"] + c_proj["b"], (k, v)


def gpt2(params, config, input_ids, cache):
    if input_ids.dim() != 2 or 0 in input_ids.shape or input_ids.is_floating_point():
        raise ValueError("input_ids are integers [batch, tokens], at least one of each")
    if int(input_ids.min()) < 0:  # a plain index would take it from the end
        raise ValueError("an id below 0")
    cache = cache or init_kv_cache(config)
    held = 0 if cache[0] is None else cache[0][0].shape[2]
    positions = torch.arange(held, held + input_ids.shape[1], device=input_ids.device)
    x = params["wte"][input_ids] + params["wpe"][positions]
    new_cache = []
    for block, past in zip(params["blocks"], cache, strict=True):
        normed = layer_norm(x, **block["ln_1"], eps=config.layer_norm_epsilon)
        attended, present = attention(normed, **block["attn"], n_head=config.n_head, held=past)
        new_cache.append(present)
        x = x + attended
        normed = layer_norm(x, **block["ln_2"], eps=config.layer_norm_epsilon)
        hidden = gelu(normed @ block["mlp"]["c_fc"]["w"] + block["mlp"]["c_fc"]["b"])
        x = x + hidden @ block["mlp"]["c_proj"]["w"] + block["mlp"]["c_proj"]["b"]
    x = layer_norm(x, **params["ln_f"], eps=config.layer_norm_epsilon)
    return x @ params["wte"].T, new_cache
