"""Durations and sizes are text with a unit; a bare number is refused with the way to write it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bridge.errors import ConfigError
from bridge.settings import MqttSettings, Settings
from bridge.settings.fields import is_common, leaves
from bridge.settings.loading import load
from bridge.settings.units import Duration, Size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("0.5s", 0.5), ("30s", 30), ("5m", 300), ("1.5h", 5400), ("7d", 604_800), (" 3 s ", 3), ("0", 0)],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert Duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("500B", 500), ("10MB", 10**7), ("64MiB", 2**26), ("2gib", 2**31), ("1.5 KiB", 1536), ("0", 0)],
)
def test_a_size_is_bytes(text: str, size: int) -> None:
    assert Size(text) == size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Duration(0), "0s"),
        (Duration(0.2), "200ms"),
        (Duration(90), "90s"),
        (Duration(5400), "90m"),
        (Duration(86_400), "1d"),
        (Size(0), "0B"),
        (Size(4096), "4KiB"),
        (Size(10**7), "10MB"),
        (Size(2**26), "64MiB"),
        (Size(1001), "1001B"),
    ],
)
def test_the_text_has_the_largest_exact_unit(value: Duration | Size, text: str) -> None:
    assert value.text == text


@given(st.one_of(st.integers(0, 2**45).map(Size), st.integers(0, 2**45).map(lambda ms: Duration(ms / 1000))))
def test_the_text_of_a_value_gives_the_value(value: Duration | Size) -> None:
    assert type(value)(value.text) == pytest.approx(value, rel=1e-11)
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("push.drain", 30, "has no unit: write a duration like 30s (units: ms, s, m, h, d), not 30"),
        ("push.drain", "30", "has no unit: write a duration like 30s (units: ms, s, m, h, d), not '30'"),
        ("push.drain", "soon", "should be a duration like 30s (units: ms, s, m, h, d), not 'soon'"),
        ("push.drain", "30M", "should be a duration like 30s (units: ms, s, m, h, d), not '30M'"),
        ("push.drain", "-1s", "should be a duration like 30s (units: ms, s, m, h, d), not '-1s'"),
        ("push.drain", "0s", "should be greater than 0s, not '0s'"),
        ("push.drain", [30], "should be text with a unit, like 30s"),
        ("push.drain", True, "should be text with a unit, like 30s, not True"),
        ("push.offline.probe_min", "2m", "should be less than or equal to 1m, not '2m'"),
        (
            "push.limits.window_size",
            16,
            "has no unit: write a size like 64MiB (units: B, KB, KiB, MB, MiB, GB, GiB), not 16",
        ),
        (
            "push.limits.window_size",
            "16M",
            "should be a size like 64MiB (units: B, KB, KiB, MB, MiB, GB, GiB), not '16M'",
        ),
        ("push.limits.window_size", "1B", "should be greater than or equal to 1MiB, not '1B'"),
        ("pulsar.retention", 4320, "has no unit: write a duration like 30s"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_setting_and_the_way_to_write_it(
    setting: str, value: Any, line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {setting: value})
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"  {setting}: {line}")
    assert lines[0].endswith("(given by the caller)")


def test_a_number_without_a_unit_is_refused_from_python_too() -> None:
    with pytest.raises(ValidationError, match="has no unit"):
        MqttSettings(keep_alive=30)
    assert MqttSettings(keep_alive=Duration(30)).keep_alive == 30


def test_no_setting_has_its_unit_in_its_name() -> None:
    for path, _ in leaves(Settings):
        assert not path[-1].endswith(("_s", "_ms", "_h", "_mb", "_minutes", "_days", "_seconds")), ".".join(path)


def test_about_25_settings_are_common() -> None:
    assert 20 <= sum(is_common(field) for _, field in leaves(Settings)) <= 30


def test_the_settings_survive_their_own_json() -> None:
    dumped = Settings().model_dump(mode="json")
    assert dumped["push"]["retry"] == {"min_wait": "200ms", "max_wait": "30s", "attempts": 0}
    assert Settings.model_validate(dumped) == Settings()
    copied = Settings().pulsar.model_copy(update={"operation_timeout": 2.0})
    assert copied.model_dump(mode="json")["operation_timeout"] == "2s"
