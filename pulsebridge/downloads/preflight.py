"""Checks the requirements of a machine before an installation: Python, Java, venv, disk, memory.

It runs as ``python3 pulsebridge/downloads/preflight.py`` before a virtual environment exists, so it imports only the
standard library and nothing of this project. ``pulsebridge up`` shows the same findings. It names what is missing, with
the remedy, and installs nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "JAVA_MAJORS",
    "MAX_DISK_SHARE",
    "Finding",
    "Java",
    "check_all",
    "check_disk",
    "check_java",
    "check_memory",
    "check_python",
    "check_venv",
    "find_java",
    "find_mosquitto",
    "java_candidates",
    "parse_java_version",
    "total_memory",
]

PYTHON_MIN = (3, 10)
PYTHON_END = (3, 14)
JAVA_MAJORS = (17, 21)
"""Java versions that both Spark 4.2 and Pulsar 4.0 support."""
MAX_DISK_SHARE = 0.98
"""Above it Artemis accepts CONNECT and closes the connection at each PUBLISH (H32)."""
FREE_DISK_BYTES = 3 * 1024**3
MEMORY_BYTES = 4 * 1024**3
"""Minimum memory of the machine: two small JVMs and Spark's driver."""
_JAVA_ANSWER_S = 30


class Java(NamedTuple):
    """One Java: the folder for JAVA_HOME, its major version, its full version."""

    home: Path
    major: int
    version: str


class Finding(NamedTuple):
    """One line of the table: the requirement, the finding, whether it is sufficient, and the remedy."""

    name: str
    needed: str
    found: str
    ok: bool
    remedy: str = ""


def parse_java_version(output: str) -> tuple[int, str] | None:
    """Return (major, version) from the output of ``java -version``, None for other output."""
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', output)
    return None if match is None else (int(match.group(2)), match.group(1))


def java_candidates(
    environment: Mapping[str, str], *, roots: Sequence[Path] | None = None, platform: str = sys.platform
) -> list[Path]:
    """Return the Java homes to check, in order: JAVA_HOME, PATH, then the usual folders, each once."""
    homes: list[Path] = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    for folder in environment.get("PATH", "").split(os.pathsep):
        java = Path(folder) / "java"
        stub = platform == "darwin" and str(java) == "/usr/bin/java"  # not a Java: it only offers to install one
        if folder and java.is_file() and not stub:
            homes.append(java.resolve().parent.parent)
    if roots is None:
        home = Path.home()
        roots = [
            Path("/usr/lib/jvm"),
            Path("/usr/java"),
            Path("/opt/java"),
            Path("/opt/jdk"),
            Path("/Library/Java/JavaVirtualMachines"),
            home / "Library/Java/JavaVirtualMachines",
            Path("/opt/homebrew/opt"),
            Path("/usr/local/opt"),
            home / ".sdkman/candidates/java",
            home / ".jdks",
            home / ".jabba/jdk",
        ]
    for root in roots:
        for inside in sorted(root.glob("*")) if root.is_dir() else []:
            homes += [inside, inside / "Contents/Home", inside / "libexec/openjdk.jdk/Contents/Home"]
    seen: dict[Path, Path] = {}
    for one in homes:
        if (one / "bin/java").is_file():
            seen.setdefault((one / "bin/java").resolve(), one)
    return list(seen.values())


