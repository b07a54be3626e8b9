"""What a dead letter contains, which ones a selection selects, and where a replay sends them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import contract
from bridge.contract.commands import Command, CommandPosition, encode_command
from bridge.contract.groups import GroupCommand, encode_group_command, entry_of
from bridge.dead_letters import dead_letter
from bridge.dead_letters.plan import Refusal, Replay, replay_of
from bridge.dead_letters.records import (
    DeadLetter,
    LetterId,
    Selection,
    note_of,
    replayed_note,
)
from bridge.errors import ConfigError
from bridge.mqtt.envelope import Envelope
from bridge.routing.mapper import Mapper, Route
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.units import since_us
from pulsebridge.output.dead_letters import Summary, body_of

PULSAR = PulsarSettings()
FLEET = PULSAR.readings_topic("fleet")
places = st.builds(CommandPosition, st.integers(0, 2**40), st.integers(0, 2**30), st.integers(-1, 1000))


def letter(
    payload: bytes = b"x", *, topic: str = FLEET, key: str | None = "w-1", number: int = 0, **changes: Any
) -> DeadLetter:
    route = Route("fleet", "fleet", "w-1", "w-1", None)
    envelope = Envelope(link="l", protocol="5", mark=True).of_topic("fleet/w-1/glucose", route)
    kept, properties = dead_letter(
        payload,
        topic=topic,
        device="w-1",
        reason="topic is terminated",
        at_us=1_000_000,
        properties=envelope,
        key=key,
    )
    fields = {
        "id": LetterId(0, CommandPosition(1, number)),
        "key": "w-1",
        "payload": kept,
        "properties": properties,
        "event_ms": 5,
        "stored_us": 9,
    }
    return DeadLetter(**(fields | changes))


@given(st.integers(0, 1023), places)
def test_an_id_is_read_as_it_is_printed(partition: int, place: CommandPosition) -> None:
    assert LetterId.parse(str(LetterId(partition, place))) == LetterId(partition, place)


@pytest.mark.parametrize("text", ["", "1", "1:2", "a:b:c", "1:2:3:4:5", ":::"])
def test_what_is_no_id_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="0:123:4"):
        LetterId.parse(text)


@given(st.lists(places, max_size=20))
def test_a_note_records_what_was_replayed(found: list[CommandPosition]) -> None:
    payload, properties = replayed_note(found)
    note = note_of(properties, payload)
    assert note is not None
    assert note.replayed == set(found)
    assert note_of({contract.P_DEAD_REASON: "r"}, payload) is None


def test_a_replay_is_the_message_as_it_was_meant_with_its_mark() -> None:
    one = letter(b"reading", key="line-7", topic=contract.partition_name(FLEET, 3))
    planned = replay_of(one, PULSAR)
    assert isinstance(planned, Replay)
    assert (planned.topic, planned.key) == (FLEET, "line-7")
    assert planned.properties[contract.P_REPLAYED] == "0:1:0"
    assert not [name for name in planned.properties if name.startswith("pb.dead.")]
    assert planned.properties[contract.P_TOPIC] == "fleet/w-1/glucose"


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (letter(b"y" * 5_000_000), "only its head"),
        (letter(topic=""), "--remap"),
        (
            letter(topic="", properties={contract.P_DEAD_REASON: "malformed PUBLISH: it has QoS 3"}),
            "republish the message",
        ),
        (letter(topic="persistent://public/other/fleet"), "neither a readings topic"),
        (letter(topic=PULSAR.system_topic("command-cursors")), "neither a readings topic"),
        (letter(topic=PULSAR.system_topic("commands")), "properties of a command"),
    ],
)
def test_what_cannot_be_replayed_says_why(one: DeadLetter, why: str) -> None:
    planned = replay_of(one, PULSAR)
    assert isinstance(planned, Refusal)
    assert why in planned.why


def test_a_message_malformed_for_mqtt_is_not_mapped_again() -> None:
    """Its payload differs from the one that the device sent."""
    mapper = Mapper(
        Settings(ingest=IngestSettings(routes=(TopicRule(name="fleet", filter="#", topic="fleet", device="x"),)))
    )
    properties = letter(topic="").properties | {contract.P_DEAD_REASON: f"{contract.DEAD_MALFORMED}it has QoS 3"}
    planned = replay_of(letter(properties=properties), PULSAR, mapper)
    assert isinstance(planned, Refusal)
    assert "republish the message" in planned.why


def test_a_command_that_push_gave_up_is_refused_and_one_that_it_could_not_read_is_not() -> None:
    given_up = encode_command(Command("c 1", "w-1", "devices/w-1/commands", b"open"))
    in_the_log = PULSAR.system_topic("commands") + "-partition-3"
    planned = replay_of(letter(properties=properties_of_command(given_up, in_the_log), payload=b"open"), PULSAR)
    assert isinstance(planned, Refusal)
    assert "pulsebridge resend 'c 1' --device w-1" in planned.why
    newer = properties_of_command(given_up | {contract.C_VERSION: "99"}, in_the_log)
    planned = replay_of(letter(properties=newer, payload=b"open"), PULSAR)
    assert isinstance(planned, Replay)
    assert planned.topic == PULSAR.system_topic("commands")


def test_a_command_that_a_sink_refused_is_replayed_for_no_push_has_seen_it() -> None:
    refused = encode_command(Command("c 1", "w-1", "devices/w-1/commands", b"open"))
    properties = properties_of_command(refused, PULSAR.system_topic("commands"))
    assert isinstance(replay_of(letter(properties=properties, payload=b"open"), PULSAR), Replay)


def test_what_push_gave_up_for_one_member_of_a_group_goes_again_to_that_one_alone() -> None:
    place = CommandPosition(7, 3, -1)
    entry = entry_of(GroupCommand("g 1", "presses", "", b"open"), "w-1", place, 4, "devices/{device}/commands")
    properties = properties_of_command(encode_command(entry), PULSAR.system_topic("commands") + "-partition-3")
    planned = replay_of(letter(properties=properties, payload=b""), PULSAR)
    assert isinstance(planned, Refusal)
    assert f"{entry.command_id} (g 1 of the group presses)" in planned.why
    assert f"to w-1 alone: pulsebridge resend {entry.command_id} --device w-1" in planned.why


def test_a_group_command_without_a_delivery_is_replayed_to_the_group() -> None:
    refused = encode_group_command(GroupCommand("c 1", "presses", "", b"open"))
    for topic in ("group-commands-partition-0", "group-commands"):  # given up by push, or a row of the sink
        properties = properties_of_command(refused, PULSAR.system_topic(topic))
        planned = replay_of(letter(properties=properties, payload=b"open"), PULSAR)
        assert isinstance(planned, Replay)
        assert (planned.topic, planned.key) == (PULSAR.system_topic("group-commands"), "presses")
        assert contract.P_DEVICE not in planned.properties
    bad = properties_of_command(refused | {contract.C_QOS: "9"}, PULSAR.system_topic("group-commands-partition-0"))
    planned = replay_of(letter(properties=bad, payload=b"open"), PULSAR)
    assert isinstance(planned, Refusal)
    assert "it is not a valid group command: qos: is 9" in planned.why


def properties_of_command(properties: dict[str, str], topic: str) -> dict[str, str]:
    return dead_letter(b"", topic=topic, device="w-1", reason="r", at_us=1, properties=properties)[1]


def test_remap_asks_the_present_rules() -> None:
    rule = TopicRule(name="new", filter="fleet/+device/+metric", topic="by-{metric}", device="{device}")
    planned = replay_of(letter(topic=""), PULSAR, Mapper(Settings(ingest=IngestSettings(routes=(rule,)))))
    assert isinstance(planned, Replay)
    assert (planned.topic, planned.key) == (PULSAR.readings_topic("by-glucose"), "w-1")
    assert contract.full_envelope(planned.properties)[contract.P_RULE] == "new"
    no_publish = letter(properties={contract.P_DEAD_REASON: "bad row"})
    assert isinstance(replay_of(no_publish, PULSAR, Mapper(Settings())), Refusal)


@pytest.mark.parametrize(
    ("selection", "meant"),
    [
        (Selection(), True),
        (Selection(topic="fleet"), True),
        (Selection(topic=FLEET), True),
        (Selection(topic="fleet/+/glucose"), True),
        (Selection(topic="fleet/+/other"), False),
        (Selection(topic="flee"), False),
        (Selection(reason="TERMINATED"), True),
        (Selection(reason="quota"), False),
        (Selection(device="w-1"), True),
        (Selection(device="w-2"), False),
        (Selection(since_us=1_000_000), True),
        (Selection(since_us=1_000_001), False),
        (Selection(ids=frozenset({LetterId(0, CommandPosition(1, 0))})), True),
        (Selection(ids=frozenset({LetterId(1, CommandPosition(1, 0))})), False),
    ],
)
def test_a_selection_means(selection: Selection, meant: bool) -> None:
    assert selection.means(letter()) is meant


def test_a_block_ends_only_when_all_letters_of_its_topic_are_meant() -> None:
    assert Selection().means_target(FLEET)
    assert Selection(topic="fleet").means_target(FLEET)
    assert not Selection(topic="fleet", device="w-1").means_target(FLEET)
    assert not Selection(topic="other").means_target(FLEET)


def test_the_summary_counts_reasons_without_their_numbers() -> None:
    summary = Summary(keep=2)
    for number in range(300):
        _, properties = dead_letter(
            b"", topic=FLEET, device="d", reason=f"has {number} bytes", at_us=number * 1_000_000 + 1
        )
        summary.add(letter(properties=properties, number=number), replayed=number < 10)
    found = summary.as_json()
    assert (found["total"], found["replayed"]) == (300, 10)
    assert found["reasons"] == {"has N bytes": 300}
    assert [row["id"] for row in found["letters"]] == ["0:1:298", "0:1:299"]
    assert "300 dead letters, 10 of them replayed" in summary.as_text()
    assert Summary(5).as_text() == "no dead letters"


def test_since_takes_ages_and_times() -> None:
    assert since_us("2h", 10_000_000_000) == 10_000_000_000 - 7_200_000_000
    assert since_us("1970-01-01T00:00:01Z", 0) == 1_000_000
    assert since_us("1970-01-01", 0) == 0
    with pytest.raises(ConfigError, match="neither an age nor a time"):
        since_us("yesterday", 0)


@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_payload_can_be_shown(payload: bytes, limit: int) -> None:
    shown = body_of(payload, limit)
    assert ("more bytes" in shown[-1]) == (len(payload) > limit)


def test_a_payload_is_text_or_a_dump() -> None:
    assert body_of("grün\n".encode(), 100) == ["grün", ""]
    assert body_of("grün".encode(), 3) == ["gr", "… 2 more bytes"]
    assert body_of(b"\x00\x01ab", 10)[0].startswith("00000000  00 01 61 62")
