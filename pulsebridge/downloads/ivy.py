"""Finds pyspark's Ivy jar, and resolves artifacts by their Maven coordinates.

Ivy's own settings name the repository: ``PULSEBRIDGE_IVY_SETTINGS``, ``~/.ivy2/ivysettings.xml``, else Ivy's default.
Ivy's JVM gets the proxies of the environment. This module locates pyspark but does not import it, because the bridge
starts without pyspark.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from bridge.errors import MissingExtraError, TransientError

__all__ = [
    "Artifact",
    "artifact_path",
    "find_ivy_jar",
    "ivy_module",
    "ivy_settings",
    "proxy_properties",
    "repository_root",
    "resolve",
    "root_from_ivydata",
]


_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Artifact:
    """Maven coordinates. Without ``classifier`` it is the main artifact; ``transitive`` adds its dependencies."""

    organisation: str
    name: str
    version: str
    extension: str = "jar"
    classifier: str = ""
    transitive: bool = False


def find_ivy_jar() -> Path:
    """Return the path of the Ivy jar in pyspark's folder. Raises MissingExtraError without pyspark."""
    spec = importlib.util.find_spec("pyspark")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        jars = sorted(Path(folder, "jars").glob("ivy-*.jar"))
        if jars:
            return jars[-1]
    raise MissingExtraError(
        "the local stack needs the Ivy jar of pyspark, and pyspark is not installed",
        remedy="pip install 'pulsebridge[local]'",
    )


def ivy_settings(environment: Mapping[str, str]) -> Path | None:
    """Return the user's Ivy settings file, None for Ivy's default."""
    named = environment.get("PULSEBRIDGE_IVY_SETTINGS")
    if named:
        return Path(named)
    default = Path(environment.get("HOME", str(Path.home()))) / ".ivy2/ivysettings.xml"
    return default if default.is_file() else None


def proxy_properties(environment: Mapping[str, str]) -> list[str]:
    """Return the JVM options for the proxies that ``http_proxy``, ``https_proxy`` and ``no_proxy`` name."""
    options = []
    for scheme in ("http", "https"):
        value = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        if not value:
            continue
        parts = urlsplit(value if "://" in value else f"http://{value}")
        if parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
        if parts.username:
            options += [
                f"-D{scheme}.proxyUser={parts.username}",
                f"-D{scheme}.proxyPassword={parts.password or ''}",
            ]
    skipped = environment.get("no_proxy") or environment.get("NO_PROXY")
    if options and skipped:
        hosts = [f"*{h.strip()}" if h.strip().startswith(".") else h.strip() for h in skipped.split(",")]
        options.append("-Dhttp.nonProxyHosts=" + "|".join(h for h in hosts if h))
    return options


def ivy_module(artifacts: Sequence[Artifact], excluded: Sequence[str] = ()) -> str:
    """Return the text of an ``ivy.xml`` that depends on the artifacts, without ``excluded`` modules."""
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '  <info organisation="pulsebridge" module="local"/>',
        '  <configurations><conf name="default"/></configurations>',
        "  <dependencies>",
    ]
    for a in artifacts:
        # An artifact with a classifier resolves to its metadata (pom) only, so its file is added below.
        conf = "default->compile(*),master(*),runtime(*)" if a.transitive else "default->*"
        lines.append(
            f"    <dependency org={quoteattr(a.organisation)} name={quoteattr(a.name)} rev={quoteattr(a.version)}"
            f' transitive="{str(a.transitive).lower()}" conf={quoteattr(conf)}>'
        )
        if a.classifier or a.extension != "jar":
            lines.append(
                f"      <artifact name={quoteattr(a.name)} type={quoteattr(a.extension)}"
                f" ext={quoteattr(a.extension)}"
                + (f" m:classifier={quoteattr(a.classifier)}" if a.classifier else "")
                + "/>"
            )
        lines.append("    </dependency>")
    lines += [f"    <exclude module={quoteattr(name)}/>" for name in excluded]
    return "\n".join([*lines, "  </dependencies>", "</ivy-module>", ""])


