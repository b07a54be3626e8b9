"""Options: names without case, all problems at once, the nearest name for a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from bridge.contract import SOURCE_COLUMNS, Position
from bridge.errors import ConfigError
from bridge.settings.pulsar import PulsarSettings
from sources.options import OPTIONS, connection_options, parse
from sources.planning import Limits

BASE = {"service.url": "pulsar://h:6650", "admin.url": "http://h:8080", "topic": "persistent://a/b/t"}
STREAM = BASE | {"predefinedSubscription": "s"}


def test_names_compare_without_case_and_defaults_are_safe() -> None:
    options = parse({name.upper(): value for name, value in STREAM.items()}, streaming=True)
    assert options.topics == ("persistent://a/b/t",)
    assert options.subscription == "s"
    assert options.fail_on_data_loss is True
    assert options.limits == Limits()
    assert options.starting.default == "latest"
    assert options.columns == tuple(name for name, _ in SOURCE_COLUMNS)
    assert parse(BASE, streaming=False).starting.default == "earliest"


def test_all_problems_are_listed_at_once_with_the_nearest_name() -> None:
    wrong = {
        "service.url": "http://h", "topic": "non-persistent://a/b/t", "startingOfset": "earliest",
        "maxRowsPerTrigger": "0", "failOnDataLoss": "maybe", "endingOffsets": "latest", "columns": "valeu",
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        parse(wrong, streaming=True)
    text = str(caught.value)
    for part in (
        "service.url='http://h' does not begin with pulsar://", "admin.url is required", "keeps nothing to replay",
        "did you mean startingOffsets?", "maxRowsPerTrigger='0' is below 1", "failOnDataLoss='maybe'",
        "endingOffsets: a streaming query has no end", "predefinedSubscription is required", "did you mean value?",
    ):  # fmt: skip
        assert part in text, part


def test_what_comes_later_is_refused_with_what_to_use() -> None:
    with pytest.raises(ConfigError, match=r"topicspattern is not supported: name the topics with `topics`"):
        parse({k: v for k, v in STREAM.items() if k != "topic"} | {"topicsPattern": "a.*"}, streaming=True)


def test_starting_offsets_as_json_name_partitions_or_topics_and_the_rest_is_read_whole() -> None:
    text = json.dumps({"persistent://a/b/t-partition-0": [7, 3], "persistent://a/b/u": "latest"})
    starting = parse(STREAM | {"startingOffsets": text}, streaming=True).starting
    assert starting.places == {
        "persistent://a/b/t-partition-0": Position(7, 3),
        "persistent://a/b/u": "latest",
    }
    assert starting.default == "earliest"
    copied = json.dumps({"v": 1, "cluster": "c", "t": {"persistent://a/b/t-partition-0": [7, 3]}, "i": {}})
    assert parse(STREAM | {"startingOffsets": copied}, streaming=True).starting.places == {
        "persistent://a/b/t-partition-0": Position(7, 3)
    }
    for wrong in ("[1]", '{"t": [1]}', "soon"):
        with pytest.raises(ConfigError, match="give earliest, latest, or JSON"):
            parse(STREAM | {"startingOffsets": wrong}, streaming=True)


def test_a_time_and_an_offset_exclude_each_other() -> None:
    assert parse(STREAM | {"startingTime": "5"}, streaming=True).starting.time_ms == 5
    with pytest.raises(ConfigError, match="give one of them"):
        parse(STREAM | {"startingTime": "5", "startingOffsets": "latest"}, streaming=True)


def test_topics_are_a_list_of_full_or_short_names() -> None:
    options = parse(
        {k: v for k, v in BASE.items() if k != "topic"} | {"topics": "t, persistent://a/b/u,t"},
        streaming=False,
    )
    assert options.topics == ("persistent://public/default/t", "persistent://a/b/u")
    with pytest.raises(ConfigError, match="exactly one of topic and topics"):
        parse(BASE | {"topics": "u"}, streaming=False)


@pytest.mark.parametrize(
    "given",
    [
        {"pulsar.client.token": "tok"},
        {
            "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "pulsar.client.authParams": "token:tok",
        },
    ],
)
def test_the_token_stays_out_of_sight(given: dict[str, str]) -> None:
    options = parse(STREAM | given, streaming=True)
    assert options.pulsar.token == SecretStr("tok")
    assert "tok" not in repr(options).replace("token", "")


def test_tls_by_the_java_plug_in_name() -> None:
    options = parse(
        STREAM
        | {
            "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationTls",
            "pulsar.client.authParams": "tlsCertFile:/c.pem,tlsKeyFile:/k.pem",
            "pulsar.client.tlsTrustCertsFilePath": "/ca.pem",
        },
        streaming=True,
    )
    assert (options.pulsar.tls_certificate, options.pulsar.tls_private_key) == (
        Path("/c.pem"),
        Path("/k.pem"),
    )
    with pytest.raises(
        ConfigError, match=r"authPluginClassName='x\.Y' with these authParams is not supported"
    ):
        parse(STREAM | {"pulsar.client.authPluginClassName": "x.Y"}, streaming=True)


def test_settings_become_options_that_say_the_same() -> None:
    settings = PulsarSettings(
        service_url="pulsar+ssl://h:6651", admin_url="https://h:8443", token=SecretStr("t"), tls_ca=Path("/ca"),
        tls_certificate=Path("/c"), tls_private_key=Path("/k"), tls_validate_hostname=False,
    )  # fmt: skip
    options = connection_options(settings)
    assert set(options) <= set(OPTIONS)
    assert parse(options | {"topic": "t"}, streaming=False).pulsar == settings
