"""Delta Lake's jars for Spark, resolved once into the cache for all starts of Spark."""

from __future__ import annotations

import re
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bridge.errors import MissingExtraError, TerminalError
from bridge.user_folders import default_cache_dir
from pulsebridge.downloads.distributions import locked
from pulsebridge.downloads.ivy import Artifact, find_ivy_jar, resolve
from pulsebridge.downloads.preflight import JAVA_MAJORS, find_java

__all__ = ["delta_jars", "delta_jars_present", "spark_modules"]

_SCALA = "2.13"


def _folder(cache: Path) -> tuple[Path, Artifact]:
    try:
        delta, spark = version("delta-spark"), version("pyspark")
    except PackageNotFoundError as e:
        raise MissingExtraError(f"{e.name} is not installed", remedy="pip install 'pulsebridge[local]'") from e
    minor = ".".join(re.findall(r"\d+", spark)[:2])
    # The name in delta-spark's own configure_spark_with_delta_pip.
    artifact = Artifact("io.delta", f"delta-spark_{minor}_{_SCALA}", delta, transitive=True)
    return cache / "jars" / f"{artifact.name}-{delta}", artifact


def delta_jars_present(cache: Path | None = None) -> bool:
    """Return whether the cache has the jars for the installed pyspark and delta-spark."""
    return _folder(cache or default_cache_dir())[0].is_dir()


def delta_jars(cache: Path | None = None, *, java: Path | None = None, offline: bool = False) -> list[Path]:
    """Return the jars for ``spark.jars``. It fetches missing ones by their coordinates.

    Raises MissingExtraError without delta-spark or pyspark. Raises TerminalError if jars are missing and ``offline`` is
    set or Java is missing. Raises TransientError if they cannot be fetched.
    """
    cache = cache or default_cache_dir()
    folder, artifact = _folder(cache)
    if not folder.is_dir():
        if offline:
            raise TerminalError(
                f"{artifact.name} {artifact.version} not in the cache {cache}",
                remedy="run once without --offline",
            )
        if java is None:
            found, _ = find_java()
            if found is None:
                raise TerminalError(
                    f"no Java {' or '.join(map(str, JAVA_MAJORS))} found", remedy="set JAVA_HOME to one"
                )
            java = found.home
        _fetch(folder, artifact, cache, java)
    return sorted(folder.glob("*.jar"))


def spark_modules() -> list[str]:
    """Return the names of Spark's own jars. They are on its class path, so a second version must not be added."""
    names = (re.match(r"(.+?)-\d[\w.]*.*\.jar$", jar.name) for jar in find_ivy_jar().parent.glob("*.jar"))
    return sorted({m.group(1) for m in names if m and m.group(1) != "delta-storage"})


def _fetch(folder: Path, artifact: Artifact, cache: Path, java: Path) -> None:
    with locked(cache / "locks" / folder.name):
        if folder.is_dir():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = cache / "downloads" / folder.name
        out = Path(tempfile.mkdtemp(prefix=".jars-", dir=folder.parent))
        try:
            resolve(
                [artifact],
                java=java,
                work=work,
                cache=work / "ivy",
                retrieve=str(out / "[artifact]-[revision].[ext]"),
                types=("jar",),
                excluded=spark_modules(),
            )
            out.chmod(0o755)
            out.rename(folder)
        finally:
            shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(work)
