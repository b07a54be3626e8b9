"""Writes the pictures of the live view in docs/images: ``python -m tests.docs.screenshots``, with a stack of its own.

Ingest and push run, devices publish and get commands; the tables are written without Spark.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import httpx
import yaml

from bridge.contract import RECEIPTS_TOPIC
from bridge.mqtt.device import DeviceClient
from bridge.settings import Settings
from pulsebridge.local.ports import free_ports
from pulsebridge.processes import pulsebridge_command
from tests.support.letters import write_dead
from tests.support.push import Devices, command, provision, push_settings, read_topic, write_commands
from tests.support.stack import mqtt_settings, provisioned, session_stack
from tests.support.ui import TOKEN, chromium, live_view, screen, shown, write_data_docs, write_lakehouse
from tests.support.waiting import poll_for

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
MOST_BYTES: Final = 150_000
DEVICES: Final = 240


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as open_:
        folder = Path(name)
        stack = open_.enter_context(session_stack())
        pulsar = provisioned(stack)
        settings = push_settings(pulsar, mqtt_settings(stack), command_partitions=2)
        provision(settings)
        write_lakehouse(folder / "lakehouse", DEVICES, hostile=False)
        write_data_docs(folder / "gx")
        write_dead(pulsar, [(f"press-{n}", b'{"temperature": 41.5') for n in range(1, 9)])
        ports = free_ports(2)
        for tier, port in zip(("ingest", "push"), ports, strict=True):
            open_.enter_context(_running(tier, folder, _file(settings, port, folder)))
        _traffic(settings, ports)
        view = {**_file(settings, 0, folder), "ui": _ui(ports)}
        url = open_.enter_context(live_view(folder, view))
        _pictures(url)


def _file(settings: Settings, port: int, folder: Path) -> dict[str, Any]:
    pulsar = {"service_url", "admin_url", "namespace", "system_namespace", "command_partitions"}
    route = {"name": "plant", "filter": "plant/+device/+metric", "topic": "plant", "device": "{device}"}
    return {
        "mqtt": settings.mqtt.model_dump(mode="json", include={"host", "port", "client_id"}),
        "pulsar": settings.pulsar.model_dump(mode="json", include=pulsar),
        "push": {"client_id": settings.push.client_id},
        "ingest": {"routes": [{**route, "command_topic": "devices/{device}/commands"}]},
        "streaming": {"root": str(folder / "lakehouse"), "suites": str(folder / "gx")},
        "metrics": {"port": port},
    }


def _ui(ports: list[int]) -> dict[str, Any]:
    return {"token": TOKEN, "refresh": "1s", "endpoints": [f"http://127.0.0.1:{port}" for port in ports]}


@contextmanager
def _running(tier: str, folder: Path, settings: dict[str, Any]) -> Iterator[None]:
    config = folder / f"{tier}.yaml"
    config.write_text(yaml.safe_dump(settings))
    with (folder / f"{tier}.log").open("w") as out:
        process = subprocess.Popen(pulsebridge_command(tier, "-c", str(config)), stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def _traffic(settings: Settings, ports: list[int]) -> None:
    """Publish a reading of each device, and send commands to some."""
    for port in ports:
        poll_for(lambda port=port: _ready(port), 120, "ingest and push to be ready", every=1)  # type: ignore[misc]
    with DeviceClient(settings.mqtt, "pictures") as client:
        for n in range(DEVICES):
            client.publish(f"plant/press-{n}/temperature", b"20.5")
        assert client.flush()
    with Devices(settings):
        write_commands(settings, [command(settings, f"press-{n}", n) for n in range(3)])
        poll_for(lambda: len(read_topic(settings, RECEIPTS_TOPIC)) >= 3, 60, "the receipts", every=1)


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _pictures(url: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    device = "/device?" + urlencode({"name": "press-1"})
    pictures = [
        ("ui-overview", "/", "wide", "light"),
        ("ui-devices", "/devices", "wide", "dark"),
        ("ui-device", device, "wide", "light"),
        ("ui-dead-letters-phone", "/dead-letters", "phone", "dark"),
    ]
    poll_for(lambda: "of 240" in shown(f"{url}/devices?q=present"), 60, "the devices", every=1)
    with chromium() as browser:
        for name, path, size, scheme in pictures:
            with screen(browser, size, scheme) as page:
                page.goto(f"{url}/login")
                page.get_by_label("Token").fill(TOKEN)
                page.get_by_role("main").get_by_role("button", name="Log in").click()
                page.goto(url + path, wait_until="networkidle")
                picture = page.screenshot()
            assert len(picture) < MOST_BYTES, (name, len(picture))
            (IMAGES / f"{name}.png").write_bytes(picture)


if __name__ == "__main__":
    main()
