"""The notebooks, run top to bottom on the real stack as a reader would, and what they keep of a run."""

from __future__ import annotations

import html
import os
import re
import socket
import subprocess
from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
import yaml

from bridge.settings.loading import conf_path
from pulsebridge.demo.recordings import BUOY, GLUCOSE, cut, load
from pulsebridge.processes import pulsebridge_command
from tests.support.certificates import HOST, Authority
from tests.support.connect import connect_server
from tests.support.delta_rows import delta_rows
from tests.support.notebooks import NOTEBOOKS, ROOT, environment, executed
from tests.support.secured import PASSWORD, mosquitto
from tests.support.waiting import patient

if TYPE_CHECKING:
    from bridge.settings import PulsarSettings
    from pulsebridge.local.stack import LocalStack


@pytest.mark.parametrize("name", NOTEBOOKS)
class TestKept:
    def test_a_notebook_is_kept_with_the_outputs_of_one_run(self, name: str) -> None:
        cells = [c for c in nbformat.read(NOTEBOOKS[name], as_version=4).cells if c.cell_type == "code"]
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
        assert not [one for cell in cells for one in cell.outputs if one.output_type == "error"]
        assert any("image/png" in one.get("data", {}) for cell in cells for one in cell.outputs)

    def test_a_notebook_says_nothing_of_the_machine_on_which_it_ran(self, name: str) -> None:
        content = NOTEBOOKS[name].read_text(encoding="utf-8")
        content = re.sub(r'"image/png": "[^"]*"', "", content)
        for mark in (str(ROOT), str(Path.home()), "/tmp/"):
            assert mark not in content, mark
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", content)
        assert not re.search(r"127\.0\.0\.1|localhost", content)


WATCHED = """\
import time

until = time.monotonic() + 60
while not live.choices["device"].options and time.monotonic() < until:
    time.sleep(0.2)
live.choices["device"].options, query.isActive
"""


def cell_of(notebook: Any, text: str) -> Any:
    """Return the one cell of code with this text."""
    (found,) = (c for c in notebook.cells if c.cell_type == "code" and text in c.source)
    return found


def shown(notebook: Any, text: str) -> str:
    """Return what the cell with this text shows, as text."""
    return "\n".join(one.data["text/plain"] for one in cell_of(notebook, text).outputs if "data" in one)


def charts(notebook: Any, text: str) -> list[Any]:
    """Return the charts that the cell with this text shows: altair's specification of each."""
    outputs = [one.data for one in cell_of(notebook, text).outputs if "image/png" in one.get("data", {})]
    return [data["application/vnd.vegalite.v5+json"] for data in outputs]


def points(chart: Any) -> list[int]:
    """Return the number of points in each data set of a chart."""
    return sorted(len(rows) for rows in chart["datasets"].values())


def after(text: str, source: str) -> Callable[[Any], None]:
    """Return what puts a cell behind the one with this text."""

    def change(notebook: Any) -> None:
        place = notebook.cells.index(cell_of(notebook, text))
        notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(source))

    return change


