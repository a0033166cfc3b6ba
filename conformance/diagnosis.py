"""Which known fault a subject has: the dictionary of ``conformance.faults``, held against what the subject answered.

Each planted fault runs the checks that the subject fails, and its answers are compared with the subject's one by one.
A fault explains a failed check when it fails it too and every answer on the way is the same up to rounding. The
subject's code is never looked at, so the way it is built does not matter.

A fault is named when it explains failed checks and contradicts nothing that passed. What no fault explains is said to
be not recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.bench import Bench
from conformance.check import GROUPS, Check, Checks, call_check, checks_by_id, need_prerequisites
from conformance.faults import FAULTS, Fault
from conformance.outcome import CheckFailure, NotRun
from conformance.subject import Subject
from conformance.tape import Answer, same

# So many failed checks are replayed on the faults that are still possible; a fault that explains them all is named.
SAMPLE = 12


@dataclass(frozen=True)
class Outcome:
    """How one check went on one subject: what failed, None when it passed, and every answer on the way."""

    failure: CheckFailure | None
    tape: tuple[Answer, ...]


@dataclass
class Verdict:
    """What a diagnosis found out about some of the failed checks.

    Attributes:
        faults: the planted faults that explain them, each as well as the others; empty when none does.
        checks: ids of the failed checks that this verdict is about.
        of: how many failed checks were looked at.
        first_wrong: where the first of the checks is first wrong.
    """

    faults: list[Fault]
    checks: list[str]
    of: int
    first_wrong: str = ""

    def lines(self) -> list[str]:
        """The verdict as it is shown, one string per line."""
        where = f"first wrong at {self.checks[0]}{self.first_wrong and f', {self.first_wrong}'}"
        if not self.faults:
            return [f"not recognised; {where}"]
        shown = [f"{fault.name} ({fault.fault_class}): {fault.sentence}" for fault in self.faults]
        mends = [f"mend: {fault.mend}" for fault in self.faults]
        evidence = (
            f"evidence: the planted fault gives the subject's answers, to rounding, in {len(self.checks)} of the "
            f"{self.of} failed checks that were looked at; {where}"
        )
        if len(shown) > 1:
            shown = [f"one of {len(shown)} that nothing here tells apart:", *shown]
        return [*shown, *mends, evidence]


@dataclass
class Diagnosis:
    """The verdicts on a subject, and the outcome of each of its checks by id."""

    outcomes: dict[str, Outcome]
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """Ids of the checks that the subject fails, in the order in which to read them."""
        return [check_id for check_id, outcome in self.outcomes.items() if outcome.failure]


def diagnose(bench: Bench, *, profile: str = "quick") -> Diagnosis:
    """Run the checks on a subject and name what is wrong with it.

    A check that the subject does not claim, or that a failed prerequisite blocks, is left out.

    Args:
        profile: ``full`` runs also the checks of compilation and at GPT-2 124M's shape, a minute or more.

    Raises:
        ValueError: a profile that is not known.
    """
    outcomes = {}
    checks = checks_by_id(profile)
    for check_id, (check, case) in checks.items():
        try:
            need_prerequisites(check, bench)
        except NotRun:
            continue
        outcome = record(bench, check, case)
        if outcome is not None:
            outcomes[check_id] = outcome
    diagnosis = Diagnosis(outcomes)
    diagnosis.verdicts = _Explainer(bench, outcomes, checks).verdicts(diagnosis.failed)
    return diagnosis


class _Explainer:
    """Replays a subject's failed checks on the faults that are possible."""

    def __init__(self, bench: Bench, outcomes: dict[str, Outcome], checks: Checks) -> None:
        self.bench = bench
        self.outcomes = outcomes
        self.checks = checks
        self._known_to_repeat: dict[str, bool] = {}
        passed = {check_id for check_id, outcome in outcomes.items() if outcome.failure is None}
        # A fault whose own check passes is not there, and where no model can be built nothing was answered.
        built = "smoke.builds" in passed
        self.possible = [fault for fault in FAULTS if built and passed.isdisjoint(fault.caught_by)]

    def verdicts(self, failed: Sequence[str]) -> list[Verdict]:
        """What explains the failed checks: one fault after the other, as long as some check is left."""
        sample = _spread(failed, SAMPLE)
        left, verdicts, unknown = list(sample), [], []
        while left:
            first = left.pop(0)
            faults = [fault for fault in self.possible if self.explains(fault, first)]
            if not faults:
                unknown.append(first)
                continue
            explained = [first]
            for check_id in list(left):
                if still := [fault for fault in faults if self.explains(fault, check_id)]:
                    faults = still
                    explained.append(check_id)
                    left.remove(check_id)
            faults = self._told_apart(faults, failed)
            verdicts.append(Verdict(faults, explained, len(sample), self._first_wrong(first)))
        if unknown:
            verdicts.append(Verdict([], unknown, len(sample), self._first_wrong(unknown[0])))
        # What comes first in reading order explains what comes after it.
        return sorted(verdicts, key=lambda verdict: sample.index(verdict.checks[0]))

    def explains(self, fault: Fault, check_id: str) -> bool:
        """Whether the fault fails this check with the subject's own answers."""
        mine = self.outcomes[check_id]
        other = replay(fault, check_id, self.checks, self.bench)
        if other is None or other.failure is None:
            return False
        return same(mine.tape, other.tape) or (_steps(mine) == _steps(other) and not self._repeats(check_id))

    def _repeats(self, check_id: str) -> bool:
        """Whether the subject gives the same answers once more; if not, its values say nothing about the fault."""
        if check_id not in self._known_to_repeat:
            check, case = self.checks[check_id]
            again = record(self.bench, check, case)
            self._known_to_repeat[check_id] = again is not None and same(self.outcomes[check_id].tape, again.tape)
        return self._known_to_repeat[check_id]

    def _told_apart(self, faults: list[Fault], failed: Sequence[str]) -> list[Fault]:
        """Those of several faults that also explain the checks which the faults are known by."""
        for check_id in sorted({known for fault in faults for known in fault.caught_by} & set(failed)):
            faults = [fault for fault in faults if self.explains(fault, check_id)] or faults
        return faults

    def _first_wrong(self, check_id: str) -> str:
        failure = self.outcomes[check_id].failure
        return (failure.first_wrong or failure.actual) if failure else ""


