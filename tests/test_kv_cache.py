from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from conformance.shapes import TINY
from conformance.weights import token_ids
from scratch_gpt import GPT2, GPT2Config, KVCache

IDS = token_ids(TINY, 1, 13)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def run(model: GPT2, cache: KVCache, ids: Tensor, *sizes: int) -> Tensor:
    return torch.cat([model(piece, cache) for piece in ids.split(list(sizes), dim=1)], dim=1)


def test_length_counts_the_tokens_held(model: GPT2) -> None:
    cache = KVCache(model.config)
    assert cache.length == 0
    model(IDS[:, :5], cache)
    assert cache.length == 5
    model(IDS[:, 5:6], cache)
    assert cache.length == 6
    cache.truncate(2)
    assert cache.length == 2
    cache.reset()
    assert cache.length == 0


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_nbytes_is_the_formula(dtype: torch.dtype, size: int) -> None:
    config = GPT2Config.preset("gpt2")
    cache = KVCache(config, batch_size=3, capacity=100, dtype=dtype, device="meta")
    assert cache.nbytes == 2 * 12 * 3 * 100 * 768 * size
    assert KVCache(config, dtype=torch.bfloat16, device="meta").nbytes == 36 * 2**20


def test_buffers_are_allocated_once(model: GPT2) -> None:
    cache = KVCache(model.config, capacity=20)
    places = [buffer.data_ptr() for buffer in cache.keys + cache.values]
    run(model, cache, IDS, 6, 4, 1, 1, 1)
    cache.truncate(7)
    run(model, cache, IDS[:, 7:], 1, 5)
    cache.reset()
    run(model, cache, IDS, 13)
    assert [buffer.data_ptr() for buffer in cache.keys + cache.values] == places


def test_capacity_is_used_to_the_last_slot_and_not_beyond(model: GPT2) -> None:
    cache = KVCache(model.config, capacity=12)
    logits = run(model, cache, IDS[:, :12], 10, 1, 1)
    with pytest.raises(ValueError, match="holds 12 of 12 tokens and 1 more do not fit"):
        model(IDS[:, 12:], cache)
    assert cache.length == 12
    assert_close(logits, model(IDS[:, :12]))


def test_default_capacity_is_n_positions(model: GPT2) -> None:
    assert KVCache(model.config).capacity == 40


@pytest.mark.parametrize("capacity", [0, -1, 41, 2.0])
def test_impossible_capacity_is_refused(model: GPT2, capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity is {capacity}; "):
        KVCache(model.config, capacity=capacity)


def test_cache_in_another_precision_is_refused(model: GPT2) -> None:
    with pytest.raises(ValueError, match=r"the cache is in torch\.float64 and the model in torch\.float32"):
        model(IDS, KVCache(model.config, dtype=torch.float64))


def test_cache_without_rows_is_refused(model: GPT2) -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        KVCache(model.config, 0)


def test_other_batch_size_is_refused(model: GPT2) -> None:
    with pytest.raises(ValueError, match="input_ids have 1 rows and the cache was made for 2"):
        model(IDS, KVCache(model.config, 2))


@pytest.mark.parametrize("other", [{"n_layer": 2}, {"n_head": 2}, {"n_embd": 64}])
def test_cache_of_another_model_is_refused(model: GPT2, other: dict[str, int]) -> None:
    sizes = {"vocab_size": 101, "n_positions": 40, "n_embd": 32, "n_layer": 3, "n_head": 4} | other
    with pytest.raises(ValueError, match=r"the cache was made for \(n_layer, n_head, head size\)"):
        model(IDS, KVCache(GPT2Config(**sizes)))


def test_call_that_is_refused_changes_nothing(model: GPT2) -> None:
    cache = KVCache(model.config, capacity=13)
    head = model(IDS[:, :6], cache)
    with pytest.raises(ValueError, match="vocabulary"):
        model(torch.tensor([[1000]]), cache)
    assert cache.length == 6
    assert_close(torch.cat([head, model(IDS[:, 6:], cache)], dim=1), model(IDS))


def test_call_that_breaks_off_inside_leaves_the_length(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(model.config)
    head = model(IDS[:, :6], cache)
    with monkeypatch.context() as patched:
        patched.setattr(model.h[2].mlp, "forward", None)
        with pytest.raises(TypeError):
            model(IDS[:, 6:9], cache)
    assert cache.length == 6
    assert_close(torch.cat([head, model(IDS[:, 6:], cache)], dim=1), model(IDS))


@pytest.mark.parametrize("kept", [0, 1, 5, 13])
def test_truncated_cache_goes_on_like_a_fresh_one(model: GPT2, kept: int) -> None:
    other = token_ids(TINY, 1, 13, seed=1)
    cache, fresh = KVCache(model.config), KVCache(model.config)
    run(model, cache, IDS, 13)
    cache.truncate(kept)
    if kept:
        run(model, fresh, IDS[:, :kept], kept)
    assert_close(model(other, cache), model(other, fresh))


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (7, "cannot truncate to 7 tokens: the cache holds 6"),
        (-1, "length is -1; it must be a whole number of at least 0"),
        (2.5, "length is 2.5; it must be a whole number"),
    ],
)
def test_truncating_to_what_is_not_held_is_refused(model: GPT2, length: int, message: str) -> None:
    cache = KVCache(model.config)
    model(IDS[:, :6], cache)
    with pytest.raises(ValueError, match=message):
        cache.truncate(length)
    assert cache.length == 6


def test_unfilled_slots_are_never_read(model: GPT2) -> None:
    clean, poisoned = KVCache(model.config), KVCache(model.config)
    for buffer in poisoned.keys + poisoned.values:
        buffer.fill_(torch.nan)
    assert torch.equal(run(model, clean, IDS, 6, 4, 1, 1, 1), run(model, poisoned, IDS, 6, 4, 1, 1, 1))


def test_cache_filled_to_the_brim_is_still_good_after_a_refusal(model: GPT2) -> None:
    cache = KVCache(model.config, capacity=12)
    head = run(model, cache, IDS[:, :12], 10, 2)[:, :11]
    with pytest.raises(ValueError, match="do not fit"):
        model(IDS[:, 12:], cache)
    cache.truncate(11)
    assert_close(torch.cat([head, model(IDS[:, 11:12], cache)], dim=1), model(IDS[:, :12]))


def test_refused_batch_leaves_the_cache_as_it_was(model: GPT2) -> None:
    cache = KVCache(model.config)
    head = model(IDS[:, :6], cache)
    with pytest.raises(ValueError, match="input_ids have 2 rows"):
        model(IDS[:, 6:].repeat(2, 1), cache)
    assert cache.length == 6
    assert_close(torch.cat([head, model(IDS[:, 6:], cache)], dim=1), model(IDS))


def test_slots_that_were_forgotten_are_never_read(model: GPT2) -> None:
    cache, fresh = KVCache(model.config), KVCache(model.config)
    run(model, cache, IDS, 13)
    cache.truncate(4)
    for buffer in cache.keys + cache.values:
        buffer[:, :, 4:] = torch.nan
    run(model, fresh, IDS, 13)
    fresh.truncate(4)
    assert torch.equal(run(model, cache, IDS[:, 4:], 4, 5), run(model, fresh, IDS[:, 4:], 4, 5))


def test_rows_of_a_batch_keep_to_themselves(model: GPT2) -> None:
    ids = token_ids(TINY, 3, 13)
    together = run(model, KVCache(model.config, 3), ids, 6, 1, 6)
    for row, logits in zip(ids.split(1), together.split(1), strict=True):
        assert_close(logits, run(model, KVCache(model.config), row, 6, 1, 6))
