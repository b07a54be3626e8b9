"""The listeners of queries that take a micro-batch's progress as JSON, as Spark's JVM writes it, and nothing else of it.

pyspark asks the JVM for each figure of a progress by itself before it calls a listener, several hundred times for a
query with state, and each listener anew: with small batches that was as much work as the batches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql.streaming import StreamingQueryListener

__all__ = ["Event", "JsonListener", "Progress"]


class Progress(NamedTuple):
    """A progress as its listeners here read it."""

    json: str


class Event(NamedTuple):
    """What ``onQueryProgress`` is given."""

    progress: Progress


class JsonListener(StreamingQueryListener):
    """A listener whose ``onQueryProgress`` is given an event that has ``progress.json`` only."""

    @property
    def _jlistener(self) -> Any:
        """The listener's face for the JVM, where ``addListener`` looks for it; pyspark's own where that is made of other
        parts than those of Spark 4.0 to 4.2.
        """
        if "_jlistenerobj" not in self.__dict__:
            try:
                self._jlistenerobj = _face(self)
            except (ImportError, AttributeError, TypeError):
                return super()._jlistener
        return self._jlistenerobj


def _face(listener: StreamingQueryListener) -> Any:
    from pyspark import SparkContext
    from pyspark.sql.streaming.listener import JStreamingQueryListener

    class Calls(JStreamingQueryListener):
        def onQueryProgress(self, jevent: Any) -> None:
            self.pylistener.onQueryProgress(Event(Progress(jevent.progress().json())))  # type: ignore[arg-type]

    jvm: Any = SparkContext._jvm
    return jvm.PythonStreamingQueryListenerWrapper(Calls(listener))
