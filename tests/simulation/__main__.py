"""``make simulate``: worlds from consecutive seeds, until so many steps are done.

The first violation is printed with its seed and the fewest events that cause it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import Final

from tests.simulation.engine import STEPS, failure_of, first_failure, shrink
from tests.simulation.scenarios import SCENARIOS

_WORLDS: Final = {"ingest": 1000, "push": 50, "broadcast": 20}
"""Worlds that a process takes at once: about as long for each kind."""
Share = tuple[str, int, int]


def main() -> int:
    """Simulate. Returns 1 if a world broke the promise."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--steps", type=int, default=3_000_000, help="in all, spread over the kinds of worlds")
    parser.add_argument("--seed", type=int, help="of the first world; the next worlds count on from it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", choices=sorted(SCENARIOS), help="this kind alone; may be repeated")
    args = parser.parse_args()
    seed = random.randrange(2**32) if args.seed is None else args.seed
    names = args.only or list(SCENARIOS)
    print(f"seed {seed}, {args.steps:,} steps: {', '.join(names)}", flush=True)
    spent, played = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    with ProcessPoolExecutor(args.jobs) as pool:
        shares = _shares(names, seed, args.steps)
        while batch := list(islice(shares, 4 * args.jobs * len(names))):
            for (name, _, worlds), (failed, took) in zip(batch, pool.map(_play, batch), strict=True):
                spent[name] += took
                played[name] += worlds * STEPS
                if failed is not None:
                    return _show(name, *failed)
    for name in names:
        rate = played[name] / spent[name] if spent[name] else 0.0
        print(f"{name}: {played[name]:,} steps, {rate:,.0f} a second of CPU", flush=True)
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


def _show(name: str, seed: int, failure: str) -> int:
    print(f"{name}, seed {seed}: {failure}\nshrinking …", flush=True)
    run = shrink(SCENARIOS[name].run(seed))
    print(f"{failure_of(run)}\n{run.make}\n{run.events}\nthen {'finish' if run.finish else 'nothing'}", flush=True)
    print(f"to repeat: make simulate ONLY={name} SEED={seed} STEPS={STEPS}", flush=True)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
