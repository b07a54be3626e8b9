"""The CPU that Spark takes for each message: the job without any configuration, over what is stored."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil
import yaml

from bridge.settings import Settings
from tests.bench.processes import cpu_seconds, pulsebridge

__all__ = ["spark_cpu_us"]

_LONGEST_S = 400.0


def spark_cpu_us(settings: Settings, folder: Path, rows: int) -> float:
    """Return µs of CPU for a message, to the tables that exist without any configuration. A second run, without any
    messages, shows what the start takes.
    """
    config = folder / "stream.yaml"
    dumped = settings.model_dump(mode="json", exclude_defaults=True)
    dumped["streaming"] = {"root": str(folder / "tables"), "subscription": "scale"}
    config.write_text(yaml.safe_dump(dumped))
    took = [_run(config, folder / f"stream-{n}.log") for n in range(2)]
    return max(0.0, took[0] - took[1]) / rows * 1e6


def _run(config: Path, log: Path) -> float:
    with log.open("wb") as out:
        child = subprocess.Popen(
            pulsebridge("stream", "--config", str(config), "--available-now"), stdout=out, stderr=subprocess.STDOUT
        )
        process, end, cpu = psutil.Process(child.pid), time.monotonic() + _LONGEST_S, 0.0
        try:
            while child.poll() is None and time.monotonic() < end:
                cpu = max(cpu, cpu_seconds(process)) if process.is_running() else cpu
                time.sleep(0.2)
        except psutil.NoSuchProcess:  # a child of it has just ended
            child.wait(60)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    assert child.returncode == 0, log.read_text()[-2000:]
    return cpu
