"""The number of an ingest worker among several, in a setting or in ``--shard``."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Final

__all__ = ["Shard"]

_FORM: Final = re.compile(r"(\d{1,4}|host)/(\d{1,4})\Z")
_ORDINAL: Final = re.compile(r"-(\d{1,4})\Z")


@dataclass(frozen=True, slots=True)
class Shard:
    """Worker ``index`` of ``count``, counted from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str, *, host: str | None = None) -> Shard:
        """Read ``I/N`` or ``host/N``. Raises ValueError with the remedy.

        With ``host`` the index is the number at the end of the host's name, as in the names of a StatefulSet's pods.
        """
        found = _FORM.match(text)
        if found is None:
            raise ValueError(f"{text!r} is not of the form I/N, for example 0/4")
        count = int(found[2])
        if found[1] != "host":
            index = int(found[1])
        else:
            name = socket.gethostname() if host is None else host
            ordinal = _ORDINAL.search(name.partition(".")[0])
            if ordinal is None:
                raise ValueError(
                    f"{text!r}: the host name {name!r} does not end in a number: run it as a pod of a StatefulSet, "
                    "or give the number, for example 0/4"
                )
            index = int(ordinal[1])
        if index >= count:
            raise ValueError(
                f"{text!r}: shard {index} of {count} does not exist, they are counted from 0 to {count - 1}"
            )
        return cls(index, count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
