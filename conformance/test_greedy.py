"""Whether greedy generation gives Hugging Face's tokens, with the cache and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance import tolerance
from conformance.bench import Bench
from conformance.candidate import Candidate
from conformance.check import check
from conformance.outcome import CheckFailure
from conformance.shapes import GPT2_124M, TINY, Config

NEW_TOKENS = 20
CACHE = {"cached": True, "uncached": False}


@dataclass(frozen=True)
class Prompt:
    """A prompt's batch size and length, and whether the cache is on."""

    batch_size: int
    length: int
    use_cache: bool


PROMPTS = {
    f"{rows}x{length}-{name}": Prompt(rows, length, use_cache)
    for rows, length in ((1, 1), (1, 5), (1, 13), (3, 7))
    for name, use_cache in CACHE.items()
}


def expect_greedy(
    candidate: Candidate, input_ids: Tensor, max_new_tokens: int, generate: Callable[[Tensor, int], Tensor]
) -> None:
    """Fail unless ``generate(input_ids, max_new_tokens)`` gives the reference's most likely tokens.

    Where the reference's two largest logits are closer than two budgets, either is right: the walk then goes on from
    the reference's token.
    """
    expected, margins = candidate.reference.greedy(input_ids, max_new_tokens)
    n_prompt, done = input_ids.shape[1], 0
    while True:
        actual = generate(expected[:, : n_prompt + done], max_new_tokens - done)
        if actual.shape != expected.shape:
            raise CheckFailure(f"ids of shape {list(expected.shape)}", f"shape {list(actual.shape)}")
        if not torch.equal(actual[:, : n_prompt + done], expected[:, : n_prompt + done]):
            raise CheckFailure("the prompt comes first, unchanged", f"{actual[:, :n_prompt].tolist()}")
        differ = (actual != expected).nonzero()
        if not len(differ):
            return
        row, position = (int(i) for i in differ[differ[:, 1].argmin()])
        step = position - n_prompt
        margin = float(margins[row, step])
        allowed = tolerance.TIE_BUDGETS * candidate.reference.logits(expected[:, :position]).budget
        if margin > allowed:
            raise CheckFailure(
                f"new tokens {expected[row, n_prompt:].tolist()}",
                f"{actual[row, n_prompt:].tolist()}",
                first_wrong=f"row {row}, new token {step}, position {position}: {int(actual[row, position])} in place "
                f"of {int(expected[row, position])}",
                error=f"the reference prefers its token by {margin:.1e}; below {allowed:.1e} it would be a tie",
            )
        done = step + 1


def expect_subject_greedy(bench: Bench, prompt: Prompt, new: int, config: Config = TINY) -> None:
    """Fail unless the subject's own ``generate`` continues a prompt as the reference does."""
    candidate = bench.build(config)
    ids = candidate.ids(prompt.batch_size, prompt.length)
    expect_greedy(candidate, ids, new, lambda ids, n: candidate.generate(ids, n, use_cache=prompt.use_cache))


@check(needs=("generate",), cases=PROMPTS)
def test_tokens(bench: Bench, prompt: Prompt) -> None:
    """Greedy tokens are Hugging Face's, one by one, with the cache and without."""
    expect_subject_greedy(bench, prompt, NEW_TOKENS)


@check(needs=("cache",))
def test_step_by_step(bench: Bench) -> None:
    """Feeding back the most likely token by hand, with the cache, gives Hugging Face's greedy tokens."""
    candidate = bench.build()

    def generate(ids: Tensor, max_new_tokens: int) -> Tensor:
        fed, cache = ids, candidate.init_cache(len(ids), TINY.n_positions)
        for _ in range(max_new_tokens):
            logits, cache = candidate.extend(fed, cache)
            fed = logits[:, -1:].argmax(dim=-1).cpu()
            ids = torch.cat([ids, fed], dim=1)
        return ids

    expect_greedy(candidate, candidate.ids(1, 7), NEW_TOKENS, generate)


@check(needs=("generate",), cases=CACHE)
def test_no_new_tokens(bench: Bench, use_cache: bool) -> None:
    """With max_new_tokens 0 the prompt comes back."""
    expect_subject_greedy(bench, Prompt(1, 7, use_cache), 0)


@check(needs=("generate",), cases=CACHE)
def test_one_new_token(bench: Bench, use_cache: bool) -> None:
    """With max_new_tokens 1 one token is added."""
    expect_subject_greedy(bench, Prompt(1, 7, use_cache), 1)


@check(needs=("generate",), cases=CACHE)
def test_up_to_n_positions(bench: Bench, use_cache: bool) -> None:
    """Prompt and new tokens may fill n_positions exactly."""
    expect_subject_greedy(bench, Prompt(1, TINY.n_positions - 12, use_cache), 12)


@check(needs=("generate",), cases=CACHE)
def test_twice(bench: Bench, use_cache: bool) -> None:
    """A second generation gives the tokens of the first, also after one of another prompt."""
    candidate = bench.build()
    ids, other = candidate.ids(1, 7), candidate.ids(1, 11, seed=1)
    for prompt in (ids, ids, other, ids):
        expect_greedy(candidate, prompt, 12, lambda ids, n: candidate.generate(ids, n, use_cache=use_cache))


@check(needs=("stop_token",), cases=CACHE)
def test_stop_token(bench: Bench, use_cache: bool) -> None:
    """A row ends with the stop token and is filled up with it; the result ends where every row has stopped."""
    candidate = bench.build()
    ids = candidate.ids(candidate.most_rows(3), 7)
    full, _ = candidate.reference.greedy(ids, NEW_TOKENS)
    # The first new token, a later one, one that stands in the prompt, and one that never comes.
    never = next(token for token in range(candidate.config.vocab_size) if not (full[:, 7:] == token).any())
    for stop in (int(full[0, 7]), int(full[0, 7 + 4]), int(ids[0, 2]), never):
        expected = stopped_at(full, 7, stop)
        actual = candidate.generate(ids, NEW_TOKENS, use_cache=use_cache, stop_token=stop)
        if not torch.equal(actual, expected):
            raise CheckFailure(f"with stop token {stop}: {expected[:, 7:].tolist()}", f"{actual[:, 7:].tolist()}")


def stopped_at(ids: Tensor, n_prompt: int, stop: int) -> Tensor:
    """What is left of ``ids`` ``[B, T]`` when each row ends with the first ``stop`` after its prompt."""
    stopped = (ids[:, n_prompt:] == stop).cumsum(dim=1) > 0
    new = ids[:, n_prompt:].masked_fill(stopped, stop)
    all_stopped = stopped.all(dim=0)
    length = int(all_stopped.int().argmax()) + 1 if all_stopped.any() else new.shape[1]
    return torch.cat([ids[:, :n_prompt], new[:, :length]], dim=1)


@check(needs=("generate",), slow=True)
def test_real_shape(bench: Bench) -> None:
    """At the shape of GPT-2 124M greedy tokens are Hugging Face's."""
    expect_subject_greedy(bench, Prompt(1, 16, use_cache=True), 8, GPT2_124M)
