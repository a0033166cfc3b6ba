"""Text generation, token by token: greedy by default, or sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from scratch_gpt.cache import KVCache
from scratch_gpt.compile import CompiledGPT2
from scratch_gpt.config import check_whole_number
from scratch_gpt.model import GPT2


def generate(
    model: GPT2,
    input_ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    stop_token: int | None = None,
    use_cache: bool = True,
    compile: bool = False,  # noqa: A002 - the field's own word for it
) -> Tensor:
    """The prompt, followed by up to ``max_new_tokens`` new tokens: ``[B, T] -> [B, T + new]``.

    Arguments and errors are those of ``stream``. A row that has produced ``stop_token`` is filled up with it,
    and the result ends where every row has stopped.
    """
    steps = stream(
        model,
        input_ids,
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        generator=generator,
        stop_token=stop_token,
        use_cache=use_cache,
        compile=compile,
    )
    return torch.cat([input_ids, *(token[:, None] for token in steps)], dim=1)


def stream(
    model: GPT2,
    input_ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    stop_token: int | None = None,
    use_cache: bool = True,
    compile: bool = False,  # noqa: A002
) -> Iterator[Tensor]:
    """Yield the new tokens as they come, ``[B]`` at a time.

    Args:
        model: in eval mode.
        input_ids: ``[B, T]`` prompts of equal length.
        max_new_tokens: how many tokens to add, 0 or more.
        temperature: 0 takes the most likely token; above 0 the logits are divided by it and a token is drawn.
        top_k: when sampling, draw from the k most likely tokens only.
        top_p: when sampling, draw from the smallest set of tokens whose probability reaches p.
        generator: the source of randomness when sampling; torch's default one when None.
        stop_token: end a row after this token; such a row yields it until all rows have stopped.
        use_cache: keep keys and values, so that each step computes one token. Off, each step recomputes all.
        compile: run the model through ``torch.compile``.

    Raises:
        ValueError: at once, before any work: settings that contradict each other, a model in training mode, or a
            prompt that the model refuses or that with ``max_new_tokens`` would not fit into ``n_positions``.
    """
    _check_settings(model, input_ids, max_new_tokens, temperature, top_k, top_p, stop_token)
    return _stream(
        model,
        CompiledGPT2(model) if compile else model,
        input_ids.clone(),  # the caller may change its own before the first token is asked for
        max_new_tokens,
        lambda logits: choose(logits, temperature, top_k, top_p, generator),
        stop_token,
        use_cache,
    )


def choose(
    logits: Tensor,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The next token of each row, ``[B, V] -> [B]``; the settings are those of ``stream``.

    Top-k is applied before top-p, and a token that ties with the k-th is kept, as Hugging Face does.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)  # softmax keeps the order, so greedy needs none
    logits = logits.float()
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature  # nothing overflows, however cold
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    probabilities = torch.softmax(logits, dim=-1)
    if top_p is not None and top_p < 1:  # at 1 all tokens stay, those too that rounding hides from the sum
        ranked, order = probabilities.sort(dim=-1, descending=True)
        reached = ranked.cumsum(dim=-1) - ranked >= top_p  # by the tokens before this one, so the first always stays
        probabilities = probabilities.masked_fill(reached.gather(-1, order.argsort(-1)), 0.0)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]


def _stream(
    model: GPT2,
    forward: GPT2 | CompiledGPT2,
    input_ids: Tensor,
    max_new_tokens: int,
    choose_next: Callable[[Tensor], Tensor],
    stop_token: int | None,
    use_cache: bool,
) -> Iterator[Tensor]:
    batch_size, n_prompt = input_ids.shape
    cache = None
    if use_cache and max_new_tokens > 1:  # the last new token is never fed back, so it needs no slot
        weight = model.wte.weight
        capacity = n_prompt + max_new_tokens - 1
        cache = KVCache(model.config, batch_size, capacity, dtype=weight.dtype, device=weight.device)
    fed = input_ids
    stopped = torch.zeros(batch_size, dtype=torch.bool, device=input_ids.device)
    for _ in range(max_new_tokens):
        with torch.no_grad():
            logits = forward(fed, cache, logits_to_keep=1)
        token = choose_next(logits[:, -1]).to(input_ids.dtype)
        if stop_token is not None:
            token = token.masked_fill(stopped, stop_token)
            stopped |= token == stop_token
        new = token[:, None].clone()  # the caller may write into the token it is handed
        fed = torch.cat([fed, new], dim=1) if cache is None else new
        yield token
        if stopped.all():
            return


def _check_settings(
    model: GPT2,
    input_ids: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    stop_token: int | None,
) -> None:
    if model.training:
        raise ValueError("the model is in training mode, so dropout is active: call model.eval() first")
    model.check_input(input_ids)
    check_whole_number("max_new_tokens", max_new_tokens, least=0)
    total = input_ids.shape[1] + max_new_tokens
    if total > model.config.n_positions:
        raise ValueError(
            f"{input_ids.shape[1]} prompt tokens and {max_new_tokens} new ones are {total}, and GPT-2 has learned "
            f"{model.config.n_positions} positions (n_positions): ask for fewer, or shorten the prompt"
        )
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; it is 0 (greedy) or a finite number above 0")
    if temperature == 0 and not (top_k is None and top_p is None):
        raise ValueError("top_k and top_p need a temperature above 0: at 0 the most likely token is taken")
    if top_k is not None:
        check_whole_number("top_k", top_k, least=1)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it lies above 0 and is at most 1")
    if stop_token is not None:
        check_whole_number("stop_token", stop_token, least=0)
        if stop_token >= model.config.vocab_size:
            last = model.config.vocab_size - 1
            raise ValueError(f"stop_token is {stop_token}; the vocabulary has the ids 0 to {last}")
