"""``python -m conformance diagnose --subject MODULE[:ATTR]``: which known fault a subject has.

Runs the checks on the subject, the slow ones only with ``--profile full``, and compares its answers with those of
every planted fault. Exit status: 0 when no check fails, 1 when one does, 2 for a wrong command.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence

from conformance import DEFAULT_SUBJECT, PROFILES
from conformance.limit import TIME_LIMIT, positive_seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and carry it out; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
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
    options = parser.parse_args(arguments)

    from conformance.bench import Bench
    from conformance.diagnosis import diagnose

    bench = Bench(options.subject, device=options.device, seed=options.seed, time_limit=options.time_limit)
    with contextlib.redirect_stdout(sys.stderr):  # what the subject prints is not what this command prints
        diagnosis = diagnose(bench, profile=options.profile)
    print(f"{options.subject}: {len(diagnosis.failed)} of {len(diagnosis.outcomes)} checks failed")
    for verdict in diagnosis.verdicts:
        print("\n".join(["", *verdict.lines()]))
    return 1 if diagnosis.failed else 0


if __name__ == "__main__":
    sys.exit(main())
