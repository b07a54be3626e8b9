"""The start of a connection to a broker, for each type of connection."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Accepted"]


class Accepted(NamedTuple):
    """A socket on which a broker has answered CONNECT."""

    sock: socket.socket
    name: str
    """The broker's name in log messages."""
    max_message_bytes: int
    """The largest message that the broker accepts."""
    credentials: Callable[[], bytes]
    """Makes the frame that answers the broker's request for new credentials."""
