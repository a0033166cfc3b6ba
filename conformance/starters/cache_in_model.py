"""My GPT-2 as a conformance subject: model(input_ids, use_cache=True) -> logits, and model.reset_kv_cache()."""

from my_gpt import GPTModel, generate_text, load_weights_into_gpt

from conformance.views import openai_params

SINGLE_CACHE = True  # it lives in the model, so that two runs cannot take turns


def build(config, state_dict, *, device, dtype):
    cfg = {
        "vocab_size": config.vocab_size,
        "context_length": config.n_positions,
        "emb_dim": config.n_embd,
        "n_heads": config.n_head,
        "n_layers": config.n_layer,
        "drop_rate": config.embd_pdrop,
        "qkv_bias": True,
    }
    model = GPTModel(cfg)
    # openai_params: {"wte", "wpe", "blocks": [{"attn": {"c_attn": {"w", "b"}, …}, …}], "g", "b"}, NumPy arrays.
    load_weights_into_gpt(model, openai_params(state_dict))
    return model.to(device=device, dtype=dtype).eval()


def forward(model, input_ids):
    # [B, T] -> [B, T, vocab_size]: every position's logits.
    return model(input_ids)


def init_cache(model, batch_size, max_length):
    model.reset_kv_cache()
    return model


def extend(model, input_ids, cache):
    # The new tokens alone, any number of them: a prompt, a chunk, one step.
    return cache(input_ids, use_cache=True), cache


def generate(model, input_ids, max_new_tokens, *, use_cache):
    # Greedy; the prompt and the new tokens, [B, T + max_new_tokens].
    return generate_text(model, input_ids, max_new_tokens, use_cache=use_cache)


# More names claim more, and are checked: conformance/subject.py describes them.
