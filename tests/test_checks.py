"""The list of checks: ids, requirements, prerequisites."""

from __future__ import annotations

import pytest

from conformance.bench import Bench
from conformance.check import GROUPS, all_checks, run_check
from conformance.outcome import CheckFailure, NotRun
from conformance.twin import Twin

CHECKS = {check.id: check for check in all_checks()}


def test_every_group_has_checks() -> None:
    assert {check_id.partition(".")[0] for check_id in CHECKS} == set(GROUPS)


def test_ids_are_unique() -> None:
    ids = [check_id for check in all_checks() for check_id in check.ids()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("check_id", CHECKS)
def test_requirement_states_a_fact(check_id: str) -> None:
    requirement = CHECKS[check_id].requirement
    assert requirement.endswith(".")
    assert "should" not in requirement
    assert "must" not in requirement


def test_cases_have_ids_of_their_own() -> None:
    assert list(CHECKS["cache.chunked"].ids()) == [
        "cache.chunked[even]",
        "cache.chunked[uneven]",
        "cache.chunked[growing]",
    ]
    assert CHECKS["cache.every_split"].ids() == {"cache.every_split": None}


def test_failed_prerequisite_blocks_what_comes_after() -> None:
    class Broken(Twin):
        def build(self, config, state_dict, *, device, dtype):
            raise RuntimeError("no memory")

    bench = Bench(Broken())
    run_check(CHECKS["smoke.loads"], bench)
    with pytest.raises(CheckFailure, match="no memory"):
        run_check(CHECKS["smoke.builds"], bench)
    for check_id in ("smoke.logits_shape", "cache.every_split"):
        with pytest.raises(NotRun) as caught:
            run_check(CHECKS[check_id], bench)
        assert caught.value.status == "blocked"
        assert caught.value.reason.startswith("smoke.builds failed: build raised RuntimeError: no memory")


def test_capability_that_is_not_claimed_is_unsupported() -> None:
    class Plain:
        def __init__(self) -> None:
            twin = Twin()
            self.build, self.forward = twin.build, twin.forward

    with pytest.raises(NotRun) as caught:
        run_check(CHECKS["cache.every_split"], Bench(Plain()))
    assert caught.value.status == "unsupported"
    assert caught.value.reason == "the subject does not claim cache"
