"""A driver of gold in a process of its own, which kills itself and its JVM after a step: ``ROOT STEP``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from streaming.checkpoints import Checkpoint

from bridge.settings import StreamingSettings
from streaming import gold
from streaming.tables import Tables
from tests.support.spark import build_session

__all__ = ["DELAY_S", "WINDOW_S", "main"]

WINDOW_S, DELAY_S = 60, 120.0


def main() -> None:
    """Run gold over what silver holds, until the step."""
    root, last = sys.argv[1:3]
    spark = build_session(Path(root).with_name("driver"))
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    settings = StreamingSettings(root=root, gold_window_s=WINDOW_S)
    tables = Tables.of(settings)

    def die(step: str) -> None:
        if step == last:
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint = Checkpoint(spark, tables.checkpoint("gold"))
    batches = gold.GoldBatches(tables, checkpoint, gold.recipe_of(settings), die)
    gold.query(spark, tables, DELAY_S, batches).trigger(availableNow=True).start().awaitTermination()
