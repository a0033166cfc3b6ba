"""My GPT-2 as a conformance subject: gpt2(params, config, input_ids, cache) -> (logits, cache)."""

from functools import partial

from my_gpt import gpt2, init_kv_cache, load_params

from conformance.views import openai_params


def build(config, state_dict, *, device, dtype):
    # openai_params: {"wte", "wpe", "blocks": [{"attn": {"c_attn": {"w", "b"}, …}, …}], "ln_f": {"g", "b"}}, NumPy.
    # The model is whatever the functions below need: here the call, with its parameters.
    params = load_params(openai_params(state_dict), device=device, dtype=dtype)
    return partial(gpt2, params, config)


def forward(model, input_ids):
    # [B, T] -> [B, T, vocab_size]: every position's logits.
    logits, _ = model(input_ids, None)
    return logits


def init_cache(model, batch_size, max_length):
    # An empty cache; one that grows does not need the sizes.
    return init_kv_cache(model.args[1])


def extend(model, input_ids, cache):
    # The new tokens alone, any number of them: a prompt, a chunk, one step.
    return model(input_ids, cache)


# More names claim more, and are checked: conformance/subject.py describes them.
