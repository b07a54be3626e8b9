"""HTTP requests become messages: valid fields arrive unchanged, all else is refused with a text, nothing raises."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.http.requests import InvalidRequestError, message_of
from bridge.mqtt.types import Message, PublishProperties

Headers = list[tuple[bytes, bytes]]

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)
TOPICS = TEXTS.filter(lambda t: t != "" and not t.startswith("$") and "+" not in t and "#" not in t)


def message(path: str | bytes, query: str = "", headers: Headers | None = None) -> Message:
    return message_of(path.encode() if isinstance(path, str) else path, query.encode(), headers or [])


def refusal(path: str | bytes, query: str = "", headers: Headers | None = None) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        message(path, query, headers)
    return str(caught.value)


@given(topic=TOPICS, every=st.booleans())
def test_any_topic_comes_through_percent_encoded_once(topic: str, every: bool) -> None:
    path = "".join(f"%{b:02X}" for b in topic.encode()) if every else quote(topic, safe="/")
    assert message(f"/topics/{path}").topic == topic


def test_a_topic_is_decoded_once_and_plus_is_no_space() -> None:
    assert message("/topics/a%252Fb").topic == "a%2Fb"
    assert message("/topics/a%2Fb//c%20d/").topic == "a/b//c d/"
    assert "wildcard" in refusal("/topics/a+b")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/topics/", "the topic is empty"),
        ("/topics/a/%23", "wildcard"),
        ("/topics/a/%2B/b", "wildcard"),
        ("/topics/%24SYS/x", "must not begin with '$'"),
        ("/topics/a%00b", "U+0000"),
        ("/topics/%FF", "not UTF-8"),
        ("/topics/" + "x" * 65_536, "65536 bytes, MQTT allows 65535"),
    ],
)
def test_topics_that_are_invalid_for_a_publish_are_refused(path: str, why: str) -> None:
    assert why in refusal(path)


def test_without_anything_beside_it_is_qos_1_and_has_no_properties() -> None:
    assert message("/topics/a") == Message("a", b"", 1, False, False, 0, None)
    assert message("/topics/a", "qos=0&retain=false").qos == 0


def test_headers_become_properties_with_repeats_in_order() -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"mqtt-user-property", b"b=1"),
        (b"mqtt-user-property", b"a%3D=x%20%C3%A9"),
        (b"mqtt-user-property", b"b=3"),
        (b"mqtt-response-topic", b"answers/\xc3\xa9"),
        (b"mqtt-correlation-data", base64.b64encode(b"\x00\xff")),
        (b"mqtt-message-expiry", b"600"),
        (b"mqtt-payload-format", b"1"),
    ]
    assert message("/topics/a", headers=headers).properties == PublishProperties(
        (("b", "1"), ("a=", "x é"), ("b", "3")), "application/json", "answers/é", b"\x00\xff", 1, 600
    )


@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), max_size=5), data=st.binary(max_size=50))
def test_what_is_sent_as_aws_does_arrives_alike(pairs: list[tuple[str, str]], data: bytes) -> None:
    headers = [
        (b"x-amz-mqtt5-user-properties", base64.b64encode(json.dumps([{n: v} for n, v in pairs]).encode())),
        (b"x-amz-mqtt5-correlation-data", base64.b64encode(data)),
        (b"x-amz-mqtt5-payload-format-indicator", b"UTF8_DATA"),
    ]
    query = "qos=1&contentType=text%2Fplain&responseTopic=r%2Ft&messageExpiry=5"
    assert message("/topics/a", query, headers).properties == PublishProperties(
        tuple(pairs), "text/plain", "r/t", data, 1, 5
    )


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("qos=2", "qos must be 0 or 1"),
        ("qos=", "qos must be 0 or 1"),
        ("qos=1&qos=1", "given twice"),
        ("retain=true", "keeps no retained messages"),
        ("qso=1", "unknown query parameter 'qso'; did you mean qos?"),
        ("messageExpiry=-1", "below 2^32"),
        ("messageExpiry=4294967296", "below 2^32"),
        ("responseTopic=a%2F%23", "response topic"),
        ("contentType=%FF", "not UTF-8"),
    ],
)
def test_queries_that_say_nothing_are_refused(query: str, why: str) -> None:
    assert why in refusal("/topics/a", query)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ((b"mqtt-user-property", b"novalue"), "name=value"),
        ((b"mqtt-user-property", b"a=%00"), "U+0000"),
        ((b"mqtt-correlation-data", b"!"), "not base64"),
        ((b"mqtt-correlation-data", base64.b64encode(bytes(65_536))), "65536 bytes"),
        ((b"mqtt-correlation-data", "é".encode()), "not base64"),
        ((b"mqtt-payload-format", b"2"), "payload format"),
        ((b"mqtt-userproperty", b"a=b"), "unknown header"),
        ((b"content-type", b"\xff"), "not UTF-8"),
        ((b"x-amz-mqtt5-user-properties", b"bm8="), "JSON array of objects"),
        ((b"x-amz-mqtt5-user-properties", base64.b64encode(b'[{"a": 1}]')), "not a string"),
        ((b"x-amz-mqtt5-user-properties", base64.b64encode(b'[{"a": "\\ud800"}]')), "not UTF-8"),
        ((b"x-amz-mqtt5-user-properties", base64.b64encode(b"[" * 50_000)), "JSON array of objects"),
    ],
)
def test_headers_that_say_nothing_are_refused(header: tuple[bytes, bytes], why: str) -> None:
    assert why in refusal("/topics/a", headers=[header])


def test_a_header_given_twice_is_refused() -> None:
    assert "given twice" in refusal("/topics/a", headers=[(b"content-type", b"a"), (b"content-type", b"b")])


NAMES = st.sampled_from(
    [
        *(
            b"content-type",
            b"mqtt-user-property",
            b"mqtt-correlation-data",
            b"mqtt-response-topic",
            b"mqtt-x",
        ),
        *(b"mqtt-message-expiry", b"x-amz-mqtt5-user-properties", b"x-amz-mqtt5-payload-format-indicator"),
    ]
)


@given(
    path=st.binary(max_size=60),
    query=st.binary(max_size=60),
    headers=st.lists(st.tuples(NAMES | st.binary(max_size=20), st.binary(max_size=60)), max_size=4),
)
def test_any_bytes_give_a_message_that_mqtt_could_carry_or_a_reason(
    path: bytes, query: bytes, headers: Headers
) -> None:
    found, why = None, ""
    try:
        found = message_of(b"/topics/" + path, query, headers)
    except InvalidRequestError as e:
        why = str(e)
    if found is None:
        assert why
        return
    assert 0 < len(found.topic.encode()) <= 65_535
    assert not set("+#\0") & set(found.topic)
    if found.properties is not None:
        texts = [t for pair in found.properties.user for t in pair]
        texts += [t for t in (found.properties.content_type, found.properties.response_topic) if t is not None]
        for text in texts:
            assert "\0" not in text
            text.encode()
