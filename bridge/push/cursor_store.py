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

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.cursors import PlainCursor, ids_key, key_of_term, plain_cursor, term_position
from bridge.errors import ContractError, TransientError
from bridge.push.cursor import Cursor

__all__ = ["CursorStore", "Resting"]

_SET_UP: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -2000;
CREATE TABLE cursors (
    n INTEGER PRIMARY KEY, name TEXT, term INTEGER, ledger INTEGER, entry INTEGER, state BLOB, UNIQUE (name, term)
);
CREATE TABLE ids (name TEXT, term INTEGER, payload BLOB, UNIQUE (name, term));
BEGIN;
"""
_OURS: Final = -1  # term of what this owner keeps, which is no record
_OF_NAME: Final = "SELECT term, ledger, entry, state FROM cursors WHERE name = ?"
_REPLACE: Final = "UPDATE cursors SET term = ?, state = ? WHERE n = (SELECT max(n) FROM cursors WHERE name = ?)"
_NAMES: Final = """
SELECT n, name FROM cursors c WHERE n > ? AND n = (SELECT max(n) FROM cursors WHERE name = c.name) ORDER BY n LIMIT ?
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
        self._added: list[tuple[int, str, int, int, int, bytes]] = []  # rows of cursors to be written
        self._terms: dict[str, int] = {"": 0}  # numbers of the terms in the tables, by name
        self._apart = False  # whether there are ids apart from their cursors
        self._unproven: dict[int, CommandPosition] = {}  # by time, the oldest confirmed then
        self.trim: Callable[[str, Cursor], None] = lambda name, cursor: None
        """Removes from a cursor that is decoded what the broker confirmed and the device certainly has."""
        self.horizon: CommandPosition | None = None
        """Up to there a device may have received commands if its cursor cannot be read."""
        self.uncertain: set[str] = set()
        """Keys of records that cannot be read: commands of their devices may have been sent."""
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
        self._write_added()
        try:
            return self._db.execute(statement, values).rowcount
        except sqlite3.Error as e:
            raise _failed(e) from e

    def _rows(self, statement: str, *values: object) -> list[Any]:
        self._write_added()
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as e:
            raise _failed(e) from e

    def _write_added(self) -> None:
        """Write what was added. Many rows at once cost less."""
        if not self._added:
            return
        added, self._added = self._added, []
        try:
            self._db.executemany("INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?, ?, ?)", added)
        except sqlite3.Error as e:
            raise _failed(e) from e

    # --- reading ---

    def __len__(self) -> int:
        return int(self._rows("SELECT count(DISTINCT name) FROM cursors")[0][0])

    def __contains__(self, name: object) -> bool:
        return bool(self._number and self._rows("SELECT 1 FROM cursors WHERE name = ?", name))

    def __iter__(self) -> Iterator[str]:
        """Yield all names. A device that leaves and comes back meanwhile is not missed."""
        last = 0
        while page := self._rows(_NAMES, last, _PAGE):
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
        rows = self._rows(_OF_NAME, name) if self._number else []
        if not rows:
            return None
        found = Resting(*pickle.loads(rows[0][-1])) if rows[0][0] == _OURS else self._decoded(name, rows)
        self.trim(name, found.cursor)
        return found

    def _decoded(self, name: str, rows: list[Any]) -> Resting:
        """Return what all terms know of a device. What the last one has read of the others it has in its own record."""
        terms = list(self._terms)
        records = [(terms[term], (ledger, entry), payload) for term, ledger, entry, payload in rows]
        records.sort(key=lambda one: term_position(one[0]), reverse=True)
        cursor: Cursor | None = None
        read_to = BEFORE_ALL[:2]
        for term, at, payload in records:
            if not payload or (cursor is not None and at < read_to):
                continue
            try:
                record = Cursor.decode(payload, self._capacity)
            except ContractError as e:
                self.unread.append((key_of_term(name, term), str(e)))
                self.uncertain.add(key_of_term(name, term))
                continue
            read_to = read_to if cursor else term_position(term)
            cursor = _joined(cursor, record) if cursor else record
        cursor = cursor or Cursor(self._capacity)
        cursor.stored_in = tuple(term for term, _, _ in records)
        if any(key_of_term(name, term) in self.uncertain for term in cursor.stored_in):
            cursor.maybe_seen_to = self.horizon
        apart = self._rows("SELECT term, payload FROM ids WHERE name = ?", name) if self._apart else []
        cursor.ids_stored_in = tuple(sorted((terms[term] for term, _ in apart), key=term_position, reverse=True))
        payloads = {terms[term]: payload for term, payload in apart}
        for term in cursor.ids_stored_in if self._capacity else ():
            try:
                if payloads[term]:
                    cursor.with_ids(payloads[term])  # before those that are known: the older ones come last
            except ContractError as e:
                self.unread.append((key_of_term(ids_key(name), term), str(e)))
        return Resting(cursor, cursor.position)

    # --- while the owner works ---

    def put(self, name: str, resting: Resting) -> None:
        """Keep what there is of a device, instead of what was kept before."""
        state = pickle.dumps(tuple(resting), pickle.HIGHEST_PROTOCOL)
        if self._run(_REPLACE, _OURS, state, name):
            self._run("DELETE FROM cursors WHERE name = ? AND term != ?", name, _OURS)
        else:
            self._add(name, _OURS, 0, 0, state)
        self._remove_ids(name)
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
        self._remove_ids(name)

    def _remove_ids(self, name: str) -> None:
        if self._apart:
            self._run("DELETE FROM ids WHERE name = ?", name)

    def _add(self, name: str, term: int, ledger: int, entry: int, state: bytes) -> None:
        self._number += 1
        self._added.append((self._number, name, term, ledger, entry, state))
        if len(self._added) >= _PAGE:
            self._write_added()

    # --- at the takeover ---

    def _term(self, name: str) -> int:
        if name not in self._terms:
            term_position(name)
        return self._terms.setdefault(name, len(self._terms))

    def add_record(self, name: str, term: str, at: CommandPosition, payload: bytes) -> None:
        """Keep the record of a cursor beside those of other terms; empty: there is none. Raises ContractError for the term."""
        if payload:
            self._add(name, self._term(term), at.ledger, at.entry, payload)
        else:
            self._run("DELETE FROM cursors WHERE name = ? AND term = ?", name, self._term(term))

    def add_unread(self, name: str, term: str, at: CommandPosition) -> None:
        """There is a record that cannot be read; an earlier one of the term is kept. Raises ContractError for the term."""
        self.uncertain.add(key_of_term(name, term))
        if not self._rows("SELECT 1 FROM cursors WHERE name = ? AND term = ?", name, self._term(term)):
            self._add(name, self._term(term), at.ledger, at.entry, b"")

    def add_ids(self, name: str, term: str, payload: bytes, *, unread: bool = False) -> None:
        """Keep ids that are stored apart, as ``add_record``; ``unread``: there are some that cannot be read."""
        self._run("DELETE FROM ids WHERE name = ? AND term = ?", name, self._term(term))
        if payload or unread:
            self._run("INSERT INTO ids VALUES (?, ?, ?)", name, self._term(term), payload)
            self._apart = True

    def plain(self, name: str) -> PlainCursor | None:
        """Return what is read of a record that is not decoded; None if that is not enough, or there is no single one."""
        rows = self._rows("SELECT state FROM cursors WHERE name = ? AND term != ?", name, _OURS)
        return plain_cursor(rows[0][0]) if len(rows) == 1 else None

    def late(self, term: str) -> bool:
        """Return whether a cursor of an earlier term was stored after ``term`` had begun."""
        begin, number = term_position(term), self._term(term)
        return bool(
            self._rows("SELECT 1 FROM cursors WHERE (ledger, entry) > (?, ?) AND term != ? LIMIT 1", *begin, number)
        )

    @property
    def last_term(self) -> str:
        """The last one of the terms of which records were read."""
        return max(self._terms, key=term_position)

    @property
    def orphans(self) -> list[str]:
        """Keys of the ids of devices of which nothing else is left."""
        rows = self._rows(
            "SELECT name, term FROM ids WHERE NOT EXISTS (SELECT 1 FROM cursors c WHERE c.name = ids.name)"
        )
        terms = list(self._terms)
        return [key_of_term(ids_key(name), terms[term]) for name, term in rows]


def _joined(last: Cursor, late: Cursor) -> Cursor:
    """Return what two owners know, of whom the former wrote late. What its successor sends again it sends again."""
    ahead = late.position > last.position and last.resend_from is None
    cursor, other = (late, last) if ahead else (last, late)
    cursor.merge(other)
    return cursor
