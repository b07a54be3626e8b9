"""Cursors of the devices that have nothing under way, in a temporary file: a million of them need no memory.

The file is a cache of one owner. It has no name, and ends with the process; Pulsar's cursors partition stays the truth. A
small partition is in SQLite's page cache alone, and no file is written.

What an owner reads at its takeover is stored as it was read, and decoded when its device is looked at.
"""

from __future__ import annotations

import pickle
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.contract.cursors import PlainCursor, ids_key, plain_cursor
from bridge.errors import ContractError, TransientError
from bridge.push.cursor import Cursor

__all__ = ["CursorStore", "Resting"]

_SET_UP: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -2000;
CREATE TABLE cursors (n INTEGER PRIMARY KEY, name TEXT UNIQUE, term INTEGER, encoded INTEGER, state BLOB);
CREATE TABLE ids (name TEXT, term INTEGER, payload BLOB);
CREATE INDEX ids_of ON ids (name);
BEGIN;
"""
_PUT: Final = """
INSERT INTO cursors VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET term = excluded.term, encoded = excluded.encoded, state = excluded.state
"""
_PAGE: Final = 500
_UNPROVEN_US: Final = 10_000_000
_ACTION: Final = "Action: make room in the temporary folder, or name another one in TMPDIR"


class Resting(NamedTuple):
    """What is kept of a device with nothing under way. The fields have the meaning that they have in ``Device``."""

    cursor: Cursor
    loaded: CommandPosition
    suspected: bool = True


def _failed(error: sqlite3.Error) -> TransientError:
    return TransientError(f"the cursors of idle devices: {error}. {_ACTION}")


class CursorStore(Mapping[str, Cursor]):
    """The cursors of a partition's devices that are not awake, by name. A cursor that it returns is a copy."""

    def __init__(self, capacity: int, cursors: Mapping[str, Cursor] | None = None) -> None:
        """``capacity`` is how many settled ids each cursor remembers."""
        self._capacity = capacity
        self._number = 0
        self._apart = False  # whether there are ids apart from their cursors
        self._unproven: dict[int, CommandPosition] = {}  # by time, the oldest confirmed then
        self.trim: Callable[[str, Cursor], None] = lambda name, cursor: None
        """Removes from a cursor that is decoded what the broker confirmed and the device certainly has."""
        self.horizon: CommandPosition | None = None
        """Up to there a device may have received commands if its cursor cannot be read."""
        self.watched: set[str] = set()
        """Devices that the next owner looks at at once: some of their commands may have to be sent again."""
        self.unread: list[tuple[str, str]] = []
        """Key and reason of what could not be read when its device was looked at."""
        try:
            # One thread at a time uses it, not always the one that made it.
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._db.executescript(_SET_UP)
        except sqlite3.Error as e:
            raise _failed(e) from e
        weakref.finalize(self, self._db.close)
        for name, cursor in (cursors or {}).items():
            self.put(name, Resting(cursor, cursor.position))
            if cursor.resend or cursor.unproven:
                self.watched.add(name)

    def _run(self, statement: str, *values: object) -> int:
        """Return how many rows it has changed."""
        try:
            return self._db.execute(statement, values).rowcount
        except sqlite3.Error as e:
            raise _failed(e) from e

    def _rows(self, statement: str, *values: object) -> list[Any]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as e:
            raise _failed(e) from e

    # --- reading ---

    def __len__(self) -> int:
        return int(self._rows("SELECT count(*) FROM cursors")[0][0])

    def __contains__(self, name: object) -> bool:
        return bool(self._number and self._rows("SELECT 1 FROM cursors WHERE name = ?", name))

    def __iter__(self) -> Iterator[str]:
        """Yield all names. A device that leaves and comes back meanwhile is not missed."""
        last = 0
        while page := self._rows("SELECT n, name FROM cursors WHERE n > ? ORDER BY n LIMIT ?", last, _PAGE):
            yield from (name for _, name in page)
            last = page[-1][0]

    def __getitem__(self, name: str) -> Cursor:
        """Return a device's cursor. Raises KeyError without one."""
        found = self.look(name)
        if found is None:
            raise KeyError(name)
        return found.cursor

    def look(self, name: str) -> Resting | None:
        """Return what is kept of a device, None without a cursor."""
        rows = self._rows("SELECT encoded, state FROM cursors WHERE name = ?", name) if self._number else ()
        for encoded, state in rows:
            found = self._decoded(name, state) if encoded else Resting(*pickle.loads(state))
            self.trim(name, found.cursor)
            return found
        return None

    def _decoded(self, name: str, payload: bytes) -> Resting:
        try:
            cursor = Cursor.decode(payload, self._capacity)
        except ContractError as e:
            cursor = Cursor(self._capacity, maybe_seen_to=self.horizon)
            self.unread.append((name, str(e)))
        apart = self._rows("SELECT payload FROM ids WHERE name = ? ORDER BY term DESC", name) if self._apart else ()
        for (ids,) in apart if self._capacity else ():
            try:
                cursor.with_ids(ids)  # before those that are known: the older ones come last
            except ContractError as e:
                self.unread.append((ids_key(name), str(e)))
        return Resting(cursor, cursor.position)

    # --- while the owner works ---

    def put(self, name: str, resting: Resting) -> None:
        """Keep what there is of a device, instead of what was kept before."""
        self._write(_PUT, name, 0, 0, pickle.dumps(tuple(resting), pickle.HIGHEST_PROTOCOL))
        self.remove_ids(name)
        self.note_unproven(resting.cursor)

    def note_unproven(self, cursor: Cursor) -> None:
        """A device may have commands that the broker alone confirmed."""
        if cursor.unproven:
            at, first = cursor.unproven[-1].at_us // _UNPROVEN_US, cursor.unproven[0].one.position
            self._unproven[at] = min(first, self._unproven.get(at, first))

    def oldest_unproven(self, since_us: int) -> CommandPosition | None:
        """Return the oldest command that the broker alone confirmed since then, of the devices that were noted."""
        self._unproven = {at: one for at, one in self._unproven.items() if (at + 1) * _UNPROVEN_US > since_us}
        return min(self._unproven.values(), default=None)

    def pop(self, name: str) -> Resting | None:
        """Remove and return what is kept of a device, None without a cursor."""
        found = self.look(name)
        if found is not None:
            self.remove(name)
        return found

    def remove(self, name: str) -> None:
        """Remove a device with the ids that are stored apart."""
        self._run("DELETE FROM cursors WHERE name = ?", name)
        self.remove_ids(name)

    def _write(self, statement: str, name: str, term: int, encoded: int, state: bytes) -> bool:
        self._number += 1
        return self._run(statement, self._number, name, term, encoded, state) > 0

    # --- at the takeover: terms as in ``cursor_log`` ---

    def add_record(self, name: str, term: int, payload: bytes) -> bool:
        """Keep the record of a cursor, unless that of another term is there. Returns whether it is kept."""
        return self._write(_PUT + " WHERE term = excluded.term", name, term, 1, payload)

    def record(self, name: str) -> bytes | None:
        """Return the record that is kept, None without one."""
        rows = self._rows("SELECT state FROM cursors WHERE name = ?", name)
        return bytes(rows[0][0]) if rows else None

    def plain(self, name: str) -> PlainCursor | None:
        """Return what is read of a record that is not decoded; None if that is not enough, or nothing is kept as it was read."""
        rows = self._rows("SELECT state FROM cursors WHERE name = ? AND encoded", name)
        return plain_cursor(rows[0][0]) if rows else None

    def replace_record(self, name: str, term: int, payload: bytes) -> None:
        """Keep the record of a cursor, whatever is there."""
        self._write(_PUT, name, term, 1, payload)

    def add_ids(self, name: str, term: int, payload: bytes) -> bool:
        """Keep ids that are stored apart, instead of those of earlier terms. Returns whether those of a later term are there."""
        late = bool(self._rows("SELECT 1 FROM ids WHERE name = ? AND term > ?", name, term))
        self._run("DELETE FROM ids WHERE name = ? AND (term = ? OR ?)", name, term, not late)
        self._run("INSERT INTO ids VALUES (?, ?, ?)", name, term, payload)
        self._apart = True
        return late

    def remove_ids(self, name: str) -> None:
        """Remove the ids that are stored apart."""
        if self._apart:
            self._run("DELETE FROM ids WHERE name = ?", name)

    @property
    def orphans(self) -> list[str]:
        """Devices of which nothing is left but ids."""
        rows = self._rows(
            "SELECT DISTINCT name FROM ids WHERE NOT EXISTS (SELECT 1 FROM cursors c WHERE c.name = ids.name)"
        )
        return [name for (name,) in rows]
