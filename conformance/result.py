"""How one check ended: the record that the terminal, the reports and the diagnosis are made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "error", "xfailed", "xpassed", "unsupported", "blocked", "skipped"]

# A run with one of these is not clean. `xpassed` is among them: an expected failure that passes is out of date.
BAD: tuple[Status, ...] = ("failed", "error", "xpassed", "blocked")


@dataclass
class Result:
    """The outcome of one check id.

    Attributes:
        check_id: ``group.name[case]``.
        requirement: the fact that is checked.
        status: how it ended.
        expected, actual, first_wrong, error: the parts of a failure, each a phrase; empty where there is none.
        reason: why a check was not run, or why its failure was expected.
        reproduce: one command line that runs this check alone.
        ratio: the largest error as a multiple of the reference's own; 0 where nothing was compared in float32.
        seconds: how long it took.
        heat: where the error lies: ``{row label: error of each position as a multiple of what is allowed}``.
    """

    check_id: str
    requirement: str
    status: Status
    expected: str = ""
    actual: str = ""
    first_wrong: str = ""
    error: str = ""
    reason: str = ""
    reproduce: str = ""
    ratio: float = 0.0
    seconds: float = 0.0
    heat: dict[str, list[float]] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The group of the check, the part of its id before the dot."""
        return self.check_id.partition(".")[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; ``Result(**d)`` is the way back."""
        return asdict(self)
