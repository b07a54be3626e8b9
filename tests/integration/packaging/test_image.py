"""The image of the bridge, built from the Dockerfile on a base of Debian, and run: version, user, ingest and its health."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bridge import __version__
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server, last_lines
from tests.support.container_image import Images, require_tools
from tests.support.endpoint import Endpoint
from tests.support.folders import own_folder
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


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
def built() -> Iterator[Built]:
    require_tools()
    with own_folder("image") as folder:
        images = Images(folder)
        tag = images.build("bridge", images.base("localhost/base"), "localhost/pulsebridge", BRIDGE_EXTRAS="http")
        container = images.container(tag)
        yield Built(images, tag, container, folder)
        images.buildah("rm", "--all")
        images.buildah("rmi", "--all", "--force")


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
    settings = built.folder / "pulsebridge.yaml"
    settings.write_text(
        f"mqtt: {{host: 127.0.0.1, port: {mqtt}}}\n"
        f"pulsar: {{service_url: 'pulsar://127.0.0.1:{pulsar}', admin_url: 'http://127.0.0.1:{admin}'}}\n"
        "ingest: {routes: [{name: plant, filter: 'plant/#', topic: plant}]}\n",
        encoding="utf-8",
    )
    settings.chmod(0o644)
    # Not the image's port and address, because the container shares the network of this machine.
    variables = (f"PULSEBRIDGE_METRICS__PORT={metrics}", "PULSEBRIDGE_METRICS__HOST=127.0.0.1")
    mounted = {settings: "/etc/pulsebridge/pulsebridge.yaml"}
    words = ("env", *variables, "pulsebridge", "ingest", "--config", "/etc/pulsebridge/pulsebridge.yaml")
    server = Server(
        "image", built.images.command(built.container, *words, volumes=mounted),
        log=built.folder / "ingest.log", cwd=built.folder, environment=os.environ, grace_s=40,
    )  # fmt: skip
    try:
        endpoint = Endpoint(metrics)

        def answers() -> bool:
            assert server.alive(), last_lines(built.folder / "ingest.log")
            try:
                return endpoint.asked("/healthz")[0] == 200
            except OSError:
                return False

        poll_for(answers, 120, "the health of ingest", every=0.5)
        assert endpoint.missing
        checking = built.configuration()["Healthcheck"]["Test"][1:]
        built.images.run(built.container, "env", *variables, *checking)
    finally:
        server.stop()
    assert server.exit_code is not None