def resolve(
    artifacts: Sequence[Artifact],
    *,
    java: Path,
    work: Path,
    cache: Path,
    retrieve: str,
    types: Sequence[str] = (),
    excluded: Sequence[str] = (),
) -> str:
    """Resolve the artifacts into Ivy's ``cache`` and copy their files to the ``retrieve`` pattern.

    ``types`` limits the fetched files; a type that no artifact has fetches the metadata only. Cached files are not
    fetched. Returns Ivy's output. Raises TransientError with its last lines if it fails.
    """
    work.mkdir(parents=True, exist_ok=True)
    module = work / "ivy.xml"
    module.write_text(ivy_module(artifacts, excluded), encoding="utf-8")
    settings = ivy_settings(os.environ)
    command = [
        str(java / "bin/java"),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *proxy_properties(os.environ),
        "-jar",
        str(find_ivy_jar()),
        *(("-settings", str(settings)) if settings else ()),
        "-ivy",
        str(module),
        "-cache",
        str(cache),
        "-retrieve",
        retrieve,
        *(("-types", *types) if types else ()),
    ]
    for attempt in range(1, _ATTEMPTS + 1):
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        # A retry fetches only files that are not in Ivy's cache. A retry does not help if a module does not exist.
        if done.returncode == 0 or attempt == _ATTEMPTS or not _unreachable(done.stdout):
            break
    if done.returncode != 0:
        raise TransientError(
            f"resolving {', '.join(a.name for a in artifacts)} failed: {_reason(done.stdout)}",
            remedy="check the network, the proxy variables, and Ivy's settings (PULSEBRIDGE_IVY_SETTINGS)",
        )
    return done.stdout


def artifact_path(artifact: Artifact) -> str:
    """Return the artifact's path below a repository in Maven's layout."""
    tail = f"-{artifact.classifier}" if artifact.classifier else ""
    folder = "/".join((*artifact.organisation.split("."), artifact.name, artifact.version))
    return f"{folder}/{artifact.name}-{artifact.version}{tail}.{artifact.extension}"


def root_from_ivydata(text: str, artifact: Artifact) -> str | None:
    """Return the repository's URL from Ivy's record of a fetched artifact, or None."""
    path = artifact_path(artifact)
    for line in text.splitlines():
        key, _, value = line.partition(".location=")
        url = value.replace("\\:", ":").strip()
        if key.startswith("artifact") and url.endswith(path) and url.startswith(("http://", "https://")):
            return url[: -len(path)]
    return None


def repository_root(artifact: Artifact, *, java: Path, work: Path) -> str | None:
    """Return the URL of Ivy's repository of an artifact, None if it is not HTTP.

    Ivy records the source of each file, so it fetches the smallest one, the artifact's checksum.
    Raises TransientError if the repository is unreachable.
    """
    small = replace(artifact, extension=f"{artifact.extension}.sha1")
    resolve([small], java=java, work=work, cache=work / "ivy", retrieve=str(work / "out/[artifact].[ext]"))
    folder = work / "ivy" / artifact.organisation / artifact.name
    for file in folder.glob("ivydata-*.properties"):
        root = root_from_ivydata(file.read_text(encoding="latin-1"), small)
        if root is not None:
            return root
    return None


def _unreachable(output: str) -> list[str]:
    # Ivy reports "not found" also if a repository is unreachable; only these lines contain the reason.
    marks = ("Server access error", "UnknownHost", "Connection refused", "timed out", "SSLException")
    return [line.strip() for line in output.splitlines() if any(mark in line for mark in marks)]


def _reason(output: str) -> str:
    lines = [line.strip(" :\t") for line in output.splitlines() if line.strip(" :\t")]
    marked = _unreachable(output) or [line for line in lines if "not found" in line] or lines[-3:]
    return (marked[0] if marked else "Ivy printed nothing")[:300]
