"""The two images, built from the Dockerfile on a base of Debian, and run: version, user, health, and a message's way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from paho.mqtt.publish import single

from bridge import __version__
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server, last_lines
from pulsebridge.local.stack import LocalStack
from tests.support.container_image import Images, require_tools
from tests.support.delta_rows import delta_rows
from tests.support.endpoint import Endpoint
from tests.support.folders import own_folder
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


_BASE: Final = "localhost/base"
_SETTINGS: Final = "/etc/pulsebridge/pulsebridge.yaml"


class Built(NamedTuple):
    """The built image, and a container of it."""

    images: Images
    tag: str
    container: str
    folder: Path

    def configuration(self) -> dict[str, Any]:
        """Return the image's configuration, as a container engine reads it."""
        found: dict[str, Any] = json.loads(self.images.buildah("inspect", "--type", "image", self.tag))["Docker"][
            "config"
        ]
        return found


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """Give the images' place, with the base as ``localhost/base``."""
    require_tools()
    with own_folder("image") as folder:
        found = Images(folder)
        found.base(_BASE)
        yield found
        found.buildah("rm", "--all")
        found.buildah("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def built(images: Images) -> Built:
    tag = images.build("bridge", _BASE, "localhost/pulsebridge", BRIDGE_EXTRAS="http")
    return Built(images, tag, images.container(tag), images.folder)


@pytest.fixture(scope="module")
def with_spark(images: Images) -> str:
    """Return a container of the Spark job's image."""
    return images.container(images.build("spark", _BASE, "localhost/pulsebridge-spark"))


def test_the_image_has_its_user_health_check_and_command(built: Built) -> None:
    found = built.configuration()
    assert found["User"] == "10001:10001"
    assert found["Entrypoint"] == ["pulsebridge"]
    assert found["Healthcheck"]["Test"][:2] == ["CMD", "python"]
    assert found["ExposedPorts"] == {"9464/tcp": {}}


def test_it_runs_as_its_user_and_knows_its_version(built: Built) -> None:
    assert built.images.run(built.container, "pulsebridge", "-V").strip() == f"pulsebridge {__version__}"
    assert built.images.run(built.container, "id", "-u").strip() == "10001"
    listed = built.images.run(
        built.container, "python", "-c", "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    ).split()
    assert {"pulsebridge", "pulsar-client", "h11"} <= set(listed)
    assert not {"pip", "setuptools", "pyspark", "pyarrow"} & set(listed)


def test_it_may_not_write_beside_its_folders(built: Built) -> None:
    script = "import os; print([p for p in ('/opt/pulsebridge', '/usr', '/etc', '/', '/tmp') if os.access(p, os.W_OK)])"
    assert built.images.run(built.container, "python", "-c", script).strip() == "['/tmp']"


def test_check_reports_each_server_that_does_not_answer(built: Built) -> None:
    mqtt, pulsar, admin = free_ports(3)
    script = (
        "import subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "print(done.returncode, done.stdout, done.stderr)"
    )
    sets = [
        f"--set={name}"
        for name in (
            f"mqtt.port={mqtt}", f"pulsar.service_url=pulsar://127.0.0.1:{pulsar}",
            f"pulsar.admin_url=http://127.0.0.1:{admin}",
        )
    ]  # fmt: skip
    shown = built.images.run(built.container, "python", "-c", script, "pulsebridge", "check", *sets)
    assert shown.startswith("1 ")
    for port in (mqtt, pulsar, admin):
        assert str(port) in shown


def test_ingest_starts_and_the_health_check_of_the_image_passes(built: Built) -> None:
    """No server runs: ingest waits for them, healthy and not ready."""
    mqtt, pulsar, admin, metrics = free_ports(4)
    settings = _settings(
        built.folder / "waits.yaml",
        mqtt={"host": "127.0.0.1", "port": mqtt},
        pulsar={"service_url": f"pulsar://127.0.0.1:{pulsar}", "admin_url": f"http://127.0.0.1:{admin}"},
    )
    with _ingest(built, settings, metrics) as endpoint:
        assert endpoint.missing
        checking = built.configuration()["Healthcheck"]["Test"][1:]
        built.images.run(built.container, "env", *_metrics_on(metrics), *checking)


def test_a_message_goes_through_both_images_into_a_table(built: Built, with_spark: str, stack: LocalStack) -> None:
    (metrics,) = free_ports(1)
    lakehouse = built.folder / "lakehouse"
    lakehouse.mkdir()
    lakehouse.chmod(0o777)
    mqtt = mqtt_settings(stack)
    settings = _settings(
        built.folder / "runs.yaml",
        mqtt=mqtt.model_dump(mode="json", include={"host", "port", "client_id"}),
        pulsar=provisioned(stack).model_dump(mode="json", exclude_defaults=True),
        streaming={"root": "/lakehouse"},
    )
    with _ingest(built, settings, metrics) as endpoint:
        endpoint.await_ready()
        single("plant/press-3/climate", b'{"temperature": 41.5}', qos=1, hostname=mqtt.host, port=mqtt.port)
        poll_for(lambda: endpoint.total("pulsebridge_ingest_stored_total") == 1, 60, "the message in Pulsar")
    mounted = {settings: _SETTINGS, lakehouse: "/lakehouse:rw"}
    job = ("env", *_metrics_on(metrics), "pulsebridge", "stream", "--config", _SETTINGS, "--available-now")
    built.images.run(with_spark, *job, volumes=mounted, timeout=600)
    (row,) = delta_rows(lakehouse / "readings", "device", "value")
    assert (row["device"], row["value"]) == ("press-3", 41.5)


def _settings(file: Path, **parts: Any) -> Path:
    """Write settings, with a route, into a file that the user of an image can read."""
    route = {"name": "plant", "filter": "plant/+device/#", "topic": "plant", "device": "{device}"}
    file.write_text(yaml.safe_dump({"ingest": {"routes": [route]}, **parts}), encoding="utf-8")
    file.chmod(0o644)
    return file


def _metrics_on(port: int) -> tuple[str, str]:
    """Return variables instead of the image's port and address, because a container shares this machine's network."""
    return f"PULSEBRIDGE_METRICS__PORT={port}", "PULSEBRIDGE_METRICS__HOST=127.0.0.1"


@contextmanager
def _ingest(built: Built, settings: Path, metrics: int) -> Iterator[Endpoint]:
    """Run ingest in the container, healthy, for as long as the block runs."""
    words = ("env", *_metrics_on(metrics), "pulsebridge", "ingest", "--config", _SETTINGS)
    log = settings.with_suffix(".log")
    server = Server(
        "image", built.images.command(built.container, *words, volumes={settings: _SETTINGS}),
        log=log, cwd=built.folder, environment=os.environ, grace_s=40,
    )  # fmt: skip
    try:
        endpoint = Endpoint(metrics)

        def answers() -> bool:
            assert server.alive(), last_lines(log)
            try:
                return endpoint.asked("/healthz")[0] == 200
            except OSError:
                return False

        poll_for(answers, 120, "the health of ingest", every=0.5)
        yield endpoint
    finally:
        server.stop()
    assert server.exit_code is not None
