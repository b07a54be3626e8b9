"""What the source takes for granted of Pulsar: positions, acknowledgements, ids, subscriptions made by the admin."""

from __future__ import annotations

import pytest

from bridge.contract import Position
from bridge.errors import FencedError
from bridge.pulsar.admin import rest_path
from bridge.pulsar.client import MessageId, PulsarClient
from sources.planning import Ledger, PartitionView
from sources.proof import Verdict, classify
from sources.retention import RetentionSubscription, SubscriptionRecord
from sources.snapshot import INCARNATION_PROPERTY, Catalog, view_of
from tests.support.pulsar_topics import TestTopic
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def test_h16_a_cumulative_ack_where_no_entry_is_does_not_move_the_subscription(
    topic: TestTopic, client: PulsarClient
) -> None:
    topic.publish([b"1", b"2", b"3"], "unbatched")
    ledger = topic.ledgers()[0]
    for name, place, moved in (
        ("before", (ledger, -1), f"{ledger}:-1"),
        ("beyond", (ledger, 99), f"{ledger}:-1"),
        ("elsewhere", (ledger + 100_000, 0), f"{ledger}:-1"),
        ("last", (ledger, 2), f"{ledger}:2"),
    ):
        consumer = client.consumer(topic.partition(), name, queue=0)
        consumer.acknowledge_cumulative(MessageId(-1, *place, -1))
        consumer.close()  # sends what is grouped
        poll_for(lambda name=name, moved=moved: topic.hold(name) == moved, 10, f"{name} at {moved}")  # type: ignore[misc]


def test_a_snapshot_counts_the_entries_of_closed_and_open_ledgers(topic: TestTopic) -> None:
    def view() -> list[tuple[int, int]]:
        found = view_of("p", topic.admin.internal_stats(topic.partition()))
        return [(ledger.id, ledger.entries) for ledger in found.ledgers]

    first = topic.ledgers()[0]
    assert view() == [(first, 0)]
    topic.publish([b"1", b"2"], "unbatched")
    assert view() == [(first, 2)]
    topic.roll_over()
    second = topic.ledgers()[-1]
    assert view() == [(first, 2), (second, 0)]
    topic.publish([b"3"], "unbatched")
    assert view() == [(first, 2), (second, 1)]


def test_a_retention_subscription_is_created_at_a_position_with_its_properties_and_is_exclusive(
    topic: TestTopic, client: PulsarClient
) -> None:
    topic.publish([b"1", b"2", b"3"], "unbatched")
    ledger = topic.ledgers()[0]
    hold = RetentionSubscription("q", topic.admin, client, wait_s=0)
    record = SubscriptionRecord("latest", Position(ledger, 2), False)
    hold.create(topic.partition(), record)
    assert hold.record(topic.partition()) == record
    assert topic.hold("q") == f"{ledger}:1"
    hold.attach([topic.partition()])
    with pytest.raises(FencedError, match=r"'q' on .* is in use by another query — stop that query"):
        RetentionSubscription("q", topic.admin, client, wait_s=0).attach([topic.partition()])
    hold.close()
    assert (
        RetentionSubscription("q", topic.admin, client, wait_s=0).record("persistent://" + topic.partition()[13:] + "x")
        is None
    )


def test_h16_a_subscription_that_does_not_follow_a_commit_is_reported_and_follows_the_next(
    topic: TestTopic, client: PulsarClient
) -> None:
    topic.publish([b"1", b"2", b"3"], "unbatched")
    name, ledger = topic.partition(), topic.ledgers()[0]
    hold = RetentionSubscription("q", topic.admin, client, wait_s=5)
    hold.create(name, SubscriptionRecord("earliest", Position(ledger, 0), False))
    hold.attach([name])
    wrong = PartitionView(name, (Ledger(ledger, 100, 100),))
    hold.commit({name: wrong}, {name: Position(ledger, 100)})  # to an entry that is not there

    def view() -> dict[str, PartitionView]:
        return {name: view_of(name, topic.admin.internal_stats(name))}

    assert poll_for(lambda: hold.check(view()), 10, "the report") == [name]
    record = hold.record(name)
    assert record is not None
    assert record.committed
    hold.commit(view(), {name: Position(ledger, 2)})
    poll_for(lambda: topic.hold("q") == f"{ledger}:1", 10, "the subscription to follow")
    assert hold.check(view()) == []
    hold.close()


def test_h16_an_acknowledgement_that_got_lost_is_made_again_without_another_commit(
    topic: TestTopic, client: PulsarClient
) -> None:
    topic.publish([b"1", b"2", b"3"], "unbatched")
    name, ledger = topic.partition(), topic.ledgers()[0]
    hold = RetentionSubscription("q", topic.admin, client, wait_s=5)
    hold.create(name, SubscriptionRecord("earliest", Position(ledger, 0), False))
    hold.attach([name])

    def view() -> dict[str, PartitionView]:
        return {name: view_of(name, topic.admin.internal_stats(name))}

    hold.commit(view(), {name: Position(ledger, 3)})
    poll_for(lambda: topic.hold("q") == f"{ledger}:2", 10, "the subscription to follow")
    hold.move(name, SubscriptionRecord("earliest", Position(ledger, 0), True))  # as if Pulsar had not got it
    poll_for(lambda: hold.check(view()) == [name], 10, "the acknowledgement to be made again")
    poll_for(lambda: topic.hold("q") == f"{ledger}:2", 10, "the subscription to follow")
    assert hold.check(view()) == []
    hold.close()


def test_the_mark_of_a_topic_goes_with_it(topic: TestTopic) -> None:
    catalog = Catalog(topic.admin, [topic.name])
    catalog.partitions()
    first = catalog.incarnations([topic.name], mark=True)[topic.name]
    assert first
    assert catalog.incarnations([topic.name], mark=True)[topic.name] == first
    topic.roll_over()
    assert catalog.incarnations([topic.name], mark=True)[topic.name] == first
    topic.delete()
    topic.create()
    assert INCARNATION_PROPERTY not in (topic.admin.request("GET", f"/{rest_path(topic.name)}/properties") or {})
    assert catalog.incarnations([topic.name], mark=False)[topic.name] == ""
    assert catalog.incarnations([topic.name], mark=True)[topic.name] not in ("", first)


def test_h15_the_admin_reports_what_an_entry_is(topic: TestTopic) -> None:
    topic.publish([b"1", b"2"], "batched")
    topic.publish([bytes(6 * 1024 * 1024)], "chunked")
    ledger = topic.ledgers()[0]

    def verdict(number: int, entry: int) -> Verdict:
        return classify(*topic.admin.entry_headers(topic.partition(), number, entry))

    assert [verdict(ledger, n) for n in range(3)] == [Verdict.PRESENT] * 3
    topic.roll_over()
    topic.trim()
    assert verdict(ledger, 0) is Verdict.LOST
