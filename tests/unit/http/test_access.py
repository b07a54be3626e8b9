"""Credentials and their topics, and requests that a web page can make a browser send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.http.access import (
    Filters,
    Tokens,
    allows,
    certificate_filters,
    certificate_names,
    host_problem,
    page_problem,
)
from bridge.routing.templates import Filter
from bridge.settings.http import CertificateTopics, HttpSettings


def filters(*texts: str) -> Filters:
    return tuple(Filter.parse(text) for text in texts)


def shown(found: Filters | None) -> list[str] | None:
    return None if found is None else [one.mqtt for one in found]


@pytest.mark.parametrize(
    ("authorization", "topics"),
    [
        ([b"Bearer two"], ["b/#"]),
        ([b"bearer  one "], ["#"]),
        ([b"Bearer three"], None),
        ([b"Bearer "], None),
        ([b"Basic two"], None),
        ([b"two"], None),
        ([], None),
        ([b"Bearer one", b"Bearer one"], None),
        ([b"Bearer \xff"], None),
    ],
)
def test_a_token_has_its_topics(authorization: list[bytes], topics: list[str] | None) -> None:
    tokens = Tokens({"one": filters("#"), "two": filters("b/#")})
    assert shown(tokens.filters(authorization)) == topics


@pytest.mark.parametrize(
    ("topic", "ok"),
    [
        ("plant/7", True),
        ("plant/7/a/b", True),
        ("plant/70", False),
        ("plant", False),
        ("site/x/state", True),
        ("site/x/y/state", False),
        ("site//state", True),
    ],
)
def test_a_credential_is_valid_for_the_topics_that_its_filters_match(topic: str, ok: bool) -> None:
    assert allows(filters("plant/7/#", "site/+/state"), topic) is ok


CERTIFICATE = {
    "subject": ((("organizationName", "plant"),), (("commonName", "device-7"),)),
    "subjectAltName": (
        ("DNS", "device-7"),
        ("DNS", "d7.example"),
        ("IP Address", "10.0.0.7"),
        ("URI", "urn:d7"),
    ),
}
ENTRIES = (
    CertificateTopics(name="d7.example", topics=("gateways/#", "devices/{name}/#")),
    CertificateTopics(topics=("devices/{name}/#",)),
)


def test_a_certificate_is_valid_for_the_topics_of_the_first_matching_entry() -> None:
    names = certificate_names(CERTIFICATE)
    assert names == ("device-7", "d7.example", "urn:d7")
    assert shown(certificate_filters(names, ENTRIES, 1024)) == [
        "gateways/#",
        *(f"devices/{name}/#" for name in names),
    ]
    assert shown(certificate_filters(["other"], ENTRIES, 1024)) == ["devices/other/#"]
    assert shown(certificate_filters(["other"], ENTRIES[:1], 1024)) == []


@given(name=st.text(max_size=20) | st.sampled_from(["#", "+", "a/b", "", "a" * 2000, "+x", "$SYS"]))
def test_the_name_in_a_certificate_is_one_level_and_no_wildcard(name: str) -> None:
    found = certificate_filters([name], ENTRIES[1:], 1024)
    assert not allows(found, "devices/another/x")
    assert all(one.mqtt.startswith("devices/") for one in found)


SETTINGS = HttpSettings(allowed_hosts=("Gateway.example",), allowed_origins=("https://panel.example",))


@pytest.mark.parametrize(
    ("host", "ok"),
    [
        (b"localhost", True),
        (b"LOCALHOST:8090", True),
        (b"localhost.:80", True),
        (b"127.0.0.1:8090", True),
        (b"[::1]:8090", True),
        (b"gateway.example:8090", True),
        (b"evil.example", False),
        (b"localhost.evil.example", False),
        (b"10.0.0.1", False),
        (b"", False),
        (b"\xff", False),
    ],
)
def test_host_must_name_this_server(host: bytes, ok: bool) -> None:
    assert (host_problem([(b"host", host)], SETTINGS) is None) is ok
    assert host_problem([], SETTINGS) is not None


@pytest.mark.parametrize(
    ("headers", "ok"),
    [
        ([], True),
        ([(b"sec-fetch-site", b"none")], True),
        ([(b"sec-fetch-site", b"cross-site")], False),
        ([(b"sec-fetch-site", b"same-site")], False),
        ([(b"origin", b"https://panel.example"), (b"sec-fetch-site", b"cross-site")], True),
        ([(b"origin", b"http://panel.example")], False),
        ([(b"origin", b"null")], False),
        ([(b"origin", b"")], False),
        ([(b"origin", b"https://panel.example"), (b"origin", b"https://evil.example")], False),
    ],
)
def test_a_page_must_have_an_allowed_origin(headers: list[tuple[bytes, bytes]], ok: bool) -> None:
    assert (page_problem(headers, SETTINGS) is None) is ok
