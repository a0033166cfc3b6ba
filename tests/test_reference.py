"""The oracle, held against Hugging Face's own generation; tests/test_twin.py holds it against a second model."""

from __future__ import annotations

import pytest
import torch

from conformance.reference import Reference, huggingface_model
from conformance.shapes import TINY
from conformance.twin import Twin
from conformance.weights import EMBEDDING, converted, make_weights, token_ids


@pytest.fixture
def truth() -> Reference:
    return Reference(TINY, make_weights(TINY, 0), torch.float32)


def test_greedy_is_what_huggingface_generates(truth: Reference) -> None:
    model = huggingface_model(TINY, make_weights(TINY, 0), dtype=torch.float32)
    ids = token_ids(TINY, 3, 7)
    generated = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    expected, margins = truth.greedy(ids, 20)
    assert torch.equal(expected, generated)
    assert margins.shape == (3, 20)


def test_greedy_without_new_tokens_is_the_prompt(truth: Reference) -> None:
    ids = token_ids(TINY, 2, 7)
    expected, margins = truth.greedy(ids, 0)
    assert torch.equal(expected, ids)
    assert margins.shape == (2, 0)


def test_past_is_what_each_layer_projects(truth: Reference) -> None:
    ids = token_ids(TINY, 2, 5)
    keys, values = truth.past(ids)
    twin = Twin()
    weights = converted(make_weights(TINY, 0), torch.float64)
    model = twin.build(TINY, weights, device=torch.device("cpu"), dtype=torch.float64)
    with torch.no_grad():
        _, cache = twin.extend(model, ids, twin.init_cache(model, 2, 5))
    torch.testing.assert_close(keys.values, torch.stack([k for k, _ in cache.pairs]))
    torch.testing.assert_close(values.values, torch.stack([v for _, v in cache.pairs]))


def test_position_used_is_recovered(truth: Reference) -> None:
    ids = token_ids(TINY, 1, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 23]])
    used, error = truth.position_used(ids[0], truth.exact(ids, positions)[0, -1])
    assert used == 23
    assert error < 1e-9


def test_rounding_the_weights_is_nobodys_error() -> None:
    ids = token_ids(TINY, 1, 5)
    rounded = converted(converted(make_weights(TINY, 0), torch.bfloat16), torch.float32)
    coarse = Reference(TINY, make_weights(TINY, 0), torch.bfloat16)
    assert torch.equal(coarse.exact(ids), Reference(TINY, rounded, torch.float32).exact(ids))


def test_missing_tensor_is_named() -> None:
    weights = make_weights(TINY, 0)
    del weights["transformer.h.1.ln_2.bias"]
    with pytest.raises(ValueError, match=r"lacks transformer\.h\.1\.ln_2\.bias"):
        huggingface_model(TINY, weights, dtype=torch.float32)


def test_converted_shares_nothing_and_stays_tied() -> None:
    weights = make_weights(TINY, 0)
    copy = converted(weights, torch.float32)
    assert copy["lm_head.weight"] is copy[EMBEDDING]
    assert copy[EMBEDDING].data_ptr() != weights[EMBEDDING].data_ptr()