@pytest.fixture(scope="module", params=["local", "connect"])
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment by which a notebook finds its Spark: none for a driver of its own."""
    if request.param == "local":
        yield {}
        return
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield {"SPARK_REMOTE": address}


@pytest.fixture
def servers(stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, remote: dict[str, str]) -> dict[str, str]:
    """The environment by which a notebook finds the servers."""
    return environment(stack, namespaces, tmp_path) | remote


@pytest.mark.e2e
@pytest.mark.stack
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestRun:
    def test_first_stream_charts_a_stream_and_writes_what_the_job_runs(
        self, servers: dict[str, str], tmp_path: Path
    ) -> None:
        def change(notebook: Any) -> None:
            after("live = ", WATCHED)(notebook)
            last = cell_of(notebook, "live.stop()")
            last.source = last.source.replace("live.stop()", "live.button.click()") + ", query.isActive"

        notebook = executed("first_stream", tmp_path, servers, change)
        devices, alive = literal_eval(shown(notebook, WATCHED))
        assert devices
        assert alive, "the chart followed the stream while it ran"
        assert literal_eval(shown(notebook, "live.button.click()")) == (3 * 432, False)
        (chart,) = charts(notebook, "live = ")
        assert points(chart)[0] > 20

        expected = defaultdict[tuple[str, Any], list[float]](list)
        for kind, parts, count in ((GLUCOSE, 100, 2), (BUOY, 20, 1)):
            for device in cut(kind, load(kind), parts)[:count]:
                for reading in device.readings[:432]:
                    hour = reading.ts.replace(minute=0, second=0, microsecond=0)
                    expected[device.name, hour].append(reading.value)
        command = pulsebridge_command(
            "stream", "--config", str(conf_path("demo/pulsebridge.yaml")), "--available-now",
            "--set", 'streaming.modules=["hours.py"]', "--set", f"streaming.root={tmp_path / 'tables'}",
            "--set", f"streaming.alerts={conf_path('demo/rules.yaml')}",
            "--set", f"streaming.suites={conf_path('demo/gx')}",
            "--only", "sensors", "--only", "hours",
        )  # fmt: skip
        subprocess.run(command, cwd=tmp_path, env={**os.environ, **servers}, check=True, timeout=patient(200))
        found = {
            (row["device"], row["hour"].replace(tzinfo=None)): (row["readings"], row["mean"])
            for row in delta_rows(tmp_path / "tables/hours")
        }
        assert found == {
            key: (len(values), pytest.approx(sum(values) / len(values))) for key, values in expected.items()
        }

    def test_your_broker_and_tables_reads_any_payload_over_tls_with_a_login(
        self, servers: dict[str, str], tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path, "authority")
        (tmp_path / "password.txt").write_text(PASSWORD, encoding="utf-8")
        certificate = authority.issue("broker")
        with mosquitto(tmp_path, certificate=certificate, users=["me"]) as (port, _):
            mqtt = {"host": HOST, "port": port, "tls": True, "tls_ca": str(authority.file), "username": "me"}
            mqtt["password_file"] = "password.txt"

            def change(notebook: Any) -> None:
                cell = cell_of(notebook, "%%writefile")
                cell.source += "\n" + yaml.safe_dump({"mqtt": mqtt})

            named = {name: value for name, value in servers.items() if "MQTT" not in name}
            notebook = executed("your_broker_and_tables", tmp_path, named, change)
        assert "STRUCT<at: STRING, battery: STRUCT<percent: BIGINT>" in shown(notebook, "schema_of_json")
        assert "battery.percent" in shown(notebook, 'lab.messages("#"')
        (chart,) = charts(notebook, "chart = ")
        assert points(chart) == [2]
        table = shown(notebook, 'lab.root}/my_rooms")  # or')
        assert "cold" in table, "a value of another type is rescued"
        assert "firmware" in table
        assert table.count("climate-1") == 3

    def test_quality_and_history_shows_each_run_and_each_version(self, servers: dict[str, str], tmp_path: Path) -> None:
        moved = "slider.value = versions[0]; [len(readings_of('cgm-001', v)) for v in versions]"
        notebook = executed("quality_and_history", tmp_path, servers, after("slider = ", moved))
        faults = 2 * (288 // 20 + 432 // 5)
        counts = literal_eval(shown(notebook, '{"sent"'))
        assert counts == {
            "sent": 2 * (144 + 288 + 432) + faults,
            "measurements": 2 * 432,
            "quarantine": faults,
        }
        (quality,) = charts(notebook, "quality_results")
        (shares,) = quality["datasets"].values()
        by_rule = defaultdict[str, list[float]](list)
        for row in sorted(shares, key=lambda share: str(share["run_at"])):
            by_rule[row["rule"]].append(row["failed"])
        assert all(len(runs) == 3 for runs in by_rule.values())
        assert sorted(by_rule["value_present"]) == by_rule["value_present"]
        assert by_rule["value_present"][0] == 0 < by_rule["value_present"][2]
        (docs,) = [one.data["text/html"] for one in cell_of(notebook, "data_docs").outputs if "data" in one]
        assert "iframe srcdoc" in docs
        assert "must never be null" in html.unescape(docs)
        lengths = literal_eval(shown(notebook, moved))
        assert lengths[-1] == 432
        assert sorted(lengths) == lengths
        assert {0, 144, 288, 432} <= set(lengths)
        (past,) = charts(notebook, "slider = ")
        assert points(past) == [0, 432], "the chart shows the version of the slider"

    def test_commands_and_receipts_follows_a_device_that_leaves_and_comes_back(
        self, servers: dict[str, str], tmp_path: Path
    ) -> None:
        notebook = executed("commands_and_receipts", tmp_path, servers)
        assert len(re.findall(r"press-1-\w{4}-\d{3}", shown(notebook, "press.commands(at_least=4)"))) == 4
        assert shown(notebook, "settled=4").count("delivered") == 4
        assert shown(notebook, "press.leave").count("None") >= 3, "nothing is known of those that wait"
        later = re.findall(r"press-1-\w{4}-\d{3}", shown(notebook, "press.leave"))
        got = re.findall(r"(press-1-\w{4}-\d{3}) .* (True|False)", shown(notebook, "press.come()\n"))
        assert [one[0][-3:] for one in got[:4]] == ["001", "002", "003", "004"]
        assert {repeat for _, repeat in got[4:-3]} <= {"True"}
        assert got[-3:] == [(command, "False") for command in later]
        assert charts(notebook, "every_receipt =")
