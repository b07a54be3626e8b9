"""``make simulate``: worlds from consecutive seeds, until so many steps are done.

Each kind of world gets about the same time. The first violation is printed with its seed and the fewest events that
cause it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from tests.simulation.engine import STEPS, failure_of, first_failure, shrink
from tests.simulation.planted import PLANTED
from tests.simulation.scenarios import SCENARIOS

_WORLDS: Final = {"ingest": 1000, "push": 50, "broadcast": 40, "contested": 60}
"""Worlds that a process takes at once: about as long for each kind."""
_MINUTE_S: Final = 60.0
Share = tuple[str, int, int]


@dataclass
class Totals:
    """What was played from a seed on, by kind of world."""

    seed: int
    commit: str
    worlds: dict[str, int]
    steps: dict[str, int] = field(init=False)
    cpu_s: dict[str, float] = field(init=False)
    violation: str = ""

    def __post_init__(self) -> None:
        self.steps, self.cpu_s = dict.fromkeys(self.worlds, 0), dict.fromkeys(self.worlds, 0.0)

    def add(self, share: Share, cpu_s: float) -> None:
        """Add the worlds of a share."""
        name, _, worlds = share
        self.worlds[name] += worlds
        self.steps[name] += worlds * STEPS
        self.cpu_s[name] = round(self.cpu_s[name] + cpu_s, 1)

    def show(self) -> None:
        """Print them."""
        for name, steps in self.steps.items():
            rate = steps / max(self.cpu_s[name], 0.1)
            first, last = self.seed, self.seed + self.worlds[name] - 1
            print(f"{name}: {steps:,} steps, seeds {first} to {last}, {rate:,.0f} steps a second of CPU", flush=True)


def main() -> int:
    """Simulate. Returns 1 if a world broke the promise."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--steps", type=int, default=3_000_000, help="in all, spread over the kinds of worlds")
    parser.add_argument("--seed", type=int, help="of the first world; the next worlds count on from it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", choices=sorted(SCENARIOS), help="this kind alone; may be repeated")
    parser.add_argument(
        "--planted", action="store_true", help="show how soon each planted bug is found, from three seeds"
    )
    parser.add_argument("--results", type=Path, help="JSON file: a list, to which the totals of this run are added")
    args = parser.parse_args()
    seed = random.randrange(2**32) if args.seed is None else args.seed
    names = args.only or list(SCENARIOS)
    if args.planted:
        return _find_planted(names, seed, args.jobs)
    print(f"seed {seed}, {args.steps:,} steps: {', '.join(names)}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True)
    totals = Totals(seed, commit.stdout.strip(), dict.fromkeys(names, 0))
    former = json.loads(args.results.read_text()) if args.results and args.results.exists() else []
    failed = None
    with ProcessPoolExecutor(args.jobs) as pool:
        shares = _shares(names, seed, args.steps)
        while failed is None and (batch := list(islice(shares, args.jobs * len(names)))):
            for share, (failure, cpu_s) in zip(batch, pool.map(_play, batch), strict=True):
                totals.add(share, cpu_s)
                failed = failed or (failure and (share[0], *failure))
            totals.violation = " ".join(map(str, failed or ()))
            if args.results:
                args.results.write_text(json.dumps([*former, asdict(totals)], indent=1))
    totals.show()
    if failed is not None:
        return _show(*failed)
    print("no violation", flush=True)
    return 0


def _shares(names: list[str], seed: int, steps: int) -> Iterator[Share]:
    next_seed = dict.fromkeys(names, seed)
    while steps > 0:
        for name in names:
            worlds = max(1, min(_WORLDS[name], -(-steps // STEPS)))
            yield name, next_seed[name], worlds
            next_seed[name] += worlds
            steps -= worlds * STEPS
            if steps <= 0:
                return


def _play(share: Share) -> tuple[tuple[int, str] | None, float]:
    name, seed, worlds = share
    begun = time.process_time()
    return first_failure(SCENARIOS[name], seed, worlds), time.process_time() - begun


def _find_planted(names: list[str], seed: int, jobs: int) -> int:
    """Print the seconds of CPU until each planted bug is found, from three seeds. Returns 1 if one took a minute."""
    chosen = [number for number, one in enumerate(PLANTED) if one.scenario in names]
    seeds = [seed + n * 1_000_000 for n in range(3)]
    late = False
    print(f"seeds {seeds}", flush=True)
    with ProcessPoolExecutor(jobs) as pool:
        tried = pool.map(_find, [number for number in chosen for _ in seeds], seeds * len(chosen))
        for number in chosen:
            times = [next(tried) for _ in seeds]
            late = late or None in times
            shown = ", ".join("not found" if one is None else f"{one:.1f} s" for one in times)
            print(f"{PLANTED[number].scenario}: {PLANTED[number].what}: {shown}", flush=True)
    return int(late)


def _find(number: int, seed: int) -> float | None:
    begun, planted = time.process_time(), PLANTED[number]
    with planted.planted():
        while time.process_time() - begun < _MINUTE_S:
            if first_failure(SCENARIOS[planted.scenario], seed, 1) is not None:
                return time.process_time() - begun
            seed += 1
    return None


def _show(name: str, seed: int, failure: str) -> int:
    print(f"{name}, seed {seed}: {failure}\nshrinking …", flush=True)
    run = shrink(SCENARIOS[name].run(seed))
    print(f"{failure_of(run)}\n{run.make}\n{run.events}\nthen {'finish' if run.finish else 'nothing'}", flush=True)
    print(f"to repeat: make simulate ONLY={name} SEED={seed} STEPS={STEPS}", flush=True)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
