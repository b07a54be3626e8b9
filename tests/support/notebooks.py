"""Runs notebooks as a reader would. ``python -m tests.support.notebooks [NAME…]`` stores their new outputs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.stack import new_stack, provisioned
from tests.support.waiting import patient

__all__ = ["NOTEBOOKS", "environment", "executed"]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def environment(stack: LocalStack, pulsar: PulsarSettings, folder: Path) -> dict[str, str]:
    """Return the variables by which the notebooks find these servers."""
    return {
        "PULSEBRIDGE_MQTT__HOST": stack.mqtt_host,
        "PULSEBRIDGE_MQTT__PORT": str(stack.mqtt_port),
        "PULSEBRIDGE_PULSAR__SERVICE_URL": pulsar.service_url,
        "PULSEBRIDGE_PULSAR__ADMIN_URL": pulsar.admin_url,
        "PULSEBRIDGE_PULSAR__NAMESPACE": pulsar.namespace,
        "PULSEBRIDGE_PULSAR__SYSTEM_NAMESPACE": pulsar.system_namespace,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "IPYTHONDIR": str(folder / "ipython"),
    }


def executed(
    name: str,
    folder: Path,
    environment: Mapping[str, str],
    change: Callable[[Any], None] = lambda notebook: None,
) -> Any:
    """Return a notebook with its outputs, run top to bottom in a folder. ``change`` may add cells before."""
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    change(notebook)
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=patient(300), resources=place, record_timing=False)
    client.execute(env={**os.environ, **environment})
    return notebook


def store(name: str, notebook: Any) -> None:
    """Store a notebook with its outputs, without Spark's lines on the standard error, which depend on the machine."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    nbformat.write(notebook, NOTEBOOKS[name])


if __name__ == "__main__":
    with new_stack() as running:
        for one in sys.argv[1:] or NOTEBOOKS:
            with tempfile.TemporaryDirectory(prefix="pulsebridge-notebook-") as scratch:
                found = environment(running, provisioned(running), Path(scratch))
                store(one, executed(one, Path(scratch), found))
