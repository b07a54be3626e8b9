"""The notebooks, run top to bottom on the real stack as a reader would."""

from __future__ import annotations

import os
import re
import sys
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.waiting import patient

if TYPE_CHECKING:
    from bridge.local.stack import LocalStack
    from bridge.settings import PulsarSettings

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


def outputs_of(notebook: Any, source: str) -> Any:
    """Return what a cell shows; Spark may write to the standard error before it."""
    cell = next(cell for cell in notebook.cells if cell.source.startswith(source))
    return [one for one in cell.outputs if "data" in one]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.fixture
def run(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Any]:
    """Run a notebook by its name, and return it with its outputs."""
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

    def executed(name: str) -> Any:
        (path,) = (one for one in NOTEBOOKS if one.stem == name)
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(
            notebook, timeout=patient(300), resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
        return notebook

    return executed


def shown(notebook: Any, source: str) -> str:
    return str(outputs_of(notebook, source)[0].data["text/plain"])


@pytest.mark.e2e
@pytest.mark.stack
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestRun:
    @pytest.mark.long
    def test_first_stream_runs_and_plots_readings_and_alerts(self, run: Callable[[str], Any]) -> None:
        notebook = run("first_stream")
        assert int(shown(notebook, "sent =")) == 864
        assert "cgm-001" in shown(notebook, "lab.process")
        assert "glucose-" in shown(notebook, "device =")
        for source in ("explore.plot_live", "explore.plot_device"):
            assert "vega" in str(outputs_of(notebook, source)[0].data)

    @pytest.mark.long
    def test_quality_and_quarantine_shows_what_each_rule_held_back(self, run: Callable[[str], Any]) -> None:
        notebook = run("quality_and_quarantine")
        counts = literal_eval(shown(notebook, "lab.process"))
        assert counts == {"sent": 606, "measurements": 576, "quarantine": 30}
        chart = str(outputs_of(notebook, "explore.plot_failures")[0].data)
        for rule in ("clock_skew", "undecodable", "value_present", "glucose_range"):
            assert rule in chart
        assert "some_rows" in shown(notebook, "verdicts =")

    @pytest.mark.long
    def test_device_history_reads_the_table_as_it_was(self, run: Callable[[str], Any]) -> None:
        notebook = run("device_history")
        assert literal_eval(shown(notebook, "device =")) == (288, 432)
        assert "WRITE" in shown(notebook, "history =")
        assert "vega" in str(outputs_of(notebook, "explore.plot_versions")[0].data)
        assert "wearables/cgm-001/glucose" in shown(notebook, "lowest =")

    @pytest.mark.long
    def test_commands_and_receipts_follows_a_device_that_leaves_and_comes_back(
        self, run: Callable[[str], Any]
    ) -> None:
        notebook = run("commands_and_receipts")
        assert len(re.findall(r"press-1-\w{4}-\d{3}", shown(notebook, "press.commands(at_least=4)"))) == 4
        assert shown(notebook, "told =").count("delivered") == 4
        assert shown(notebook, "press.leave").count("None") >= 3, "nothing is known of those that wait"
        got = re.findall(r"press-1-\w{4}-\d{3}", shown(notebook, "press.come"))
        assert len(got) == 7
        assert [one[-3:] for one in got] == ["001", "002", "003", "004", "001", "002", "003"]
        assert "vega" in str(outputs_of(notebook, "all_told =")[0].data)
