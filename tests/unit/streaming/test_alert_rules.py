"""What a rules file may contain, and the errors of an invalid one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from bridge.errors import ConfigError
from bridge.settings import PulsarSettings
from bridge.settings.loading import conf_path
from sinks.options import read_options, sink_options
from streaming.alert_rules import load_rules

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_rules_that_are_shipped_load() -> None:
    assert load_rules(conf_path("rules.yaml")) == ()
    assert [r.name for r in load_rules(conf_path("demo/rules.yaml"))] == ["glucose-low", "glucose-falling"]
    assert [r.name for r in load_rules(EXAMPLES / "damp.yaml")] == ["damp", "blink", "fan"]


def test_the_examples_that_are_shipped_as_comments_load(tmp_path: Path) -> None:
    lines = conf_path("rules.yaml").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "rules.yaml"
    path.write_text("\n".join(["alerts:", *(li[1:] for li in lines if li.startswith("#   - {name:"))]), "utf-8")
    assert [r.kind for r in load_rules(path)] == ["above", "rising", "silence", "above", "sql"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("alerts: [{name: a, metric: m, kind: below}]", "needs limit"),
        ("alerts: [{name: a, metric: m, kind: falling}]", "needs per_minute"),
        ("alerts: [{name: a, metric: m, kind: below, limit: 1, message: '{nothing}'}]", "nothing"),
        ("alerts: [{name: a, metric: m, kind: below, limit: 1, colour: red}]", "alerts[0].colour"),
        (
            "alerts: [{name: a, kind: below, limit: 1}]",
            "alerts[0].metric (rule a): a rule of kind below needs metric",
        ),
        (
            "alerts: [{name: a, metric: m, kind: below, limit: 3, clear: 2}]",
            "alerts[0].clear (rule a): 2 is below limit 3",
        ),
        (
            "alerts: [{name: a, metric: m, kind: above, limit: 3, clear: 4}]",
            "alerts[0].clear (rule a): 4 is above limit 3",
        ),
        (
            "alerts: [{name: a, metric: m, kind: rising, per_minute: 1, over: 5m, clear: 2}]",
            "alerts[0].clear (rule a): 2 is more than per_minute 1",
        ),
        ("alerts: [{name: a, metric: m, kind: falling, per_minute: 1, clear: 1}]", "add over"),
        (
            "alerts: [{name: a, kind: silence}]",
            "alerts[0].after (rule a): a rule of kind silence needs",
        ),
        ("alerts: [{name: a, kind: silence, after: 0s}]", "alerts[0].after (rule a)"),
        (
            "alerts: [{name: a, metric: m, kind: below, limit: 1, over: 5m}]",
            "alerts[0].over (rule a): is for falling and rising, remove it",
        ),
        ("alerts: [{name: a, metric: m, kind: above, limit: .nan}]", "alerts[0].limit (rule a)"),
        (
            "alerts: [{name: a, kind: silence, after: 1m, cleared_message: '{x}'}]",
            "alerts[0].cleared_message",
        ),
        ("alerts: {a: 1}", "alerts is not a list"),
        ("alerts: [{name: a|b, metric: m, kind: below, limit: 1}]", "alerts[0].name"),
        ("alerts: [", "rules file"),
        ("alerts: []\nreadings: []", "readings: unknown key"),
        ("[]", "is not a mapping with a list alerts"),
        ("alerts: [{name: a, name: b, kind: silence, after: 1m}]", "name is duplicate"),
        ("alerts: [{name: a, kind: sql, condition: x, mesage: y}]", "no such field, did you mean message?"),
        ("alerts: [{name: a, kind: silnce, after: 1m}]", "'sql', not 'silnce'"),
        ("alerts: [{name: a, kind: below, metric: m, limit: low}]", "alerts[0].limit (rule a): Input should"),
        (
            "alerts: [{name: a, kind: sql}]",
            "alerts[0].condition (rule a): a rule of kind sql needs condition",
        ),
        ("alerts: [{name: a, kind: sql, condition: x, limit: 1}]", "alerts[0].limit (rule a): is for below"),
        ("alerts: [{name: a, kind: below, table: t, limit: 1}]", "a rule of kind below needs column"),
        (
            "alerts: [{name: a, kind: below, metric: m, column: c, limit: 1}]",
            "give metric or column, not both",
        ),
        ("alerts: [{name: a, kind: sql, condition: x, every: change}]", "every: change needs the metric"),
        ("alerts: [{name: a, kind: sql, condition: x, notify_cleared: true}]", "add every: change"),
        (
            "alerts: [{name: a, kind: sql, condition: x, to: b}]",
            "a command to another device needs its topic",
        ),
        ("alerts: [{name: a, kind: sql, condition: x, payload: 'to_json(b)'}]", "write it as {sql: ...}"),
        ("alerts: [{name: a, kind: sql, condition: x, payload: 5}]", "must be text, or {sql: an expression}"),
        (
            "alerts: [{name: a, kind: silence, after: 1m, payload: {sql: x}}]",
            "alerts[0].payload (rule a): SQL is for kind sql",
        ),
        (
            "alerts: [{name: a, kind: silence, after: 1m, payload: '{\"x\": {humidity}}'}]",
            "alerts[0].payload (rule a): unknown field humidity, known: rule, state",
        ),
        (
            "alerts: [{name: a, kind: silence, after: 1m}, {name: a, kind: silence, after: 1m}]",
            "two rules are named 'a'",
        ),
    ],
)
def test_a_wrong_rules_file_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_rules(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_the_sink_takes_the_connection_that_the_source_takes() -> None:
    pulsar = PulsarSettings(
        service_url="pulsar+ssl://p:6651",
        admin_url="https://p:8443",
        token=SecretStr("secret"),
        tls_ca=Path("/ca.pem"),
        tls_certificate=Path("/c.pem"),
        tls_private_key=Path("/k.pem"),
        tls_validate_hostname=False,
        system_namespace="s",
    )
    found = read_options(sink_options(pulsar, 2048))
    assert (found.pulsar, found.max_name_bytes) == (pulsar, 2048)
