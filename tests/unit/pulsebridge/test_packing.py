from __future__ import annotations

from importlib.metadata import requires
from pathlib import Path

from pulsebridge.packing import pex_arguments, requirements, submit_words

METADATA = (
    "structlog>=25.1",
    "httpx<1,>=0.27",
    "pyarrow>=18; extra == 'spark'",
    'fastavro>=1.9 ; extra == "avro"',
    "pulsebridge[avro,spark]; extra == 'local'",
    "pyspark==4.2.0; extra == 'local'",
    "delta-spark==4.4.0; extra == 'local'",
)


def test_the_core_and_the_extras_asked_for_are_packed_and_never_a_spark() -> None:
    assert requirements(("spark",), METADATA) == ["structlog>=25.1", "httpx<1,>=0.27", "pyarrow>=18"]
    assert "fastavro>=1.9" in requirements(("spark", "avro"), METADATA)
    everything = requirements(("spark", "avro", "local"), METADATA)
    assert not [need for need in everything if need.startswith(("pyspark", "delta", "pulsebridge"))]


def test_this_projects_own_metadata_are_understood() -> None:
    packed = " ".join(requirements(("spark", "avro"), requires("pulsebridge") or []))
    assert all(name in packed for name in ("pulsar-client", "pyarrow", "pandas", "fastavro"))
    assert "great-expectations" not in packed


def test_all_is_taken_from_the_environment_and_pythonpath_counts_on_the_cluster() -> None:
    found = pex_arguments(Path("o.pex"), ["httpx"], environment=Path("/v"), code=Path("/c"), compress=False)
    assert found[:5] == ["httpx", "--venv-repository", "/v", "--sources-directory", "/c"]
    assert {"--non-hermetic-venv-scripts", "--no-compress"} <= set(found)
    assert "--sources-directory" not in pex_arguments(Path("o.pex"), ["httpx"], environment=Path("/v"))


def test_the_submission_names_the_packed_file_as_python_and_sends_it_along() -> None:
    words = submit_words(Path("dist/pulsebridge.pex"), "spark://m:7077", [Path("/j/delta.jar")])
    assert " ".join(words) == (
        "env PYSPARK_PYTHON=./pulsebridge.pex spark-submit --master spark://m:7077 --files pulsebridge.pex "
        "--jars /j/delta.jar"
    )
