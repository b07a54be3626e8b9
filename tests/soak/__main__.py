"""``make soak HOURS=2``: everything under a bounded load, with random faults. Nothing may lack, and nothing may grow.

A run is a piece: the next one continues with its data, in ``build/soak``. Remove that folder to begin again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from pulsebridge.local.stack import LocalStack
from tests.crashes.results import PAGE, commit_of_product, machine, page
from tests.crashes.results import load as crashes
from tests.soak.growth import WARM_UP
from tests.soak.results import store
from tests.soak.sampling import growing, medians
from tests.soak.world import SoakWorld, State, soak_world
from tests.support.stack import new_stack

FOLDER: Final = Path("build/soak")
_MEASURED: Final = ("ingest", "push", "stream")
_SERVERS: Final = ("mqtt", "pulsar")
_PAUSE_S: Final = (15.0, 90.0)


def main() -> int:
    """Run a piece. Returns 0 if nothing lacks and nothing grows."""
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the shell had SIGINT ignored, as with nohup
        signal.signal(number, _end)
    seed = random.randrange(2**32) if args.seed is None else args.seed
    FOLDER.mkdir(parents=True, exist_ok=True)
    state = State.load(FOLDER / "state.json")
    with (
        new_stack(data_dir=FOLDER.absolute() / "stack") as stack,
        soak_world(stack, FOLDER.absolute(), state) as one,
    ):
        samples = _piece(stack, one, args.hours * 3600, random.Random(seed))
        faults = one.account()
        different, second = one.rows()
        state.seconds += args.hours * 3600
        state.store(FOLDER / "state.json")
    grown = growing(samples)
    broken = faults + [f"{name} grows" for name in grown]
    result = {
        "hours": args.hours,
        "result": "; ".join(broken) or "ok",
        "readings": different,
        "commands": one.commands.total,
        "repeats": one.readings.repeats + one.commands.repeats,
        "repeated rows": second,
        "kills": dict(one.kills),
        "medians": medians(samples, sorted({name for sample in samples for name in sample if name != "at"})),
        "seed": seed,
        "commit": commit_of_product(),
        "machine": machine(),
    }
    with (FOLDER / "pieces.jsonl").open("a") as out:
        print(json.dumps(result), file=out)
    store([json.loads(line) for line in (FOLDER / "pieces.jsonl").read_text().splitlines()])
    PAGE.write_text(page(crashes()), "utf-8")
    _say(json.dumps(result, indent=1))
    return 1 if broken else 0


def _piece(stack: LocalStack, one: SoakWorld, seconds: float, chance: random.Random) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    begin = time.monotonic()
    ended = threading.Event()

    def sample() -> None:
        with (FOLDER / "samples.jsonl").open("a") as out:
            while not ended.wait(max(3.0, seconds / 500)):
                samples.append({"at": time.time(), **one.sample()})
                print(json.dumps(samples[-1]), file=out, flush=True)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        # A short piece has as many faults as fit, a long one as many in an hour as another one.
        pause = min(1.0, seconds / 1200)
        while (passed := time.monotonic() - begin) < seconds:
            ended.wait(min(seconds - passed, pause * chance.uniform(*_PAUSE_S)))  # how long all live
            if time.monotonic() - begin < seconds * 0.8:  # a server that returns late would be no growth
                name, act = _fault(stack, one, chance, warm=passed < seconds * WARM_UP)
                one.kills[name] += 1
                _say(f"{passed:.0f} s: {name}; {one.readings.total} readings, {one.commands.total} commands")
                act()
            if broken := one.ended():
                _say("; ".join(broken))
                break
    finally:
        ended.set()
        thread.join()
    return samples


def _fault(stack: LocalStack, one: SoakWorld, chance: random.Random, *, warm: bool) -> tuple[str, Callable[[], None]]:
    """Return a fault: its name, and what does it and undoes it."""
    seconds = chance.uniform(1, 10)
    faults: list[tuple[str, Callable[[], None]]] = [
        (f"{name} killed", lambda name=name: one.kill(name))  # type: ignore[misc]
        for name in (*_SERVERS, *(_MEASURED if warm else ()))
    ]
    faults += [
        (f"{name} stopped", lambda name=name: _stop(one.pids()[name], seconds))  # type: ignore[misc]
        for name in ("ingest", "push", *_SERVERS)
    ]
    faults.append(("connection cut", one.ingest.proxy.cut))
    return chance.choice(faults)


def _stop(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    threading.Event().wait(seconds)  # how long it stands still: nothing is waited for
    os.kill(pid, signal.SIGCONT)


def _end(number: int, _: object) -> NoReturn:
    """End what was started: each with block does."""
    sys.exit(128 + number)


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
