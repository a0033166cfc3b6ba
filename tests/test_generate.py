from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TopKLogitsWarper, TopPLogitsWarper

from conformance.shapes import TINY
from conformance.weights import token_ids
from scratch_gpt import GPT2, generate, stream
from scratch_gpt.generate import choose

IDS = token_ids(TINY, 3, 7)
CACHE = pytest.mark.parametrize("use_cache", [True, False])


def huggingface_tokens(huggingface: Any, ids: Tensor, new: int, **settings: Any) -> Tensor:
    mask = torch.ones_like(ids)
    return huggingface.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, **settings)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@CACHE
def test_greedy_tokens_are_hugging_faces(model: GPT2, huggingface: Any, use_cache: bool) -> None:
    expected = huggingface_tokens(huggingface, IDS, 20, pad_token_id=0)
    assert torch.equal(generate(model, IDS, 20, use_cache=use_cache), expected)


@CACHE
@pytest.mark.parametrize("new", [0, 1, 33])
def test_as_many_tokens_as_asked_for_follow_the_prompt(model: GPT2, use_cache: bool, new: int) -> None:
    ids = generate(model, IDS, new, use_cache=use_cache)
    assert ids.shape == (3, 7 + new)
    assert torch.equal(ids[:, :7], IDS)


def test_prompt_is_not_handed_back_itself(model: GPT2) -> None:
    assert generate(model, IDS, 0).data_ptr() != IDS.data_ptr()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tokens_have_the_prompts_dtype(model: GPT2, dtype: torch.dtype) -> None:
    ids = generate(model, IDS.to(dtype), 3)
    assert ids.dtype == dtype
    assert torch.equal(ids.long(), generate(model, IDS, 3))


@CACHE
def test_each_row_ends_with_the_stop_token(model: GPT2, huggingface: Any, use_cache: bool) -> None:
    full = generate(model, IDS, 30)
    lengths = set()
    for stop in set(full[:, 7:].flatten().tolist()):
        expected = huggingface_tokens(huggingface, IDS, 30, eos_token_id=stop, pad_token_id=stop)
        ids = generate(model, IDS, 30, stop_token=stop, use_cache=use_cache)
        assert torch.equal(ids, expected)
        lengths.add(ids.shape[1])
    assert len(lengths) > 1  # for some stop token all rows ended early


@CACHE
def test_row_alone_stops_at_once(model: GPT2, use_cache: bool) -> None:
    first = generate(model, IDS[:1], 1)[0, -1].item()
    assert generate(model, IDS[:1], 20, stop_token=first, use_cache=use_cache).tolist() == [[*IDS[0].tolist(), first]]


def test_same_seed_gives_the_same_tokens_with_and_without_a_cache(model: GPT2) -> None:
    settings = {"temperature": 1.5, "top_k": 50, "top_p": 0.95}
    runs = [generate(model, IDS, 20, use_cache=on, generator=seeded(), **settings) for on in (True, True, False)]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], generate(model, IDS, 20))


def test_top_k_of_one_is_greedy(model: GPT2) -> None:
    sampled = generate(model, IDS, 12, temperature=2.0, top_k=1, generator=seeded())
    assert torch.equal(sampled, generate(model, IDS, 12))


def drawn(logits: Tensor, **settings: Any) -> set[int]:
    """The tokens that sampling one row of logits often gives."""
    return set(choose(logits.expand(4000, -1), temperature=1.0, generator=seeded(), **settings).tolist())


def kept(warper: Any, logits: Tensor) -> set[int]:
    return set(warper(None, logits).isfinite().nonzero()[:, 1].tolist())


@pytest.mark.parametrize("k", [1, 3, 10, 25, 1000])
def test_top_k_draws_from_hugging_faces_set(k: int) -> None:
    logits = torch.randn(1, 25, generator=seeded())
    assert drawn(logits, top_k=k) == kept(TopKLogitsWarper(min(k, 25)), logits)


@pytest.mark.parametrize("p", [1e-6, 0.2, 0.5, 0.9, 1.0])
def test_top_p_draws_from_hugging_faces_set(p: float) -> None:
    logits = torch.randn(1, 25, generator=seeded())
    expected = kept(TopPLogitsWarper(p), logits) if p < 1 else set(range(25))
    assert drawn(logits, top_p=p) == expected


def test_top_k_comes_before_top_p() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    # The two most likely have 0.73 and 0.27 of what top-k leaves; without top-k 0.64 and 0.24 of all.
    assert drawn(logits, top_k=2, top_p=0.7) == {0}
    assert drawn(logits, top_p=0.7) == {0, 1}


def test_temperature_flattens_the_distribution() -> None:
    logits = torch.tensor([[2.0, 0.0]]).expand(4000, -1)
    for temperature in (0.5, 1.0, 4.0):
        share = (choose(logits, temperature=temperature, generator=seeded()) == 0).double().mean()
        assert share == pytest.approx(torch.sigmoid(torch.tensor(2.0 / temperature)).item(), abs=0.03)


def test_greedy_takes_the_largest_logit_of_each_row() -> None:
    assert choose(torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]])).tolist() == [1, 0]


@CACHE
def test_stream_yields_what_generate_gives(model: GPT2, use_cache: bool) -> None:
    tokens = list(stream(model, IDS, 9, use_cache=use_cache))
    assert torch.equal(torch.stack(tokens, dim=1), generate(model, IDS, 9)[:, 7:])


