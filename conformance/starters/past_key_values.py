"""My GPT-2 as a conformance subject: model(input_ids, past_key_values) -> (logits, past_key_values)."""

import torch
from my_gpt import GPT, GPTConfig

from conformance.views import linear_layout

DTYPES = (torch.float32, torch.float64)  # in float64 an error cannot hide among rounding


def build(config, state_dict, *, device, dtype):
    # state_dict: Hugging Face's names, matrices [in, out]; linear_layout gives them as nn.Linear has them, [out, in].
    model = GPT(GPTConfig(config.n_positions, config.vocab_size, config.n_layer, config.n_head, config.n_embd))
    # Not strict: some checkpoints carry the mask as a buffer, or leave out the head, which is wte again.
    model.load_state_dict(linear_layout(state_dict), strict=False)
    return model.to(device=device, dtype=dtype).eval()


def forward(model, input_ids):
    # [B, T] -> [B, T, vocab_size]: every position's logits.
    logits, _ = model(input_ids)
    return logits


def init_cache(model, batch_size, max_length):
    # An empty cache; here there is none before the first call.
    return None


def extend(model, input_ids, cache):
    # The new tokens alone, any number of them: a prompt, a chunk, one step.
    return model(input_ids, past_key_values=cache)


# More names claim more, and are checked: conformance/subject.py describes them.
