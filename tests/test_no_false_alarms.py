"""Correct subjects pass: Hugging Face's own model, and other weights than those the suite runs with."""

from __future__ import annotations

import pytest

from conformance.bench import Bench
from conformance.check import GROUPS, checks_of, run_check
from conformance.outcome import NotRun

SUBJECTS = ["scratch_gpt.adapter", "conformance.subjects.huggingface"]


def outcomes(bench: Bench, group: str) -> dict[str, str]:
    """How each check of a group ends, but those at GPT-2 124M's shape; a failure is raised."""
    ended = {}
    for check in checks_of(group):
        if not check.id.endswith(".real_shape"):
            for check_id, case in check.ids().items():
                try:
                    run_check(check, bench, case)
                    ended[check_id] = "passed"
                except NotRun as not_run:
                    ended[check_id] = not_run.status
    return ended


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "compile"])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_correct_subject_passes_with_other_weights(subject: str, seed: int, group: str) -> None:
    ended = outcomes(Bench(subject, seed=seed), group)
    assert "passed" in ended.values()
    assert set(ended.values()) <= {"passed", "unsupported", "skipped"}


def test_hugging_face_leaves_out_only_what_says_nothing_of_it() -> None:
    bench = Bench("conformance.subjects.huggingface")
    ended = outcomes(bench, "smoke") | outcomes(bench, "cache") | outcomes(bench, "weights")
    assert [check_id for check_id, status in ended.items() if status != "passed"] == [
        "smoke.not_the_reference",
        "cache.unused_slots",
    ]
