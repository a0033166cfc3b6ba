"""Print which checks catch which planted fault, and how it is named: ``python tools/kill_matrix.py [FAULT ...]``.

The tests show that each fault is caught by the check meant for it, and that some are named. This runs every check on
every fault, or on those that are given, and takes some seconds for each. A check that no line names first is one to
think about.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conformance import PROFILES
from conformance.bench import Bench
from conformance.diagnosis import Diagnosis, diagnose
from conformance.faults import FAULTS, Fault


def how_named(fault: Fault, diagnosis: Diagnosis) -> str:
    """``exactly`` when the one verdict is this fault, ``among others``, ``by class``, or ``not``."""
    verdicts = [verdict.faults for verdict in diagnosis.verdicts]
    if verdicts == [[fault]]:
        return "exactly"
    named = [other for verdict in verdicts for other in verdict]
    if fault in named:
        return "among others"
    return "by class" if fault.fault_class in {other.fault_class for other in named} else "not"


def main() -> int:
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", nargs="*", help="names of faults (default: all)")
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default="quick",
        help="full runs also the compile group and GPT-2 124M's shape (default: %(default)s)",
    )
    options = parser.parse_args()
    if unknown := set(options.fault) - set(names):
        parser.error(f"no planted fault is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    counts: Counter[str] = Counter()
    for fault in FAULTS:
        if options.fault and fault.name not in options.fault:
            continue
        diagnosis = diagnose(Bench(fault.subject()), profile=options.profile)
        counts["all"] += 1
        counts["caught"] += bool(diagnosis.failed)
        counts[named := how_named(fault, diagnosis)] += 1
        print(
            f"{fault.fault_class}: {fault.name}: named {named}: {', '.join(diagnosis.failed) or 'MISSED'}", flush=True
        )
    print(
        f"{counts['caught']} of {counts['all']} planted faults are caught; named exactly {counts['exactly']}, among "
        f"others {counts['among others']}, by class {counts['by class']}"
    )
    return 0 if counts["caught"] == counts["all"] else 1


if __name__ == "__main__":
    sys.exit(main())
