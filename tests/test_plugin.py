"""The suite as its users run it: pytest in another process, pointed at adapters in another folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ADAPTERS = {
    "right": "from scratch_gpt.adapter import *\n",
    "no_cache": "from scratch_gpt.adapter import build, forward\n",
    "raises": """
from scratch_gpt.adapter import *
def build(config, state_dict, *, device, dtype):
    raise KeyError("h.0.weight")
""",
    "wrong_shape": """
from scratch_gpt.adapter import *
def forward(model, input_ids):
    return model(input_ids)[0]
""",
    "biased": """
from scratch_gpt.adapter import build
def forward(model, input_ids):
    return model(input_ids) + 0.1
""",
    "biased_when_large": """
from scratch_gpt.adapter import build, forward, init_cache
def extend(model, input_ids, cache):
    return model(input_ids, cache) + 0.1 * (model.config.n_embd > 100), cache
""",
}


@pytest.fixture
def run(tmp_path: Path):
    """Run pytest in a folder with the adapters; gives the exit status and what was printed."""
    for name, source in ADAPTERS.items():
        (tmp_path / f"{name}.py").write_text(source)

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_installed_suite_runs_by_name_on_two_workers(run) -> None:
    status, output = run("--pyargs", "conformance", "--subject", "right", "-n", "2", "-k", "smoke or positions")
    assert status == 0, output
    assert "subject: scratch_gpt 0.1.0 (right) on cpu, float32, float64, bfloat16, float16" in output
    assert "reference: Hugging Face GPT2LMHeadModel, transformers " in output
    assert "2 workers of " in output
    assert "random weights, seed 0" in output
    assert "largest error: " in output
    assert "unsupported: 1 check: the subject does not claim position_ids" in output
    assert " passed, 1 unsupported in " in output


def test_other_projects_see_nothing_of_the_suite(run, tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    status, output = run("test_own.py")
    assert status == 0
    assert "subject:" not in output
    assert run("test_own.py", "--subject", "right")[0] == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("missing", "no module named missing: run pytest from the folder that holds missing.py"),
        ("raises", "build raised KeyError: 'h.0.weight' (at "),
        ("wrong_shape", "it returned shape [7, 101]: mend forward in the adapter"),
    ],
)
def test_unusable_subject_is_one_clear_error_and_the_rest_is_blocked(run, subject: str, expected: str) -> None:
    status, output = run("--pyargs", "conformance", "--subject", subject, "-n", "2")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "Traceback" not in output
    assert sum(line.startswith("requirement  ") for line in output.splitlines()) == 1
    assert f"actual       {expected}" in output
    assert f"--subject {subject}" in output
    summary = output.strip().splitlines()[-1]
    assert (" 1 error" in summary) != (" 1 failed" in summary)
    assert " blocked in " in summary


def test_run_in_which_everything_is_blocked_fails(run) -> None:
    status, output = run("--pyargs", "conformance.test_cache", "--subject", "raises")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert " blocked in " in output.strip().splitlines()[-1]


def test_failure_has_every_part(run) -> None:
    status, output = run("--pyargs", "conformance.test_logits", "--subject", "biased", "-k", "full_sequence and 13")
    assert status == pytest.ExitCode.TESTS_FAILED
    parts = [line.split()[0] for line in output.splitlines() if line.startswith(PARTS)]
    assert parts == [part.split()[0] for part in PARTS]
    assert "requirement  The logits of a whole sequence are the reference's." in output
    assert "first wrong  row 0, position 0, vocabulary id " in output
    assert "8 times" in output
    reproduce = next(line for line in output.splitlines() if line.startswith("reproduce"))
    assert reproduce.endswith("test_logits.py::test_full_sequence[13]' --subject biased")


PARTS = ("requirement ", "expected ", "actual ", "first wrong ", "error ", "reproduce ")


def test_failures_come_in_the_order_that_explains_them(run) -> None:
    status, output = run("--pyargs", "conformance", "--subject", "biased", "-k", "smoke or logits or weights")
    assert status == pytest.ExitCode.TESTS_FAILED
    files = [line.split(".py")[0] for line in output.splitlines() if line.startswith("test_") and "%]" in line]
    assert files[:3] == ["test_smoke", "test_logits", "test_weights"]
    assert "start here: test_logits.py::test_full_sequence[1]; what fails after it may follow from it" in output
    assert "which known fault it may be: python -m conformance diagnose --subject biased" in output
    assert "subject: biased (biased) on cpu, float32\n" in output


def test_what_is_not_claimed_is_unsupported(run) -> None:
    status, output = run("--pyargs", "conformance", "-k", "smoke or test_cache", "--subject", "no_cache")
    assert status == 0, output
    assert "the subject does not claim cache" in output
    assert " unsupported in " in output.strip().splitlines()[-1]


def test_reason_is_given_for_what_is_skipped(run) -> None:
    status, output = run("--pyargs", "conformance.test_dtype", "--subject", "right", "--dtypes", "float32,float16")
    assert status == 0
    assert "skipped: 3 checks: torch.bfloat16 is not among --dtypes" in output


def test_quick_profile_leaves_out_the_compiler(run) -> None:
    status, output = run("--pyargs", "conformance.test_compile", "--profile", "quick", "--collect-only")
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "(6 deselected)" in output


def test_device_that_is_not_there_is_a_usage_error(run) -> None:
    status, output = run("--pyargs", "conformance", "--device", "nowhere")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "--device nowhere cannot be used: " in output


def test_unknown_dtype_is_a_usage_error(run) -> None:
    status, output = run("--pyargs", "conformance", "--dtypes", "float31")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "--dtypes: float31 is not among float32, float64, bfloat16, float16" in output


def test_hint_asks_for_the_slow_checks_when_only_they_fail(run) -> None:
    status, output = run(
        "--pyargs", "conformance.test_cache", "--subject", "biased_when_large", "-k", "real_shape or prefill"
    )
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "python -m conformance diagnose --subject biased_when_large --profile full" in output
