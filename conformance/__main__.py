"""``python -m conformance COMMAND``: what the kit does beside its checks.

``diagnose`` names the known fault that a subject has: it runs the checks on the subject and compares its answers with
those of every planted fault. ``new-adapter`` writes an adapter to start from. Exit status: 0, 1 when a check fails, 2
for a wrong command.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import DEFAULT_SUBJECT, PROFILES
from conformance.limit import TIME_LIMIT, positive_seconds
from conformance.starters import STYLES, starter


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and carry it out; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description="What the kit does beside its checks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_diagnose(commands)
    _add_new_adapter(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except WrongCommandError as error:
        parser.error(str(error))


class WrongCommandError(Exception):
    """The command cannot be carried out as it is given; the message says what to change."""


def _add_diagnose(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("diagnose", help="name the fault that a subject has")
    command.add_argument(
        "--subject", metavar="MODULE[:ATTR]", default=DEFAULT_SUBJECT, help="the adapter (default: %(default)s)"
    )
    command.add_argument(
        "--profile",
        choices=PROFILES,
        default="quick",
        help="full runs also torch's compiler and GPT-2 124M's shape (default: %(default)s)",
    )
    command.add_argument("--device", default="cpu", help="of the subject's models (default: %(default)s)")
    command.add_argument("--seed", type=int, default=0, help="of the random weights (default: %(default)s)")
    command.add_argument(
        "--time-limit",
        type=positive_seconds,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help="of one check (default: %(default)g)",
    )
    command.set_defaults(run=_diagnose)


def _diagnose(options: argparse.Namespace) -> int:
    from conformance.bench import Bench
    from conformance.diagnosis import diagnose

    bench = Bench(options.subject, device=options.device, seed=options.seed, time_limit=options.time_limit)
    with contextlib.redirect_stdout(sys.stderr):  # what the subject prints is not what this command prints
        diagnosis = diagnose(bench, profile=options.profile)
    print(f"{options.subject}: {len(diagnosis.failed)} of {len(diagnosis.outcomes)} checks failed")
    for verdict in diagnosis.verdicts:
        print("\n".join(["", *verdict.lines()]))
    return 1 if diagnosis.failed else 0


def _add_new_adapter(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    styles = "\n".join(f"  {style:<16} {call}" for style, call in STYLES.items())
    command = commands.add_parser(
        "new-adapter",
        help="write an adapter to start from",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"styles, by how your model is called:\n{styles}",
    )
    command.add_argument("path", type=Path, metavar="my_adapter.py", help="the file to write; it must not be there yet")
    command.add_argument(
        "--style", choices=STYLES, default="no-cache", help="how your model takes its cache (default: %(default)s)"
    )
    command.set_defaults(run=_new_adapter)


def _new_adapter(options: argparse.Namespace) -> int:
    path: Path = options.path
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise WrongCommandError(
            f"{path.name} is no module name: write letters, digits and _, and .py, as my_adapter.py"
        )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(starter(options.style))
    except FileExistsError:
        raise WrongCommandError(f"{path} is there already: name a new file") from None
    except OSError as error:
        raise WrongCommandError(f"{path} cannot be written: {error.strerror}") from None
    print(
        f"{path} is for a model called as {STYLES[options.style]}. Put your model's names into it and run, in its "
        f"folder,\n\n    pytest --pyargs conformance --subject {path.stem}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
