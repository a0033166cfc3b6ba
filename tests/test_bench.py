"""What the bench does with a subject's answers: the parts of a failure, and what counts as wrong."""

from __future__ import annotations

import pytest
import torch

from conformance.bench import Bench
from conformance.candidate import expect_same
from conformance.outcome import CheckFailure, NotRun, SubjectError
from conformance.test_greedy import expect_greedy
from conformance.twin import Twin


@pytest.fixture
def bench() -> Bench:
    return Bench(Twin())


def test_failure_names_the_earliest_wrong_place_and_the_size(bench: Bench) -> None:
    candidate = bench.build()
    ids = candidate.ids(2, 9)
    logits = candidate.forward(ids).clone()
    logits[0, 7, 3] += 5.0
    logits[1, 4, 20] += 0.5
    with pytest.raises(CheckFailure) as caught:
        candidate.expect_logits(logits, ids, note="a note")
    failure = caught.value
    assert failure.first_wrong == "row 1, position 4, vocabulary id 20 (a note)"
    exact = float(candidate.reference.exact(ids)[1, 4, 20])
    assert f"{exact:.7g}" in failure.expected
    assert failure.actual.endswith(f"there {float(logits[1, 4, 20]):.7g}")
    assert failure.error.startswith("5.0e+00, ")
    assert "times Hugging Face's own in float32" in failure.error
    assert [label for label, _ in failure.lines()] == ["expected", "actual", "first wrong", "error"]


def test_error_within_the_budget_passes_and_beyond_it_fails(bench: Bench) -> None:
    candidate = bench.build()
    ids = candidate.ids(1, 9)
    truth = candidate.reference.logits(ids)
    logits = truth.values.clone()
    logits[0, 5, 5] += 0.99 * truth.budget
    candidate.expect_logits(logits, ids)
    logits[0, 5, 5] += 0.02 * truth.budget
    with pytest.raises(CheckFailure):
        candidate.expect_logits(logits, ids)


def test_nan_is_wrong(bench: Bench) -> None:
    candidate = bench.build()
    ids = candidate.ids(1, 9)
    logits = candidate.forward(ids).clone()
    logits[0, 2, 0] = torch.nan
    with pytest.raises(CheckFailure) as caught:
        candidate.expect_logits(logits, ids)
    assert caught.value.first_wrong == "row 0, position 2, vocabulary id 0"


def test_largest_ratio_is_kept_until_it_is_taken(bench: Bench) -> None:
    candidate = bench.build()
    ids = candidate.ids(1, 9)
    truth = candidate.reference.logits(ids)
    logits = truth.values.clone()
    logits[0, 0, 0] += 3 * truth.own_error
    candidate.expect_logits(logits, ids)
    candidate.expect_logits(truth.values, ids)
    assert bench.take_largest_ratio() == pytest.approx(3.0)
    assert bench.take_largest_ratio() == 0.0


def test_bit_difference_is_told_with_its_first_place() -> None:
    before = torch.zeros(1, 4, 5)
    after = before.clone()
    after[0, 3, 1] = after[0, 2, 4] = 1e-30
    with pytest.raises(CheckFailure) as caught:
        expect_same(after, before, "the logits", "something")
    assert caught.value.first_wrong == "row 0, position 2, vocabulary id 4"


def test_tie_is_walked_past(bench: Bench) -> None:
    candidate = bench.build()
    ids = candidate.ids(1, 5)
    expected, margins = candidate.reference.greedy(ids, 6)
    margins[0, 2] = 0.0  # the reference cannot tell its two best tokens apart at step 2
    calls = []

    def generate(prompt: torch.Tensor, new: int) -> torch.Tensor:
        calls.append(prompt.shape[1])
        tokens = expected[:, : prompt.shape[1] + new].clone()
        if prompt.shape[1] <= 5 + 2:
            tokens[0, 5 + 2 :] = 0
        return tokens

    expect_greedy(candidate, ids, 6, generate)
    assert calls == [5, 8]


def test_wrong_token_with_a_margin_fails(bench: Bench) -> None:
    candidate = bench.build()
    ids = candidate.ids(2, 5)
    expected, _ = candidate.reference.greedy(ids, 6)
    wrong = expected.clone()
    wrong[1, 5 + 3] = (wrong[1, 5 + 3] + 1) % 101
    with pytest.raises(CheckFailure) as caught:
        expect_greedy(candidate, ids, 6, lambda prompt, new: wrong)
    assert caught.value.first_wrong.startswith("row 1, new token 3, position 8:")


def test_changed_prompt_fails(bench: Bench) -> None:
    candidate = bench.build()
    ids = candidate.ids(1, 5)
    changed = candidate.reference.greedy(ids, 2)[0].clone()
    changed[0, 0] += 1
    with pytest.raises(CheckFailure, match="the prompt comes first"):
        expect_greedy(candidate, ids, 2, lambda prompt, new: changed)


