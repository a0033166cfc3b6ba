"""Planted faults: each class is the twin with one decision taken wrong, and names the check that is meant to see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.twin import Twin


@dataclass(frozen=True)
class Fault:
    """A faulty subject, the class of fault it belongs to, and the id of the check that catches it.

    ``raises`` says that the fault shows as an exception of the subject, not as a wrong answer.
    """

    subject: type[Twin]
    fault_class: str
    caught_by: str
    raises: bool

    @property
    def name(self) -> str:
        return self.subject.__name__


FAULTS: list[Fault] = []


def plant(fault_class: str, caught_by: str, *, raises: bool = False) -> Callable[[type[Twin]], type[Twin]]:
    """Enter a subclass of ``Twin`` among the planted faults. Its docstring says what it does wrong."""

    def enter(subject: type[Twin]) -> type[Twin]:
        FAULTS.append(Fault(subject, fault_class, caught_by, raises))
        return subject

    return enter


from tests.faults import arithmetic, caching, compiling, generation, limits, mask, runs, weights  # noqa: E402, F401
