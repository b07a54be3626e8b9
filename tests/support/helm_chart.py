"""The Helm chart in ``conf/deploy/helm``, rendered by Helm's own library (package ``helm-python-sdk``).

``python -m tests.support.helm_chart`` writes the manifests in ``conf/deploy/kubernetes`` after a change of the chart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

__all__ = ["CHART", "MANIFESTS", "plain_manifests", "rendered"]

_DEPLOY: Final = Path(__file__).resolve().parents[2] / "conf/deploy"
CHART: Final = _DEPLOY / "helm/pulsebridge"
MANIFESTS: Final = _DEPLOY / "kubernetes"


def rendered(values: dict[str, Any] | None = None, *, name: str = "pulsebridge") -> dict[str, str]:
    """Return the texts of the chart's manifests by the names of their templates; those that are empty are left out."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        found: dict[str, str] = chart.render(values or {}, name=name, namespace="plant")
    texts = {Path(path).name: text.strip() + "\n" for path, text in found.items() if path.endswith(".yaml")}
    return {name: text for name, text in sorted(texts.items()) if text.strip()}


def plain_manifests() -> dict[str, str]:
    """Return the manifests for kubectl, by file name: the chart's, without the mark by which Helm restarts pods."""
    return rendered({"restartOnChange": False})


if __name__ == "__main__":
    for file, content in plain_manifests().items():
        (MANIFESTS / file).write_text(content, encoding="utf-8")
