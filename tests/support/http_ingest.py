"""Ingest that listens for HTTP alone, as a process of its own, and certificates for the both sides of its TLS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from bridge.protocols.handler import Address
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.ports import free_ports
from tests.support.waiting import patient, poll_for

__all__ = ["answered", "http_process"]


@contextmanager
def http_process(
    pulsar: PulsarSettings, folder: Path, http: dict[str, Any], ingest: dict[str, Any]
) -> Iterator[tuple[subprocess.Popen[bytes], Address]]:
    """Run ``pulsebridge ingest`` with HTTP on a free port until the block ends; it must still run then."""
    (port,) = free_ports(1)
    config, log = folder / "http.yaml", folder / "http.log"
    body = {
        "messaging_protocols": "http",
        "http": {"port": port} | http,
        "ingest": ingest,
        "pulsar": pulsar.model_dump(mode="json", exclude_defaults=True),
    }
    config.write_text(yaml.safe_dump(body), encoding="utf-8")
    command = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "ingest", "-c", str(config)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    address = Address("127.0.0.1", port)
    try:
        poll_for(lambda: answered(address, "/") or process.poll() is not None, 60, "ingest to listen")
        yield process, address
        assert process.poll() is None, log.read_text()
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(patient(60))


def answered(address: Address, path: str, content: bytes = b"", **headers: str) -> int:
    """Return the status with which a POST on a connection of its own is answered, 0 without an answer."""
    try:
        url = f"http://{address.host}:{address.port}{path}"
        return httpx.post(url, content=content, headers=headers, timeout=30, trust_env=False).status_code
    except httpx.TransportError:
        return 0
