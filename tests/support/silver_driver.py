"""A driver of silver, or of a replay, in a process of its own, which kills itself and its JVM after a step:
``ROOT STEP [SUITE]``; with a suite it replays quarantine by it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import load_decoders
from streaming.predicates import load_suite
from streaming.quarantine.replay import Replay
from streaming.quarantine.selection import Selection

from bridge.settings import StreamingSettings
from bridge.settings.loading import conf_path
from streaming import silver
from streaming.tables import Tables
from tests.support.spark import build_session

__all__ = ["main"]


def main() -> None:
    """Run silver over what bronze holds, or a replay of all that is held, until the step."""
    root, last, *suites = sys.argv[1:]
    spark = build_session(Path(root).with_name("driver"))
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    tables = Tables.of(StreamingSettings(root=root))
    suite = load_suite(Path(suites[0]) if suites else conf_path("expectations/silver.json"))
    recipe = silver.recipe_of(load_decoders(conf_path("rules.yaml")), suite, 600.0)

    def die(step: str) -> None:
        if step == last:
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    if suites:
        Replay(spark, tables, recipe, die).run(Selection())
        return
    batches = silver.SilverBatches(tables, Checkpoint(spark, tables.checkpoint("silver")), recipe, die)
    silver.query(spark, tables, batches).trigger(availableNow=True).start().awaitTermination()
