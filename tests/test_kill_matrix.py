"""The kill matrix: every check is shown to fail on a planted fault, and no check fails on the unmutated twin."""

from __future__ import annotations

import pytest

from conformance.bench import Bench
from conformance.check import all_checks, checks_by_id, run_check
from conformance.faults import FAULTS, Fault
from conformance.outcome import CheckFailure, SubjectError
from conformance.twin import Twin

CHECKS = checks_by_id()

# The classes of fault that the matrix has to cover.
CLASSES = {
    "weight layout",
    "parameters",
    "block arithmetic",
    "mask",
    "positions",
    "mask with a cache",
    "cache store",
    "reset",
    "aliasing",
    "roll-back",
    "loop",
    "limits",
    "batch",
    "dtype",
    "mode",
    "compile",
}


@pytest.mark.parametrize(
    ("fault", "check_id"),
    [pytest.param(fault, check_id, id=f"{fault.name}-{check_id}") for fault in FAULTS for check_id in fault.caught_by],
)
def test_fault_is_caught_by_the_check_meant_for_it(fault: Fault, check_id: str) -> None:
    check, case = CHECKS[check_id]
    with pytest.raises(CheckFailure) as caught:
        run_check(check, Bench(fault.subject()), case)
    assert isinstance(caught.value, SubjectError) == fault.raises


@pytest.mark.parametrize("check_id", CHECKS)
def test_unmutated_twin_passes(check_id: str) -> None:
    check, case = CHECKS[check_id]
    run_check(check, Bench(Twin()), case)


def test_every_check_has_a_fault_that_it_catches() -> None:
    caught = {check_id.partition("[")[0] for fault in FAULTS for check_id in fault.caught_by}
    assert caught == {check.id for check in all_checks()}


def test_every_class_of_fault_is_planted() -> None:
    assert {fault.fault_class for fault in FAULTS} == CLASSES


def test_every_fault_says_what_it_does_and_how_it_is_mended() -> None:
    for fault in FAULTS:
        assert fault.sentence.endswith(".")
        assert fault.mend.endswith(".")
        assert "The same" not in fault.sentence
