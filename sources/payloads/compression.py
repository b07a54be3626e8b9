"""Expands gzip and zstd up to a limit, which protects a worker's memory."""

from __future__ import annotations

import zlib
from typing import Final

__all__ = ["expand"]

_GZIP: Final = 31
_MEMBERS: Final = 1000
"""Most members of one gzip payload: each costs a copy of the remaining bytes."""
_WINDOW: Final = 8 * 1024 * 1024
"""Largest accepted zstd window, as the zstd format recommends for every decoder."""
_PIECE: Final = 256
"""Compressed bytes given to zstd in one call. Its output has no limit, but is at most 8 MiB for so many."""


def expand(payload: bytes, compression: str, limit: int) -> bytes:
    """Return the expanded payload. Raises ValueError if it is damaged, cut, or larger than ``limit`` bytes."""
    return _gzip(payload, limit) if compression == "gzip" else _zstd(payload, limit)


def _gzip(payload: bytes, limit: int) -> bytes:
    found = bytearray()
    rest = payload
    for _ in range(_MEMBERS):
        member = zlib.decompressobj(_GZIP)
        try:
            found += member.decompress(rest, limit + 1 - len(found))
        except zlib.error as e:
            raise ValueError(f"not gzip: {e}") from e
        if len(found) > limit:
            raise _beyond(limit)
        if not member.eof:
            raise ValueError("gzip ends too soon")
        rest = member.unused_data
        if not rest:
            return bytes(found)
    raise ValueError(f"more than {_MEMBERS} gzip members")


def _zstd(payload: bytes, limit: int) -> bytes:
    import zstandard

    found = bytearray()
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    frame = unpacker.decompressobj()
    ended = False
    for at in range(0, len(payload), _PIECE):
        piece = payload[at : at + _PIECE]
        while piece:
            if ended:
                frame = unpacker.decompressobj()
            try:
                found += frame.decompress(piece)
            except zstandard.ZstdError as e:
                raise ValueError(f"not zstd: {e}") from e
            if len(found) > limit:
                raise _beyond(limit)
            ended = frame.eof
            piece = frame.unused_data if ended else b""
    if not ended:
        raise ValueError("zstd ends too soon")
    return bytes(found)


def _beyond(limit: int) -> ValueError:
    return ValueError(f"expands to more than max_size, {limit}")
