"""Print which checks catch which planted fault: ``python tools/kill_matrix.py [FAULT ...]``.

The tests only show that each fault is caught by the check meant for it. This runs every check on every fault, or on
those that are named, and takes some seconds for each. A check that no line names first is one to think about.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conformance.bench import Bench
from conformance.check import all_checks, run_check
from conformance.faults import FAULTS, Fault
from conformance.outcome import CheckFailure, NotRun


def checks_that_fail(fault: Fault, slow: bool) -> list[str]:
    """The ids of all checks that fail on a fault; those that take long only when ``slow``."""
    bench, failed = Bench(fault.subject()), []
    for check in all_checks():
        if not slow and (check.id.startswith("compile.") or check.id.endswith(".real_shape")):
            continue
        for check_id, case in check.ids().items():
            try:
                run_check(check, bench, case)
            except CheckFailure:
                failed.append(check_id)
            except NotRun:
                continue
    return failed


def main() -> int:
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", nargs="*", help="names of faults (default: all)")
    parser.add_argument("--slow", action="store_true", help="also the compile group and GPT-2 124M's shape")
    options = parser.parse_args()
    if unknown := set(options.fault) - set(names):
        parser.error(f"no planted fault is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    caught: Counter[str] = Counter()
    for fault in FAULTS:
        if options.fault and fault.name not in options.fault:
            continue
        failed = checks_that_fail(fault, options.slow)
        caught["caught" if failed else "missed"] += 1
        print(f"{fault.fault_class}: {fault.name}: {', '.join(failed) or 'MISSED'}", flush=True)
    print(f"{caught['caught']} of {caught.total()} planted faults are caught")
    return 1 if caught["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
