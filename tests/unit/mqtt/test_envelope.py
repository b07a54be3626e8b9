"""The envelope: everything a publish says, as properties, and nothing lost on the way back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge import contract
from bridge.errors import ContractError
from bridge.mqtt.envelope import Envelope, from_push, message_of
from bridge.mqtt.types import Message, PublishProperties
from bridge.pulsar.wire.batches import head_of
from bridge.routing.mapper import Route

INGEST = (
    '{"v":"1","link":"pulsebridge","protocol":"5","rule":"wearables","device":"w-1",'
    '"command_topic":"devices/w-1/commands"}'
)
ROUTE = Route("wearables", "wearables", "w-1", "w-1", "devices/w-1/commands")
text = st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=20)


def message(**changes: object) -> Message:
    fields = {
        "topic": "wearables/w-1/g",
        "payload": b"x",
        "qos": 1,
        "retain": False,
        "dup": False,
        "mid": 7,
        "properties": None,
    }
    return Message(**(fields | changes))  # type: ignore[arg-type]


def properties_of(of: Message, route: Route | None = ROUTE, *, mark: bool = True) -> dict[str, str]:
    envelope = Envelope(link="pulsebridge", protocol="5", mark=mark)
    return envelope.of(of, envelope.of_topic(of.topic, route))


def test_a_plain_publish_stores_usual_values_once() -> None:
    assert properties_of(message()) == {
        contract.P_INGEST: INGEST,
        contract.P_TOPIC: "wearables/w-1/g",
    }


def test_the_full_envelope_says_it_all() -> None:
    assert contract.full_envelope(properties_of(message(qos=0, dup=True))) == {
        contract.P_INGEST: INGEST,
        contract.P_VERSION: "1",
        contract.P_LINK: "pulsebridge",
        contract.P_PROTOCOL: "5",
        contract.P_TOPIC: "wearables/w-1/g",
        contract.P_QOS: "0",
        contract.P_RETAIN: "0",
        contract.P_DUP: "1",
        contract.P_RULE: "wearables",
        contract.P_DEVICE: "w-1",
        contract.P_COMMAND_TOPIC: "devices/w-1/commands",
    }
    assert contract.P_RULE not in contract.full_envelope(properties_of(message(), None))
    assert contract.full_envelope({"a": "b"}) == {"a": "b"}


@settings(deadline=None, max_examples=100)
@given(
    st.builds(Route, text, text, text, st.none() | text, st.none() | text) | st.none(),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)
def test_a_full_envelope_folds_to_what_was_stored(route: Route | None, qos: int, retain: bool, dup: bool) -> None:
    kept = properties_of(message(qos=qos, retain=retain, dup=dup), route)
    assert contract.folded_envelope(contract.full_envelope(kept)) == kept
    assert contract.folded_envelope({"a": "b"}) == {"a": "b"}


@pytest.mark.parametrize("text", ["", "1", "{}", '{"v":"2"}', "[1]"])
def test_an_envelope_of_another_version_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        contract.full_envelope({contract.P_INGEST: text})


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(text, text), max_size=5), st.binary(max_size=50), text, text)
def test_mqtt_5_properties_come_back_unchanged(
    user: list[tuple[str, str]], correlation: bytes, content_type: str, response: str
) -> None:
    properties = PublishProperties(tuple(user), content_type, response, correlation, 1, 60)
    kept = properties_of(message(properties=properties))
    assert contract.decode_user_properties(kept.get(contract.P_USER, "[]")) == user
    assert contract.decode_correlation(kept[contract.P_CORRELATION]) == correlation
    assert (kept[contract.P_CONTENT_TYPE], kept[contract.P_RESPONSE_TOPIC]) == (content_type, response)
    assert (kept[contract.P_PAYLOAD_FORMAT], kept[contract.P_EXPIRY]) == ("1", "60")
    assert message_of(b"x", kept) == message(mid=0, properties=properties)


def test_absent_and_empty_properties_differ() -> None:
    kept = properties_of(message(properties=PublishProperties(content_type="", correlation_data=b"")))
    assert kept[contract.P_CONTENT_TYPE] == ""
    assert kept[contract.P_CORRELATION] == ""
    assert contract.P_RESPONSE_TOPIC not in kept


def test_a_replayed_retained_message_is_marked() -> None:
    assert properties_of(message(retain=True))[contract.P_RETAINED] == "1"
    assert contract.P_RETAINED not in properties_of(message(retain=True), mark=False)
    assert properties_of(message(retain=True), mark=False)[contract.P_RETAIN] == "1"


def test_a_topic_that_is_not_utf8_is_stored_with_its_bytes() -> None:
    assert properties_of(message(topic="a/\udcff"), None)[contract.P_TOPIC] == r"a/\xff"
    assert properties_of(message(topic="a/\ud800"), None)[contract.P_TOPIC] == r"a/\ud800"


@pytest.mark.parametrize(("given", "kept"), [("\udcff", r"\xff"), ("a\ud800", r"a\ud800")])
def test_user_properties_that_are_not_utf8_are_stored_with_their_bytes_and_read_back(given: str, kept: str) -> None:
    stored = properties_of(message(properties=PublishProperties(user=((given, given), ("b", "c")))))
    again = message_of(b"", stored).properties
    assert again is not None
    assert again.user == ((kept, kept), ("b", "c"))


def test_push_s_own_publishes_are_known() -> None:
    assert from_push(PublishProperties(user=(("a", "b"), (contract.ORIGIN_PROPERTY, "push"))))
    assert not from_push(PublishProperties(user=(("a", "b"),)))
    assert not from_push(None)


@settings(deadline=None, max_examples=100)
@given(text, st.dictionaries(text, text.map(lambda t: t * 60), max_size=5))
def test_h1_the_counted_size_of_key_and_properties_is_never_below_theirs(key: str, properties: dict[str, str]) -> None:
    exact = len(key.encode()) + sum(len(n.encode()) + len(v.encode()) for n, v in properties.items())
    assert exact <= len(head_of(key, properties)) <= exact + 20 * (1 + len(properties))
