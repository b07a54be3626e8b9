"""``make crashes``: kill each component at each step of each commit order, and write the page docs/explain/crashes.md.

The servers are started once. A result is stored when its cell ends, so an interrupted run continues with ``--missing``.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NoReturn

from tests.crashes.cells import CELLS, Cell, chosen, missing, third
from tests.crashes.results import PAGE, commit_of_product, load, page, result_of, store
from tests.crashes.strike import Outcome
from tests.crashes.worlds import Worlds
from tests.support.folders import own_folder
from tests.support.stack import new_stack

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cells that are asked for. Returns 0 if nothing was lost or disordered and each repeat has its rule."""
    parser = argparse.ArgumentParser(prog="make crashes")
    parser.add_argument("--only", action="append", help="cells like 'ingest/*/mqtt', or that begin so; may be repeated")
    parser.add_argument("--missing", action="store_true", help="only cells without a good result at this commit")
    parser.add_argument("--third", metavar="COMMIT", help="only the third that this commit's hash chooses")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--page", action="store_true", help="write the page from the last results, and run nothing")
    args = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the shell had SIGINT ignored, as with nohup
        signal.signal(number, _end)
    cells: list[Cell] = list(CELLS) if args.third is None else third(CELLS, args.third)
    cells = [cell for pattern in args.only for cell in chosen(cells, pattern)] if args.only else cells
    if args.missing:
        cells = missing(cells, load(), commit_of_product())
    failed = 0
    if cells and not args.page:
        failed = _run_all(cells, random.randrange(2**32) if args.seed is None else args.seed)
    PAGE.write_text(page(load()), encoding="utf-8")
    return 1 if failed else 0


def _run_all(cells: Iterable[Cell], seed: int) -> int:
    failed = 0
    with new_stack(cluster=True) as stack, own_folder("crashes") as folder, Worlds(stack, folder) as worlds:
        for cell in cells:
            began = time.monotonic()
            outcome: Outcome | str
            try:
                outcome = worlds.run(cell, seed)
            except AssertionError as e:
                outcome = str(e)
            result = result_of(cell, outcome, seed, time.monotonic() - began)
            store(result)
            failed += result["result"] != "ok"
            print(time.strftime("%H:%M:%S"), cell.name, result["result"], result["repeats"], flush=True)
            if "evidence" in result:
                print(result["evidence"], flush=True)
    return failed


def _end(number: int, _: object) -> NoReturn:
    """End what was started: each with block does."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
