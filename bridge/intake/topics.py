"""The topics that a link writes to: provisioned in the background, retried, re-created.

Threads: the ingest loop calls everything except ``recreate`` and ``check_policies``. A pool asks Pulsar.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Final

import structlog

from bridge.backoff import backoff_s
from bridge.contract import COMMANDS_TOPIC, DEAD_LETTERS_TOPIC, RESUME_TOPIC
from bridge.dead_letters.blocks import Block
from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TerminalError
from bridge.intake.background import Background
from bridge.intake.flow import Reading
from bridge.intake.provisioning import verify_policies
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient

__all__ = ["RETRY_MAX_S", "RETRY_MIN_S", "Topic", "Topics"]

log = structlog.get_logger("ingest")

RETRY_MIN_S: Final = 0.2
RETRY_MAX_S: Final = 2.0


class Topic:
    """A topic, whose partitions are not known until it is provisioned."""

    def __init__(self) -> None:
        self.partitions = -1
        self.waiting: deque[Reading] = deque()
        self.blocks: dict[int, Block] = {}
        """Blocks that this worker stored before its restart, by partition."""


class Topics:
    """The topics by full name. ``blocks_of`` returns the stored blocks of a topic; it runs in the pool.

    ``put`` gets the waiting readings of a provisioned topic, ``on_refused`` those of a topic that cannot be created,
    with the reason.
    """

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        background: Background,
        *,
        blocks_of: Callable[[str], dict[int, Block]],
        put: Callable[[Reading], object],
        on_refused: Callable[[Reading, str], None],
    ) -> None:
        self.by_name: dict[str, Topic] = {}
        """The topics written to. Other threads may copy it."""
        self._client = client
        self._admin = admin
        self._background = background
        self._dead_letter_topic = admin.settings.system_topic(DEAD_LETTERS_TOPIC)
        self._blocks_of = blocks_of
        self._put = put
        self._on_refused = on_refused
        self._retries: dict[str, tuple[float, int]] = {}

    def add(self, name: str) -> Topic:
        """Return a new topic and begin to provision it."""
        topic = self.by_name[name] = Topic()
        self._provision(name, 0)
        return topic

    def _provision(self, name: str, attempt: int) -> None:
        def work() -> None:
            try:
                count = self._partitions_of(name)
                self._background.report(partial(self._provisioned, name, count, self._blocks_of(name)))
            except PulsebridgeError as e:
                self._background.report(partial(self._failed, name, attempt, e))

        self._background.submit(work)

    def _provisioned(self, name: str, partitions: int, blocks: dict[int, Block], _now: float) -> None:
        topic = self.by_name[name]
        topic.partitions = partitions
        topic.blocks = blocks
        while topic.waiting:
            self._put(topic.waiting.popleft())

    def turn(self, now: float) -> None:
        """Retry the topics that are due."""
        for name, (due, attempt) in list(self._retries.items()):
            if now >= due:
                del self._retries[name]
                self._provision(name, attempt)

    def _failed(self, name: str, attempt: int, error: PulsebridgeError, now: float) -> None:
        refused = isinstance(error, RefusedError) and not isinstance(error, DeniedError)
        if refused and name != self._dead_letter_topic:
            for reading in self.by_name.pop(name).waiting:  # the next message retries it
                self._on_refused(reading, str(error))
            return
        if attempt == 0:
            log.warning(
                "topic cannot be created, its messages wait. Action: check Pulsar's admin and the rights of ingest",
                topic=name,
                why=str(error),
            )
        self._retries[name] = (now + backoff_s(attempt, RETRY_MIN_S, RETRY_MAX_S, 0.5), attempt + 1)

    # --- outside the loop ---

    def _partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 without partitions; create it as ``pulsar.provision`` allows.

        Raises RefusedError with the command that creates it, DeniedError or TransientError.
        """
        settings = self._admin.settings
        wanted = settings.partitions
        if topic == settings.system_topic(RESUME_TOPIC):
            # A request has the partition number of the device's commands (H28).
            commands = self._client.partitioned(settings.system_topic(COMMANDS_TOPIC))
            wanted = len(commands) or settings.command_partitions
        elif topic == self._dead_letter_topic:
            wanted = settings.command_partitions
        if settings.provision == "create":
            return self._admin.create_partitioned(topic, wanted)
        partitions = self._client.partitions(topic)
        if partitions not in ([], [topic]):
            return len(partitions)
        if not partitions or (settings.provision == "verify" and not self._admin.exists(topic)):
            raise RefusedError(
                f"the topic {topic} does not exist, and pulsar.provision is {settings.provision}",
                remedy=f"pulsar-admin topics create-partitioned-topic {topic} --partitions {wanted}",
            )
        return 0

    def recreate(self, name: str) -> None:
        """Re-create a topic that another client deleted, as it was; the next attempt finds it."""
        known = self.by_name.get(name)
        if known is None or known.partitions < 0 or self._admin.settings.provision != "create":
            return
        try:
            if self._admin.make(name, known.partitions):
                log.warning(
                    "topic was deleted with its subscriptions and their messages; ingest re-created it. Action: make "
                    "its readers resubscribe",
                    topic=name,
                )
        except PulsebridgeError as e:
            log.debug("the topic cannot be re-created", topic=name, why=str(e))

    def check_policies(self) -> None:
        """Log changed policies that may cause a producer's error (H1 c)."""
        if self._admin.settings.provision == "off":
            return
        try:
            verify_policies(self._admin)
        except DeniedError as e:
            log.debug("policies may not be read", why=e.what)
        except TerminalError as e:
            log.warning("a policy refuses or loses messages. Action: run the named command", why=e.what)
        except PulsebridgeError as e:
            log.debug("policies could not be read", why=e.what)

    # --- on the loop thread ---

    def forget_unused(self, used: Container[str]) -> None:
        """Forget the provisioned topics that are not ``used``."""
        self.by_name = {n: t for n, t in self.by_name.items() if n in used or t.partitions < 0}

    @property
    def retry_times(self) -> list[float]:
        """When the next attempts are due."""
        return [due for due, _ in self._retries.values()]

    @property
    def partitions(self) -> dict[str, int]:
        """The readings topics, with their numbers of partitions. Any thread may read them."""
        known = list(self.by_name.items())
        return {n: t.partitions for n, t in known if t.partitions >= 0 and n != self._dead_letter_topic}
