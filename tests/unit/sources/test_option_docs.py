"""The page of options says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from sources.option_docs import KAFKA, STREAMNATIVE, render
from sources.option_names import ALIASES, INSTEAD, NO_EFFECT, ONLY, OPTIONS, REFUSED
from sources.options import parse

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "source-options.md"


def test_the_page_is_the_one_that_the_code_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "python -m sources.option_docs > docs/reference/source-options.md"
    )


def test_the_page_has_every_name() -> None:
    page = render()
    for table in (OPTIONS, ALIASES, INSTEAD, ONLY, NO_EFFECT, REFUSED):
        for name in table:
            assert f"`{name}`" in page or f"`{name.replace('.admin.', '.client.')}`" in page, name


def test_every_option_of_streamnatives_connector_is_known() -> None:
    given = {
        "service.url": "pulsar://h:6650", "admin.url": "http://h:8080", "topic": "t", "startingOffsets": "earliest",
        "endingOffsets": "latest", "failOnDataLoss": "true", "maxBytesPerTrigger": "5", "predefinedSubscription": "s",
        "subscriptionPrefix": "p", "pollTimeoutMs": "500", "waitingForNonExistedTopic": "false",
        "allowDifferentTopicSchemas": "false", "pulsar.client.statsIntervalSeconds": "5",
        "pulsar.admin.readTimeoutMs": "5", "pulsar.reader.readerName": "r", "pulsar.producer.producerName": "p",
    }  # fmt: skip
    parse(given, streaming=False)
    elsewhere = {"topics", "topicsPattern", "startingTime", "endingTime"}  # each excludes another one
    assert set(STREAMNATIVE) - elsewhere <= {re.sub(r"^(pulsar\.\w+)\..*", r"\1.*", name) for name in given}
    assert elsewhere <= set(OPTIONS)
    assert set(KAFKA) <= set(OPTIONS)
