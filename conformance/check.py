"""What a check is: a function over a bench, with a stable id and a requirement.

A check lives in the module of its group and reads as a test, because it is one:

    @check(cases={"even": (4, 4), "uneven": (5, 3)}, needs=("cache",))
    def test_chunked(bench, sizes):
        \"\"\"Splitting a prompt into chunks leaves every logit unchanged.\"\"\"

pytest runs it as ``test_cache.py::test_chunked[even]``; ``run_check`` runs it without pytest. Its id is
``cache.chunked[even]``. The first line of its docstring is the requirement, and states the fact.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance import PROFILES
from conformance.bench import Bench
from conformance.limit import TimeLimitReached, time_limit
from conformance.outcome import CheckFailure, NotRun, place_of

# In the order in which to read failures: what comes earlier explains what comes later.
GROUPS = (
    "smoke",
    "logits",
    "weights",
    "causality",
    "positions",
    "cache",
    "rollback",
    "isolation",
    "greedy",
    "limits",
    "dtype",
    "compile",
)


# A slow check may take so many times the limit of the others.
SLOW_FACTOR = 5


class TimedOut(CheckFailure):
    """The check was stopped, because it took too long."""

    status = "error"

    def __init__(self, seconds: float, place: str) -> None:
        super().__init__(
            f"the check ends within {seconds:g} s", f"it was still running{place}; --time-limit gives it longer"
        )


@dataclass(frozen=True)
class Check:
    """One requirement and the function that tests it.

    ``cases`` maps a case's name to the value the function takes after the bench; it is empty for a check without cases.
    ``needs`` names what a subject has to claim. A ``prerequisite`` that fails blocks every check after it. What is
    ``slow``, torch's compiler and GPT-2 124M's shape, is left out of a quick run.
    """

    function: Callable[..., None]
    cases: Mapping[str, Any]
    needs: tuple[str, ...]
    prerequisite: bool
    slow: bool

    @property
    def requirement(self) -> str:
        """The fact that is checked, in one line."""
        return (self.function.__doc__ or "").strip().splitlines()[0]

    @property
    def id(self) -> str:
        """``group.name``."""
        group = self.function.__module__.rpartition("test_")[2]
        return f"{group}.{self.function.__name__.removeprefix('test_')}"

    def ids(self) -> dict[str, str | None]:
        """Every id that this check runs under, with the name of its case."""
        if not self.cases:
            return {self.id: None}
        return {f"{self.id}[{case}]": case for case in self.cases}


# A check and the name of its case, by id.
Checks = dict[str, tuple[Check, "str | None"]]


def check(
    *,
    cases: Mapping[str, Any] | None = None,
    needs: Sequence[str] = (),
    prerequisite: bool = False,
    slow: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a check. Its module is ``conformance.test_GROUP`` and its own name starts with ``test_``."""

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        function.check = Check(function, cases or {}, tuple(needs), prerequisite, slow)  # type: ignore[attr-defined]
        return function

    return mark


def all_checks() -> Iterator[Check]:
    """Every check, in the order of the groups and, inside a group, of the module."""
    for group in GROUPS:
        yield from checks_of(group)


def checks_by_id(profile: str = "full") -> Checks:
    """Every check and case of a profile by id, in the order of ``all_checks``; ``quick`` leaves out the slow ones.

    Raises:
        ValueError: a profile that is not known.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile is {profile!r}: choose one of {', '.join(PROFILES)}")
    return {
        check_id: (check, case)
        for check in all_checks()
        if profile == "full" or not check.slow
        for check_id, case in check.ids().items()
    }


def checks_of(group: str) -> list[Check]:
    """The checks of a group, in the order of its module."""
    module = importlib.import_module(f"conformance.test_{group}")
    found = [getattr(value, "check", None) for value in vars(module).values()]
    return [check for check in found if isinstance(check, Check)]


def run_check(check: Check, bench: Bench, case: str | None = None) -> None:
    """Run a check, or one case of it.

    Raises:
        CheckFailure: the subject is not what the requirement says.
        NotRun: it does not claim what the check needs, or a prerequisite failed.
    """
    need_prerequisites(check, bench)
    call_check(check, bench, case)


def need_prerequisites(check: Check, bench: Bench) -> None:
    """Raise ``NotRun`` if a prerequisite that comes before this check fails."""
    for earlier in (smoke for smoke in checks_of("smoke") if smoke.prerequisite):
        if earlier == check:
            break
        if failure := bench.prerequisite_failure(earlier.id, lambda e=earlier: call_check(e, bench)):  # type: ignore[misc]
            raise NotRun("blocked", f"{earlier.id} failed: {failure.actual}")


def call_check(check: Check, bench: Bench, case: str | None = None) -> None:
    """``run_check`` without the prerequisites."""
    for capability in check.needs:
        if not bench.subject.claims(capability):
            raise NotRun("unsupported", f"the subject does not claim {capability}")
    arguments = () if case is None else (check.cases[case],)
    seconds = bench.time_limit * (SLOW_FACTOR if check.slow else 1)
    try:
        with time_limit(seconds):
            check.function(bench, *arguments)
    except TimeLimitReached as reached:
        raise TimedOut(seconds, place_of(reached)) from None
