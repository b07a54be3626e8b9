"""Checks CBOR and protobuf before their libraries parse them.

The libraries do not limit the cost of a short payload. A decimal with a mantissa of 1 MB takes a minute, and so do
100,000 keys with one hash value. Two bytes of protobuf become a message with all its fields. A check reads the bytes
once, without making objects of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from bridge.pulsar.wire.protobuf import read_varint

__all__ = ["MAX_DIGITS", "MessageFields", "check_cbor", "check_protobuf", "check_size"]

MAX_DIGITS: Final = 1000
"""Digits of a number, and the largest exponent of one. Spark's JSON parser has the same limit for digits."""

_NUMBER_BYTES: Final = MAX_DIGITS * 415 // 1000
_ODD_KEYS: Final = 256
"""Keys of maps, and elements of sets, that are neither text, bytes nor small numbers. Python's hash of other numbers is
public, so a device can make all of them collide."""
_SMALL: Final = 1 << 32

# Major types of CBOR (RFC 8949, section 3.1).
_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = 2, 3, 4, 5, 6, 7
_BIGNUMS: Final = (2, 3)
_FRACTIONS: Final = (4, 5)
"""Tags of pairs of exponent and mantissa (RFC 8949, section 3.4.4)."""
_SHARED_TEXT: Final = 25
_SHAREABLE: Final = 28
_SET: Final = 258
_REFUSED: Final = {35: "a regular expression", 36: "a MIME message"}
"""Tags whose content the library would compile or parse further; readings never use them."""


def check_size(size: int, limit: int) -> None:
    """Raise ValueError if a payload has more than ``limit`` bytes."""
    if size > limit:
        raise ValueError(f"{size} bytes, max_size is {limit}")


def check_cbor(body: bytes, *, max_depth: int, max_values: int) -> None:
    """Raise ValueError, which names the limit, for CBOR that exceeds the limits or is truncated.

    ``max_values`` counts array elements, keys, values, tags and the pieces of strings.
    """
    try:
        _Cbor(body, max_depth, max_values).items(0, 1, False, False, 1)
    except IndexError:
        raise ValueError("premature end of the payload") from None


class _Cbor:
    def __init__(self, body: bytes, max_depth: int, max_values: int) -> None:
        self._body = body
        self._max_depth = max_depth
        self._max_values = max_values
        self._values = 0
        self._odd_keys = 0

    def items(self, at: int, count: int | None, pairs: bool, hashed: bool, depth: int) -> int:
        """Skip ``count`` items, None for all up to a break. Returns the position after them.

        ``pairs``: they are keys and values; ``hashed``: all are elements of a set.
        """
        if depth > self._max_depth + 1:
            raise ValueError(f"nested deeper than max_depth, {self._max_depth}")
        body, index = self._body, 0
        while count is None or index < count:
            head = body[at]
            if head == 0xFF and count is None:
                return at + 1
            self._values += 1
            if self._values > self._max_values:
                raise ValueError(f"more values than max_values, {self._max_values}")
            kind, length, at = self._head(at)
            if (hashed or (pairs and not index & 1)) and (kind not in (_BYTES, _TEXT)):
                self._odd_key(kind, length)
            if kind == _TAG:
                at = self._tagged(length or 0, at, hashed, depth)
            elif kind in (_BYTES, _TEXT) and length is not None:
                at += length
                if at > len(body):
                    raise IndexError
            elif kind in (_BYTES, _TEXT, _ARRAY):
                at = self.items(at, length, False, False, depth + 1)
            elif kind == _MAP:
                at = self.items(at, None if length is None else 2 * length, True, False, depth + 1)
            index += 1
        return at

    def _head(self, at: int) -> tuple[int, int | None, int]:
        """Return major type, argument (None for an indefinite length), and the position of the rest."""
        body = self._body
        head = body[at]
        at += 1
        kind, short = head >> 5, head & 31
        if short < 24:
            return kind, short, at
        if short < 28:
            width = 1 << (short - 24)
            if at + width > len(body):
                raise IndexError
            return kind, int.from_bytes(body[at : at + width], "big"), at + width
        if short == 31 and kind in (_BYTES, _TEXT, _ARRAY, _MAP):
            return kind, None, at
        raise ValueError(f"not CBOR: byte {head:#04x} at {at - 1}")

    def _odd_key(self, kind: int, length: int | None) -> None:
        plain = (kind < _BYTES and (length or 0) < _SMALL) or (kind == _TAG and length == _SHARED_TEXT)
        self._odd_keys += not plain
        if self._odd_keys > _ODD_KEYS:
            raise ValueError(f"more than {_ODD_KEYS} keys that are neither text, bytes nor small numbers")

    def _tagged(self, tag: int, at: int, hashed: bool, depth: int) -> int:
        if tag in _REFUSED:
            raise ValueError(f"tag {tag}, {_REFUSED[tag]}, is not accepted")
        if tag in _BIGNUMS:
            kind, length, _ = self._head(at)
            if kind != _BYTES or length is None or length > _NUMBER_BYTES:
                raise ValueError(f"a number of more than {MAX_DIGITS} digits")
        if tag in _FRACTIONS:
            self._check_exponent(at)
        if tag == _SET:
            kind, length, inside = self._array_head(at)
            if kind != _ARRAY:  # in another tag its elements would not be checked
                raise ValueError(f"tag {tag}, a set, needs an array")
            return self.items(inside, length, False, True, depth + 1)
        return self.items(at, 1, False, hashed, depth + 1)

    def _array_head(self, at: int) -> tuple[int, int | None, int]:
        """Return the head of an array that may be marked as shareable."""
        kind, length, inside = self._head(at)
        return self._head(inside) if (kind, length) == (_TAG, _SHAREABLE) else (kind, length, inside)

    def _check_exponent(self, at: int) -> None:
        kind, _, at = self._array_head(at)
        exponent, size, _ = self._head(at)
        if kind != _ARRAY or exponent >= _BYTES or size is None or size > MAX_DIGITS:
            raise ValueError(f"a number with an exponent beyond {MAX_DIGITS}")