class _Disguised(Subject):
    """A planted fault that claims what another subject claims and no more, so that checks take the same steps."""

    def __init__(self, fault: Fault, subject: Subject) -> None:
        super().__init__(fault.subject(), fault.name)
        self._subject = subject
        self.limits = subject.limits
        self.dtypes = tuple(dtype for dtype in self.dtypes if dtype in subject.dtypes)
        self.single_cache = subject.single_cache

    def claims(self, capability: str) -> bool:
        """Whether both offer it."""
        return self._subject.claims(capability) and super().claims(capability)


def replay(fault: Fault, check_id: str, checks: Checks, bench: Bench) -> Outcome | None:
    """A check on a planted fault, as the subject of ``bench`` went through it; None where it cannot be run."""
    check, case = checks[check_id]
    other = Bench(_Disguised(fault, bench.subject), dtypes=bench.dtypes, seed=bench.seed, time_limit=bench.time_limit)
    return record(other, check, case)


def record(bench: Bench, check: Check, case: str | None) -> Outcome | None:
    """How a check goes, with every answer of the bench's models; None where it is not run."""
    tape: list[Answer] = []
    bench.tape = tape
    try:
        call_check(check, bench, case)
    except CheckFailure as failure:
        return Outcome(failure, tuple(tape))
    except NotRun:
        return None
    finally:
        bench.tape = None
    return Outcome(None, tuple(tape))


def _steps(outcome: Outcome) -> list[str]:
    return [answer.call for answer in outcome.tape]


def _spread(check_ids: Sequence[str], most: int) -> list[str]:
    """At most so many ids, in their order: the first of every group, then the second of every group, and so on."""
    ranks: dict[str, int] = dict.fromkeys(GROUPS, 0)
    ranked = []
    for place, check_id in enumerate(check_ids):
        group = check_id.partition(".")[0]
        ranked.append((ranks[group], place, check_id))
        ranks[group] += 1
    return [check_id for _, _, check_id in sorted(sorted(ranked)[:most], key=lambda entry: entry[1])]
