"""The Ivy jar that pyspark carries: finds it, and resolves artifacts by their Maven coordinates.

No repository is named here: Ivy's own settings say where artifacts come from (``PULSEBRIDGE_IVY_SETTINGS``,
``~/.ivy2/ivysettings.xml``, else Ivy's default), and the proxies of the environment are handed to its JVM. pyspark
is located, never imported: the bridge starts without it.
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
    """Maven coordinates. ``classifier`` empty: the main artifact, with what it depends on when ``transitive``."""

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
        "the local stack needs the Ivy jar that pyspark carries, and pyspark is not installed",
        remedy="pip install 'pulsebridge[local]'",
    )


def ivy_settings(environment: Mapping[str, str]) -> Path | None:
    """Return the user's Ivy settings file, None for Ivy's default."""
    named = environment.get("PULSEBRIDGE_IVY_SETTINGS")
    if named:
        return Path(named)
    usual = Path(environment.get("HOME", str(Path.home()))) / ".ivy2/ivysettings.xml"
    return usual if usual.is_file() else None


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
    """Return the text of an ``ivy.xml`` that depends on the artifacts, less the ``excluded`` module names."""
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '  <info organisation="pulsebridge" module="local"/>',
        '  <configurations><conf name="default"/></configurations>',
        "  <dependencies>",
    ]
    for a in artifacts:
        # The metadata alone (pom) is what an artifact with a classifier falls back to: its own file follows.
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

    ``types`` limits which files are fetched; one that no artifact has fetches the metadata alone. What is in the
    cache is not fetched again. Returns Ivy's output. Raises TransientError with its last lines when it fails.
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
        # What came whole is in Ivy's cache and is not fetched again; a module that is not there will not come.
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
    """Return the URL of the repository from what Ivy noted about an artifact that it fetched; None if none fits."""
    path = artifact_path(artifact)
    for line in text.splitlines():
        key, _, value = line.partition(".location=")
        url = value.replace("\\:", ":").strip()
        if key.startswith("artifact") and url.endswith(path) and url.startswith(("http://", "https://")):
            return url[: -len(path)]
    return None


def repository_root(artifact: Artifact, *, java: Path, work: Path) -> str | None:
    """Return the URL of the repository from which Ivy takes an artifact, None when it is not plain HTTP.

    Ivy says where it took a file from, so it is asked for the smallest one beside the artifact, its checksum.
    Raises TransientError when it cannot be reached.
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
    # Ivy says "not found" of a module also where it could not ask; why it could not, it says only here.
    marks = ("Server access error", "UnknownHost", "Connection refused", "timed out", "SSLException")
    return [line.strip() for line in output.splitlines() if any(mark in line for mark in marks)]


def _reason(output: str) -> str:
    lines = [line.strip(" :\t") for line in output.splitlines() if line.strip(" :\t")]
    marked = _unreachable(output) or [line for line in lines if "not found" in line] or lines[-3:]
    return (marked[0] if marked else "Ivy said nothing")[:300]
