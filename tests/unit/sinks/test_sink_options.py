"""The options of the sinks: names without case, all problems at once, the nearest name, secrets out of sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.errors import ConfigError
from sinks.option_names import NO_EFFECT
from sinks.options import read_mqtt_options, read_options, read_topic_options

URL = {"service.url": "pulsar://p:1"}


def test_options_compare_without_case_and_map_to_settings() -> None:
    options = read_options(
        {"SERVICE.URL": "pulsar://p:1", "admin.url": "http://p:2", "System.Namespace": "s", "tenant": "t",
         "namespace": "n", "partitions": "3", "pulsar.client.token": "s3cr3t", "checkpointLocation": "x"}
    )  # fmt: skip
    assert options.pulsar.service_url == "pulsar://p:1"
    assert options.topic == "persistent://t/s/commands"
    assert (options.pulsar.namespace, options.pulsar.command_partitions) == ("n", 3)
    assert "s3cr3t" not in repr(options)


def test_commands_go_to_no_topic_that_push_does_not_read() -> None:
    for name in (
        "commands",
        "persistent://public/pulsebridge-system/commands",
        "public/pulsebridge-system/commands",
    ):
        assert read_options(URL | {"topic": name}).topic == "persistent://public/pulsebridge-system/commands"
    assert read_options(URL | {"topic": "persistent://a/b/commands"}).topic == "persistent://a/b/commands"
    for name in ("comands", "persistent://a/b/c", "commands-partition-0"):
        with pytest.raises(ConfigError, match=f"topic='{name}': push reads only the topic commands; leave topic out"):
            read_options(URL | {"topic": name})
    with pytest.raises(ConfigError, match="non-persistent topic keeps nothing"):
        read_options(URL | {"topic": "non-persistent://a/b/commands"})


def test_every_problem_of_the_options_is_listed_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as e:
        read_options(
            {"servce.url": "x", "provision": "maybe", "sendTimeoutMs": "0", "pulsar.client.authParams": "y",
             "badRows": "skip"}
        )  # fmt: skip
    for part in (
        "options of pulsebridge_commands: ", "did you mean service.url?", "service.url is required",
        "provision='maybe' is neither true nor false", "sendTimeoutMs='0' is below 1",
        "give pulsar.client.authPluginClassName with it", "badRows='skip': give deadletter or fail",
    ):  # fmt: skip
        assert part in str(e.value), part


def test_a_topic_sink_takes_the_names_of_streamnatives_connector() -> None:
    options = read_topic_options(
        URL | dict.fromkeys(NO_EFFECT, "7") | {"topic": "t", "pulsar.producer.chunkingEnabled": "true"}
    )
    assert options.topic == "persistent://public/default/t"
    assert (options.target.batching, options.target.chunking) == (False, True)
    assert read_topic_options(URL).topic is None
    with pytest.raises(ConfigError) as e:
        read_topic_options(
            URL | {"topic": "non-persistent://a/b/c", "pulsar.producer.chunkingEnable": "true", "keyEncoding": "hex",
                   "pulsar.producer.batchingEnabled": "true", "PULSAR.producer.chunkingEnabled": "true"}
        )  # fmt: skip
    for part in (
        "a non-persistent topic keeps nothing", "did you mean pulsar.producer.chunkingEnabled?", "keyEncoding='hex'",
        "a batch cannot be chunked",
    ):  # fmt: skip
        assert part in str(e.value), part


def test_the_settings_of_the_broker_are_options_under_their_own_names(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cr3t\n", encoding="utf-8")
    given = {
        "mqtt.host": "h",
        "mqtt.port": "1884",
        "mqtt.protocol": "3.1.1",
        "mqtt.username": "u",
        "topic": "a/b",
    }
    options = read_mqtt_options(given | {"mqtt.password_file": str(file), "allowLoopback": "true"})
    assert (options.mqtt.host, options.mqtt.port, options.mqtt.protocol) == ("h", 1884, "3.1.1")
    assert options.mqtt.credentials() == ("u", "s3cr3t")
    assert options.allow_loopback
    assert "s3cr3t" not in repr(read_mqtt_options(given | {"mqtt.password": "s3cr3t"}))
    with pytest.raises(ConfigError) as e:
        read_mqtt_options(
            {"mqtt.prt": "1", "mqtt.port": "x", "mqtt.password": "p", "topic": "a/#", "window": "0",
             "mqtt.password_file": str(tmp_path / "none")}
        )  # fmt: skip
    for part in (
        "did you mean mqtt.port?", "mqtt.port: Input should be a valid integer", "topic is 'a/#'", "window='0' is below 1",
        "set one of them", "mqtt.password_file: ",
    ):  # fmt: skip
        assert part in str(e.value), part
