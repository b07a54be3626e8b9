"""A secret from a file follows the file, and is never shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bridge.errors import ConfigError
from bridge.settings.loading import load_with_origins
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import SecretFile


def test_what_the_file_says_now_is_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n", encoding="utf-8")
    settings = load_with_origins(overrides=(f"pulsar.token_file={file}",), environ={}).settings
    assert settings.pulsar.token is not None
    assert settings.pulsar.token.get_secret_value() == "first"
    file.write_text("second\n", encoding="utf-8")
    assert settings.pulsar.token.get_secret_value() == "second"


def test_in_the_midst_of_a_rotation_the_last_content_counts(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first", encoding="utf-8")
    secret = SecretFile(file)
    for disturb in (
        lambda: file.write_text("", encoding="utf-8"),
        lambda: file.write_bytes(b"\xff"),
        file.unlink,
    ):
        disturb()
        with capture_logs() as logs:
            assert secret.get_secret_value() == "first"
        assert [one["file"] for one in logs] == [str(file)]  # an emptied file revokes nothing, and that is logged
    file.write_text("second", encoding="utf-8")
    assert secret.get_secret_value() == "second"


def test_an_empty_file_is_refused_when_the_settings_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"pulsar.token_file: cannot be read: it is empty"):
        load_with_origins(overrides=(f"pulsar.token_file={file}",), environ={})


def test_it_travels_by_pickle_compares_by_file_and_shows_nothing(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hunter2", encoding="utf-8")
    settings = PulsarSettings(token=SecretFile(file))
    again: PulsarSettings = pickle.loads(pickle.dumps(settings))
    assert again == settings
    assert hash(again) == hash(settings)
    assert isinstance(again.token, SecretFile)
    file.write_text("hunter3", encoding="utf-8")
    assert again.token.get_secret_value() == "hunter3"
    for shown in (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert "hunter" not in shown
