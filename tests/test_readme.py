"""The README's commands are the ones that are run, and its adapter works as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.bench import Bench
from conformance.check import all_checks, run_check
from conformance.outcome import NotRun
from conformance.subject import load_subject

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

# A model as the README's adapter expects it.
MY_GPT = ROOT / "tests" / "implementations" / "no_cache.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_ci_runs_the_readmes_two_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    first, second = (block.strip() for block in blocks("sh")[:2])
    assert script.index(first) < script.index(second)


def test_adapter_of_the_readme_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_gpt.py").write_text(MY_GPT.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "my_adapter.py").write_text(next(block for block in blocks("python") if "my_adapter" in block))
    monkeypatch.chdir(tmp_path)
    bench = Bench(load_subject("my_adapter").adapter)
    unsupported = set()
    for check in all_checks():
        for case in check.ids().values():
            try:
                run_check(check, bench, case)
            except NotRun as not_run:
                unsupported.add(not_run.reason)
    assert "the subject does not claim cache" in unsupported


def test_readme_names_every_status() -> None:
    for status in ("passed", "failed", "error", "unsupported", "blocked", "skipped"):
        assert re.search(rf"^\| .*\b{status}\b.* \|", README, flags=re.MULTILINE)
