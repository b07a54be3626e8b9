"""Print the part of requirements.lock that one requirement needs, with its hashes: ``locked.py REQUIREMENT [--extras A,B]``.

pip resolves the requirement with the versions of the lock, without an installation. Each package that it chooses must be
in the lock, so that an image never has one that was not locked.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+).*(?:\n[ \t]+.*)*", re.MULTILINE)
"""A package of the lock: its name, its version, and the lines with its hashes."""


def normal(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def chosen(requirement: str, lock: str, folder: Path) -> set[str]:
    """Return the names of the packages that pip would install, apart from a wheel that is given as a file."""
    pins = folder / "constraints.txt"
    lines = (match.group().splitlines()[0].rstrip(" \\") for match in BLOCK.finditer(lock))
    pins.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = folder / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--constraint", str(pins), "--report", str(report), requirement]
    subprocess.run(command, check=True, stdout=sys.stderr)
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    ours = requirement.partition("[")[0].endswith(".whl")
    return {normal(p["metadata"]["name"]) for p in found if not (ours and p["requested"])}


def main() -> None:
    """Print the blocks of the chosen packages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requirement", help="a name, or the file of a wheel")
    parser.add_argument("--extras", default="", help="extras of the requirement, with commas")
    parser.add_argument("--lock", type=Path, default=Path("requirements.lock"))
    given = parser.parse_args()
    lock = given.lock.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        names = chosen(given.requirement + (f"[{given.extras}]" if given.extras else ""), lock, Path(folder))
    blocks = {}
    for match in BLOCK.finditer(lock):
        blocks.setdefault(normal(match[1]), []).append(match.group())
    missing = names - set(blocks)
    if missing:
        sys.exit(f"not in {given.lock}: {', '.join(sorted(missing))}; run `make lock`")
    sys.stdout.write("".join(f"{text}\n" for name in sorted(names) for text in blocks[name]))


if __name__ == "__main__":
    main()
