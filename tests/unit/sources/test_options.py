"""Options: names without case, all problems at once, the nearest name for a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from bridge.contract import SOURCE_COLUMNS, Position
from bridge.errors import ConfigError
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import SecretFile
from bridge.spark.java_authentication import TOKEN_CLASS
from sources.option_names import ALIASES, INSTEAD, NO_EFFECT, ONLY, REFUSED, SAME_AS_CLIENT
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


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("15 m", 900.0), ("1h", 3600.0), ("250ms", 0.25), ("1500", 1.5)]
)
def test_a_delay_is_written_as_sparks_own_times(text: str, seconds: float) -> None:
    limits = parse(STREAM | {"minRowsPerTrigger": "5", "maxTriggerDelay": text}, streaming=True).limits
    assert limits == Limits(least_rows=5, delay_s=seconds)


def test_a_least_that_cannot_be_reached_and_a_delay_that_is_no_time_are_refused() -> None:
    wrong = {"minRowsPerTrigger": "5", "maxRowsPerTrigger": "4", "maxTriggerDelay": "soon"}
    with pytest.raises(ConfigError, match=r"'soon' is not a valid time.*minRowsPerTrigger is above"):
        parse(STREAM | wrong, streaming=True)


def test_starting_offsets_as_json_name_partitions_or_topics_and_the_rest_is_read_whole() -> None:
    text = json.dumps({"persistent://a/b/t-partition-0": [7, 3], "persistent://a/b/u": "latest"})
    two = {name: value for name, value in STREAM.items() if name != "topic"}
    two["topics"] = "persistent://a/b/t,persistent://a/b/u"
    starting = parse(two | {"startingOffsets": text}, streaming=True).starting
    assert starting.bounds == {
        "persistent://a/b/t-partition-0": Position(7, 3),
        "persistent://a/b/u": "latest",
    }
    assert starting.default == "earliest"
    copied = json.dumps({"v": 1, "cluster": "c", "t": {"persistent://a/b/t-partition-0": [7, 3]}, "i": {}})
    assert parse(STREAM | {"startingOffsets": copied}, streaming=True).starting.bounds == {
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
    with pytest.raises(ConfigError, match="exactly one of topic, topics and topicsPattern"):
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
    with pytest.raises(ConfigError, match=r"authPluginClassName='x\.Y' is not supported"):
        parse(STREAM | {"pulsar.client.authPluginClassName": "x.Y"}, streaming=True)


def test_settings_become_options_that_say_the_same() -> None:
    settings = PulsarSettings(
        service_url="pulsar+ssl://h:6651", admin_url="https://h:8443", token=SecretStr("t"), tls_ca=Path("/ca"),
        tls_certificate=Path("/c"), tls_private_key=Path("/k"), tls_validate_hostname=False,
    )  # fmt: skip
    options = connection_options(settings)
    assert set(options) <= set(OPTIONS)
    assert parse(options | {"topic": "t"}, streaming=False).pulsar == settings


def test_the_admin_url_has_a_default() -> None:
    def admin(service: str) -> str:
        given = {"service.url": service, "topic": "t"}
        return parse(given, streaming=False).pulsar.admin_url

    assert admin("pulsar://a.example:6650,b.example:6650") == "http://a.example:8080,b.example:8080"
    assert admin("pulsar+ssl://[::1]:6651") == "https://[::1]:8443"
    assert parse(BASE, streaming=False).pulsar.admin_url == "http://h:8080"


def test_names_of_other_connectors_are_taken_explained_or_refused_with_what_to_give() -> None:
    options = parse(
        BASE | {
            "pollTimeoutMs": "6000", "subscriptionPrefix": "mine", "pulsar.reader.receiverQueueSize": "10",
            "pulsar.client.tlsAllowInsecureConnection": "FALSE", "pulsar.client.numIoThreads": "2",
            "pulsar.producer.blockIfQueueFull": "true", "allowDifferentTopicSchemas": "true",
        },
        streaming=True,
    )  # fmt: skip
    assert (options.read_idle_timeout_ms, options.subscription) == (6000, "mine")
    assert [note.partition(" ")[0] for note in options.notes] == [
        "pulsar.reader.receiverqueuesize", "pulsar.client.numiothreads", "pulsar.producer.blockifqueuefull",
    ]  # fmt: skip
    wrong = {
        "subscribe": "t", "kafka.security.protocol": "SSL", "pulsar.client.tlsTrustStorePath": "/x",
        "pulsar.client.tlsAllowInsecureConnection": "true", "pulsar.reader.readCompacted": "true",
        "pulsar.client.useTls": "true", "pollTimoutMs": "5", "decode": "avro", "maxOffsetsPerTrigger": "5",
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        parse(BASE | wrong, streaming=False)
    for part in (
        "option subscribe is Kafka's: give topics", "kafka.security.protocol is Kafka's", "export the store",
        "certificates are always checked", "keep the newest of a key", "give service.url as pulsar+ssl://",
        "did you mean pollTimeoutMs?", "decode='avro': give none, value or fields", "give maxRowsPerTrigger",
    ):  # fmt: skip
        assert part in str(caught.value), part


def test_every_name_means_one_thing() -> None:
    tables = (OPTIONS, ALIASES, INSTEAD, NO_EFFECT, ONLY, REFUSED)
    names = [name.lower() for table in tables for name in table]
    assert len(names) == len(set(names))
    assert set(ALIASES.values()) <= set(OPTIONS)
    assert not {f"pulsar.admin.{name}" for name in SAME_AS_CLIENT} & set(names)


def test_the_admins_credentials_apply_to_both_or_are_equal() -> None:
    admin = {
        "pulsar.admin.authPluginClassName": "AuthenticationToken",
        "pulsar.admin.authParams": "token:one",
    }
    assert parse(BASE | admin, streaming=False).pulsar.token == SecretStr("one")
    client = {name.replace("admin", "client"): value for name, value in admin.items()}
    assert parse(BASE | admin | client, streaming=False).pulsar.token == SecretStr("one")
    with pytest.raises(ConfigError, match="one identity serves both URLs") as caught:
        parse(BASE | admin | client | {"pulsar.client.authParams": "token:other"}, streaming=False)
    assert not {"one;", "other"} & set(str(caught.value).split())


@pytest.mark.parametrize("params", ["token:tok", "tok", '{"token": "tok"}'])
def test_a_token_is_given_as_the_java_plug_in_takes_it(params: str) -> None:
    given = {"pulsar.client.authPluginClassName": TOKEN_CLASS, "pulsar.client.authParams": params}
    assert parse(BASE | given, streaming=False).pulsar.token == SecretStr("tok")


def test_other_plug_ins_are_refused_with_what_to_give_and_no_secret() -> None:
    for plugin, remedy in (
        ("org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2", "password is not supported: give issuerUrl"),
        ("org.apache.pulsar.client.impl.auth.AuthenticationKeyStoreTls", "export the key store"),
        ("org.apache.pulsar.client.impl.auth.AuthenticationBasic", "belong together"),
    ):
        given = {
            "pulsar.client.authPluginClassName": plugin,
            "pulsar.client.authParams": '{"password":"s3cret"}',
        }
        with pytest.raises(ConfigError, match=remedy) as caught:
            parse(BASE | given, streaming=False)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="has no token"):
        parse(BASE | {"pulsar.client.authPluginClassName": TOKEN_CLASS}, streaming=False)
    disabled = {"pulsar.client.authPluginClassName": TOKEN_CLASS.replace("Token", "Disabled")}
    assert parse(BASE | disabled, streaming=False).pulsar.token is None


@pytest.mark.parametrize(
    ("plugin", "params", "settings"),
    [
        ("AuthenticationBasic", {"userId": "u", "password": "p"}, {"username": "u", "password": "p"}),
        ("AuthenticationBasic", {"username": "u", "passwordFile": "FILE"}, {"username": "u", "password": "FILE"}),
        (
            "oauth2.AuthenticationOAuth2",
            {"type": "client_credentials", "issuerUrl": "https://i", "privateKey": "file://FILE", "audience": "a",
             "scope": "s", "readTimeout": "PT5S"},
            {"issuer_url": "https://i", "key": "FILE", "audience": "a", "scope": "s"},
        ),
        (
            "oauth2.AuthenticationOAuth2",
            {"issuerUrl": "https://i", "privateKey": "data:application/json;base64,eyJhIjogMX0=",
             "trustCertsFilePath": "/ca"},
            {"issuer_url": "https://i", "key": '{"a": 1}', "tls_ca": "/ca"},
        ),
        (
            "oauth2.AuthenticationOAuth2",
            {"issuer_url": "https://i", "client_id": "c", "clientSecretFile": "FILE"},
            {"issuer_url": "https://i", "client_id": "c", "client_secret": "FILE"},
        ),
    ],
)  # fmt: skip
def test_a_user_and_oauth2_are_given_as_the_java_plug_ins_take_them_and_become_the_same_options(
    plugin: str, params: dict[str, str], settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("of the file", encoding="utf-8")
    given = {
        "pulsar.client.authPluginClassName": f"org.apache.pulsar.client.impl.auth.{plugin}",
        "pulsar.client.authParams": json.dumps(params).replace("FILE", str(file)),
    }
    identity = {name: SecretFile(file) if value == "FILE" else value for name, value in settings.items()}
    expected = PulsarSettings(
        service_url="pulsar://h:6650",
        admin_url="http://h:8080",
        **(identity if "username" in identity else {"oauth2": identity}),  # type: ignore[arg-type]
    )
    assert parse(BASE | given, streaming=False).pulsar == expected
    options = connection_options(expected)
    assert set(options) <= set(OPTIONS)
    assert parse(options | {"topic": "t"}, streaming=False).pulsar == expected
    assert "of the file" not in str(options)


def test_an_url_with_a_password_is_shown_without_it() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BASE | {"service.url": "http://me:s3cret@h:6650"}, streaming=False)
    assert "http://h:6650" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_offsets_for_topics_that_are_not_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="that the query does not read: persistent://a/b/other"):
        parse(BASE | {"startingOffsets": '{"persistent://a/b/other": [1, 2]}'}, streaming=False)


def test_an_end_by_time_belongs_to_batch_queries_and_lies_after_the_start() -> None:
    options = parse(BASE | {"startingTime": "5", "endingTime": "9"}, streaming=False)
    assert (options.starting.time_ms, options.ending.time_ms) == (5, 9)
    with pytest.raises(ConfigError, match="endingTime is before startingTime"):
        parse(BASE | {"startingTime": "9", "endingTime": "5"}, streaming=False)
    with pytest.raises(ConfigError, match="endingTime: a streaming query has no end"):
        parse(STREAM | {"endingTime": "5"}, streaming=True)
    with pytest.raises(ConfigError, match="endingTime and endingOffsets: give one of them"):
        parse(BASE | {"endingTime": "5", "endingOffsets": "latest"}, streaming=False)
