"""Which process gets which tests: whole files, Spark's together."""

from __future__ import annotations

from pathlib import Path

from tests.support.dealing import next_of, unit_of


def test_files_stay_whole_and_the_secured_servers_tests_together() -> None:
    assert unit_of("tests/e2e/test_demo.py::test_a[x::y]") == "tests/e2e/test_demo.py"
    assert unit_of("tests/integration/security/test_retention_subscriptions.py::test_a") == "tests/integration/security"


def test_one_process_takes_sparks_files_and_another_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("def test_a() -> None: ...")
    (tmp_path / "spark.py").write_text("def test_a(spark: SparkSession) -> None: ...")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mixed.py").write_text("def test_a(spark: SparkSession) -> None: ...")
    plain, spark = {"plain.py": ["plain.py::test_a"]}, {"spark.py": ["spark.py::test_a"]}
    folder = {"folder": ["plain.py::test_a", "folder/mixed.py::test_a[x::y]"]}
    assert next_of(plain | spark | folder, tmp_path, spark=True) == "spark.py"
    assert next_of(plain | folder, tmp_path, spark=True) == "folder"
    assert next_of(spark | folder, tmp_path, spark=False) is None
