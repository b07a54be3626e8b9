"""Precedence, names, secrets and the list of problems: what the loader promises to someone who writes a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import bridge
from bridge.errors import ConfigError
from bridge.settings import Settings
from bridge.settings.fields import is_secret, leaves
from bridge.settings.loading import (
    CONFIG_VARIABLE,
    OTHER_VARIABLES,
    Loaded,
    conf_path,
    load,
    load_with_origins,
)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(
    file: object = None, environ: Mapping[str, str] | None = None, sets: tuple[str, ...] = (), **flags: object
) -> Loaded:
    path = None
    if file is not None:
        path = Path("given.yaml")
        path.write_text(file if isinstance(file, str) else yaml.safe_dump(file), encoding="utf-8")
    by_path = {name.replace("__", "."): value for name, value in flags.items()}
    return load_with_origins(path, sets, flags=by_path, environ=environ or {})


def problems(file: object = None, environ: Mapping[str, str] | None = None, sets: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(file, environ, sets)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_each_layer_wins_over_the_weaker_ones() -> None:
    layers = ({"mqtt": {"host": "file", "port": 1, "keep_alive": "11s", "client_id": "file"}},)
    environ = {
        "PULSEBRIDGE_MQTT__PORT": "2",
        "PULSEBRIDGE_MQTT__KEEP_ALIVE": "12s",
        "PULSEBRIDGE_MQTT__CLIENT_ID": "e",
    }
    got = loaded(*layers, environ, ("mqtt.keep_alive=13s", "mqtt.client_id=set"), mqtt__client_id="flag")
    mqtt = got.settings.mqtt
    assert (mqtt.host, mqtt.port, mqtt.keep_alive, mqtt.client_id) == ("file", 2, 13, "flag")
    assert mqtt.connect_timeout == Settings().mqtt.connect_timeout
    assert got.origins == {
        "mqtt.host": "file given.yaml",
        "mqtt.port": "environment PULSEBRIDGE_MQTT__PORT",
        "mqtt.keep_alive": "--set",
        "mqtt.client_id": "flag",
    }


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    assert loaded({"mqtt": {"host": "file"}}, mqtt__host=None).settings.mqtt.host == "file"


def test_load_takes_a_mapping_or_texts() -> None:
    assert load(None, {"pulsar.partitions": 7}).pulsar.partitions == 7
    assert load(None, ["pulsar.partitions=7"]).pulsar.partitions == 7


def test_the_file_is_found_by_flag_then_variable_then_working_directory() -> None:
    for name in ("flag", "variable", "pulsebridge"):
        Path(f"{name}.yaml").write_text(f"mqtt: {{host: {name}}}", encoding="utf-8")
    environ = {"PULSEBRIDGE_CONFIG": "variable.yaml"}
    assert load_with_origins(Path("flag.yaml"), environ=environ).settings.mqtt.host == "flag"
    assert load_with_origins(environ=environ).settings.mqtt.host == "variable"
    assert load_with_origins(environ={}).settings.mqtt.host == "pulsebridge"


def test_all_problems_are_listed_at_once_with_path_and_origin() -> None:
    found = problems(
        {
            "mqtt": {"hots": "x", "port": 99999},
            "pulser": {},
            "ingest": {"routes": [{"name": "a", "filter": "b", "topik": 1}]},
        },
        {"PULSEBRIDGE_PULSAR__PARTITIONS": "many"},
        ("push.windo=3", "nonsense"),
    )
    assert sorted(found) == sorted([
        "mqtt.hots: unknown setting; did you mean mqtt.host? (file given.yaml)",
        "pulser: unknown setting; did you mean pulsar? (file given.yaml)",
        "push.windo: unknown setting; did you mean push.limits.window? (--set)",
        "--set nonsense: not of the form path=value, for example mqtt.host=127.0.0.1",
        "mqtt.port: should be less than or equal to 65535, not 99999 (file given.yaml)",
        "ingest.routes.0.topik: unknown setting; did you mean ingest.routes.0.topic? (file given.yaml)",
        "pulsar.partitions: should be a whole number, not 'many' (environment PULSEBRIDGE_PULSAR__PARTITIONS)",
    ])  # fmt: skip


@pytest.mark.parametrize("name", ["PULSEBRIDGE_MQTT_HOST", "PULSEBRIDGE_MQTT__HOTS", "PULSEBRIDGE_MQT__HOST"])
def test_an_unknown_variable_is_refused_with_the_nearest_name(name: str) -> None:
    (line,) = problems(environ={name: "x"})
    assert "unknown setting; did you mean mqtt.host?" in line
    assert name in line


@pytest.mark.parametrize(
    "name",
    [
        "PULSEBRIDGE_SERVICE_HOST",
        "PULSEBRIDGE_PORT",
        "PULSEBRIDGE_INGEST_PORT_1883_TCP_ADDR",
        "PULSEBRIDGE_SERVICE_PORT_MQTT",
    ],
)
def test_what_kubernetes_sets_for_a_service_of_our_name_is_let_through(name: str) -> None:
    assert loaded(environ={name: "tcp://10.0.0.1:1883"}).origins == {}


def test_variables_of_ours_that_are_no_settings_are_known() -> None:
    packages = Path(bridge.__file__).parent.parent
    named = {
        name
        for package in ("bridge", "sources", "sinks", "streaming", "sparkplug", "pulsebridge", "tests/bench")
        for path in (packages / package).rglob("*.py")
        for name in re.findall(r"\bPULSEBRIDGE_[A-Z][A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
        if "__" not in name
    }
    assert named == set(OTHER_VARIABLES)
    assert loaded(environ=dict.fromkeys(OTHER_VARIABLES - {CONFIG_VARIABLE}, "x")).origins == {}


@pytest.mark.parametrize("layer", ["file", "environment", "set"])
def test_a_secret_may_come_from_a_file_of_its_own(layer: str) -> None:
    Path("secret").write_text("s3cret\n", encoding="utf-8")
    got = {
        "file": lambda: loaded({"mqtt": {"username": "u", "password_file": "secret"}}),
        "environment": lambda: loaded(
            environ={"PULSEBRIDGE_MQTT__USERNAME": "u", "PULSEBRIDGE_MQTT__PASSWORD_FILE": "secret"}
        ),
        "set": lambda: loaded(sets=("mqtt.username=u", "mqtt.password_file=secret")),
    }[layer]()
    assert got.settings.mqtt.password is not None
    assert got.settings.mqtt.password.get_secret_value() == "s3cret"
    assert got.origins["mqtt.password"].endswith(", from secret")


def test_problems_of_topic_rules_are_listed_beside_all_others() -> None:
    rules = [{"name": "a", "filter": "#/x"}, {"name": "b", "filter": "x/+y", "namespace": "acme/site"}]
    lines = problems({"ingest": {"routes": rules}, "mqtt": {"port": 0}, "push": {"nothing": 1}})
    assert [line.split(" ")[0] for line in lines] == [
        "push.nothing:",
        "mqtt.port:",
        "ingest.routes.0",
        "ingest.routes.1",
    ]
    assert all(line.endswith("(file given.yaml)") for line in lines)


def test_a_secret_given_twice_in_one_layer_is_refused() -> None:
    Path("secret").write_text("s3cret", encoding="utf-8")
    for keys in (("password", "password_file"), ("password_file", "password")):
        text = "mqtt:\n  username: u\n" + "".join(f"  {k}: secret\n" for k in keys)
        assert any("given twice" in p for p in problems(text))


def test_a_secret_of_a_stronger_layer_replaces_the_weaker_ones_file() -> None:
    Path("secret").write_text("s3cret", encoding="utf-8")
    got = loaded({"mqtt": {"username": "u", "password_file": "secret"}}, {"PULSEBRIDGE_MQTT__PASSWORD": "stronger"})
    assert got.settings.mqtt.password is not None
    assert got.settings.mqtt.password.get_secret_value() == "stronger"


def test_a_secret_file_that_is_not_there_is_named() -> None:
    (line,) = problems({"pulsar": {"token_file": "nowhere"}})
    assert line.startswith("pulsar.token_file: cannot be read")
    assert "nowhere" in line


def test_no_problem_prints_a_secret() -> None:
    # A password without a username is refused, a list is no password: neither may show what was given.
    for value in ("hunter2", ["hunter2"]):
        with pytest.raises(ConfigError) as caught:
            loaded({"mqtt": {"password": value}, "pulsar": {"token": {"x": "hunter2"}}})
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(caught.value.__cause__)


def test_numbers_that_encode_words_are_words() -> None:
    assert loaded("mqtt: {protocol: 5}").settings.mqtt.protocol == "5"
    assert loaded("mqtt: {protocol: 3.1}").settings.mqtt.protocol == "3.1"
    assert loaded(environ={"PULSEBRIDGE_MQTT__PROTOCOL": "3.1.1"}).settings.mqtt.protocol == "3.1.1"


def test_lists_come_as_yaml_in_the_environment_and_in_set() -> None:
    rule = '[{"name": "a", "filter": "plant/+line/#"}]'
    for got in (loaded(environ={"PULSEBRIDGE_INGEST__ROUTES": rule}), loaded(sets=(f"ingest.routes={rule}",))):
        assert [r.filter for r in got.settings.ingest.routes] == ["plant/+line/#"]


@pytest.mark.parametrize("text", ["[", "just words", "- a\n- list\n"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"given\.yaml"):
        loaded(text)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load(Path("nowhere.yaml"))


def test_an_empty_file_and_empty_sections_mean_the_defaults() -> None:
    assert loaded("").settings == Settings()
    assert loaded("mqtt:\npulsar:\n").settings == Settings()


def test_a_section_is_no_value() -> None:
    assert problems(sets=("mqtt=3",)) == ["mqtt: is a section; name one of its settings, as in mqtt.… (--set)"]
    assert problems({"mqtt": 3}) == ["mqtt: is a section; name one of its settings, as in mqtt.… (file given.yaml)"]


def test_conf_path_finds_what_comes_along_and_refuses_the_rest() -> None:
    assert conf_path("default.yaml").is_file()
    with pytest.raises(ConfigError, match="no-such-file"):
        conf_path("no-such-file")


@given(st.data())
@settings(deadline=None)
def test_every_setting_can_be_set_by_its_path_to_its_own_default(data: st.DataObject) -> None:
    path, field = data.draw(st.sampled_from(list(leaves(Settings))))
    default = Settings().model_dump(mode="json")
    for part in path:
        default = default[part]
    if default is None and is_secret(field.annotation):
        return
    text = "null" if default is None else default if isinstance(default, str) else yaml.safe_dump(default)
    got = load_with_origins(
        None, [f"{'.'.join(path)}={text.removesuffix(chr(10)).removesuffix(chr(10) + '...')}"], environ={}
    )
    assert got.settings == Settings()


@pytest.mark.parametrize("source", [({"ingest": {"qos": 2}}, {}), ({}, {"PULSEBRIDGE_INGEST__QOS": "2"})])
def test_qos_2_is_refused_with_the_safe_way(source: tuple[dict[str, object], dict[str, str]]) -> None:
    (line,) = problems(*source)
    assert line.startswith("ingest.qos: should be 0 or 1")
    assert "at 1, messages that were published at QoS 2 arrive at least once" in line


@pytest.mark.parametrize(
    "setting",
    [
        "push.client_id",
        "mqtt.client_id",
        "mqtt.former_client_ids",
        "ingest.links",
        "push.groups.declared",
    ],
)
def test_h35_names_in_the_settings_have_the_one_limit_of_names(setting: str) -> None:
    name = "ä" * 9
    values: dict[str, object] = {
        "mqtt.former_client_ids": [name],
        "ingest.links": [{"name": "north", "client_id": name}],
        "push.groups.declared": [{"name": "all", "devices": ["a", name]}],
    }
    load(None, {setting: values.get(setting, name)})
    with pytest.raises(ConfigError, match="has 18 bytes, max_name_bytes is 17"):
        load(None, {"max_name_bytes": 17, "push.client_id": "push", setting: values.get(setting, name)})
