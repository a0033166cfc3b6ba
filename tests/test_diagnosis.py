"""The name of the bug: planted faults are named from their answers alone, in the twin and in another architecture."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import scratch_gpt
from conformance.__main__ import main
from conformance.bench import Bench
from conformance.diagnosis import Diagnosis, diagnose
from conformance.faults import FAULTS
from conformance.faults.caching import PositionIdsIgnored, PositionsRestart
from conformance.faults.runs import TruncateDoesNothing
from conformance.subject import load_subject
from conformance.twin import Twin

# One of each class, except of "compile", which the quick checks do not see. `tools/kill_matrix.py` goes through all.
SAMPLE = (
    "heads-merged-by-view",
    "no-bias-in-attention",
    "epsilon-too-small",
    "no-mask",
    "past-added-twice",
    "top-left-mask",
    "new-in-front-of-old",
    "reset-keeps-values",
    "caches-share-buffers",
    "truncate-keeps-one-too-few",
    "last-prompt-token-twice",
    "positions-wrap",
    "first-row-for-all",
    "wrong-scale-in-half",
    "dropout-in-eval",
)

# Faults planted by hand in scratch_gpt, which has modules and layouts of its own: file, what is there, what is put in
# its place, and the planted fault that it has to be named as.
EDITS = [
    ("model.py", " / math.sqrt(self.head_dim)", "", "not-scaled"),
    ("model.py", "gelu(self.c_fc(x))", "nn.functional.gelu(self.c_fc(x))", "exact-gelu"),
    ("model.py", "visible = positions[:, None] >=", "visible = positions[:, None] + 1 >=", "one-future-token"),
    ("model.py", "self.wpe(positions)", "self.wpe(positions - positions[0])", "positions-restart"),
    ("model.py", "self.mlp(self.ln_2(x))", "self.mlp(self.ln_1(x))", "first-norm-used-twice"),
    ("model.py", "q, k, v = map(", "k, q, v = map(", "queries-and-keys-swapped"),
    ("model.py", "heads.transpose(1, 2).reshape(x.shape)", "heads.reshape(x.shape)", "heads-merged-by-view"),
    ("model.py", "masked_fill(~visible, -torch.inf)", "masked_fill(~visible, -1e4)", "finite-fill"),
    ("cache.py", "return self.keys, self.values", "return self.keys[:1], self.values[:1]", "first-row-for-all"),
    ("cache.py", "        self.truncate(0)", "        pass", "reset-does-nothing"),
    ("adapter.py", "    cache.truncate(length)", "    pass", "truncate-does-nothing"),
]

RESTARTING = PositionsRestart()


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of ``scratch_gpt`` with one piece of its source replaced, diagnosed as a subject."""

    def diagnosis(file: str, old: str, new: str) -> Diagnosis:
        name = "edited_gpt"
        package = tmp_path / name
        shutil.copytree(Path(scratch_gpt.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        for path in package.glob("*.py"):
            path.write_text(path.read_text(encoding="utf-8").replace("scratch_gpt", name), encoding="utf-8")
        source = (package / file).read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{old!r} is not once in {file}"
        (package / file).write_text(source.replace(old, new), encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        return diagnose(Bench(load_subject(f"{name}.adapter").adapter))

    return diagnosis


def names(diagnosis: Diagnosis) -> list[list[str]]:
    return [[fault.name for fault in verdict.faults] for verdict in diagnosis.verdicts]


@pytest.mark.parametrize("name", SAMPLE)
def test_planted_fault_is_named(name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    assert names(diagnose(Bench(fault.subject()))) == [[name]]


def test_sample_has_every_class_that_quick_checks_see() -> None:
    classes = {fault.fault_class for fault in FAULTS if fault.name in SAMPLE}
    assert {fault.fault_class for fault in FAULTS} - classes == {"compile"}


@pytest.mark.parametrize(("file", "old", "new", "name"), EDITS, ids=[edit[-1] for edit in EDITS])
def test_fault_in_another_architecture_is_named(edited, file: str, old: str, new: str, name: str) -> None:
    assert names(edited(file, old, new)) == [[name]]


def test_two_faults_that_show_apart_are_both_named() -> None:
    class Both(TruncateDoesNothing, PositionIdsIgnored):
        """Two planted faults in one subject."""

    assert names(diagnose(Bench(Both()))) == [["position-ids-ignored"], ["truncate-does-nothing"]]


def test_what_the_dictionary_lacks_is_not_recognised(edited) -> None:
    diagnosis = edited("model.py", "torch.tanh(", "torch.sin(")
    (verdict,) = diagnosis.verdicts
    assert verdict.faults == []
    (line,) = verdict.lines()
    assert line.startswith("not recognised; first wrong at logits.full_sequence[1], row 0, position 0, vocabulary id ")


def test_model_that_cannot_be_built_is_not_guessed_at(edited) -> None:
    (verdict,) = edited("adapter.py", "    return model.eval()", "    raise KeyError(0)").verdicts
    assert verdict.lines()[0].startswith("not recognised; first wrong at smoke.builds, build raised KeyError: 0")


def test_adapter_that_cannot_be_loaded_is_not_guessed_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--subject", "no_such_module"]) == 1
    output = capsys.readouterr().out
    assert "no_such_module: 1 of 1 checks failed" in output
    assert "not recognised; first wrong at smoke.loads, no module named no_such_module: " in output


def test_correct_subject_has_no_verdict() -> None:
    diagnosis = diagnose(Bench(Twin()))
    assert (diagnosis.failed, diagnosis.verdicts) == ([], [])


def test_command_names_the_fault_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--subject", f"{__name__}:RESTARTING"]) == 1
    output = capsys.readouterr().out
    assert "positions-restart (positions): Positions restart at 0 in each call." in output
    assert "gives the subject's answers, to rounding, in 12 of the 12 failed checks that were looked at; " in output
    assert "first wrong at positions.after_past[steps_from_empty], row 0, position 1, vocabulary id " in output
