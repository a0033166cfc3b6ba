from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def run(*arguments: str, folder: Path) -> tuple[int, str]:
    command = [sys.executable, str(TOOLS / "kill_matrix.py"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_kill_matrix_prints_every_check_that_catches_a_fault(tmp_path: Path) -> None:
    status, output = run("positions-restart", folder=tmp_path)
    assert status == 0, output
    row, total = output.splitlines()
    assert row.startswith("positions: positions-restart: named exactly: ")
    assert "positions.after_past[steps_after_prompt]" in row
    assert "logits.full_sequence" not in row
    assert total == "1 of 1 planted faults are caught; named exactly 1, among others 0, by class 0"


def test_kill_matrix_refuses_an_unknown_fault(tmp_path: Path) -> None:
    status, output = run("no-such-fault", folder=tmp_path)
    assert status == 2
    assert "no planted fault is called no-such-fault; there are " in output
