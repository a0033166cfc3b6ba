"""A limit on the time that a check may take, so that a subject that hangs costs that check and not the run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Of one check; correct subjects take less than a second for nearly all.
TIME_LIMIT = 60.0


class TimeLimitReached(BaseException):
    """The time is up. Not an ``Exception``, so that a subject's own handlers let it pass."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``TimeLimitReached`` in the body when it takes longer; 0 is no limit.

    It interrupts Python code, waiting included, but no call into C that does not return. It needs SIGALRM and the main
    thread; elsewhere, on Windows for one, there is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True

    def reached(signal_number: int, frame: Any) -> None:
        if running:
            raise TimeLimitReached

    before = signal.signal(signal.SIGALRM, reached)
    try:
        # Again and again, for a subject that catches everything.
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        try:
            yield
        finally:
            running = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        with suppress(TypeError):  # None: it was not set from Python
            signal.signal(signal.SIGALRM, before)


def positive_seconds(text: str) -> float:
    """What a command line has for a limit; ``ValueError`` unless it is a number of at least 0."""
    if not (seconds := float(text)) >= 0:
        raise ValueError(f"{text} is not a number of seconds")
    return seconds
