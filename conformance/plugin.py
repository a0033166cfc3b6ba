"""The pytest side: options, the header, the bench fixture, and how outcomes are shown."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Generator
from importlib.metadata import version
from typing import Any

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback, TerminalRepr

from conformance import DEFAULT_SUBJECT, PROFILES
from conformance.limit import TIME_LIMIT, positive_seconds

DEFAULTS = {"subject": DEFAULT_SUBJECT, "device": "cpu", "dtypes": "float32,float64,bfloat16,float16"}
SEED = 0

# So many characters of what a subject printed are shown with a failure.
PRINTED = 2_000

# Statuses of checks that pytest has no name for: letter and word of each.
STATUSES = {"unsupported": "u", "blocked": "b", "error": "E"}

# What a report carries from a worker to the process that prints.
_STATUS = "conformance_status"
_RATIO = "conformance_error_ratio"

# Without one of these, a run has said nothing about the subject.
_CHECKED = {"passed", "failed", "error", "xfailed", "xpassed"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance with Hugging Face GPT-2")
    group.addoption(
        "--subject",
        metavar="MODULE[:ATTR]",
        default=DEFAULTS["subject"],
        help="the implementation to check: an adapter with the names in conformance/subject.py (default: %(default)s)",
    )
    group.addoption(
        "--device", default=DEFAULTS["device"], help="the device of the subject's models (default: %(default)s)"
    )
    group.addoption(
        "--dtypes",
        default=DEFAULTS["dtypes"],
        help="the precisions to check, of those that the subject claims (default: %(default)s)",
    )
    group.addoption(
        "--profile",
        choices=PROFILES,
        default="full",
        help="quick leaves out torch's compiler and GPT-2 124M's shape (default: %(default)s)",
    )
    group.addoption(
        "--time-limit",
        type=positive_seconds,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help="that a check may take; a slow one may take five times that; 0: no limit (default: %(default)g)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: a check that --profile quick leaves out")
    # torch's compiler warns of torch's own modules.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
    threads = _threads_per_worker(config)
    # Before torch is imported: its compiler starts as many processes as it finds cores.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    import torch

    torch.set_num_threads(threads)
    _dtypes(config)  # a wrong name ends the run here
    try:
        torch.empty(1, device=config.getoption("device"))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise pytest.UsageError(f"--device {config.getoption('device')} cannot be used: {reason}") from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    from conformance.candidate import dtype_names
    from conformance.outcome import CheckFailure
    from conformance.subject import load_subject

    spec = config.getoption("subject")
    try:
        subject = load_subject(spec)
        name = f"{subject.name} {subject.version}".strip()
        dtypes = dtype_names([dtype for dtype in _dtypes(config) if dtype in subject.dtypes])
    except CheckFailure:
        name, dtypes = "not loaded", config.getoption("dtypes")
    workers = _worker_count(config)
    threads = _threads_per_worker(config)
    return [
        f"subject: {name} ({spec}) on {config.getoption('device')}, {dtypes}",
        f"reference: Hugging Face GPT2LMHeadModel, transformers {version('transformers')}, eager attention, float64",
        f"torch {version('torch')}, {workers} worker{'s' * (workers > 1)} of {threads} thread{'s' * (threads > 1)}; "
        f"random weights, seed {SEED}",
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    check = getattr(metafunc.function, "check", None)
    if check is not None and check.cases:
        parameter = metafunc.fixturenames[-1]
        metafunc.parametrize(parameter, list(check.cases.values()), ids=list(check.cases))


def pytest_itemcollected(item: pytest.Item) -> None:
    check = getattr(getattr(item, "function", None), "check", None)
    if check is not None and check.slow:
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("profile") == "quick":
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
    items.sort(key=lambda item: _place(item.nodeid))  # stable: the order inside a module stays


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest) -> Any:
    """The subject on the bench, one per worker."""
    from conformance.bench import Bench

    config = request.config
    return Bench(
        config.getoption("subject"),
        device=config.getoption("device"),
        dtypes=_dtypes(config),
        seed=SEED,
        time_limit=config.getoption("time_limit"),
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    check = getattr(pyfuncitem.function, "check", None)
    if check is None:
        return None
    from conformance.check import run_check

    bench: Any = pyfuncitem.funcargs["bench"]
    run_check(check, bench, pyfuncitem.callspec.id if check.cases else None)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    check = getattr(getattr(item, "function", None), "check", None)
    if check is None or call.when != "call":
        return report
    from conformance.outcome import CheckFailure, NotRun

    report.sections = [(title, _shortened(text)) for title, text in report.sections]
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, NotRun):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, error.reason)
        report.user_properties.append((_STATUS, error.status))
    elif isinstance(error, CheckFailure):
        lines = [("requirement", check.requirement), *error.lines(), ("reproduce", _reproduce(item))]
        report.longrepr = _shown(item, "\n".join(f"{label:<13}{text}" for label, text in lines), error.actual)
        report.user_properties.append((_STATUS, error.status))
    report.user_properties.append((_RATIO, item.funcargs["bench"].take_largest_ratio()))  # type: ignore[attr-defined]
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    status = str(dict(report.user_properties).get(_STATUS))
    if report.when == "call" and status in STATUSES:
        return status, STATUSES[status], status.upper()
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or exitstatus != pytest.ExitCode.OK or session.config.option.collectonly:
        return
    if reporter.stats.get("blocked") or not _CHECKED & reporter.stats.keys():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED  # nothing failed only because nothing was checked


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for status in ("blocked", "unsupported", "skipped"):
        reports = [report for report in terminalreporter.stats.get(status, []) if isinstance(report.longrepr, tuple)]
        for reason, count in Counter(report.longrepr[2] for report in reports).items():
            terminalreporter.write_line(f"{status}: {count} check{'s' * (count > 1)}: {reason}")
    reports = [report for group in terminalreporter.stats.values() for report in group]
    ratios = [(dict(getattr(report, "user_properties", ())).get(_RATIO, 0.0), report.nodeid) for report in reports]
    if ratios and max(ratios)[0]:
        ratio, nodeid = max(ratios)
        terminalreporter.write_line(f"largest error: {ratio:,.2f} times Hugging Face's own, in {nodeid}")
    if not config.option.collectonly and not _CHECKED & terminalreporter.stats.keys():
        terminalreporter.write_line("nothing was checked: no check passed or failed")
    failed = [report for status in ("failed", "error") for report in terminalreporter.stats.get(status, [])]
    if len(failed) > 1:
        # Not the one that came first: with several workers that is chance.
        first = min(failed, key=lambda report: (_place(report.nodeid), report.location[1] or 0, len(report.nodeid)))
        terminalreporter.write_line(f"start here: {first.nodeid}; what fails after it may follow from it")
    if failed:
        words = ["python", "-m", "conformance", "diagnose", *_options(config, "subject", "device")]
        if all("slow" in report.keywords for report in failed):  # which a quick diagnosis would not see
            words += ["--profile", "full"]
        terminalreporter.write_line(f"which known fault it may be: {shlex.join(words)}")


def _place(nodeid: str) -> int:
    """Where a check stands among the groups; tests of anything else come after all checks."""
    from conformance.check import GROUPS

    group = nodeid.partition("::")[0].rpartition("test_")[2].removesuffix(".py")
    return GROUPS.index(group) if group in GROUPS else len(GROUPS)


def _shown(item: pytest.Item, text: str, summary: str) -> TerminalRepr:
    """A failure that prints as ``text`` and stands in pytest's closing list as ``summary``; workers can send it."""
    place = ReprFileLocation(str(item.path), (item.location[1] or 0) + 1, summary)
    return ReprExceptionInfo(ReprTraceback([ReprEntryNative([f"{text}\n"])], None, "native"), place)


