"""Checksums and numbers of many payloads at once, as if each were taken alone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.settings.rules import TopicRule
from pulsebridge.audit.live.entries import Kind
from pulsebridge.audit.live.log import NumberFields
from pulsebridge.audit.live.payloads import places_of
from pulsebridge.audit.live.sequence import NO_NUMBER
from tests.support.payloads import checksum, payloads_of


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=4090, max_size=4100)), st.binary(max_size=9))
def test_checksums_are_equal_where_the_payloads_are(each: list[bytes], between: bytes) -> None:
    found = payloads_of(each, between)
    assert found.all == each
    alone = list(map(checksum, each))
    assert found.checksums().tolist() == alone
    assert len(set(alone)) == len(set(each))


def test_every_byte_of_a_payload_counts_in_its_checksum() -> None:
    for size in (1, 7, 8, 9, 20, 1000, 4096, 4097):
        changed = [bytes(n) + b"\1" + bytes(size - n - 1) for n in range(size)]
        each = [bytes(size), bytes(size + 1), bytes(size - 1), *changed]
        assert len(set(payloads_of(each).checksums().tolist())) == len(each)


@given(
    st.lists(st.sampled_from([b"ab", b"a", b"abc", b"b", bytes(3)])), st.sampled_from([b"ab", b"abc", b"aa", bytes(2)])
)
def test_a_text_is_found_wherever_it_is(pieces: list[bytes], text: bytes) -> None:
    data = b"".join(pieces)
    wanted = [n for n in range(len(data)) if data.startswith(text, n)]
    before = bytes([7]) * (256 * 1024 - len(data) // 2)  # the middle is where the second part begins
    assert places_of(data, text).tolist() == wanted
    assert places_of(before + data, text).tolist() == [len(before) + n for n in wanted]


def test_a_text_at_too_many_places_is_not_looked_up() -> None:
    assert len(places_of(b"ab" * 200_000, b"ab")) == 200_000
    assert len(places_of(b"ab" * 200_001, b"ab")) == 0


TEXT = st.text('n"\\{}:,1 ä', max_size=4)
VALUES = st.recursive(
    st.none() | st.integers(-5, 10**20) | st.floats(allow_nan=False) | TEXT | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT | st.just("n"), inner, max_size=2),
    max_leaves=4,
)


def numbers_of(fields: NumberFields, payloads: list[bytes]) -> list[int]:
    kinds, none = [Kind("", "", "", "", {})], np.zeros(len(payloads), np.int64)
    at = np.arange(len(payloads))
    return list(fields.numbers("r", payloads_of(payloads), at, kinds, none).tolist())


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(TEXT | st.just("n"), VALUES, max_size=3), st.sampled_from([(",", ":"), (", ", " : ")]))
@example({'"n': 0}, (",", ":"))  # the name after an escaped quote
def test_the_number_is_that_of_the_parsed_payload(body: dict[str, Any], separators: tuple[str, str]) -> None:
    fields = NumberFields([TopicRule(name="r", filter="a/+device", sequence="{json:$.n}")])
    number = body.get("n")
    try:
        wanted = None if isinstance(number, bool | None) else int(str(number))
    except ValueError:
        wanted = None
    payload = json.dumps(body, separators=separators).encode()
    assert fields.number("r", payload, {}) == wanted
    others = [b"", b'{"n":7}', b'{"v":1,"n" : 12 }', b'"n":', b'{"n":1,"n":2}', b'{"n":1.5}', b'{"n":', b'{"n":\0001}']
    numbers = [None if n == NO_NUMBER else n for n in numbers_of(fields, [*others, payload, *others])]
    large = wanted is not None and abs(wanted) > 1 << 62
    some = [None, 7, 12, None, 2, None, None, None]
    assert numbers == [*some, None if large else wanted, *some]
    assert numbers_of(fields, [b'{"n":7}', payload]) == [7, NO_NUMBER if wanted is None or large else wanted]
