"""The suite's fixtures are proven sensitive: what a fault would change is far larger than what is allowed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from conformance import tolerance
from conformance.plugin import SEED
from conformance.reference import Reference, huggingface_model, reference
from conformance.shapes import GPT2_124M, LONG, TINY
from conformance.test_greedy import NEW_TOKENS, PROMPTS
from conformance.weights import EMBEDDING, HEAD, converted, make_weights, parameter_shapes, token_ids

SEEDS = range(5)


def distinct_greedy_tokens(seed: int) -> list[int]:
    """The number of distinct tokens in each row that the greedy checks generate."""
    truth = reference(TINY, seed, "perturbed", torch.float32)
    counts = []
    for rows, length in {(prompt.batch_size, prompt.length) for prompt in PROMPTS.values()}:
        ids, _ = truth.greedy(token_ids(TINY, rows, length), NEW_TOKENS)
        counts += [len(set(row.tolist())) for row in ids[:, length:]]
    return counts


def test_greedy_tokens_vary() -> None:
    assert min(distinct_greedy_tokens(SEED)) >= 8


def test_greedy_tokens_vary_whatever_the_seed() -> None:
    counts = [count for seed in SEEDS for count in distinct_greedy_tokens(seed)]
    assert sum(counts) / len(counts) >= 10


@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_margins_are_a_hundred_budgets(seed: int) -> None:
    truth = reference(TINY, seed, "perturbed", torch.float32)
    margins, budgets = [], []
    for rows, length in {(prompt.batch_size, prompt.length) for prompt in PROMPTS.values()}:
        ids, margin = truth.greedy(token_ids(TINY, rows, length), NEW_TOKENS)
        margins.append(margin.flatten())
        budgets.append(truth.logits(ids).budget)
    wide = torch.cat(margins) > 100 * max(budgets)
    assert wide.double().mean() >= 0.95


def test_no_greedy_step_of_the_suite_is_a_tie() -> None:
    truth = reference(TINY, SEED, "perturbed", torch.float32)
    for rows, length in {(prompt.batch_size, prompt.length) for prompt in PROMPTS.values()}:
        ids, margin = truth.greedy(token_ids(TINY, rows, length), NEW_TOKENS)
        assert margin.min() > tolerance.TIE_BUDGETS * truth.logits(ids).budget


@pytest.mark.parametrize("name", [name for name in parameter_shapes(TINY) if not name.endswith("wpe.weight")])
def test_every_tensor_matters(name: str) -> None:
    ids = token_ids(TINY, 1, 13)
    weights = make_weights(TINY, 0)
    truth = reference(TINY, SEED, "perturbed", torch.float32).logits(ids)
    changed = weights | {name: weights[name] * 1.01}
    changed[HEAD] = changed[EMBEDDING]
    shift = (Reference(TINY, changed, torch.float32).exact(ids) - truth.values).abs().max()
    assert shift > 10 * truth.budget


def test_every_position_matters() -> None:
    ids = token_ids(TINY, 1, TINY.n_positions)
    truth = reference(TINY, SEED, "perturbed", torch.float32)
    usual = truth.logits(ids)
    shifted = (torch.arange(TINY.n_positions) + 1) % TINY.n_positions
    error = (truth.exact(ids, shifted[None]) - usual.values).abs().amax(dim=2)
    assert error.min() > 100 * usual.budget


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-12, 1.1e-5])
def test_small_weights_show_another_epsilon(epsilon: float) -> None:
    ids = token_ids(TINY, 1, 13)
    weights = converted(make_weights(TINY, 0, "small"), torch.float64)
    truth = reference(TINY, 0, "small", torch.float32).logits(ids)
    other = huggingface_model(dataclasses.replace(TINY, layer_norm_epsilon=epsilon), weights, dtype=torch.float64)
    with torch.no_grad():
        assert (other(ids).logits - truth.values).abs().max() > 10 * truth.budget


def test_extreme_weights_give_scores_beyond_any_finite_mask() -> None:
    scores: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        q, k, _ = output.view(1, -1, 3, TINY.n_head, TINY.n_embd // TINY.n_head).permute(2, 0, 3, 1, 4)
        scores.append(q @ k.transpose(-2, -1))

    model = huggingface_model(TINY, make_weights(TINY, 0, "extreme"), dtype=torch.float32)
    for block in model.transformer.h:
        block.attn.c_attn.register_forward_hook(keep)
    with torch.no_grad():
        model(token_ids(TINY, 1, 13))
    visible = torch.ones(13, 13, dtype=torch.bool).tril()
    for layer in scores:
        # Some position's largest visible score is far below -10,000, so that a masked one would win.
        assert layer.masked_fill(~visible, -torch.inf).amax(dim=-1).min() < -20_000


@pytest.mark.parametrize("config", [TINY, LONG])
def test_sizes_differ_pairwise(config: object) -> None:
    sizes = [*dataclasses.astuple(config)[:5], config.n_embd // config.n_head, 4 * config.n_embd, 3 * config.n_embd]
    assert len(set(sizes)) == len(sizes)


def test_vocabulary_is_a_prime() -> None:
    assert all(TINY.vocab_size % divisor for divisor in range(2, TINY.vocab_size))


def test_real_shape_is_that_of_gpt2() -> None:
    import transformers

    default = transformers.GPT2Config()
    for field in dataclasses.fields(GPT2_124M):
        assert getattr(GPT2_124M, field.name) == getattr(default, field.name)


def test_weights_are_the_same_for_the_same_seed_only() -> None:
    first, again, other = make_weights(TINY, 3), make_weights(TINY, 3), make_weights(TINY, 4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
