"""``make compatibility``: runs a part of the tests on each combination that is asked for, and writes the page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.compatibility.combinations import PYTHONS, Record, records, run_bridge, run_spark
from tests.compatibility.page import PAGE, page


def main() -> int:
    """Run, record, and write the page. Returns 0 if something ran and nothing failed; ``--show`` only writes the page."""
    parser = argparse.ArgumentParser(prog="make compatibility")
    parser.add_argument("--part", choices=("bridge", "spark"), default="bridge", help="bridge: light; spark: hours")
    parser.add_argument("--python", choices=PYTHONS, help="only this Python")
    parser.add_argument("--spark", help="only this Spark, such as 4.0")
    parser.add_argument("--java", type=Path, help="home of the Java to use instead of JAVA_HOME")
    parser.add_argument("--show", action="store_true", help="run nothing")
    args = parser.parse_args()
    if args.java is not None:
        os.environ["JAVA_HOME"] = str(args.java)
    ran: list[Record] = []
    if not args.show:
        chosen = [args.python] if args.python else PYTHONS
        if args.part == "spark":
            ran = run_spark(args.spark, args.python)
        for python in chosen if args.part == "bridge" else ():
            record = run_bridge(python)
            if record is None:
                print(f"Python {python}: not on the PATH, left out")
            else:
                ran.append(record)
    for record in ran:
        if record.passed:  # else nothing was run, as after an import that failed
            record.store()
        print(record)
    PAGE.write_text(page(records()), encoding="utf-8")
    return 0 if args.show or (ran and not any(record.failed for record in ran)) else 1


if __name__ == "__main__":
    sys.exit(main())
