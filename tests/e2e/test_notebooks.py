"""The notebooks, run top to bottom on the real stack as a reader would."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient

if TYPE_CHECKING:
    from bridge.local.stack import LocalStack
    from bridge.settings import PulsarSettings

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


def outputs_of(notebook: Any, source: str) -> Any:
    return next(cell for cell in notebook.cells if cell.source.startswith(source)).outputs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.e2e
@pytest.mark.stack
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_first_stream_runs_and_plots_readings_and_alerts(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "PULSEBRIDGE_MQTT__HOST": stack.mqtt_host,
        "PULSEBRIDGE_MQTT__PORT": str(stack.mqtt_port),
        "PULSEBRIDGE_PULSAR__SERVICE_URL": namespaces.service_url,
        "PULSEBRIDGE_PULSAR__ADMIN_URL": namespaces.admin_url,
        "PULSEBRIDGE_PULSAR__NAMESPACE": namespaces.namespace,
        "PULSEBRIDGE_PULSAR__SYSTEM_NAMESPACE": namespaces.system_namespace,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path]),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert int(outputs_of(notebook, "sent =")[0].data["text/plain"]) == 864
    assert "cgm-001" in outputs_of(notebook, "lab.process")[0].data["text/plain"]
    assert "glucose-" in outputs_of(notebook, "device =")[0].data["text/plain"]
    for source in ("explore.plot_live", "explore.plot_device"):
        assert "vega" in str(outputs_of(notebook, source)[0].data)
