"""``make fuzz``: each target for a while, in a process of its own with a bound on its memory.

A case that breaks an invariant is printed with the seed of its round and kept in ``tests/fuzz/seeds``.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import structlog

from tests.fuzz.engine import Check, Finding, Run, Target, fuzz, literal, read_case, replay, save
from tests.fuzz.targets import TARGETS

_ROUND: Final = 500
"""Generated cases with one seed."""
_STUCK_S: Final = 60
"""After so long within one case its process ends with a stack trace."""
_MEMORY_BYTES: Final = 3 << 30
_RUNNING: Final = Path("build/fuzz")
"""Here each target's process leaves the case that it is about to try."""


def main() -> int:
    """Run the targets. Returns 1 when a case broke an invariant."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--only", action="append", choices=sorted(TARGETS), help="this target alone; may be repeated")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each target")
    parser.add_argument("--seed", type=int, help="of the first round; the next rounds count on from it")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)  # this process runs the one target
    args = parser.parse_args()
    seed = random.randrange(2**32) if args.seed is None else args.seed
    if args.within:
        return _run(TARGETS[args.only[0]], args.seconds, seed)
    broken = [name for name in args.only or TARGETS if _in_a_process(TARGETS[name], args.seconds, seed)]
    print(f"broken: {', '.join(broken)}" if broken else "no findings", flush=True)
    return 1 if broken else 0


def _in_a_process(target: Target, seconds: float, seed: int) -> bool:
    print(f"{target.name}: {target.invariant}", flush=True)
    _RUNNING.mkdir(parents=True, exist_ok=True)
    options = ["--within", "--only", target.name, "--seconds", str(seconds), "--seed", str(seed)]
    ended = subprocess.run([sys.executable, "-m", "tests.fuzz", *options], check=False).returncode
    if ended not in (0, 1):
        case = read_case(_RUNNING / target.name)
        _show(Finding(target.name, seed, case, f"the process ended with {ended}", "the trace above"))
    return ended != 0


def _run(target: Target, seconds: float, seed: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    run, end, number = Run(), time.monotonic() + seconds, seed
    with target.opened() as check:
        watched = _watched(target, check)
        old = list(replay(target, watched))
        for finding in old:
            print(finding.text(), flush=True)
        while time.monotonic() < end:
            for finding in fuzz(target, watched, number=number, examples=_ROUND, run=run):
                _show(finding)
            number += 1
    count = len(old) + len(run.findings)
    print(
        f"{target.name}: {run.executions} executions, seeds {seed} to {number - 1}, {count} findings\n",
        flush=True,
    )
    return 1 if count else 0


def _watched(target: Target, check: Check) -> Check:
    running = _RUNNING / target.name

    def watched(case: object) -> None:
        running.write_text(literal(case), encoding="utf-8")
        faulthandler.dump_traceback_later(_STUCK_S, exit=True)
        try:
            check(case)
        finally:
            faulthandler.cancel_dump_traceback_later()

    return watched


def _show(finding: Finding) -> None:
    print(f"{finding.text()}\n  kept in {save(finding)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
