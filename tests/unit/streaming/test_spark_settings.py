"""The two files of Spark's settings: what every cluster gets, and what one machine gets on top."""

from __future__ import annotations

import pytest

from bridge.settings.loading import conf_path
from streaming.session import spark_defaults, spark_settings

LOCAL = ("local", "local[2]", "local[*]", "local[1,2]")
CLUSTERS = ("spark://HOST:7077", "yarn", "k8s://https://HOST:6443", "local-cluster[2,1,1024]")


def test_what_tunes_one_machine_is_no_cluster_s() -> None:
    tuned = (
        "spark.driver.",
        "spark.executor.",
        "spark.sql.adaptive.",
        "spark.sql.codegen.",
        "spark.ui.enabled",
    )
    assert [name for name in spark_defaults() if name.startswith((*tuned, "spark.sql.shuffle."))] == []
    local = spark_settings("local[2]").keys() - spark_defaults().keys()
    assert {"spark.driver.memory", "spark.ui.enabled"} <= local
    for master in CLUSTERS:
        assert spark_settings(master) == spark_defaults()


@pytest.mark.parametrize("master", LOCAL)
def test_one_machine_has_both_files(master: str) -> None:
    wanted = spark_settings(master)
    assert wanted.items() >= spark_defaults().items(), "the second file changes nothing of the first"
    assert wanted.keys() > spark_defaults().keys()


@pytest.mark.parametrize("file", ["spark-local.conf", "spark-throughput.conf", "spark-commands.conf"])
def test_each_line_of_the_other_files_has_its_reason(file: str) -> None:
    reason = False
    for line in conf_path(file).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            reason = True
        elif line.startswith("spark."):
            assert reason or line.startswith("spark.driver.memory"), line
            reason = False


def test_throughput_changes_what_small_batches_want_on_one_machine_alone() -> None:
    small, large = spark_settings("local[2]"), spark_settings("local[2]", "throughput")
    assert small.keys() == large.keys()
    changed = {name for name in small if small[name] != large[name]}
    assert changed == {"spark.driver.extraJavaOptions", "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"}
    assert spark_settings("yarn", "throughput") == spark_defaults()
