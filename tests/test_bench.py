"""What the bench does with a subject's answers: the parts of a failure, and what counts as wrong."""

from __future__ import annotations

import pytest
import torch

from conformance.bench import Bench, expect_same
from conformance.outcome import CheckFailure, NotRun, SubjectError
from conformance.test_greedy import expect_greedy
from tests.twin import Twin


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
    assert failure.actual.startswith(f"{float(logits[1, 4, 20]):.7g};")
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
