"""Subjects that misbehave: each gets a clear status for the check that meets it, and the rest of the suite goes on."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor

import conformance
from conformance.bench import Bench
from conformance.check import checks_by_id, run_check
from conformance.diagnosis import diagnose
from conformance.limit import TimeLimitReached, positive_seconds, time_limit
from conformance.outcome import CheckFailure
from conformance.twin import Twin

pytest_plugins = ["pytester"]

CHECKS = checks_by_id()


class SpinsForEver(Twin):
    """Never comes back from a call with a cache, whatever is thrown at it."""

    def extend(self, model: Any, input_ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(60)


class Exits(Twin):
    """Ends the program."""

    def forward(self, model: Any, input_ids: Tensor) -> Tensor:
        sys.exit(0)


class ReturnsNaN(Twin):
    """Has no numbers."""

    def forward(self, model: Any, input_ids: Tensor) -> Tensor:
        return super().forward(model, input_ids) * torch.nan


class ReturnsItsInput(Twin):
    """Hands the ids back."""

    def forward(self, model: Any, input_ids: Tensor) -> Tensor:
        return input_ids


class WritesIntoIds(Twin):
    """Sorts the ids in place."""

    def forward(self, model: Any, input_ids: Tensor) -> Tensor:
        logits = super().forward(model, input_ids)
        input_ids.zero_()
        return logits


class WritesIntoWeights(Twin):
    """Scales the tensors that it is given."""

    def load(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return weights

    def build(self, config: Any, state_dict: Any, *, device: Any, dtype: Any) -> Any:
        model = super().build(config, state_dict, device=device, dtype=dtype)
        state_dict["transformer.wpe.weight"].mul_(2)
        return model


class NeedsAGPU(Twin):
    """Moves its model to a device that is not there."""

    def build(self, config: Any, state_dict: Any, *, device: Any, dtype: Any) -> Any:
        return super().build(config, state_dict, device=torch.device("cuda", 99), dtype=dtype)


class AnotherPrecision(Twin):
    """Answers in float64, whatever it was asked for."""

    def forward(self, model: Any, input_ids: Tensor) -> Tensor:
        return super().forward(model, input_ids).double()


@pytest.mark.parametrize(
    ("subject", "check_id", "status", "actual"),
    [
        (Exits, "smoke.logits_shape", "error", "forward raised SystemExit: 0 (at "),
        (ReturnsNaN, "smoke.logits_shape", "failed", "707 are NaN or infinite"),
        (ReturnsItsInput, "smoke.logits_shape", "failed", "it returned shape [1, 7]: mend forward in the adapter"),
        (WritesIntoIds, "smoke.ids_unchanged", "failed", "they became [[0, 0, 0, 0, 0, 0, 0]]"),
        (WritesIntoWeights, "smoke.weights_unchanged", "failed", "changed: transformer.wpe.weight"),
        (NeedsAGPU, "smoke.builds", "error", "build raised "),
        (AnotherPrecision, "smoke.logits_shape", "failed", "they are in torch.float64"),
    ],
)
def test_is_found_out(subject: type[Twin], check_id: str, status: str, actual: str) -> None:
    check, case = CHECKS[check_id]
    with pytest.raises(CheckFailure) as caught:
        run_check(check, Bench(subject()), case)
    assert caught.value.status == status
    assert caught.value.actual.startswith(actual)


def test_check_that_hangs_is_stopped_and_says_where() -> None:
    check, case = CHECKS["cache.token_by_token"]
    with pytest.raises(CheckFailure) as caught:
        run_check(check, Bench(SpinsForEver(), time_limit=0.2), case)
    assert caught.value.status == "error"
    assert caught.value.expected == "the check ends within 0.2 s"
    assert caught.value.actual.startswith(f"it was still running (at {__file__}:")
    assert caught.value.actual.endswith(", in extend); --time-limit gives it longer")


def test_diagnosis_of_a_subject_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("logits.full_sequence[13]", "cache.token_by_token", "cache.batch")
    monkeypatch.setattr("conformance.diagnosis.checks_by_id", lambda profile: {name: CHECKS[name] for name in chosen})
    diagnosis = diagnose(Bench(SpinsForEver(), time_limit=0.2))
    assert diagnosis.failed == ["cache.token_by_token", "cache.batch"]
    (verdict,) = diagnosis.verdicts
    assert verdict.lines()[0].startswith("not recognised; first wrong at cache.token_by_token, it was still running")


def test_limit_is_lifted_when_the_body_ends() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_limit_gets_past_a_body_that_catches_everything_once() -> None:
    def body() -> None:
        with contextlib.suppress(BaseException):
            threading.Event().wait(60)
        threading.Event().wait(60)

    with pytest.raises(TimeLimitReached), time_limit(0.05):
        body()


def test_other_threads_have_no_limit() -> None:
    ended = []

    def body() -> None:
        with time_limit(60):
            ended.append(True)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert ended == [True]


@pytest.mark.parametrize("text", ["-1", "nan", "soon"])
def test_limit_has_to_be_a_number(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        positive_seconds(text)


BAD_ADAPTERS = """
import os
from conformance.twin import Twin

class Prints(Twin):
    def forward(self, model, input_ids):
        print("x" * 3_000_000 + " end")
        return super().forward(model, input_ids) + 1

class Crashes(Twin):
    def extend(self, model, input_ids, cache):
        os._exit(3)

class NoCache:
    build, forward = Twin().build, Twin().forward

PRINTS, CRASHES = Prints(), Crashes()
"""


@pytest.fixture
def suite(pytester: pytest.Pytester):
    """Run the suite on one of the adapters above."""
    pytester.makepyfile(bad=BAD_ADAPTERS)

    def run(attribute: str, *arguments: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess("--pyargs", "conformance", "--subject", f"bad:{attribute}", *arguments)

    return run


def test_megabytes_of_print_are_cut(suite) -> None:
    result = suite("PRINTS", "-k", "full_sequence and 13")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(result.stdout.str()) < 20_000
    result.stdout.fnmatch_lines(["[[]*,???,??? characters before this are left out]", "x*x end"])


def test_crash_of_the_process_costs_one_check_of_a_parallel_run(suite) -> None:
    result = suite("CRASHES", "-n", "1", "-k", "smoke or token_by_token", "--dist", "load")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*test_token_by_token*"])
    assert result.parseoutcomes()["failed"] >= 1
    assert result.parseoutcomes()["passed"] >= 5


def test_run_in_which_nothing_passed_fails(suite) -> None:
    result = suite("NoCache", "-k", "rollback")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["nothing was checked: no check passed or failed"])


def test_report_of_a_subject_that_hangs_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("cache.token_by_token", "logits.full_sequence[13]")
    monkeypatch.setattr("conformance.run.checks_by_id", lambda profile: {name: CHECKS[name] for name in chosen})
    report = conformance.check_subject(SpinsForEver(), time_limit=0.2)
    assert [result.status for result in report.results] == ["error", "passed"]
