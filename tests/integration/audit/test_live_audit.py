"""The live audit on real servers: clean although ingest, push and the driver died, and each manipulation found."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsebridge.audit.live.findings import Hop, Kind, Report
from pulsebridge.audit.live.on_disk import OnDisk, Store
from pulsebridge.audit.live.on_spark import OnSpark
from pulsebridge.audit.live.run import audit
from tests.support.audited import CHANGES, DEVICES, EACH, FOLLOWING, World, deployment
from tests.support.folders import own_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.settings import PulsarSettings
    from pulsebridge.local.stack import LocalStack

pytestmark = [pytest.mark.spark, pytest.mark.stack]


def audited(world: World, *, strict: bool = False, with_spark: bool = False) -> Report:
    with own_folder("audit") as folder:
        store: Store = OnDisk(str(world.root), folder)
        if with_spark:
            store = OnSpark(world.spark, lambda name: f"delta.`{world.root / name}`")
        return audit(world.settings, store, world.since_us, time.time_ns() // 1000, strict=strict)


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_run_with_kills_is_clean_and_each_manipulation_is_found(
    stack: LocalStack, namespaces: PulsarSettings, spark: SparkSession, tmp_path: Path
) -> None:
    with deployment(stack, namespaces, spark, tmp_path) as world:
        clean = audited(world)
        assert clean.found == []
        assert clean.read["Pulsar"] >= EACH * len(DEVICES) + 2
        assert clean.read["commands"] >= EACH // 10 * len(DEVICES)
        assert audited(world, with_spark=True).found == []
        for change in CHANGES:
            change.do(world)
        report = audited(world)
        seen = {(f.hop, f.kind, f.device) for f in report.found}
        wanted = {change[:3] for change in CHANGES}
        assert len(wanted) == 30
        assert wanted <= seen
        assert seen <= wanted | FOLLOWING
        now = time.time_ns() // 1000
        assert all(world.since_us <= f.at_us <= now for f in report.found if f.device != "d9")
        assert {(f.hop, f.kind, f.device) for f in audited(world, with_spark=True).found} >= wanted
        # A receipt that was written twice, as after a crash of push, is a finding only with --strict.
        world.receipt("d2", "no-letter", "rejected")
        again = audited(world, strict=True)
        assert again.copies[Hop.RECEIPTS] == report.copies.get(Hop.RECEIPTS, 0) + 1
        assert any(f.hop == Hop.RECEIPTS and f.kind == Kind.REPEATED for f in again.found)
