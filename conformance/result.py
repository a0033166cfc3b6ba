"""What a run outside pytest gives: how each check ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "error", "unsupported", "blocked", "skipped"]

# A run with one of these is not clean.
BAD: tuple[Status, ...] = ("failed", "error", "blocked")


@dataclass(frozen=True)
class Result:
    """The outcome of one check id.

    Attributes:
        check_id: ``group.name[case]``.
        requirement: the fact that is checked.
        status: how it ended.
        expected, actual, first_wrong, error: the parts of a failure, each a phrase; empty where there is none.
        reason: why a check was not run.
        seconds: how long it took.
    """

    check_id: str
    requirement: str
    status: Status
    expected: str = ""
    actual: str = ""
    first_wrong: str = ""
    error: str = ""
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """The results of a run, in reading order: what comes earlier explains what comes later."""

    subject: str
    results: tuple[Result, ...]

    @property
    def failures(self) -> list[Result]:
        """What did not pass and should have."""
        return [result for result in self.results if result.status in BAD]

    @property
    def clean(self) -> bool:
        """Whether something passed and nothing failed or was blocked."""
        return not self.failures and any(result.status == "passed" for result in self.results)

    @property
    def counts(self) -> dict[str, int]:
        """How many checks ended in which status."""
        return dict(Counter(result.status for result in self.results))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as for JSON."""
        return {"subject": self.subject, "counts": self.counts, "results": [asdict(result) for result in self.results]}

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        lines = [f"{result.status:<8} {result.check_id}: {result.actual or result.reason}" for result in self.failures]
        return "\n".join([f"{self.subject}: {counts}", *lines])
