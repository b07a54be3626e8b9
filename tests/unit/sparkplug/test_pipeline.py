from __future__ import annotations

import re

from bridge.settings import Settings
from bridge.settings.presets import declared_decoders
from sparkplug.payloads import parse_topic
from sparkplug.tables import _TOPICS
from streaming.loading import pipeline_of

SETTINGS = Settings.model_validate(
    {"ingest": {"presets": ["sparkplug"]}, "streaming": {"modules": ["sparkplug.pipeline"]}}
)


def test_the_preset_and_the_module_declare_the_tables_as_often_as_the_job_starts() -> None:
    for _ in range(2):
        pipeline = pipeline_of(SETTINGS)
        names = [name for name in pipeline.tables if name.startswith("sparkplug")]
        assert names == ["sparkplug_metrics", "sparkplug_events", "sparkplug_presence", "sparkplug_definitions"]
        assert pipeline.flows["sparkplug_rebirths"].kind == "commands"


def test_binary_payloads_are_no_readings() -> None:
    (one,) = [one for one in declared_decoders(SETTINGS) if one.filter == "spBv1.0/#"]
    assert one.format == "none"


def test_spark_selects_the_topics_that_the_rows_can_read() -> None:
    topics = ["spBv1.0/G/NDATA/N", "spBv1.0/G 1/DDEATH/N/D", "spBv1.0/STATE/h", "spBv1.0/G/NCMD/N", "spBv1.0/G/NDATA/N/D",
              "spBv1.0/G/DDATA/N", "spBv1x0/G/NDATA/N", "a/spBv1.0/G/NDATA/N"]  # fmt: skip
    assert [re.search(_TOPICS, one) is not None for one in topics] == [parse_topic(one) is not None for one in topics]
