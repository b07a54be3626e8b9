"""What ``import pulsebridge`` gives without servers: settings, records, and the topic of commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsebridge as pb
from bridge.errors import ConfigError
from pulsebridge.connection import Connection, Records


def routes(*given: dict[str, str]) -> Connection:
    named = [{"name": f"r{n}", "topic": "plant", **route} for n, route in enumerate(given)]
    return pb.connect(settings={"ingest.routes": named})


def test_the_import_is_lazy() -> None:
    script = (
        "import sys, pulsebridge; print([m for m in ('pyspark', 'pydantic', 'pulsar', 'yaml') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert found.stdout == "[]\n"


def test_connect_finds_its_settings_as_the_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mqtt: {host: broker.example}\npulsar: {namespace: hall}\n", encoding="utf-8")
    monkeypatch.setenv("PULSEBRIDGE_CONFIG", str(file))
    monkeypatch.setenv("PULSEBRIDGE_MQTT__PORT", "1999")
    shown = repr(pb.connect())
    assert "broker.example:1999" in shown
    assert "public/hall" in shown
    assert "public/lab" in pb.connect(settings={"pulsar.namespace": "lab"})._repr_html_()
    with pytest.raises(ConfigError, match=r"mqtt\.port"):
        pb.connect(settings={"mqtt.port": "abc"})


@pytest.mark.parametrize(
    ("route", "topic"),
    [
        ({"filter": "plant/+device/+m", "device": "{device}", "command_topic": "to/{device}/x"}, "to/{device}/x"),
        ({"filter": "plant/+line/+n", "device": "{line}/{n}", "command_topic": "to/{device}"}, "to/{device}"),
        ({"filter": "plant/+line/+n", "device": "{line}/{n}", "command_topic": "to/{line}/{n}"}, "to/{device}"),
    ],
)
def test_the_routes_name_the_topic_of_commands(route: dict[str, str], topic: str) -> None:
    assert routes(route).command_topic() == topic


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "needs more than the device: none"),
        (
            [{"filter": "a/+device/+m", "device": "{device}", "command_topic": "to/{device}/{m}"}],
            r"to/\{device\}/\{m\}",
        ),
        (
            [
                {"filter": "a/+device", "device": "a-{device}", "topic": "a", "command_topic": "x/{device}"},
                {"filter": "b/+device", "device": "{device}", "topic": "b", "command_topic": "y/{device}"},
            ],
            r"x/\{device\}, y/\{device\}",
        ),
    ],
)
def test_an_unclear_topic_of_commands_is_an_error(given: list[dict[str, str]], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        routes(*given).command_topic()


@pytest.mark.parametrize(
    ("arguments", "fields", "named"),
    [
        (("press-3", "on"), {"expire_in": "2h"}, "expire_in: is not a field"),
        (("press-3", "on"), {"retain": "false"}, 'retain: is "false", wanted true or false'),
        (("press-3", "on"), {"command_id": 7}, "command_id: is 7, wanted text"),
        (("press-3", "on"), {"expires_in": "soon"}, "expires_in: is 'soon'"),
        (("press-3", "on"), {"group": "presses"}, "give one of them"),
        (("press-3", {"at": {1, 2}}), {}, "cannot become JSON: Object of type set"),
        (("press-3", float("nan")), {}, "cannot become JSON: Out of range float"),
        ((["press-3"],), {}, "takes the name of a device or a DataFrame of Spark, not list"),
        ((["press-3"], "on"), {}, "takes the name of a device or a DataFrame of Spark, not list"),
        ((None, "on"), {}, "takes the name of a device or a DataFrame of Spark, not NoneType"),
        ((SimpleNamespace(isStreaming=False), "on"), {}, "make them columns"),
    ],
)
def test_a_command_that_cannot_be_sent_is_one_line_before_anything_is_asked(
    arguments: tuple[Any, ...], fields: dict[str, Any], named: str
) -> None:
    bridge = pb.connect(settings={"pulsar.service_url": "pulsar://127.0.0.1:1"})
    with pytest.raises(ConfigError) as failed:
        bridge.send(*arguments, topic="to/x" if arguments[0] == "press-3" else None, **fields)
    assert named in str(failed.value)


@pytest.mark.parametrize("asked", ["receipts()", "read('plant')", "table('readings')"])
def test_a_missing_pyspark_is_one_line_with_its_extra(asked: str) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\nimport pulsebridge as pb\n"
        "from bridge.errors import MissingExtraError\n"
        f"try:\n    pb.connect().{asked}\nexcept MissingExtraError as e:\n    print(e)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'pulsebridge[local" in shown


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.none() | st.integers(), max_size=4)))
def test_records_are_a_sequence_that_shows_itself(records: list[dict[str, object]]) -> None:
    found = Records(records)
    assert list(found) == records
    assert len(found.to_pandas()) == len(records)
    assert repr(found)
    assert found[:2] is not found
    assert len(found[:2]) == min(2, len(records))


def test_the_text_of_devices_is_escaped_in_a_notebook() -> None:
    shown = Records([{"<b>": "<script>alert(1)</script>", "n": None}])._repr_html_()
    assert "<script>" not in shown
    assert "&lt;b&gt;" in shown
    assert "None" not in shown
