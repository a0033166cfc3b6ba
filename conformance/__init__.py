"""Checks any GPT-2 implementation against Hugging Face's, through a small subject protocol.

Run it with ``pytest conformance --subject MODULE[:ATTR]``, or with ``check_subject`` and ``parametrize_with_checks``;
the protocol is in ``conformance.subject``.
"""

from __future__ import annotations

from typing import Any

DEFAULT_SUBJECT = "scratch_gpt.adapter"

# `quick` leaves out what is slow: torch's compiler and GPT-2 124M's shape.
PROFILES = ("quick", "full")

__all__ = ["DEFAULT_SUBJECT", "PROFILES", "check_subject", "parametrize_with_checks"]


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import, and pytest imports this package in every run that names it.
    if name in ("check_subject", "parametrize_with_checks"):
        from conformance import run

        return getattr(run, name)
    raise AttributeError(f"module 'conformance' has no attribute {name!r}")
