"""All records of the cursors topic are in its log, and not only in Pulsar's compacted view of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pulsar
import pytest
from structlog.testing import capture_logs

from bridge.contract import CURSORS_TOPIC, GROUP_ROSTER_TOPIC, Position, partition_name
from bridge.contract.cursors import ids_key
from bridge.health import Health
from bridge.pulsar import compaction
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.compaction import follow_compaction, watching_compaction
from bridge.pulsar.provisioning_plan import (
    COMPACTION,
    CURSOR_RETENTION,
    ROSTER_RETENTION,
    compact_step,
    rest_path,
    subscription_step,
)
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.groups import entries, group_command, write_group_commands, write_members
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.push import (
    Devices,
    all_acknowledged,
    command,
    parking_settings,
    provision,
    push_in_thread,
    push_settings,
    receipts,
    says,
    write_commands,
)
from tests.support.raw_pulsar import store_raw
from tests.support.reading_back import patiently, quiet
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def write(topic: TestTopic, keys: Iterable[str], value: bytes) -> None:
    producer = topic.client.create_producer(topic.partition(), block_if_queue_full=True)
    failed: list[pulsar.Result] = []

    def answered(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for key in keys:
        producer.send_async(value, answered, partition_key=key)
    producer.flush()
    producer.close()
    assert not failed


def view_of(topic: TestTopic) -> dict[str, bytes]:
    client = pulsar.Client(topic.settings.service_url, logger=quiet())
    try:
        where = (topic.partition(), pulsar.MessageId.earliest)
        reader = patiently(client.create_reader, *where, is_read_compacted=True)
        found: dict[str, bytes] = {}
        while patiently(reader.has_message_available):
            message = reader.read_next(30_000)
            found[message.partition_key()] = message.data()
        return found
    finally:
        client.close()


def standing(topic: TestTopic) -> Position:
    return Position.parse(topic.hold(CURSOR_RETENTION))


def follow(topic: TestTopic) -> compaction.Move:
    with PulsarClient(topic.settings) as client:
        return follow_compaction(client, topic.partition(), CURSOR_RETENTION)


def horizon_of(topic: TestTopic) -> Position:
    """Return the position of the compaction. After a restart Pulsar at times cannot report it yet."""
    return Position.parse(patiently(topic.hold, COMPACTION))


def compact_until(topic: TestTopic, reached: Callable[[Position], bool], what: str) -> None:
    """Have it compacted until the position of that is as asked: again where it fails, as it may after a restart.

    While it compacts it is asked without a pause: where it stands in between is over in a moment.
    """
    path = f"/{rest_path(topic.partition())}/compaction"

    def there() -> bool:
        patiently(topic.admin.do, compact_step(topic.partition()))
        while not (found := reached(horizon_of(topic))):
            if patiently(topic.admin.request, "GET", path)["status"] != "RUNNING":
                return reached(horizon_of(topic))
        return found

    poll_for(there, 60, what)


@pytest.mark.chaos
@pytest.mark.long
def test_h24_pulsar_killed_while_it_compacts_loses_nothing_though_what_is_replaced_was_trimmed(
    private_stack: LocalStack,
) -> None:
    with topic_of(provisioned(private_stack), name="state") as topic:
        topic.admin.do(subscription_step(topic.partition(), CURSOR_RETENTION))
        expected = {f"d{n}": b"old" for n in range(5000)}  # so that compaction takes a while
        write(topic, expected, b"old")
        topic.roll_over()
        write(topic, ["d0"], b"new")
        topic.compact()
        assert follow(topic).moved  # past the first message alone
        assert not follow(topic).moved
        expected = dict.fromkeys(expected, b"again")  # as an owner does after a day
        write(topic, expected, b"again")
        topic.compact()
        assert follow(topic).moved
        first = topic.ledgers()[0]
        topic.roll_over()
        topic.trim(left=2)
        assert topic.ledgers()[0] > first
        for value in (b"1", b"2"):
            expected |= {"d0": value, f"later-{value!r}": value}
            write(topic, ["d0", f"later-{value!r}"], value)
            before = horizon_of(topic)
            compact_until(topic, lambda at, old=before: at < old, "it compacts")  # type: ignore[misc]
            private_stack.restart("pulsar")  # kills it
            assert horizon_of(topic) < before, "it was killed while it compacted"
            assert view_of(topic) == expected
            compact_until(topic, lambda at, old=before: at > old, "it has compacted")  # type: ignore[misc]
            assert view_of(topic) == expected


def test_h24_a_retention_subscription_moves_to_the_oldest_needed_record_at_any_distance(
    namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_A_LOOK", 10)
    with topic_of(namespaces, name="state") as topic:
        topic.admin.do(subscription_step(topic.partition(), CURSOR_RETENTION))
        write(topic, ["once"], b"old")
        start = standing(topic)
        for _ in range(40):  # an entry each
            write(topic, ["often"], b"old")
        write(topic, ["once"], b"1")
        write(topic, ["often"], b"2")
        assert not follow(topic).moved, "nothing of it was compacted"
        assert standing(topic) == start
        topic.roll_over()
        write(topic, ["later"], b"3")
        topic.compact()
        assert follow(topic).moved
        assert standing(topic) == start._replace(entry=start.entry + 41)
        assert not follow(topic).moved, "it stands before the record that is the last of its key"
        assert standing(topic) == start._replace(entry=start.entry + 41)
        write(topic, ["once", "often"], b"4")
        topic.compact()
        assert follow(topic).moved, "across the ledgers"
        topic.roll_over()
        topic.trim(left=2)
        assert view_of(topic) == {"later": b"3", "once": b"4", "often": b"4"}
        assert not follow(topic).moved


def test_h24_a_retention_subscription_that_shows_nothing_has_passed_nothing(namespaces: PulsarSettings) -> None:
    """It may not have come in time: to rewrite all of it would load a Pulsar that is slow."""
    with topic_of(namespaces, name="state") as topic:
        topic.admin.do(subscription_step(topic.partition(), CURSOR_RETENTION))
        write(topic, ["d0", "d1"], b"1")
        with PulsarClient(topic.settings) as client:
            everything = client.consumer(topic.partition(), CURSOR_RETENTION)
            everything.acknowledge_cumulative(everything.get_last_message_id())
            everything.close()
        found = follow(topic)
        assert found.oldest is not None
        assert not found.passed
        write(topic, ["d2"], b"1")
        assert follow(topic).passed, "now it shows what is behind the oldest"


def test_h24_a_retention_subscription_that_cannot_move_does_not_block_another_one(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    there = settings.pulsar.model_copy(update={"namespace": settings.pulsar.system_namespace})
    with topic_of(there, name=CURSORS_TOPIC) as topic:
        write(topic, (f"d{n % 7}" for n in range(50)), b"1")
        start = standing(topic)
        topic.compact()
        not_there = 5
        with watching_compaction(settings, Health(10.0), [not_there, 0], {}):
            poll_for(lambda: standing(topic).entry == start.entry + 43, 30, "the hold moves")


def test_h24_a_partition_that_is_never_compacted_is_named(
    namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_FAR_TOO_MUCH_BYTES", 100)
    with topic_of(namespaces, name="state") as topic:
        topic.admin.do(subscription_step(topic.partition(), CURSOR_RETENTION))
        write(topic, (f"d{n % 7}" for n in range(50)), b"12345")
        with capture_logs() as logs:
            assert not follow(topic).moved
            assert not logs
            monkeypatch.setattr(compaction, "_AGED_S", -60.0)
            assert not follow(topic).moved
        assert [one["partition"] for one in logs] == [topic.partition()]
        assert "set-compaction-threshold" in logs[0]["event"]


@pytest.mark.long
def test_h24_old_records_are_rewritten_and_the_retention_subscription_advances(
    stack: LocalStack, namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parking_settings(stack, namespaces, offline={"probe_min": "1m"})
    provision(settings)
    parked = [command(settings, "away", n) for n in range(300)]  # in two segments
    live = [command(settings, f"d{n % 3}", n) for n in range(150)]  # so many that ids are stored apart
    with Devices(settings, lambda _d, _n: True) as devices:
        with push_in_thread(settings) as metrics:
            poll_for(lambda: metrics.gauges["owned"].labels("0")._value.get() == 1, 30, "the partition is ours")
            says(settings, "away", b"offline")
            write_commands(settings, [*parked, *live])
            devices.await_all(live)
            all_acknowledged(settings)
        _write_orphaned_records(settings)
        for name, value in (("_AGED_S", -60.0), ("_EVERY_S", 0.5), ("_ASKED_EVERY_S", 2.0)):
            monkeypatch.setattr(compaction, name, value)
        with push_in_thread(settings) as metrics:  # which has all of it from a former owner
            poll_for(lambda: metrics.gauges["owned"].labels("0")._value.get() == 1, 30, "the partition is ours")
            _all_that_stood_is_passed(settings, CURSORS_TOPIC, CURSOR_RETENTION)
        monkeypatch.undo()
        with push_in_thread(settings) as metrics:
            poll_for(lambda: metrics.gauges["owned"].labels("0")._value.get() == 1, 30, "the partition is ours")
            says(settings, "away", b"online")
            more = [command(settings, "d0", 1000)]
            write_commands(settings, more)
            devices.await_all([*parked, *more])
            all_acknowledged(settings)
        assert devices.check([*parked, *live, *more]) == 0


def _write_orphaned_records(settings: Settings) -> None:
    """Write the ids of a device without other records, and a record that push did not write."""
    name = partition_name(settings.pulsar.system_topic(CURSORS_TOPIC), 0)
    with PulsarClient(settings.pulsar) as client:
        producer = client.producer(name, batching=False)
        producer.send(b'{"v":2,"ids":"AAAAAAAAAAAA"}', partition_key=ids_key("forgotten"))
        producer.close()
    store_raw(settings.pulsar, name, b"foreign", key=b"\xff\x00k")


@pytest.mark.long
def test_h24_the_roster_of_groups_is_rewritten_and_its_retention_subscription_advances(
    stack: LocalStack, namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    names = [f"d{number}" for number in range(300)]  # more than are written at once
    before, after = group_command(settings, 1), group_command(settings, 2)
    write_members(settings, "presses", names)
    with Devices(settings) as devices:
        with push_in_thread(settings):
            write_group_commands(settings, [before])
            devices.await_all(entries(before, names))
            all_acknowledged(settings)
        for name, value in (("_AGED_S", -60.0), ("_EVERY_S", 0.5), ("_ASKED_EVERY_S", 2.0)):
            monkeypatch.setattr(compaction, name, value)
        with push_in_thread(settings):
            _all_that_stood_is_passed(settings, GROUP_ROSTER_TOPIC, ROSTER_RETENTION)
        monkeypatch.undo()
        with push_in_thread(settings):  # which reads it
            write_group_commands(settings, [after])
            devices.await_all(entries(after, names))
            all_acknowledged(settings)
        assert devices.check([entry for one in (before, after) for entry in entries(one, names)]) == 0
    found = receipts(settings)
    assert [[r.state for r in found[one.command_id]] for one in (before, after)] == [["expanded"]] * 2


def _all_that_stood_is_passed(settings: Settings, topic: str, hold_name: str) -> None:
    name = partition_name(settings.pulsar.system_topic(topic), 0)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        stood = Position.parse(admin.internal_stats(name)["lastConfirmedEntry"])

        def passed() -> bool:
            path = f"/{rest_path(name)}/compaction"
            if admin.request("GET", path)["status"] != "RUNNING":
                admin.request("PUT", path)
            hold = admin.internal_stats(name)["cursors"][hold_name]["markDeletePosition"]
            return Position.parse(hold) >= stood

        poll_for(passed, 60, "the hold has passed all that stood", every=0.5)
