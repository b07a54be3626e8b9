"""Snapshots: devices of both sides, sources that fail, and what an endpoint answers."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bridge.inspect.devices.view import DeviceView
from bridge.settings import Settings, StreamingSettings
from bridge.settings.metrics import MetricsSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.ui import UiSettings
from pulsebridge.local.ports import free_ports
from pulsebridge.ui.endpoints import Endpoint, checkpointed, endpoint_urls, link_rows, query_rows, samples_of
from pulsebridge.ui.lakehouse import Tables
from pulsebridge.ui.snapshot import Snapshots, merged
from pulsebridge.ui.topics import Queues
from tests.support.ui import write_lakehouse

METRICS = """\
# TYPE pulsebridge_ingest_connected gauge
pulsebridge_ingest_connected{link="north"} 1
# TYPE pulsebridge_ingest_received counter
pulsebridge_ingest_received_total{link="north"} %d
# TYPE pulsebridge_ingest_oldest_unacked_seconds gauge
pulsebridge_ingest_oldest_unacked_seconds{link="north"} 90
# TYPE pulsebridge_push_link_up gauge
pulsebridge_push_link_up{link="north",partition="0"} 1
# TYPE pulsebridge_stream_progress_age_seconds gauge
pulsebridge_stream_progress_age_seconds{query="readings"} 2.5
# TYPE pulsebridge_source_behind_seconds gauge
pulsebridge_source_behind_seconds{query="readings"} 7
"""
NAMES = st.text(max_size=5)


@given(
    st.dictionaries(NAMES, st.integers(0, 9), max_size=20),
    st.dictionaries(NAMES, st.just((1, "t 1")), max_size=20),
    st.integers(1, 30),
)
def test_each_device_of_pulsar_and_of_the_tables_is_listed_once(
    queues: dict[str, int], latest: dict[str, tuple[int, str]], most: int
) -> None:
    known = [(DeviceView(name, 0, pending=pending), "unknown") for name, pending in queues.items()]
    found = merged(Queues(known[:most]), Tables(latest), {}, most)
    names = [one.name for one in found]
    assert len(set(names)) == len(names) <= most
    assert {name for name, _ in list(queues.items())[:most]} <= set(names)
    assert [one.pending for one in found] == sorted((one.pending for one in found), reverse=True)
    assert all(one.reading == "t 1" for one in found if one.name in latest)


def test_links_and_queries_come_from_the_metrics() -> None:
    before = Endpoint("http://e", True, samples=samples_of(METRICS % 100), read_at=10.0)
    now = Endpoint("http://e", True, samples=samples_of(METRICS % 160), read_at=20.0)
    (link,) = link_rows([now], [before])
    assert (link["link"], link["connected"], link["rate"], link["lag"]) == ("north", True, "6/s", "1 min")
    assert link_rows([now], [])[0]["rate"] == ""
    (query,) = query_rows([now])
    assert (query["query"], query["progress"], query["behind"]) == ("readings", "2 s ago", "7 s")
    assert now.tier == "ingest"


@given(st.text())
def test_foreign_metrics_are_left_out(text: str) -> None:
    try:
        found = samples_of(text)
    except ValueError:
        return
    assert all(math.isfinite(len(values)) for values in found.values())


def test_the_endpoint_of_the_settings_is_the_default() -> None:
    assert endpoint_urls(Settings()) == ()
    assert endpoint_urls(Settings(metrics=MetricsSettings(port=9464))) == ("http://127.0.0.1:9464",)
    given_ = Settings(metrics=MetricsSettings(port=9464), ui=UiSettings(endpoints=("http://[::1]:1/",)))
    assert endpoint_urls(given_) == ("http://[::1]:1",)


def test_without_metrics_the_checkpoints_show_the_last_batch(tmp_path: Path) -> None:
    write_lakehouse(tmp_path, 3)
    (row,) = checkpointed(str(tmp_path))
    assert (row["query"], row["rows"]) == ("readings", "batch 10")
    assert checkpointed("s3://bucket/lake") == []


def test_a_source_that_fails_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    write_lakehouse(tmp_path, 20)
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    settings = Settings(
        pulsar=PulsarSettings(service_url=f"pulsar://{closed}", admin_url=f"http://{closed}", operation_timeout="1s"),
        streaming=StreamingSettings(root=str(tmp_path)),
        ui=UiSettings(endpoints=(f"http://{closed}",)),
    )
    snapshots = Snapshots(settings)
    snapshots.read()
    now = snapshots.current
    assert list(now.problems) == ["Pulsar"]
    assert closed in now.problems["Pulsar"]
    assert len(now.devices) == 20
    assert now.devices.page("press-7").found == 1
    assert now.alerts.page("open").found == 121
    (endpoint,) = now.endpoints
    assert not endpoint.ready
    assert "does not answer" in endpoint.missing[0]
    assert [row["query"] for row in now.queries] == ["readings"]
