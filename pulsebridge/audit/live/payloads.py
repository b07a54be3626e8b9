"""Hashes of many pieces of bytes, and the payloads of many messages, without an object for each."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from pulsebridge.audit.live.sequence import NO_NUMBER

__all__ = ["PADDING", "Payloads", "eights_of", "hashes", "places_of"]

_WINDOW: Final = 32
"""Bytes that are read at once: that costs little more than to read eight."""
PADDING: Final = bytes(_WINDOW)
"""Must follow the pieces, because a window is read from each place on."""
_PART: Final = 256 * 1024
"""Bytes that are searched at once."""
_PLACES: Final = 200_000
"""More of them would need too much memory."""
_CHECKSUM: Final = 0x9E37_79B9_7F4A_7C15
"""Factor of the checksums: the same in all processes."""
_LONG: Final = 4096
"""A piece of more bytes is hashed alone: else each eight of them would cost a step."""
_SMALL: Final = 64
"""Mean size of payloads that are copied by byte."""
_DIGITS: Final = 18


def eights_of(data: bytes) -> Any:
    """Return the eight bytes from each place of ``data`` on, but for the last seven, as numbers."""
    return np.ndarray(len(data) - 7, "<u8", data, strides=(1,))


def places_of(data: bytes, text: bytes) -> Any:
    """Return where a text of two bytes or more begins in ``data``; none if it is at too many places."""
    end, each = len(data) - len(text) + 1, np.frombuffer(data, np.uint8)
    texts, wanted = np.ndarray(max(0, end), f"V{len(text)}", data, strides=(1,)), np.frombuffer(text, np.uint8)
    found, count = [np.empty(0, np.int64)], 0
    for at in range(0, end, _PART):
        some = each[at : min(at + _PART, end) + 1]
        begins = np.flatnonzero((some[:-1] == wanted[0]) & (some[1:] == wanted[1])) + at
        begins = begins[(texts[begins].view(np.uint8).reshape(-1, len(text)) == wanted).all(axis=1)]
        found.append(begins)
        if (count := count + len(begins)) > _PLACES:
            return found[0]
    return np.concatenate(found)


def hashes(data: bytes, begins: Any, ends: Any, factor: int = _CHECKSUM) -> Any:
    """Return a hash of 64 bits of each piece between these places. ``data`` ends with ``PADDING``."""
    windows = np.ndarray(len(data) - _WINDOW + 1, f"V{_WINDOW}", data, strides=(1,))
    order = np.argsort(begins - ends, kind="stable")  # the largest first: those that have a byte at a place come first
    begins, negative = begins[order], (begins - ends)[order]
    found, multiply = (-negative).astype(np.uint64) * np.uint64(factor), np.uint64(factor)
    excess = (negative % 8 * 8).astype(np.uint64)
    for at in range(0, min(-int(negative.min(initial=0)), _LONG), 8):
        more, whole = np.searchsorted(negative, (-at, -at - 7))  # pieces with one byte there, with eight
        if at % _WINDOW == 0:
            window = windows[begins[:more] + at].view("<u8").reshape(more, -1)
        eight = window[:more, at % _WINDOW // 8]
        eight[whole:] <<= excess[whole:more]
        one = (found[:more] ^ eight) * multiply
        found[:more] = one ^ one >> np.uint64(32)
    for n in range(np.searchsorted(negative, -_LONG)):
        piece = data[begins[n] : begins[n] - negative[n]]
        found[n] = int.from_bytes(blake2b(piece, digest_size=8).digest(), "little")
    unsorted = np.empty_like(found)
    unsorted[order] = found
    return unsorted


class Payloads:
    """The payloads of messages: pieces of ``data``."""

    def __init__(self, data: bytes, begins: Any, ends: Any) -> None:
        """``data`` ends with ``PADDING``."""
        self._data, self._begins, self._ends = data, begins, ends

    def __len__(self) -> int:
        return len(self._begins)

    @cached_property
    def all(self) -> list[bytes]:
        """Each payload."""
        return list(map(self._data.__getitem__, map(slice, self._begins.tolist(), self._ends.tolist())))

    def checksums(self) -> Any:
        """Return a checksum of 64 bits of each, signed."""
        return hashes(self._data, self._begins, self._ends).view(np.int64)

    @cached_property
    def _packed(self) -> tuple[bytes, Any, Any]:
        """The payloads alone, one behind the other, with ``PADDING``, and where each begins and ends."""
        sizes = self._ends - self._begins
        ends = np.cumsum(sizes)
        begins, size = ends - sizes, int(ends[-1]) if len(ends) else 0
        if size > _SMALL * len(self):
            return b"".join([*self.all, PADDING]), begins, ends
        places = np.arange(size) + np.repeat(self._begins - begins, sizes)
        return np.frombuffer(self._data, np.uint8)[places].tobytes() + PADDING, begins, ends

    def some_has(self, *texts: bytes) -> bool:
        """Return whether one may contain one of these texts; False is sure."""
        return any(text in self._packed[0] for text in texts)

    def shortest(self) -> int:
        """Return the fewest bytes of one."""
        return int((self._ends - self._begins).min(initial=_LONG))

    def numbers(self, name: bytes) -> Any:
        """Return the number behind a name, NO_NUMBER of a payload that has to be parsed.

        Found are those of at most 18 digits in objects without objects and escapes that have the name once: nearly all,
        for a tenth of the cost of parsing.
        """
        packed, begins, ends = self._packed
        data = np.frombuffer(packed, np.uint8)
        names = places_of(packed, name)
        braces, escapes = (np.flatnonzero(data == ord(some)) for some in "{\\")
        of_first, count = _within(names, begins, ends)
        flat = (count == 1) & (_within(braces, begins, ends)[1] == 1) & (data[begins] == ord("{"))
        if len(escapes):
            flat &= _within(escapes, begins, ends)[1] == 0
        rows = np.flatnonzero(flat)
        at = names[of_first[rows]] + len(name)
        more, digits, value = data[at] == ord(":"), np.zeros_like(at), np.zeros_like(at)
        at += 1 + (data[at + 1] == ord(" "))
        while more.any() and digits.max() < _DIGITS:
            digit = data[at] - np.uint8(ord("0"))
            more &= digit < 10
            value = np.where(more, value * 10 + digit, value)
            at += more
            digits += more
        right = (digits > 0) & ((data[at] == ord(",")) | (data[at] == ord("}"))) & (at < ends[rows])
        found = np.full(len(self), NO_NUMBER)
        found[rows[right]] = value[right]
        return found


def _within(places: Any, begins: Any, ends: Any) -> tuple[Any, Any]:
    """Return by piece the index of the first place in it, and how many are in it. ``places`` are in order."""
    if len(places) == len(begins) and ((places >= begins) & (places < ends)).all():  # nearly always one in each
        return np.arange(len(places)), np.ones(len(places), np.int64)
    first = np.searchsorted(places, begins)
    return first, np.searchsorted(places, ends) - first
