"""My GPT-2 as a conformance subject: model(input_ids) -> logits, without a cache."""

from my_gpt import GPT, GPTConfig

from conformance.views import linear_layout


def build(config, state_dict, *, device, dtype):
    # state_dict: Hugging Face's names, matrices [in, out]; linear_layout gives them as nn.Linear has them, [out, in].
    # A model with weights of its own names copies them one by one; separate_qkv and openai_params are other forms.
    model = GPT(GPTConfig(config.n_positions, config.vocab_size, config.n_layer, config.n_head, config.n_embd))
    # Not strict: some checkpoints carry the mask as a buffer, or leave out the head, which is wte again.
    model.load_state_dict(linear_layout(state_dict), strict=False)
    return model.to(device=device, dtype=dtype).eval()


def forward(model, input_ids):
    # [B, T] -> [B, T, vocab_size]: every position's logits, not the last one's, and no loss beside them.
    return model(input_ids)


# More names claim more, and are checked: conformance/subject.py describes them.