@CACHE
def test_stream_computes_only_what_is_taken(model: GPT2, use_cache: bool) -> None:
    calls: list[int] = []
    model.register_forward_pre_hook(lambda module, inputs: calls.append(inputs[0].shape[1]))
    steps = stream(model, IDS, 9, use_cache=use_cache)
    assert calls == []
    next(steps)
    next(steps)
    assert calls == [7, 1 if use_cache else 8]


@CACHE
def test_writing_into_a_yielded_token_changes_nothing(model: GPT2, use_cache: bool) -> None:
    tokens = []
    for token in stream(model, IDS, 9, use_cache=use_cache):
        tokens.append(token.clone())
        token.zero_()
    assert torch.equal(torch.stack(tokens, dim=1), generate(model, IDS, 9)[:, 7:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 34}, "7 prompt tokens and 34 new ones are 41, and GPT-2 has learned 40 positions"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; it must be a whole number of at least 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"temperature": 1.0, "top_k": 2.5}, "top_k is 2.5"),
        ({"stop_token": 2.5}, "stop_token is 2.5"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 5}, "top_k and top_p need a temperature above 0"),
        ({"top_p": 0.5}, "top_k and top_p need a temperature above 0"),
        ({"temperature": 1.0, "top_k": 0}, "top_k is 0; it must be a whole number of at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p is 0.0; it lies above 0"),
        ({"temperature": 1.0, "top_p": 1.1}, "top_p is 1.1; it lies above 0 and is at most 1"),
        ({"stop_token": 101}, "stop_token is 101; the vocabulary has the ids 0 to 100"),
        ({"stop_token": -1}, "stop_token is -1"),
        ({"input_ids": IDS[0]}, r"input_ids has shape \[7\]"),
        ({"input_ids": IDS + 100}, "the vocabulary has the ids 0 to 100"),
    ],
)
def test_impossible_requests_are_refused_before_any_work(model: GPT2, settings: dict[str, Any], message: str) -> None:
    model.register_forward_pre_hook(lambda module, inputs: pytest.fail("the model was called"))
    arguments = {"input_ids": IDS, "max_new_tokens": 5} | settings
    with pytest.raises(ValueError, match=message):
        stream(model, **arguments)


def test_model_in_training_mode_is_refused(model: GPT2) -> None:
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        stream(model.train(), IDS, 5)


def test_generation_records_no_gradients(model: GPT2) -> None:
    assert all(not token.requires_grad for token in stream(model, IDS, 2, temperature=1.0))
    assert torch.is_grad_enabled()


def logits_of_rows() -> Tensor:
    return torch.randn(3, 25, generator=seeded())


@pytest.mark.parametrize(
    ("settings", "warper"), [({"top_k": 4}, TopKLogitsWarper(4)), ({"top_p": 0.6}, TopPLogitsWarper(0.6))]
)
def test_each_row_draws_from_its_own_set(settings: dict[str, Any], warper: Any) -> None:
    logits = logits_of_rows()
    tokens = choose(logits.repeat(4000, 1), temperature=1.0, generator=seeded(), **settings).view(-1, 3)
    expected = [kept(warper, row[None]) for row in logits]
    assert len({frozenset(tokens_of_row) for tokens_of_row in expected}) == 3
    assert [set(column.tolist()) for column in tokens.T] == expected


def test_tokens_that_tie_with_the_kth_are_kept() -> None:
    logits = torch.tensor([[3.0, 2.0, 2.0, 0.0]])
    assert drawn(logits, top_k=2) == kept(TopKLogitsWarper(2), logits) == {0, 1, 2}


def test_temperature_widens_what_top_p_keeps() -> None:
    logits = torch.tensor([[4.0, 2.0, 0.0, -2.0]]).expand(4000, -1)
    assert set(choose(logits, 1.0, None, 0.8, seeded()).tolist()) == {0}
    assert set(choose(logits, 4.0, None, 0.8, seeded()).tolist()) == {0, 1, 2}


def test_sampling_without_a_generator_follows_the_global_seed(model: GPT2) -> None:
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(generate(model, IDS, 12, temperature=2.0))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_greedy_draws_no_random_number(model: GPT2) -> None:
    before = torch.get_rng_state()
    generate(model, IDS, 5)
    assert torch.equal(torch.get_rng_state(), before)


@CACHE
def test_prompt_is_not_written_to(model: GPT2, use_cache: bool) -> None:
    prompt = IDS.clone()
    generate(model, prompt, 5, stop_token=3, use_cache=use_cache)
    assert torch.equal(prompt, IDS)


def test_model_in_training_mode_is_not_called(model: GPT2) -> None:
    model.register_forward_pre_hook(lambda module, inputs: pytest.fail("the model was called"))
    with pytest.raises(ValueError, match="training mode"):
        generate(model.train(), IDS, 5)


def test_coldest_temperature_is_greedy(model: GPT2) -> None:
    sampled = generate(model, IDS, 12, temperature=1e-40, generator=seeded())
    assert torch.equal(sampled, generate(model, IDS, 12))


def test_top_p_of_one_leaves_every_token() -> None:
    logits = 3 * torch.randn(1, 50257, generator=seeded())
    plain = choose(logits.expand(200, -1), 1.0, generator=seeded())
    assert torch.equal(choose(logits.expand(200, -1), 1.0, top_p=1.0, generator=seeded()), plain)


def test_prompt_changed_after_the_call_changes_nothing(model: GPT2) -> None:
    prompt = IDS.clone()
    steps = stream(model, prompt, 5)
    prompt.zero_()
    assert torch.equal(torch.stack(list(steps), dim=1), generate(model, IDS, 5)[:, 7:])
