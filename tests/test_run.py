"""The suite as a function and as a decorator."""

from __future__ import annotations

import json

import pytest

import conformance
from conformance.faults.limits import IdsClipped
from conformance.faults.weights import RefusesTheNames
from conformance.twin import Twin

pytest_plugins = ["pytester"]


def test_check_subject_reports_every_check() -> None:
    report = conformance.check_subject(Twin(), profile="quick")
    assert report.clean, str(report)
    assert report.subject == "twin"
    assert report.counts["passed"] == len(report.results) - report.counts.get("skipped", 0)
    assert "compile.uncached" not in {result.check_id for result in report.results}


def test_failure_has_its_parts_and_the_rest_goes_on() -> None:
    report = conformance.check_subject(IdsClipped(), profile="quick")
    assert not report.clean
    assert "limits.id_out_of_range[vocab_size]" in [result.check_id for result in report.failures]
    failure = report.failures[0]
    assert failure.status == "failed"
    assert failure.expected
    assert failure.actual
    assert f"{failure.check_id}: {failure.actual}" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["counts"] == report.counts


def test_blocked_checks_are_not_clean() -> None:
    report = conformance.check_subject(RefusesTheNames(), profile="quick")
    assert not report.clean
    assert set(report.counts) == {"passed", "error", "blocked"}


def test_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="profile is 'fast': choose one of quick, full"):
        conformance.check_subject(Twin(), profile="fast")


def test_checks_parametrize_a_test_of_ones_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from conformance import parametrize_with_checks
        from conformance.faults.limits import IdsClipped

        class Adapter:
            build, forward = staticmethod(IdsClipped().build), staticmethod(IdsClipped().forward)

        @parametrize_with_checks(Adapter, profile="quick")
        def test_gpt2(check):
            check()
        """
    )
    result = pytester.runpytest_inprocess("-rs", "-k", "limits.id_out_of_range or cache.decode", "-p", "no:xdist")
    result.assert_outcomes(passed=0, failed=2, skipped=3)
    result.stdout.fnmatch_lines(["*unsupported: the subject does not claim cache*"])
