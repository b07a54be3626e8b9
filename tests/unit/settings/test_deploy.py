"""The manifests and units in ``conf/deploy``: valid by schema, and true to the settings and the command line."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bridge import __version__ as version
from bridge.routing.sharding import AUTO, own_sessions, sessions
from bridge.settings import Settings
from bridge.settings.loading import load
from bridge.stopping import CLOSE_S
from tests.support.waiting import patient

DEPLOY = Path(__file__).resolve().parents[3] / "conf/deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*@.service"))
AUDIT = DEPLOY / "systemd/pulsebridge-audit.service"
SECRETS = "/etc/pulsebridge/secrets"
KUBERNETES = "1.29"


def documents() -> dict[tuple[str, str], dict[str, Any]]:
    found = [d for path in MANIFESTS for d in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return {(d["kind"], d["metadata"]["name"]): d for d in found}


def pod(document: dict[str, Any]) -> dict[str, Any]:
    template = document["spec"].get("jobTemplate", document)["spec"]["template"]
    spec: dict[str, Any] = template["spec"]
    return spec


WORKLOADS = [("Deployment", "pulsebridge-ingest"), ("Deployment", "pulsebridge-push")]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The ConfigMap's settings, loaded by our loader, with the Secret's files where a test may write."""
    found = documents()
    for name, value in found["Secret", "pulsebridge"]["stringData"].items():
        (tmp_path / name).write_text(value, encoding="utf-8")
    text = found["ConfigMap", "pulsebridge"]["data"]["pulsebridge.yaml"]
    assert SECRETS in text
    config = tmp_path / "pulsebridge.yaml"
    config.write_text(text.replace(SECRETS, str(tmp_path)), encoding="utf-8")
    return load(config)


def test_every_manifest_is_valid_kubernetes() -> None:
    kinds = [kind for kind, _ in documents()]
    for document in documents().values():
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    assert sorted(kinds) == [
        "ConfigMap", "CronJob", "Deployment", "Deployment", "NetworkPolicy", "PersistentVolumeClaim",
        "PodDisruptionBudget", "PodDisruptionBudget", "Secret", "Service", "StatefulSet",
    ]  # fmt: skip


PODS = [*WORKLOADS, ("StatefulSet", "pulsebridge-stream"), ("CronJob", "pulsebridge-audit")]


@pytest.mark.parametrize("which", PODS)
def test_pods_run_without_rights_and_with_limits(which: tuple[str, str]) -> None:
    spec = pod(documents()[which])
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    name, _, tag = container["image"].partition(":")
    assert (name, tag) == ("pulsebridge-spark" if which[0] == "StatefulSet" else "pulsebridge", version)  # no registry
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"requests", "limits"} <= set(container["resources"])
    writable = [m["name"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert writable == (["tmp", "lakehouse"] if which[0] == "StatefulSet" else ["tmp"])


@pytest.mark.parametrize("which", WORKLOADS)
def test_pods_match_the_settings(which: tuple[str, str], settings: Settings) -> None:
    document = documents()[which]
    spec = pod(document)
    (container,) = spec["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports["metrics"] == settings.metrics.port
    assert settings.metrics.host == "0.0.0.0"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"]["path"] in ("/healthz", "/readyz")
    mounts = {m["mountPath"] for m in container["volumeMounts"]}
    assert {SECRETS, "/etc/pulsebridge/pulsebridge.yaml"} <= mounts
    longest = max(settings.ingest.drain, settings.push.drain) + CLOSE_S
    assert longest <= 25 < spec["terminationGracePeriodSeconds"]
    labels = document["spec"]["template"]["metadata"]["labels"]
    budget = documents()["PodDisruptionBudget", which[1]]["spec"]["selector"]["matchLabels"]
    assert document["spec"]["selector"]["matchLabels"] == budget == labels


def test_ingest_scales_by_a_number_alone(settings: Settings) -> None:
    """Every pod and every unit of ingest may serve each session; they differ in the metrics port alone."""
    document = documents()[WORKLOADS[0]]
    arguments = pod(document)["containers"][0]["args"]
    assert arguments[arguments.index("--shard") + 1] == AUTO
    ingest = settings.ingest.model_copy(update={"shard": AUTO})
    wanted = sessions("pulsebridge", ingest, settings.pulsar)
    assert own_sessions("pulsebridge", ingest, settings.pulsar) == tuple(wanted)
    assert len(wanted) >= document["spec"]["replicas"]
    for path in UNITS:
        command = unit(path)["Service"]["ExecStart"]
        assert [one for one in shlex.split(command) if "%i" in one] == [
            f"metrics.port={948 if 'push' in path.name else 946}%i"
        ]


def unit(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_units_drain_in_time_and_are_confined(path: Path) -> None:
    service = unit(path)["Service"]
    assert int(service["TimeoutStopSec"]) > Settings().ingest.drain + CLOSE_S
    assert (service["KillSignal"], service["Restart"], service["RestartPreventExitStatus"]) == (
        "SIGTERM", "on-failure", "2",
    )  # fmt: skip
    for name in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome"):
        assert service[name] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    command = shlex.split(service["ExecStart"])
    assert command[0].endswith("/bin/pulsebridge")
    assert command[1] == path.name.removeprefix("pulsebridge-").rstrip("@").partition("@")[0].removesuffix(".service")


@pytest.mark.parametrize("path", [*UNITS, AUDIT, AUDIT.with_suffix(".timer")], ids=lambda p: p.name)
def test_systemd_takes_the_units(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # It wants a program that is there, and one instance of a template.
    name = path.name.replace("@.", "@1.")
    text = re.sub(r"/opt/pulsebridge/bin/pulsebridge", sys.executable, path.read_text(encoding="utf-8"))
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True, text=True, timeout=patient(60), check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "pulsebridge" in line]
    assert ours == []