def _shortened(text: str) -> str:
    """The end of what a subject printed: some print megabytes."""
    left_out = len(text) - PRINTED
    return text if left_out <= 0 else f"[{left_out:,} characters before this are left out]\n{text[left_out:]}"


def _reproduce(item: pytest.Item) -> str:
    config = item.config
    path = os.path.relpath(item.path, config.invocation_params.dir)
    return shlex.join(["pytest", f"{path}::{item.name}", *_options(config, "subject", "device", "dtypes")])


def _options(config: pytest.Config, *names: str) -> list[str]:
    """Those of this run's options that are not the defaults, as words of a command."""
    given = [(name, config.getoption(name)) for name in names]
    return [word for name, value in given if value != DEFAULTS[name] for word in (f"--{name}", value)]


def _dtypes(config: pytest.Config) -> tuple[Any, ...]:
    from conformance.bench import ALL_DTYPES

    known = {str(dtype).removeprefix("torch."): dtype for dtype in ALL_DTYPES}
    names = [name.strip() for name in config.getoption("dtypes").split(",")]
    if unknown := [name for name in names if name not in known]:
        raise pytest.UsageError(f"--dtypes: {', '.join(unknown)} is not among {', '.join(known)}")
    return tuple(known[name] for name in names)


def _worker_count(config: pytest.Config) -> int:
    if hasattr(config, "workerinput"):
        return int(config.workerinput["workercount"])
    return max(1, len(getattr(config.option, "tx", None) or []))


def _threads_per_worker(config: pytest.Config) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // _worker_count(config))
