"""conf/default.yaml is what the model says, and says what the model does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from bridge.settings import Settings
from bridge.settings.base import Section
from bridge.settings.fields import is_common, leaves, model_within
from bridge.settings.loading import conf_path, load_with_origins
from pulsebridge.cli.default_file import default_yaml


def test_the_default_file_has_not_drifted() -> None:
    assert conf_path("default.yaml").read_text(encoding="utf-8") == default_yaml(), (
        "conf/default.yaml has drifted from the model: pulsebridge config default > conf/default.yaml"
    )


def test_the_default_file_lists_every_setting_with_its_default(tmp_path: Path) -> None:
    file = tmp_path / "default.yaml"
    file.write_text(default_yaml(), encoding="utf-8")
    got = load_with_origins(file, environ={})
    assert got.settings == Settings()
    assert set(got.origins) == {".".join(path) for path, _ in leaves(Settings)}


def test_every_setting_has_a_description_and_secrets_have_no_default() -> None:
    for path, text in described(Settings):
        assert text not in ("", "None"), f"{path} has no description"
        assert text.endswith((".", ")")), f"{path}: the description is no sentence"


def described(section: type[Section], above: str = "") -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        yield f"{above}{name}", section.description_of(name)
        below = model_within(field.annotation)
        if below is not None:
            yield from described(below, f"{above}{name}.")


def test_the_short_list_has_the_common_settings_only(tmp_path: Path) -> None:
    file = tmp_path / "common.yaml"
    file.write_text(default_yaml(common=True), encoding="utf-8")
    got = load_with_origins(file, environ={})
    assert got.settings == Settings()
    assert set(got.origins) == {".".join(path) for path, field in leaves(Settings) if is_common(field)}


def test_the_commented_fields_of_rules_are_yaml_too() -> None:
    text = default_yaml()
    start = text.index("  #  - name", text.index("\n  routes:"))
    lines = [line[3:] for line in text[start:].splitlines() if line.startswith(("  #  - ", "  #    "))]
    assert yaml.safe_load("\n".join(lines))[0].keys() >= {
        "name",
        "filter",
        "topic",
        "device",
        "command_topic",
    }
