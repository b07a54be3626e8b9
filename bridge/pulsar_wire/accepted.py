"""What a connection to a broker begins with, whoever reads it afterwards."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Accepted"]


class Accepted(NamedTuple):
    """A socket on which a broker has answered CONNECT."""

    sock: socket.socket
    name: str
    """Of the broker, for people."""
    max_message_bytes: int
    """The largest message that the broker takes."""
    credentials: Callable[[], bytes]
    """Makes the frame that answers the broker when it wants new credentials."""
