"""How long a notebook's user waits for the first plot, on a machine on which all is installed and downloaded.

From the start of a kernel, as JupyterLab starts it: the notebook starts a local stack of its own, sends readings over
MQTT and plots the stream as it runs. What JupyterLab itself takes to serve its page is measured apart, where it is installed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import httpx
import nbformat
from nbclient import NotebookClient

from pulsebridge.local.ports import free_ports
from tests.bench.processes import bench_folder
from tests.bench.results import Figure
from tests.support.waiting import poll_for

__all__ = ["measure"]

NOTEBOOK: Final = Path(__file__).resolve().parents[2] / "notebooks" / "first_stream.ipynb"
BAR_MS: Final = 120_000.0


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``notebook.first_plot``, JupyterLab's start in it where that is installed, and ``notebook.all``."""
    missing = [] if find_spec("jupyterlab") else ["JupyterLab's own start: `make notebook` installs it"]
    with bench_folder() as folder:
        served = 0.0 if missing else _served(folder)
        plotted, ended = _plotted(folder)
    print(f"  JupyterLab {served:.1f} s, plot after {plotted:.1f} s, all after {ended:.1f} s", flush=True)
    figures = [Figure("notebook.first_plot", (served + plotted) * 1000, "ms", "the bar", BAR_MS)]
    return [*figures, Figure("notebook.all", (served + ended) * 1000, "ms")], missing


def _served(folder: Path) -> float:
    """Return the seconds until JupyterLab serves its page."""
    (port,) = free_ports(1)
    words = ["--no-browser", "--ServerApp.port", str(port), "--ServerApp.ip", "127.0.0.1", "--allow-root"]
    began = time.monotonic()
    with (folder / "jupyter.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *words, "--IdentityProvider.token", "", str(folder)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        poll_for(lambda: _answers(f"http://127.0.0.1:{port}/lab"), 120, "JupyterLab's page", every=0.1)
        return time.monotonic() - began
    finally:
        server.terminate()
        server.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _plotted(folder: Path) -> tuple[float, float]:
    """Run the notebook. Return after how many seconds its first plot was there, and it was done."""
    began = time.monotonic()
    plots: list[float] = []

    def done(cell: Any, **_: object) -> None:
        if any("vega" in str(one.get("data", "")) for one in cell.get("outputs", ())):
            plots.append(time.monotonic() - began)

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, on_cell_executed=done, resources=place).execute()
    return plots[0], time.monotonic() - began