def ask_java(home: Path) -> Java | None:
    """Run ``java -version`` in a Java home; None if it does not run or is not a Java."""
    try:
        done = subprocess.run(
            [str(home / "bin/java"), "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_JAVA_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = parse_java_version(done.stderr + done.stdout)
    return None if found is None else Java(home, *found)


def find_java(environment: Mapping[str, str] | None = None) -> tuple[Java | None, list[Java]]:
    """Return the first Java of a supported version, and the others found before it."""
    others: list[Java] = []
    for home in java_candidates(os.environ if environment is None else environment):
        java = ask_java(home)
        if java is not None and java.major in JAVA_MAJORS:
            return java, others
        if java is not None:
            others.append(java)
    return None, others


def find_mosquitto() -> str | None:
    """Return the path of Mosquitto, None if it is not installed. Packages install it in folders that PATH may lack."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def total_memory() -> int:
    """Return the machine's memory in bytes, at most a container's limit; 0 if it is unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    for file in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def check_python(version: Sequence[int] = sys.version_info[:3]) -> Finding:
    """Check this Python's version."""
    ok = PYTHON_MIN <= tuple(version[:2]) < PYTHON_END
    return Finding(
        "Python",
        "3.10 to 3.13",
        ".".join(str(n) for n in version[:3]),
        ok,
        "" if ok else "install a Python 3.10 to 3.13 and select it: make PYTHON=python3.12",
    )


def check_java(environment: Mapping[str, str] | None = None) -> Finding:
    """Check for a Java 17 or 21; without one the finding lists the other versions."""
    java, others = find_java(environment)
    if java is not None:
        return Finding("Java", "17 or 21", f"{java.version} in {java.home}", True)
    found = ", ".join(f"{o.version} in {o.home}" for o in others) or "none"
    return Finding(
        "Java",
        "17 or 21",
        found,
        False,
        "install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install "
        "java-21-openjdk-headless; macOS: brew install openjdk@21) or set JAVA_HOME to one",
    )


def check_venv() -> Finding:
    """Check that this Python can create virtual environments with pip."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    return Finding(
        "venv",
        "venv and ensurepip",
        "no " + " and no ".join(missing) if missing else "both",
        not missing,
        "" if not missing else "Debian, Ubuntu: apt install python3-venv",
    )


def check_disk(folder: Path, needed: int = FREE_DISK_BYTES, max_share: float = MAX_DISK_SHARE) -> Finding:
    """Check the free space of the file system of ``folder`` or its nearest existing parent."""
    existing = _existing(folder)
    usage = shutil.disk_usage(existing)
    # As in Artemis: all unusable space counts as used, also root's reserve.
    share = 1 - usage.free / usage.total if usage.total else 0.0
    ok = usage.free >= needed and share <= max_share
    return Finding(
        "Disk",
        f"{needed / 1e9:.1f} GB free, at most {max_share:.0%} used",
        f"{usage.free / 1e9:.1f} GB free, {share:.1%} used, at {existing}",
        ok,
        ""
        if ok
        else "free some space, or choose other folders for data and cache: "
        "PULSEBRIDGE_LOCAL__DATA_DIR=..., PULSEBRIDGE_LOCAL__CACHE_DIR=...",
    )


def _existing(folder: Path) -> Path:
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())


def check_memory(total: int | None = None) -> Finding:
    """Check the machine's memory, in bytes."""
    amount = total_memory() if total is None else total
    ok = amount == 0 or amount >= MEMORY_BYTES
    return Finding(
        "Memory",
        f"{MEMORY_BYTES / 1024**3:.0f} GiB",
        "unknown" if amount == 0 else f"{amount / 1024**3:.1f} GiB",
        ok,
        "" if ok else "use a machine with more memory; the two servers and Spark do not fit",
    )


def check_all(folders: Iterable[Path], *, venv: bool = False) -> list[Finding]:
    """Return all findings: Python, Java, memory, the disks of ``folders``, and venv if it is requested."""
    findings = [check_python(), check_java()]
    if venv:
        findings.append(check_venv())
    findings.append(check_memory())
    seen: set[int] = set()
    for folder in folders:
        device = _existing(folder).stat().st_dev
        if device not in seen:
            seen.add(device)
            findings.append(check_disk(folder))
    return findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line with the remedy for each missing requirement. Returns the exit code: 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-venv", action="store_true", help="do not check venv and ensurepip")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    findings = check_all([Path.cwd(), Path.home()], venv=not options.no_venv)
    if options.json:
        sys.stdout.write(json.dumps([f._asdict() for f in findings], indent=2) + "\n")
    for f in findings:
        if not f.ok:
            sys.stderr.write(f"{f.name}: needs {f.needed}, found {f.found} — {f.remedy}\n")
    return 0 if all(f.ok for f in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
