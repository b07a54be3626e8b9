"""``pulsebridge init`` and ``config export``: the files of a new project are valid, and nothing existing is replaced."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from bridge.errors import ConfigError
from bridge.routing.templates import Filter
from bridge.settings.loading import load_with_origins
from bridge.settings.presets import load_preset, preset_names
from pulsebridge.cli import config, init
from pulsebridge.project import Answers, project_files, write_project
from pulsebridge.topics.proposing import propose
from pulsebridge.topics.tree import TopicTree
from streaming.loading import pipeline_of

APP = typer.Typer()
init.register(APP)
config.register(APP)


def run(*arguments: str) -> str:
    found = CliRunner().invoke(APP, arguments)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize("devices", [*preset_names(), "other"])
def test_the_files_are_a_pipeline_with_a_suite(devices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    output = run(
        "init", str(tmp_path / "p"), "--mqtt", "broker.example:1884", "--devices", devices, "--confirm", "device"
    )
    monkeypatch.chdir(tmp_path / "p")
    settings = load_with_origins(None, environ={}).settings
    assert (settings.mqtt.host, settings.mqtt.port, settings.push.confirm) == ("broker.example", 1884, "device")
    assert settings.ingest.presets == (() if devices == "other" else (devices,))
    tables = () if devices == "other" else load_preset(devices).tables
    table = tables[0].name if tables else "readings"
    pipeline = pipeline_of(settings)
    assert pipeline.tables[table].suite == table
    assert ("hourly" if table == "readings" else f"{table}_hourly") in pipeline.tables
    assert "pulsebridge check" in output
    assert "pulsebridge ingest" in output
    assert "pulsebridge up" in output  # Pulsar is on this machine
    assert settings.local.mqtt_url == "mqtt://broker.example:1884"
    assert settings.local.data_dir == Path("servers"), "of this project alone"


@pytest.mark.parametrize("devices", preset_names())
def test_who_confirms_is_not_asked_for_a_preset_and_device_is_noted(devices: str, tmp_path: Path) -> None:
    assert "note:" not in run("init", str(tmp_path / "a"), "--devices", devices)
    noted = run("init", str(tmp_path / "b"), "--devices", devices, "--confirm", "device")
    assert f"note: devices of {devices} do not answer" in noted


@pytest.mark.parametrize(
    ("devices", "topic", "payload"),
    [
        ("zigbee2mqtt", "zigbee2mqtt/plug/availability", '{"state":"offline"}'),
        ("tasmota", "tele/plug/LWT", "Offline"),
        ("other", "devices/plug/status", "offline"),
    ],
)
def test_the_rule_of_presence_in_the_comment_fits_the_devices(
    devices: str, topic: str, payload: str, tmp_path: Path
) -> None:
    run("init", str(tmp_path), "--devices", devices)
    path = tmp_path / "pulsebridge.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    first = lines.index("  # presence:")
    lines[first : first + 3] = [line.replace("# ", "", 1) for line in lines[first : first + 3]]
    path.write_text("\n".join(lines), encoding="utf-8")
    (rule,) = load_with_origins(path, environ={}).settings.push.presence.rules
    assert Filter.of_settings(rule.filter).match(topic.split("/")) == {"device": "plug"}
    assert payload in rule.absent


def test_a_filter_is_a_route(tmp_path: Path) -> None:
    run("init", str(tmp_path), "--filter", "plant/+device/+metric")
    settings = load_with_origins(tmp_path / "pulsebridge.yaml", environ={}).settings
    (route,) = settings.ingest.routes
    assert (route.name, route.filter, route.device) == ("plant", "plant/+device/+metric", "{device}")
    assert (settings.local.pulsar_port, settings.local.mqtt_port) == (6650, 1883)


def test_what_discover_found_is_in_the_settings(tmp_path: Path) -> None:
    tree = TopicTree()
    for n in range(40):
        tree.add(f"plant/press-{n % 5}/climate", b'{"temperature": 41.5, "pressure": %d}' % n)
    found = propose(tree, {})
    answers = Answers(discovered=found.yaml(), tables=tuple(found.tables))
    write_project(tmp_path, project_files(answers))
    settings = load_with_origins(tmp_path / "pulsebridge.yaml", environ={}).settings
    assert [route.filter for route in settings.ingest.routes] == [route.filter for route in found.routes]
    assert [table.name for table in settings.streaming.tables] == [table.name for table in found.tables]
    assert answers.table != "readings"


def test_nothing_existing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="exists already"):
        run("init", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.py"]
    run("init", str(tmp_path), "--force")
    assert (tmp_path / "pipeline.py").read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--mqtt", "mqtt://broker:1883"], "--mqtt mqtt://broker:1883"),
        (["--mqtt", "broker:99999"], "--mqtt broker:99999"),
        (["--mqtt", "broker/x"], "--mqtt broker/x"),
        (["--pulsar", "http://pulsar:8080"], "--pulsar http://pulsar:8080"),
        (["--pulsar", "localhost"], "--pulsar localhost"),
        (["--devices", "zigbee"], "--devices zigbee"),
        (["--confirm", "both"], "--confirm both"),
        (["--filter", "plant/+machine"], "--filter plant/+machine"),
        (["--filter", "plant/{device}"], "'plant/{device}'"),
    ],
)
def test_a_wrong_answer_is_named_and_nothing_is_written(arguments: list[str], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failed:
        run("init", str(tmp_path), *arguments)
    assert named in str(failed.value)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    given = ["mqtt://broker", "broker:1884", "localhost", "pulsar://pulsar:6650", "json", "Other", "plant/#", ""]
    found = CliRunner().invoke(APP, ["init", str(tmp_path)], input="\n".join([*given, "yes", "device"]) + "\n")
    assert found.exit_code == 0, found.output
    for named in (
        "mqtt://broker: is a URL",
        "localhost: does not",
        "json: is not one of",
        "plant/#: names no",
        "yes: is",
    ):
        assert named in found.output
    settings = load_with_origins(tmp_path / "pulsebridge.yaml", environ={}).settings
    assert (settings.mqtt.port, settings.pulsar.service_url) == (1884, "pulsar://pulsar:6650")
    assert settings.push.confirm == "device"


def test_an_existing_project_is_refused_before_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pulsebridge.yaml").touch()
    monkeypatch.setattr(init, "_discovered", lambda *_: pytest.fail("it listened"))
    with pytest.raises(ConfigError, match="exists already"):
        run("init", str(tmp_path), "--devices", "discover")


def test_each_shipped_file_can_be_exported(tmp_path: Path) -> None:
    listed = run("config", "export").split()
    assert "prometheus/alerts.yaml" in listed
    for name in listed:
        run("config", "export", name, "--to", str(tmp_path / name).rpartition("/")[0])
        assert (tmp_path / name).stat().st_size
    run("config", "export", "deploy", "--to", str(tmp_path / "d"))
    assert (tmp_path / "d/kubernetes/push.yaml").exists()
    with pytest.raises(ConfigError, match="exists already"):
        run("config", "export", "rules.yaml", "--to", str(tmp_path))
    with pytest.raises(ConfigError, match="is not a file of the list"):
        run("config", "export", "../pyproject.toml")
