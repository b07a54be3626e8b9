"""Several MQTT brokers in the settings: what a link inherits, what is refused, where secrets come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigError
from bridge.settings import Settings
from bridge.settings.loading import load


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def links(*given: dict[str, Any], **mqtt: Any) -> Settings:
    return load(None, {"ingest.links": list(given)} | {f"mqtt.{k}": v for k, v in mqtt.items()})


def test_without_links_there_is_one_from_the_section_mqtt() -> None:
    assert links(host="broker").links() == {"mqtt": links(host="broker").mqtt}


def test_a_link_overrides_what_it_names_even_by_null_and_inherits_the_rest() -> None:
    made = links(
        {"name": "north", "host": "n", "client_id": "n-1"},
        {"name": "south", "host": "s", "username": None, "password": None},
        username="u",
        password="p",
        keep_alive="7s",
    ).links()
    assert list(made) == ["north", "south"]
    assert (made["north"].host, made["north"].client_id, made["north"].username) == ("n", "n-1", "u")
    assert (made["south"].host, made["south"].client_id, made["south"].username) == ("s", "pulsebridge", None)
    assert made["north"].keep_alive == made["south"].keep_alive == 7


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([{"name": "a"}, {"name": "b"}], "a and b have the same client_id 'pulsebridge' at the same broker"),
        ([{"name": "a", "host": "H"}, {"name": "b", "host": "h"}], "the same client_id"),
        ([{"name": "a"}, {"name": "a", "host": "h"}], "two links have the same name"),
        ([{"name": "a", "port": 70000}], "ingest.links.0.port: should be less than or equal to 65535"),
        ([{"name": "a", "password": "p"}], "a: password needs a username"),
        (
            [{"name": "a", "hots": "h"}],
            "ingest.links.0.hots: unknown setting; did you mean ingest.links.0.host",
        ),
        ([{"name": "a b"}], "ingest.links.0.name"),
    ],
)
def test_links_that_cannot_work_are_refused(given: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        links(*given)
    assert why in str(caught.value)


def test_a_link_s_password_comes_from_a_file_and_is_never_shown() -> None:
    Path("secret").write_text("geheim\n", encoding="utf-8")
    made = links({"name": "a", "username": "u", "password_file": "secret"})
    assert made.links()["a"].credentials() == ("u", "geheim")
    assert "geheim" not in made.model_dump_json()
    Path("secret").write_text("rotated\n", encoding="utf-8")
    assert made.links()["a"].credentials() == ("u", "rotated")
    with pytest.raises(ConfigError, match=r"links\.0\.password_file: cannot be read: No such file"):
        links({"name": "a", "username": "u", "password_file": "absent"})


def test_protocols_are_a_list_or_text_with_commas() -> None:
    assert Settings().messaging_protocols == ("mqtt",)
    assert load(None, ["messaging_protocols=mqtt, http"]).messaging_protocols == ("mqtt", "http")
    assert load(None, ["messaging_protocols=[http]"]).messaging_protocols == ("http",)
    for wrong, why in (("", "names no protocol"), ("mqtt,mqtt", "twice")):
        with pytest.raises(ConfigError, match=why):
            load(None, {"messaging_protocols": wrong})
