"""How a check ends when it does not pass."""

from __future__ import annotations

import traceback
from typing import Literal

from conformance import limit


class CheckFailure(AssertionError):  # noqa: N818 - it is shown as a failure, not an error
    """The subject is not what the requirement says.

    Args:
        expected, actual: a phrase each.
        first_wrong: the first place that is wrong, when there is one: row, position, layer.
        error: the size of the error beside what is allowed, when it has one.
    """

    status: Literal["failed", "error"] = "failed"

    def __init__(self, expected: str, actual: str, *, first_wrong: str = "", error: str = "") -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual
        self.first_wrong = first_wrong
        self.error = error

    def __str__(self) -> str:
        return "\n".join(f"{label:<12} {text}" for label, text in self.lines())

    def lines(self) -> list[tuple[str, str]]:
        """Label and text of each part, in the order in which they are shown."""
        parts = [
            ("expected", self.expected),
            ("actual", self.actual),
            ("first wrong", self.first_wrong),
            ("error", self.error),
        ]
        return [(label, text) for label, text in parts if text]


class SubjectError(CheckFailure):
    """The subject raised where an answer was expected."""

    status = "error"

    def __init__(self, call: str, cause: BaseException) -> None:
        super().__init__(f"{call} returns", f"{call} raised {describe(cause)}")
        self.cause = cause


class NotRun(Exception):  # noqa: N818 - an outcome, not an error
    """A check that says nothing about the subject, and why: it was not run."""

    def __init__(self, status: Literal["unsupported", "blocked", "skipped"], reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def describe(error: BaseException) -> str:
    """One line for an exception: its type, the first line of its message, and where it was raised.

    A first line that ends with a colon, as torch's ``Error(s) in loading state_dict for GPT:``, says nothing without
    the next one.
    """
    try:
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or ["no message"]
        message = " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:300]
    except Exception:  # whoever wrote the subject wrote its exceptions too
        message = "no message that can be shown"
    return f"{type(error).__name__}: {message}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Where an exception was raised, in parentheses: the last of its places that is not inside an installed library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_foreign(frame.filename)] or frames
    return f" (at {own[-1].filename}:{own[-1].lineno}, in {own[-1].name})" if own else ""


def _is_foreign(filename: str) -> bool:
    return "site-packages" in filename or filename == limit.__file__
