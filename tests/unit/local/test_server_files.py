"""Sizes and configuration files of the local servers: text in, text out."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from pulsebridge.local.mqtt_servers import artemis_command, artemis_files, mosquitto_config
from pulsebridge.local.pulsar_server import pulsar_command, pulsar_overrides, render_properties
from pulsebridge.local.sizes import sizes_for

GIB = 1024**3
SIZES = sizes_for(8 * GIB)


def test_sizes_fit_a_laptop_of_8_gib_and_stop_growing() -> None:
    laptop, big = sizes_for(8 * GIB), sizes_for(24 * GIB)
    assert laptop.pulsar_heap + laptop.pulsar_direct + laptop.mqtt_heap <= 1280
    assert big.pulsar_heap == 768
    assert sizes_for(512 * GIB) == big
    assert sizes_for(0) == laptop
    assert sizes_for(8 * GIB, 2048).mqtt_heap == 2048


@given(st.integers(min_value=0, max_value=1 << 50))
def test_caches_fit_into_the_direct_memory(total: int) -> None:
    s = sizes_for(total)
    assert s.pulsar_write_cache + s.pulsar_read_cache + s.pulsar_entry_cache < s.pulsar_direct
    assert s.pulsar_heap >= 384
    assert s.mqtt_heap >= 256


def test_properties_are_replaced_in_place_and_the_rest_is_added() -> None:
    text = "# comment a=1\na=1\nb = 2\n\nc=3\na=9\n"
    assert render_properties(text, {"a": "x", "d": "4"}) == "# comment a=1\na=x\nb = 2\n\nc=3\nd=4\n"


def _parse(text: str) -> dict[str, str]:
    lines = (line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {key.strip(): value for key, value in lines}


@given(
    st.dictionaries(st.sampled_from(["a", "b.c", "dD", "e_1"]), st.text("xyz019", max_size=4)),
    st.dictionaries(st.sampled_from(["a", "b.c", "new"]), st.text("xyz019", max_size=4)),
)
def test_rendered_properties_read_back_as_the_file_with_the_overrides(
    file: dict[str, str], overrides: dict[str, str]
) -> None:
    text = "".join(f"{k}={v}\n" for k, v in file.items())
    assert _parse(render_properties(text, overrides)) == file | overrides


def test_pulsar_listens_on_loopback_alone_and_fsync_reaches_the_journal() -> None:
    keys = pulsar_overrides(pulsar_port=1, admin_port=2, loopback="lo0", sizes=SIZES, fsync=True)
    assert keys["bindAddress"] == keys["advertisedAddress"] == "127.0.0.1"
    assert keys["listeningInterface"] == "lo0"
    assert keys["journalSyncData"] == "true"
    assert (
        pulsar_overrides(pulsar_port=1, admin_port=2, loopback="lo", sizes=SIZES, fsync=False)["journalSyncData"]
        == "false"
    )


def test_pulsar_takes_its_bookie_port_and_data_from_the_command_line(tmp_path: Path) -> None:
    command = pulsar_command(
        java=Path("/j"),
        home=Path("/p"),
        config=tmp_path / "c",
        data=tmp_path / "d",
        logs=tmp_path,
        bookie_port=7,
        sizes=SIZES,
        quick=True,
    )
    assert command[0] == "/j/bin/java"
    assert command[command.index("--bookkeeper-port") + 1] == "7"
    assert command[command.index("--bookkeeper-dir") + 1] == str(tmp_path / "d/bookkeeper")


def _broker(folder: Path, *, fsync: bool) -> dict[str, str]:
    files = artemis_files(port=1234, instance=folder, sizes=SIZES, fsync=fsync)
    for name in ("broker.xml", "bootstrap.xml", "management.xml"):
        ElementTree.fromstring(files[name].encode())
    tree = ElementTree.fromstring(files["broker.xml"].encode())
    return {element.tag.rsplit("}", 1)[-1]: (element.text or "").strip() for element in tree.iter()}


def test_artemis_has_one_acceptor_and_never_gives_a_message_up(tmp_path: Path) -> None:
    broker = _broker(tmp_path / "with & sign", fsync=False)
    assert broker["acceptor"].startswith("tcp://127.0.0.1:1234?protocols=MQTT;")
    assert broker["max-delivery-attempts"] == "-1"
    assert broker["max-disk-usage"] == "98"
    assert broker["address-full-policy"] == "PAGE"
    assert broker["auto-delete-queues"] == "false"
    assert (broker["journal-type"], broker["journal-datasync"]) == ("MAPPED", "false")


def test_artemis_syncs_its_journal_when_asked(tmp_path: Path) -> None:
    broker = _broker(tmp_path, fsync=True)
    assert (broker["journal-type"], broker["journal-datasync"]) == ("NIO", "true")
    assert artemis_command(java=Path("/j"), home=Path("/a"), instance=tmp_path, sizes=SIZES, quick=False)[-1] == "run"


def test_mosquitto_keeps_long_queues_on_loopback(tmp_path: Path) -> None:
    lines = mosquitto_config(port=99, data=tmp_path).splitlines()
    assert "listener 99 127.0.0.1" in lines
    assert "max_queued_messages 1000000" in lines
    assert "persistence true" in lines
