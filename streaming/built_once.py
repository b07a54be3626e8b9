"""Keeps what was built of the same parts for as long as Spark's JVM lives: columns, above all.

Each function of pyspark is a call into the JVM. What the decoders make of a few paths takes thousands, which cost a small
batch more than its rows do. A column is an expression that is not resolved yet: any DataFrame of the JVM may use it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

__all__ = ["built_once"]

_MOST: Final = 32
"""So many are kept of one function; a query needs one, what is done beside it a few."""
T = TypeVar("T")


def built_once(build: Callable[..., T]) -> Callable[..., T]:
    """Decorate a function of hashable arguments whose result belongs to the JVM and is never changed."""
    kept: dict[tuple[Hashable, ...], T] = {}
    owner: Any = None

    @functools.wraps(build)
    def built(*parts: Hashable) -> T:
        nonlocal owner
        from pyspark import SparkContext

        jvm = SparkContext._gateway
        if jvm is not owner or len(kept) >= _MOST:
            kept.clear()
            owner = jvm
        found = kept.get(parts)
        if found is None:
            found = kept[parts] = build(*parts)
        return found

    return built
