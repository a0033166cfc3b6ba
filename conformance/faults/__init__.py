"""The dictionary of faults: each class is the twin with one decision taken wrong, and names the checks that see it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from conformance.twin import Twin


@dataclass(frozen=True)
class Fault:
    """A faulty subject, what class of fault it is, how it is mended, and the ids of the checks meant to catch it.

    ``raises`` says that the fault shows as an exception of the subject, not as a wrong answer.
    """

    subject: type[Twin]
    fault_class: str
    caught_by: tuple[str, ...]
    mend: str
    raises: bool

    @property
    def name(self) -> str:
        """``positions-restart`` for the class ``PositionsRestart``."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", self.subject.__name__).lower()

    @property
    def sentence(self) -> str:
        """What it does wrong: the first paragraph of its class's docstring, on one line."""
        return " ".join((inspect.cleandoc(self.subject.__dict__["__doc__"]).split("\n\n")[0]).split())


FAULTS: list[Fault] = []


def plant(fault_class: str, *caught_by: str, mend: str, raises: bool = False) -> Callable[[type[Twin]], type[Twin]]:
    """Enter a subclass of ``Twin`` into the dictionary. Its docstring says what it does wrong.

    Args:
        fault_class: the kind of mistake it is.
        caught_by: ids of the checks that are meant to fail on it.
        mend: one sentence that tells an author what to change.
        raises: it shows as an exception.
    """

    def enter(subject: type[Twin]) -> type[Twin]:
        FAULTS.append(Fault(subject, fault_class, caught_by, mend, raises))
        return subject

    return enter


from conformance.faults import (  # noqa: E402, F401
    arithmetic,
    caching,
    compiling,
    generation,
    limits,
    mask,
    runs,
    weights,
)
