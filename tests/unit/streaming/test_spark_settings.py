from __future__ import annotations

from pathlib import Path

import pytest
from streaming.spark_submit import submit_command

from bridge.settings import Settings, StreamingSettings
from bridge.settings.loading import conf_path
from streaming.session import on_this_machine, spark_defaults, spark_settings

LOCAL = ("local", "local[2]", "local[*]", "local[1,2]")
CLUSTERS = ("spark://HOST:7077", "yarn", "k8s://https://HOST:6443", "local-cluster[2,1,1024]")


def given(master: str) -> dict[str, str]:
    """Return what the submit line sets by ``--conf``."""
    settings = Settings(streaming=StreamingSettings(master=master, driver_memory="3g"))
    words = submit_command(settings, [], jars=[Path("/cache/delta.jar")])
    assert words[words.index("--properties-file") + 1] == str(conf_path("spark-defaults.conf"))
    pairs = (words[n + 1].partition("=") for n, word in enumerate(words) if word == "--conf")
    return {name: value for name, _, value in pairs}


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
        assert not on_this_machine(master)
        assert spark_settings(master) == spark_defaults()
        assert not local & given(master).keys() - {"spark.driver.memory", "spark.driver.extraJavaOptions"}


@pytest.mark.parametrize("master", LOCAL)
def test_one_machine_has_both_files(master: str) -> None:
    wanted = spark_settings(master)
    assert wanted.items() >= spark_defaults().items(), "the second file changes nothing of the first"
    found = given(master)
    own = {"spark.driver.memory", "spark.driver.extraJavaOptions"}
    assert {name: wanted[name] for name in found.keys() - own} == {
        name: value for name, value in wanted.items() if name not in spark_defaults().keys() | own
    }
    assert found["spark.driver.memory"] == "3g"
    assert found["spark.driver.extraJavaOptions"].startswith(wanted["spark.driver.extraJavaOptions"])


def test_each_line_of_the_second_file_has_its_reason() -> None:
    reason = False
    for line in conf_path("spark-local.conf").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            reason = True
        elif line.startswith("spark."):
            assert reason or line.startswith("spark.driver.memory"), line
            reason = False
