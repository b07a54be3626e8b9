"""A Spark driver of the crash matrix, with an executor of its own: ``python -m … FOLDER``.

Each line of stdin is JSON with its number, the settings, options of the source, a flow and a kill point. The former flow
stops, and this one runs until the next line; at the point a process of Spark stops until SIGCONT. A line without a flow
has the former one stop alone. ``FOLDER/done`` has the number of the last line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from bridge import killpoints
from bridge.errors import PulsebridgeError
from bridge.settings import Settings
from pulsebridge.spark_session import local_session
from streaming import pipelines as dp
from streaming.job import Job
from streaming.session import register, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BAD", "declared"]

BAD: Final = 3
"""Every third number is not valid, so quarantine has it."""
_MASTER: Final = "local-cluster[1,2,1024]"


def declared(options: dict[str, str]) -> dp.Pipeline:
    """Declare a table of numbers, and a command for each of them. A payload is ``<device>-<number>``."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    def messages() -> DataFrame:
        rows = SparkSession.active().readStream.format("pulsebridge").options(**options).load()
        text = F.col("payload").cast("string")
        return rows.withColumns({"name": text, "device": F.split_part(text, F.lit("-"), F.lit(1))})

    with dp.declaring(dp.Pipeline()) as pipeline:

        @dp.table
        def numbers() -> DataFrame:
            place = F.struct(
                F.col("__topic").alias("topic"), "partition", F.col("ledger_id").alias("ledger"),
                F.col("entry_id").alias("entry"), F.col("batch_index").alias("index"), F.lit(0).alias("element"),
            )  # fmt: skip
            number = F.split_part("name", F.lit("-"), F.lit(2)).cast("int")
            return messages().select(
                "device", "name", place.alias("_position"), F.col("payload").alias("_payload"),
                F.when(number % BAD == 0, "a third is not valid").alias("_fault"),
            )  # fmt: skip

        @dp.commands
        def commands() -> DataFrame:
            topic = F.concat(F.lit("devices/"), "device").alias("mqtt_topic")
            return messages().select("device", F.col("name").alias("command_id"), topic, "payload")

    return pipeline


def _arm(spark: SparkSession, kill_at: str, number: int) -> None:
    """Let this process, and the Python processes that Spark starts from now on, stop at a point.

    The number is in their environment, so that Spark reuses no process of another line.
    """
    given = {"PULSEBRIDGE_KILL_AT": kill_at, "PULSEBRIDGE_KILL_SIGNAL": "STOP", "CRASHES_LINE": str(number)}
    os.environ.update(given)
    spark.sparkContext.environment.update(given)
    importlib.reload(killpoints)
    register(spark)


def _run(spark: SparkSession, settings: Settings, options: dict[str, str], flow: str, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            job = Job(spark, settings, declared(options), [flow])
            job.prepare()
            job.run(stop)
        except PulsebridgeError as e:  # a service manager would restart it
            print(f"the job ended: {e}", flush=True)


def main() -> None:
    """Run flows until stdin ends."""
    folder = Path(sys.argv[1])
    own: dict[str, Any] = {
        "spark.driver.memory": "600m",
        "spark.executor.memory": "700m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    spark = local_session("crashes", master=_MASTER, more={**spark_settings("local[2]"), **own})
    lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    stop = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            lines.put(json.loads(line))
            stop.set()
        lines.put(None)
        stop.set()

    threading.Thread(target=read, daemon=True).start()
    # The flows run in this thread, whose session Spark knows: there the sinks are registered.
    while (given := lines.get()) is not None:
        stop.clear()
        if not lines.empty():
            stop.set()
        (folder / "done").write_text(str(given["number"]))
        if given["flow"]:
            _arm(spark, given["kill_at"], given["number"])
            settings = Settings.model_validate(json.loads(given["settings"]))
            _run(spark, settings, given["options"], given["flow"], stop)


if __name__ == "__main__":
    from tests.crashes import spark_driver  # by its name, or Spark's workers would not find it

    spark_driver.main()
