"""What a request is to its connection: an accepted head that takes a body, and an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Answer", "Request", "busy"]


class Answer(NamedTuple):
    """A status, the members of the JSON body or a body of bytes, and additional headers."""

    status: int
    body: Mapping[str, str] | bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose head is accepted."""

    take: Callable[[bytes], asyncio.Future[Any] | Answer]
    """Begins it with the complete body. The future returns the argument of ``answer``."""
    answer: Callable[[Any], Answer]
    """Returns the answer to a result; None if there was none in time."""
    patience: float
    """How long its result may take, in seconds."""
    max_body: int
    """Maximum size of its body, in bytes."""
    waits: bool = False
    """Whether it waits for what may not come: it ends when its client leaves."""


def busy(why: str) -> Answer:
    """Return the answer that asks the client to retry."""
    return Answer(503, {"message": why}, (("Retry-After", "1"),))
