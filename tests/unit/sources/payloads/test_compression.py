from __future__ import annotations

import contextlib
import gzip
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sources.payloads.compression import expand

LIMIT = 100_000
KINDS = ("gzip", "zstd")


def packed(kind: str, content: bytes) -> bytes:
    return gzip.compress(content) if kind == "gzip" else zstandard.compress(content)


@pytest.mark.parametrize("kind", KINDS)
@given(content=st.lists(st.binary(max_size=2000), min_size=1, max_size=3))
def test_what_was_packed_comes_back_also_in_several_pieces(kind: str, content: list[bytes]) -> None:
    assert expand(b"".join(packed(kind, one) for one in content), kind, LIMIT) == b"".join(content)


@pytest.mark.parametrize("kind", KINDS)
@given(content=st.binary(max_size=300), cut=st.integers(1, 40), at=st.integers(0), flip=st.integers(1, 255))
def test_a_damaged_payload_raises_value_error_and_nothing_else(
    kind: str, content: bytes, cut: int, at: int, flip: int
) -> None:
    whole = packed(kind, content)
    with pytest.raises(ValueError, match="ends too soon"):
        expand(whole[: max(1, len(whole) - cut)], kind, LIMIT)
    damaged = bytearray(whole)
    damaged[at % len(damaged)] ^= flip
    with contextlib.suppress(ValueError):
        expand(bytes(damaged), kind, LIMIT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("payload", [b"", b"{}", b"\x1f\x8b", b"plain text"])
def test_what_is_not_packed_is_refused(kind: str, payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"not |too soon"):
        expand(payload, kind, LIMIT)


@pytest.mark.parametrize("kind", KINDS)
def test_expansion_stops_at_the_limit(kind: str) -> None:
    assert len(expand(packed(kind, bytes(LIMIT)), kind, LIMIT)) == LIMIT
    for bomb in (bytes(LIMIT + 1), bytes(300_000_000)):
        with pytest.raises(ValueError, match="more than max_size, 100000"):
            expand(packed(kind, bomb), kind, LIMIT)


def test_a_zstd_window_beyond_what_every_decoder_has_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
    large = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = large.compress(b"x" * 1000) + large.flush()
    with pytest.raises(ValueError, match="not zstd"):
        expand(frame, "zstd", LIMIT)


def test_zlib_without_a_gzip_header_is_no_gzip() -> None:
    with pytest.raises(ValueError, match="not gzip"):
        expand(zlib.compress(b"x"), "gzip", LIMIT)
