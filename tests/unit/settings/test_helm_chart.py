"""The Helm chart, linted and rendered by Helm itself: valid manifests for each choice of values, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bridge import __version__
from bridge.settings.loading import load
from tests.support.helm_chart import CHART, MANIFESTS, plain_manifests, rendered

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")

KUBERNETES = "1.29"
FOREIGN = {"PodMonitor"}
"""Kinds of the Prometheus operator, which Kubernetes' own schemas lack."""
CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "ui": {"enabled": True}, "podMonitor": {"enabled": True}, "ingest": {"httpPort": 8443},
        "podAnnotations": {"team": "plant"}, "podSpec": {"nodeSelector": {"zone": "a"}},
        "lakehouse": {"storageClass": "fast"},
    },
    "object store": {"lakehouse": {"enabled": False}, "settings": {"streaming": {"root": "s3a://lake/plant"}}},
    "own claim": {"lakehouse": {"existingClaim": "tables"}, "ui": {"enabled": True}},
    "bridge alone": {
        "stream": {"enabled": False}, "audit": {"enabled": False}, "networkPolicy": {"enabled": False},
        "lakehouse": {"enabled": False}, "restartOnChange": False,
    },
}  # fmt: skip


def documents(values: dict[str, Any], name: str = "pulsebridge") -> list[dict[str, Any]]:
    return [d for text in rendered(values, name=name).values() for d in yaml.safe_load_all(text)]


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the templates of pods."""
    holders = [d["spec"].get("jobTemplate", d)["spec"] for d in found if "spec" in d]
    return [h["template"] for h in holders if "template" in h]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_chart_passes_helms_linter(choice: str) -> None:
    report = helm.lint(str(CHART), CHOICES[choice], strict=True)
    assert report["errors"] == []
    assert [m["error"] for m in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("name", ["pulsebridge", "north"])
@pytest.mark.parametrize("choice", CHOICES)
def test_what_it_renders_is_valid_kubernetes(choice: str, name: str) -> None:
    found = documents(CHOICES[choice], name)
    for document in found:
        if document["kind"] not in FOREIGN:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    names = [(d["kind"], d["metadata"]["name"]) for d in found]
    assert len(set(names)) == len(names)
    full = name if name == "pulsebridge" else f"{name}-pulsebridge"
    assert all(found_name.startswith(full) for _, found_name in names)


@pytest.mark.parametrize("choice", CHOICES)
def test_its_pods_run_without_rights(choice: str) -> None:
    found = pods(documents(CHOICES[choice]))
    assert found
    for template in found:
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= set(container["resources"])
        mounted = {m["name"] for m in container["volumeMounts"]}
        assert mounted == {v["name"] for v in spec["volumes"]}


def test_each_object_of_a_pod_exists_or_is_named_by_the_values() -> None:
    found = documents(CHOICES["everything"])
    made = {(d["kind"], d["metadata"]["name"]) for d in found}
    for template in pods(found):
        for volume in template["spec"]["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", claim["claimName"]) in made
            if config := volume.get("configMap"):
                assert ("ConfigMap", config["name"]) in made
    assert "Secret" not in {kind for kind, _ in made}
    kinds = [kind for kind, _ in made]
    assert {"PodMonitor", "NetworkPolicy", "CronJob", "StatefulSet", "PodDisruptionBudget"} <= set(kinds)


def test_services_budgets_and_policies_select_pods() -> None:
    found = documents(CHOICES["everything"])
    labels = [template["metadata"]["labels"] for template in pods(found)]
    for document in found:
        spec = document.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector"))
        if selector and document["kind"] != "PersistentVolumeClaim":
            wanted = selector.get("matchLabels", selector)
            assert [one for one in labels if wanted.items() <= one.items()], document["metadata"]["name"]


def test_a_changed_setting_restarts_the_pods_and_another_value_does_not() -> None:
    def marks(values: dict[str, Any]) -> set[str]:
        found = [t["metadata"].get("annotations", {}).get("pulsebridge/settings") for t in pods(documents(values))]
        return {mark for mark in found if mark}

    (usual,) = marks({})
    assert marks({"ingest": {"replicas": 4}}) == {usual}
    assert marks({"settings": {"mqtt": {"host": "other"}}}).isdisjoint({usual})
    assert marks({"restartOnChange": False}) == set()


def test_the_settings_of_the_values_are_ours(tmp_path: Path) -> None:
    (text,) = [d["data"]["pulsebridge.yaml"] for d in documents({}) if d["kind"] == "ConfigMap"]
    for name in ("mqtt-password", "pulsar-token"):
        (tmp_path / name).write_text("secret", encoding="utf-8")
    config = tmp_path / "pulsebridge.yaml"
    config.write_text(text.replace("/etc/pulsebridge/secrets", str(tmp_path)), encoding="utf-8")
    assert load(config).streaming.root == "/lakehouse"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"ingest": {"replicas": -1}}, "/ingest/replicas"),
        ({"ingest": {"replica": 2}}, "replica"),
        ({"ui": {"port": 99999}}, "/ui/port"),
        ({"lakehouse": {"size": "much"}}, "/lakehouse/size"),
        ({"secret": ""}, "/secret"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError, match=re.escape(named)):
        chart.validate_schema(values)


def test_every_value_has_its_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - set(values) == {"global"}
    for name, value in values.items():
        known = schema["properties"][name].get("properties")
        if known is not None:
            assert set(value) == set(known), name


def test_the_manifests_for_kubectl_are_those_of_the_chart() -> None:
    """After a change of the chart: ``python -m tests.support.helm_chart``."""
    found = {path.name: path.read_text(encoding="utf-8") for path in MANIFESTS.glob("*.yaml")}
    assert found.pop("secret.yaml")
    assert found == plain_manifests()


def test_the_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__