def test_exception_of_the_subject_says_where_it_was_raised() -> None:
    class Raises(Twin):
        def forward(self, model, input_ids):
            raise KeyError("no such layer")

    candidate = Bench(Raises()).build()
    with pytest.raises(SubjectError) as caught:
        candidate.forward(candidate.ids(1, 3))
    assert caught.value.actual.startswith("forward raised KeyError: 'no such layer' (at ")
    assert "test_bench.py" in caught.value.actual


def test_subject_that_exits_is_a_finding() -> None:
    class Exits(Twin):
        def forward(self, model, input_ids):
            raise SystemExit(3)

    candidate = Bench(Exits()).build()
    with pytest.raises(SubjectError, match="SystemExit"):
        candidate.forward(candidate.ids(1, 3))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda logits: logits[0], r"it returned shape \[7, 101\]"),
        (lambda logits: (logits, None), "it returned tuple"),
        (lambda logits: logits[:, -1:], r"it returned shape \[2, 1, 101\]"),
    ],
)
def test_wrong_answer_names_the_call_and_the_fix(answer, message: str) -> None:
    class Answers(Twin):
        def forward(self, model, input_ids):
            return answer(super().forward(model, input_ids))

    candidate = Bench(Answers()).build()
    with pytest.raises(CheckFailure, match=message):
        candidate.forward(
            candidate.ids(2, 7)[:1] if message.startswith("it returned shape [7") else candidate.ids(2, 7)
        )


def test_batch_beyond_the_subjects_limit_is_unsupported() -> None:
    class OneRow(Twin):
        LIMITS = {"batch_size": 1}  # noqa: RUF012 - the protocol's form

    candidate = Bench(OneRow()).build()
    candidate.ids(1, 3)
    with pytest.raises(NotRun) as caught:
        candidate.ids(2, 3)
    assert caught.value.status == "unsupported"


def test_float64_alone_moves_all_checks_to_float64() -> None:
    class Double(Twin):
        DTYPES = (torch.float64,)

    bench = Bench(Double())
    assert bench.dtype == torch.float64
    with pytest.raises(NotRun, match="does not claim"):
        bench.need_dtype(torch.bfloat16)


def test_dtype_that_was_not_asked_for_is_skipped() -> None:
    bench = Bench(Twin(), dtypes=(torch.float32,))
    with pytest.raises(NotRun) as caught:
        bench.need_dtype(torch.bfloat16)
    assert caught.value.status == "skipped"


def test_half_precision_alone_is_refused() -> None:
    with pytest.raises(CheckFailure, match="--dtypes bfloat16: add float32"):
        Bench(Twin(), dtypes=(torch.bfloat16,)).build()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda logits: logits.to("meta"), "on meta"),
        (lambda logits: logits.to_sparse(), "torch.sparse_coo"),
        (lambda logits: logits.long(), "torch.int64"),
        (lambda logits: logits.to(torch.complex64), "torch.complex64"),
    ],
)
def test_answer_that_cannot_be_compared_is_a_failure(answer, message: str) -> None:
    class Answers(Twin):
        def forward(self, model, input_ids):
            return answer(super().forward(model, input_ids))

    candidate = Bench(Answers()).build()
    with pytest.raises(CheckFailure, match=message):
        candidate.forward(candidate.ids(1, 7))


@pytest.mark.parametrize("layers", [None, [None], "keys", [(1, 2)], [(torch.zeros(2, 3), torch.zeros(2, 3))]])
def test_cache_tensors_of_another_form_are_a_failure(layers: object) -> None:
    class Answers(Twin):
        def cache_tensors(self, cache):
            return layers

    candidate = Bench(Answers()).build()
    with pytest.raises(CheckFailure, match="cache_tensors returns a list of pairs"):
        candidate.cache_tensors(candidate.init_cache(1, 5))


@pytest.mark.parametrize("state_dict", [None, [1], {"name": 3}, {5: torch.zeros(1)}])
def test_state_dict_of_another_form_is_a_failure(state_dict: object) -> None:
    class Answers(Twin):
        def state_dict(self, model):
            return state_dict

    with pytest.raises(CheckFailure, match="state_dict returns"):
        Bench(Answers()).build().state_dict()


def test_subject_that_writes_into_its_input_reaches_nothing_of_the_kits() -> None:
    class Writes(Twin):
        def generate(self, model, input_ids, max_new_tokens, **arguments):
            ids = super().generate(model, input_ids, max_new_tokens, **arguments)
            input_ids.zero_()
            return ids

        def forward(self, model, input_ids):
            logits = super().forward(model, input_ids)
            input_ids.zero_()
            return logits

    candidate = Bench(Writes()).build()
    ids = candidate.ids(1, 7)
    kept = ids.clone()
    candidate.forward(ids)
    expect_greedy(candidate, ids, 5, lambda prompt, new: candidate.generate(prompt, new, use_cache=True))
    assert torch.equal(ids, kept)
    assert torch.equal(candidate.reference.greedy(ids, 5)[0][:, :7], kept)


def test_exception_whose_message_raises_is_described() -> None:
    class Odd(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Raises(Twin):
        def forward(self, model, input_ids):
            raise Odd

    candidate = Bench(Raises()).build()
    with pytest.raises(SubjectError, match="Odd: no message that can be shown"):
        candidate.forward(candidate.ids(1, 3))
