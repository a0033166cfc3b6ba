"""The suite without its pytest options: as a function, and as a decorator for tests of one's own."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.bench import ALL_DTYPES, Bench
from conformance.check import Check, checks_by_id, run_check
from conformance.limit import TIME_LIMIT
from conformance.outcome import CheckFailure, NotRun
from conformance.result import Report, Result


def check_subject(
    subject: Any,
    *,
    profile: str = "full",
    device: torch.device | str = "cpu",
    dtypes: Sequence[torch.dtype] = ALL_DTYPES,
    seed: int = 0,
    time_limit: float = TIME_LIMIT,
) -> Report:
    """Run the checks on an implementation.

    Args:
        subject: ``MODULE[:ATTR]``, or any object with the protocol's names.
        profile: ``quick`` leaves out torch's compiler and GPT-2 124M's shape.
        device: where the subject's models live.
        dtypes: the precisions to check, of those that the subject claims.
        seed: of the random weights.
        time_limit: seconds that a check may take, a slow one five times that; 0 is no limit. It needs POSIX signals
            and the main thread.

    Raises:
        ValueError: a profile that is not known.
    """
    bench = Bench(subject, device=device, dtypes=dtypes, seed=seed, time_limit=time_limit)
    results = [_result(bench, check_id, check, case) for check_id, (check, case) in checks_by_id(profile).items()]
    return Report(subject if isinstance(subject, str) else bench.subject.name, tuple(results))


def parametrize_with_checks(
    subject: Any, *, profile: str = "full"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a pytest test run once per check, which it is given as ``check`` and has only to call.

    A check that the subject does not claim is skipped with its reason.

    Args:
        subject, profile: as for ``check_subject``.
    """
    import pytest

    bench = Bench(subject)

    def run(check: Check, case: str | None) -> None:
        try:
            run_check(check, bench, case)
        except NotRun as not_run:
            if not_run.status == "blocked":
                pytest.fail(f"blocked: {not_run.reason}", pytrace=False)
            pytest.skip(f"{not_run.status}: {not_run.reason}")

    return pytest.mark.parametrize(
        "check",
        [
            pytest.param(functools.partial(run, check, case), id=check_id)
            for check_id, (check, case) in checks_by_id(profile).items()
        ],
    )


def _result(bench: Bench, check_id: str, check: Check, case: str | None) -> Result:
    ended = functools.partial(Result, check_id, check.requirement)
    start = time.perf_counter()
    try:
        run_check(check, bench, case)
    except CheckFailure as failure:
        return ended(
            failure.status,
            expected=failure.expected,
            actual=failure.actual,
            first_wrong=failure.first_wrong,
            error=failure.error,
            seconds=time.perf_counter() - start,
        )
    except NotRun as not_run:
        return ended(not_run.status, reason=not_run.reason)
    return ended("passed", seconds=time.perf_counter() - start)
