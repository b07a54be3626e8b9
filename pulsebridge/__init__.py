"""Pulsebridge from Python: ``import pulsebridge as pb``.

``pb.connect()`` finds the settings as the command ``pulsebridge`` does: the file that it is given, else
``$PULSEBRIDGE_CONFIG``, else ``./pulsebridge.yaml``, and the environment. Importing this package imports nothing else; the
functions import what they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pulsebridge.connection import Connection
    from pulsebridge.explore import Lab

__all__ = ["connect", "lab", "register", "spark"]


def connect(config: str | Path | None = None, settings: Mapping[str, object] | None = None) -> Connection:
    """Return the installation that the settings name. It connects at its first use.

    ``config`` is a settings file, else ``$PULSEBRIDGE_CONFIG``, else ``./pulsebridge.yaml``. The environment takes
    precedence over the file, and ``settings`` over both: single values by their path, ``{"mqtt.host": "broker.example"}``.
    Without any of them the servers are those of this machine. Relative paths, such as ``streaming.root``, begin at the
    working directory: start the notebook in the folder of the project. Display the connection to see what it uses.

    Raises ConfigError with all problems of the settings. The errors are in ``bridge.errors``, with the base
    ``PulsebridgeError``; most say how to fix them. Spark reports those of a query as its own errors, with their text.
    """
    from pathlib import Path

    from bridge.settings.loading import load_with_origins
    from pulsebridge.connection import Connection

    file = None if config is None else Path(config)
    return Connection(load_with_origins(file, (), flags=settings).settings)


def spark(config: str | Path | None = None, settings: Mapping[str, object] | None = None) -> SparkSession:
    """Return a Spark session with Delta that knows Pulsebridge's formats: the running one, else a new one.

    A running session must have Delta itself. In a new one, times are UTC. It needs Java 17 or 21, and
    ``pip install "pulsebridge[local]"``. Raises ConfigError as ``connect``, MissingExtraError without pyspark.
    """
    return connect(config, settings).spark


def register(spark: SparkSession) -> None:
    """Make a Spark session know Pulsebridge's formats. Raises MissingExtraError without pyarrow."""
    from streaming.session import register as register_formats

    register_formats(spark)


def lab(config: str | Path | None = None) -> Lab:
    """Start a lab for a notebook: the servers that the settings do not name, ingest, Spark, and devices to try.

    Without ``config`` it has the settings of the demo, and does not read ``./pulsebridge.yaml``. Until ``close()``,
    ``pb.connect()`` connects to it. It needs ``pip install "pulsebridge[notebook]"``. Raises ConfigError, and MissingExtraError without the extra.
    """
    try:
        from pulsebridge.explore import Lab
    except ModuleNotFoundError as e:
        from bridge.errors import MissingExtraError

        raise MissingExtraError(f"{e.name} is not installed", remedy='pip install "pulsebridge[notebook]"') from e

    return Lab(config).start()