# --- protobuf ---

_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)
_WIDTHS: Final = {"double": 8, "fixed64": 8, "sfixed64": 8, "float": 4, "fixed32": 4, "sfixed32": 4}
_HIGH: Final = bytes(range(128, 256))


@dataclass(eq=False)
class MessageFields:
    """The facts of a message's descriptor that a check needs; descriptors may be recursive."""

    messages: dict[int, MessageFields] = field(default_factory=dict)
    """Fields that are messages, by number."""
    widths: dict[int, int] = field(default_factory=dict)
    """Bytes of a number in a packed field, by field number; 0 if they vary."""
    count: int = 1
    """Fields of the message: missing ones get defaults, so an empty message costs as much."""

    @classmethod
    def of(cls, descriptor: Any, known: dict[str, MessageFields] | None = None) -> MessageFields:
        """Return the fields of a descriptor of the protobuf package."""
        known = {} if known is None else known
        found = known.get(descriptor.full_name)
        if found is None:
            found = known[descriptor.full_name] = cls(count=max(1, len(descriptor.fields)))
            for one in descriptor.fields:
                if one.message_type is not None:
                    found.messages[one.number] = cls.of(one.message_type, known)
                elif one.type not in (one.TYPE_STRING, one.TYPE_BYTES):
                    found.widths[one.number] = _WIDTHS.get(_type_name(one), 0)
        return found


def _type_name(one: Any) -> str:
    return next((name for name in _WIDTHS if one.type == getattr(one, f"TYPE_{name.upper()}")), "")


def check_protobuf(body: bytes, fields: MessageFields, *, max_depth: int, max_values: int) -> None:
    """Raise ValueError, which names the limit, for a message above the limits or truncated."""
    try:
        end = _Protobuf(body, max_depth, max_values).message(0, len(body), fields, 1, False)
    except IndexError:
        raise ValueError("premature end of the payload") from None
    if end != len(body):
        raise ValueError("not protobuf: a group ends that did not begin")


class _Protobuf:
    def __init__(self, body: bytes, max_depth: int, max_values: int) -> None:
        self._body = body
        self._max_depth = max_depth
        self._max_values = max_values
        self._values = 0

    def message(self, at: int, end: int, fields: MessageFields, depth: int, group: bool) -> int:
        """Skip a message that ends at ``end``, or with its group. Returns the position after it."""
        if depth > self._max_depth:
            raise ValueError(f"nested deeper than max_depth, {self._max_depth}")
        body = self._body
        self._count(fields.count)
        while at < end:
            key, at = read_varint(body, at)
            number, wire = key >> 3, key & 7
            self._count(1)
            if wire == _VARINT:
                at = read_varint(body, at)[1]
            elif wire == _FIXED64:
                at += 8
            elif wire == _FIXED32:
                at += 4
            elif wire == _LENGTH:
                size, at = read_varint(body, at)
                stop = at + size
                if stop > end:
                    raise IndexError
                below = fields.messages.get(number)
                width = fields.widths.get(number)
                if below is not None:
                    self.message(at, stop, below, depth + 1, False)
                elif width is not None:
                    packed = body[at:stop]
                    self._count(size // width if width else len(packed.translate(None, _HIGH)))
                at = stop
            elif wire == _GROUP:
                below = fields.messages.get(number) or MessageFields()
                at = self.message(at, end, below, depth + 1, True)
            elif wire == _GROUP_END and group:
                return at
            else:
                raise ValueError(f"not protobuf: wire type {wire} at {at}")
        if group or at > end:
            raise IndexError
        return at

    def _count(self, more: int) -> None:
        self._values += more
        if self._values > self._max_values:
            raise ValueError(f"more values than max_values, {self._max_values}")
