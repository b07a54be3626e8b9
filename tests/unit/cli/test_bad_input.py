"""What users type wrongly: one line that says what, which value, where, and how to fix it."""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer

from pulsebridge.cli import app as cli

ROUTE = "ingest.routes=[{name: a, filter: %s, topic: a}]"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> object:
    """Return a function that runs a command in an empty folder. It returns exit code, stdout and stderr."""
    app = typer.Typer(cls=cli.app.info.cls, invoke_without_command=True, rich_markup_mode=None)
    app.callback()(cli.pulsebridge)
    cli.register_commands(app, entry_points(group=cli.COMMANDS_GROUP))
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["pulsebridge", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["config", "show", "--set", "pulsar.service_url=http://x:8080"], ["pulsar.service_url", "'http://x:8080'", "pulsar://"]),
        (["config", "show", "--set", "mqtt.host=mqtt://broker:1883"], ["mqtt.host", "'mqtt://broker:1883'", "the host alone"]),
        (["config", "show", "--set", "mqtt.host=broker:1883"], ["mqtt.host", "'broker:1883'", "the host alone"]),
        (["config", "show", "--set", ROUTE % "'plant/{device}/x'"], ["ingest.routes", "'plant/{device}/x'", "+name"]),
        (["config", "show", "--set", "messaging_protocols=[mqtt,amqp]"], ["messaging_protocols", "'amqp'", "http, mqtt"]),
        (["config", "show", "--set", "mqtt.tls_ca=/ca.pem"], ["tls_ca", "tls is false", "set tls to true"]),
        (["config", "show", "--set", "ingest.qos=2"], ["ingest.qos", "2", "0 or 1"]),
        (["config", "show", "--set", "mqtt.port=abc"], ["mqtt.port", "'abc'", "a whole number"]),
        (["config", "show", "--set", "ingest.links=hall"], ["ingest.links", "'hall'", "a list"]),
        (["config", "show", "--set", "mqtt.keep_alive=30"], ["mqtt.keep_alive", "30", "unit"]),
        (["config", "show", "--set", "mqtt.keep_alive_s=30s"], ["mqtt.keep_alive_s", "did you mean mqtt.keep_alive?"]),
        (["config", "show", "--set", "log.level=loud"], ["log.level", "'loud'", "'debug'"]),
        (["config", "show", "--set", "mqtt"], ["--set mqtt", "path=value"]),
        (["ingest", "--shard", "4/4"], ["ingest.shard", "'4/4'", "0 to 3"]),
        (["ingest", "--workers", "0"], ["--workers 0", "at least 1"]),
        (["ingest", "--host", "broker"], ["--host", "--set mqtt.host="]),
        (["ingst"], ["'ingst'", "'ingest'"]),
        (["check", "--no-such"], ["--no-such", "`pulsebridge check --help`"]),
        (["devices", "list", "--limit", "x"], ["--limit x", "a whole number"]),
        (["resend", "--state", "foo"], ["--state foo", "expired"]),
        (["resend", "--group", "a"], ["--group a", "--state"]),
        (["resend", "--state", "expired"], ["--state expired", "--device or --group"]),
        (["topics", "explain", ""], ["empty", "plant/7/press/temperature"]),
        (["commands", "send", "--device", "a", "--topic", "t", "--payload", "@/no/such"], ["--payload @/no/such", "No such file"]),
        (["commands", "send", "--device", "a", "--topic", "a/+", "--payload", "x"], ["--topic", "a/+"]),
        (["commands", "send", "--device", "a", "--topic", "t", "--payload", "x", "--expires-in", "1"], ["--expires-in", "'1'", "unit"]),
        (["tables", "rebuild", "gold", "--since", "yesterday"], ["'yesterday'", "ISO 8601"]),
        (["tables", "rebuild", "gold", "--since", "2026-02-01", "--until", "2026-01-01T12:00Z"], ["--until 2026-01-01T12:00Z", "--since 2026-02-01"]),
        (["init", "--mqtt", "mqtt://broker"], ["--mqtt mqtt://broker", "host or host:port"]),
    ],
)  # fmt: skip
def test_a_wrong_input_is_one_line(arguments: list[str], named: list[str], run: object) -> None:
    code, out, err = run(*arguments)  # type: ignore[operator]
    assert code == 2, err
    assert out == ""
    lines = err.rstrip("\n").split("\n")
    assert len(lines) <= 2, err  # settings: a head, and a line for each problem
    assert lines[0].startswith("pulsebridge: ")
    for text in named:
        assert text in err
    for text in ("Traceback", "Value error", "Input should", "validation error", "pydantic"):
        assert text not in err
    value = named[1].strip("'")
    if len(value) > 2 and value in arguments[-1]:
        assert lines[-1].count(value) <= 2


def test_a_key_that_a_file_has_twice_is_refused(run: object, tmp_path: Path) -> None:
    (tmp_path / "pulsebridge.yaml").write_text("mqtt:\n  port: 1\nmqtt:\n  port: 2\n", encoding="utf-8")
    code, _, err = run("config", "show")  # type: ignore[operator]
    assert code == 2
    assert "line 3 has the key 'mqtt' for the second time" in err
    assert "pulsebridge.yaml" in err


def test_one_underscore_instead_of_two_is_refused(run: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSEBRIDGE_MQTT_PORT", "tcp://10.0.0.1:1883")  # as Kubernetes sets it for a service
    assert run("config", "show")[0] == 0  # type: ignore[operator]
    monkeypatch.setenv("PULSEBRIDGE_MQTT_PORT", "1")
    code, _, err = run("config", "show")  # type: ignore[operator]
    assert code == 2
    assert "PULSEBRIDGE_MQTT_PORT" in err
    assert "mqtt.port" in err


def test_an_error_is_json_for_programs(run: object) -> None:
    code, out, err = run("config", "show", "--json", "--set", "mqtt.port=abc")  # type: ignore[operator]
    assert (code, out) == (2, "")
    assert "mqtt.port" in json.loads(err)["error"]


def test_the_bare_command_prints_help_and_the_next_step_to_stdout(run: object) -> None:
    code, out, err = run()  # type: ignore[operator]
    assert (code, err) == (0, "")
    for heading in cli.COMMAND_GROUPS:
        assert f"\n{heading}:\n" in out
    assert "..." not in out.split("Run:")[1], "a summary is cut"
    assert "pulsebridge init" in out


def test_a_group_without_a_command_prints_its_help_to_stdout(run: object) -> None:
    code, out, err = run("devices")  # type: ignore[operator]
    assert (code, err) == (2, "")
    assert "show" in out


def test_a_flow_that_does_not_exist_is_named_before_spark_starts(run: object) -> None:
    code, out, err = run("stream", "--only", "bronz")  # type: ignore[operator]
    assert code == 2
    (line,) = (out + err).rstrip("\n").split("\n")
    assert "no flow is named 'bronz' — flows: bronze, readings" in line
