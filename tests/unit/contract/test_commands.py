from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract import C_QOS, C_TOPIC, C_VERSION
from bridge.contract.commands import (
    MAX_COMMAND_BYTES,
    Command,
    CommandPosition,
    command_problem,
    decode_command,
    encode_command,
)
from bridge.dead_letters import HEAD_BYTES, dead_letter
from bridge.errors import ContractError

GOOD = Command("id", "device", "devices/device/commands", b"{}")
names = st.text(st.characters(exclude_characters="+#", exclude_categories=["Cc", "Cn", "Cs"]), min_size=1, max_size=20)


@given(
    st.builds(
        Command, command_id=names, device=names, mqtt_topic=names, payload=st.binary(max_size=50),
        qos=st.sampled_from([0, 1, 2]), retain=st.booleans(), expires_at_ms=st.integers(0, 2**50),
        emitted_at_us=st.integers(0, 2**60), cause=st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        resend_of=st.just("") | names,
    )
)  # fmt: skip
def test_what_is_encoded_is_decoded(command: Command) -> None:
    assert decode_command(encode_command(command), command.payload) == command


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("command_id", "", "identity"),
        ("command_id", "a\0", "U+0000"),
        ("command_id", "a\nb", "U+000A"),
        ("command_id", "a\x85", "U+0085"),
        ("command_id", "a\ufffe", "U+FFFE"),
        ("command_id", "\U0001ffff", "U+1FFFF"),
        ("command_id", "\ud800", "not valid UTF-8"),
        ("command_id", "é" * 32_768, "max_name_bytes is 16384"),
        ("device", "", "order"),
        ("device", "\0owner", "U+0000"),
        ("device", "a\nb", "U+000A"),
        ("device", "é" * 32_768, "max_name_bytes is 16384"),
        ("mqtt_topic", "", "empty"),
        ("mqtt_topic", "a/+/b", "no + or #"),
        ("mqtt_topic", "a/#", "no + or #"),
        ("mqtt_topic", "a\0", "U+0000"),
        ("mqtt_topic", "a/\x07", "U+0007"),
        ("mqtt_topic", "a/\ud800", "U+D800"),
        ("mqtt_topic", "é" * 40_000, "65535"),
        ("qos", 3, "wanted 0, 1 or 2"),
        ("expires_at_ms", -1, "before the epoch"),
        ("expires_at_ms", 2**63, "2^63"),
        ("resend_of", "é" * 8193, "has 16386 bytes, max_name_bytes is 16384"),
        ("cause", "é" * 2049, "4098 bytes, the limit is 4096"),
        ("payload", b"x" * MAX_COMMAND_BYTES, "the limit is"),
    ],
)
def test_a_bad_field_is_named(field: str, value: object, why: str) -> None:
    column = "expires_at" if field == "expires_at_ms" else field
    problem = command_problem(replace(GOOD, **{field: value}))  # type: ignore[arg-type]
    assert problem is not None
    assert problem.field == column
    assert why in problem.why
    with pytest.raises(ContractError, match=column):
        encode_command(replace(GOOD, **{field: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{C_VERSION: "9"}, {C_QOS: "one"}, {C_QOS: "7"}, {C_TOPIC: "#"}, {C_TOPIC: None}, {C_VERSION: None}],
)
def test_a_message_of_another_shape_is_refused(change: dict[str, str | None]) -> None:
    properties = {k: v for k, v in (encode_command(GOOD) | change).items() if v is not None}
    with pytest.raises(ContractError):
        decode_command(properties, b"{}")


def test_a_key_counts_by_its_bytes() -> None:
    one = replace(GOOD, device="é" * 8000, payload=b"x" * (MAX_COMMAND_BYTES - 33_000))
    assert command_problem(replace(one, device="e" * 8000)) is None
    problem = command_problem(replace(one, payload=one.payload + b"x" * 1000))
    assert problem is not None
    assert "the limit is" in problem.why


@pytest.mark.parametrize("field", ["command_id", "device", "resend_of"])
def test_h35_names_have_the_limit_of_the_settings(field: str) -> None:
    assert command_problem(replace(GOOD, **{field: "é" * 512}), 1024) is None  # type: ignore[arg-type]
    longer = replace(GOOD, **{field: "é" * 513})  # type: ignore[arg-type]
    assert command_problem(longer, 1024) == (field, "has 1026 bytes, max_name_bytes is 1024")
    with pytest.raises(ContractError, match="max_name_bytes is 1024"):
        decode_command(encode_command(longer), longer.payload, 1024)
    assert decode_command(encode_command(longer), longer.payload) == longer, "what is stored is read"


def test_positions_are_ordered_as_the_log() -> None:
    places = [
        CommandPosition(1, 0, -1),
        CommandPosition(1, 1, 0),
        CommandPosition(1, 1, 1),
        CommandPosition(2, 0, -1),
    ]
    assert sorted(places) == places
    assert places[1].encode(3) == "0.3.1.1.0"
    assert [CommandPosition.decode(place.encode(3, 1)) for place in places] == [(1, 3, place) for place in places]
    bad = (
        "",
        "0.3.1.1",
        "0.3.1.1.x",
        "0.3.1.1.0.0",
        "0.3.1.1.0\n",
        "0.3.+1.1.0",
        "0.3.1_0.1.0",
        "0.3.٣.1.0",
        "9" * 9000,
        f"0.3.{2**63}.0.0",
    )
    for text in bad:
        with pytest.raises(ContractError, match="not a position"):
            CommandPosition.decode(text)


def test_a_dead_letter_that_is_too_large_keeps_head_length_and_digest() -> None:
    payload, properties = dead_letter(
        b"x" * 5_000_000, topic="t", device="d", reason="r", at_us=1, properties={"own": "1"}
    )
    assert len(payload) == HEAD_BYTES
    assert properties["pb.dead.length"] == "5000000"
    assert len(properties["pb.dead.sha256"]) == 64
    assert properties["own"] == "1"
    whole, properties = dead_letter(b"small", topic="t", device="d", reason="r", at_us=1)
    assert whole == b"small"
    assert "pb.dead.length" not in properties
