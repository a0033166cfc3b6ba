"""Whether every weight is loaded, once, in its place, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.bench import Bench
from conformance.check import check
from conformance.outcome import CheckFailure
from conformance.shapes import TINY
from conformance.weights import EMBEDDING, HEAD, make_weights

StateDict = dict[str, Tensor]


def with_mask_buffers(state_dict: StateDict) -> StateDict:
    """What checkpoints of transformers 4 hold besides: each layer's causal mask and its fill value."""
    n = TINY.n_positions
    dtype = state_dict[EMBEDDING].dtype
    buffers = {}
    for i in range(TINY.n_layer):
        buffers[f"transformer.h.{i}.attn.bias"] = torch.ones(n, n, dtype=torch.uint8).tril().view(1, 1, n, n)
        buffers[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4, dtype=dtype)
    return state_dict | buffers


def without_head(state_dict: StateDict) -> StateDict:
    """What safetensors files hold: the tied head is not written twice."""
    return {name: tensor for name, tensor in state_dict.items() if name != HEAD}


@check()
def test_every_tensor_used(bench: Bench) -> None:
    """Every tensor of the checkpoint has an effect on the logits."""
    weights = make_weights(TINY, bench.seed)
    other = make_weights(TINY, bench.seed + 1)
    candidate = bench.build()
    ids = candidate.ids(1, TINY.n_positions)
    before = candidate.forward(ids).clone()
    unused = []
    for name in weights:
        changed = (
            {name: other[name]} if name not in (EMBEDDING, HEAD) else dict.fromkeys((EMBEDDING, HEAD), other[name])
        )
        if torch.equal(bench.build(weights=weights | changed).forward(ids), before):
            unused.append(name)
    if unused:
        raise CheckFailure("other values in any one tensor give other logits", f"no effect: {', '.join(unused)}")


@check()
def test_head_is_tied(bench: Bench) -> None:
    """The head is the token embedding: another embedding for an id that is not in the input moves its logit."""
    weights = make_weights(TINY, bench.seed)
    absent = TINY.vocab_size - 1
    changed = weights[EMBEDDING].clone()
    changed[absent] *= -1.5
    candidate = bench.build(weights=weights | {EMBEDDING: changed, HEAD: changed})
    ids = candidate.ids(1, 13) % absent
    candidate.expect_logits(candidate.forward(ids), ids)


@check()
def test_head_has_no_bias(bench: Bench) -> None:
    """With a token embedding of zeros every logit is zero: the head adds nothing of its own."""
    weights = make_weights(TINY, bench.seed)
    zeros = torch.zeros_like(weights[EMBEDDING])
    candidate = bench.build(weights=weights | {EMBEDDING: zeros, HEAD: zeros})
    logits = candidate.forward(candidate.ids(1, 7))
    if logits.any():
        steady = bool((logits == logits[:, :1]).all())
        raise CheckFailure(
            "logits of exactly 0",
            f"up to {float(logits.abs().max()):.3g} in magnitude, "
            + ("the same at every position: the head has a bias" if steady else "other ones at other positions"),
        )


@check()
def test_two_models(bench: Bench) -> None:
    """A second model with other weights has its own, and the first keeps its own."""
    first = bench.build()
    ids = first.ids(1, 13)
    first.expect_logits(first.forward(ids), ids, note="the first model, before the second")
    second = bench.build(weights=make_weights(TINY, bench.seed + 1))
    second.expect_logits(second.forward(ids), ids, note="the second model")
    first.expect_logits(first.forward(ids), ids, note="the first model, after the second")


@check(cases={"mask_buffers": with_mask_buffers, "no_head": without_head})
def test_checkpoint_forms(bench: Bench, given: Callable[[StateDict], StateDict]) -> None:
    """A checkpoint of either form is loaded alike: with the mask buffers of transformers 4, without the tied head."""
    candidate = bench.build(given=given)
    ids = candidate.ids(1, 13)
    candidate.expect_logits(candidate.forward(ids), ids)


@check(needs=("state_dict",))
def test_state_dict_round_trip(bench: Bench) -> None:
    """The state dict has Hugging Face's names and the values that were loaded."""
    weights = make_weights(TINY, bench.seed)
    held = bench.build().state_dict()
    lacking = sorted(weights.keys() - held.keys() - {HEAD})
    extra = sorted(held.keys() - weights.keys())
    if lacking or extra:
        raise CheckFailure("Hugging Face's names", f"lacking {lacking or 'none'}, unknown {extra or 'none'}")
    wrong = [
        name
        for name, tensor in held.items()
        if tensor.shape != weights[name].shape or not torch.equal(tensor.cpu(), weights[name].to(tensor.dtype))
    ]
    if wrong:
        raise CheckFailure("the values that were loaded, [in, out]", f"others in {', '.join(sorted(wrong))}")
