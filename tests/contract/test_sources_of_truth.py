"""Rules for every tracked file: no host of a package registry, no path of a machine, small modules and functions."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bridge", "sources", "sinks", "streaming", "sparkplug", "pulsebridge")
MODULE_LINES = 500
FUNCTION_LINES = 60
CLASS_ATTRIBUTES = 15
CLASS_METHODS = 25

# Put together here, so that this file does not name what it forbids.
_HOSTS = (
    ("py" + "pi", "org"), ("python" + "hosted", "org"), ("re" + "po1", "maven", "org"), ("repo", "maven", "apache", "org"),
    ("maven", "apache", "org/" + "maven2"), ("registry", "npm" + "js"), ("proxy", "go" + "lang"), ("crates", "io"),
    ("deb", "deb" + "ian"), ("docker", "io"), ("con" + "da", "anaconda", "org"),
)  # fmt: skip
HOSTS = re.compile("|".join(r"(?<![\w-])" + r"\.".join(parts) for parts in _HOSTS), re.IGNORECASE)
HOME_PATHS = re.compile(
    r"(?<![\w.])/(?:" + "|".join(("home/" + r"\w", "Users/" + r"\w", "ro" + "ot/", "wo" + "rk/")) + ")"
)


def tracked() -> list[Path]:
    """Return the tracked files; without a git repository (a source archive) every file but what was made here."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode == 0:
        found = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    else:
        made = {".venv", "build", "dist", "__pycache__", ".git"}
        found = [p for p in ROOT.rglob("*") if not made & set(p.relative_to(ROOT).parts)]
    return [p for p in found if p.is_file()]


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    content = path.read_bytes()
    if b"\0" in content[:8000]:
        return  # not text
    yield from enumerate(content.decode("utf-8").splitlines(), start=1)


def modules() -> list[Path]:
    return [p for p in tracked() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in PACKAGES]


@pytest.mark.parametrize(
    ("what", "pattern"),
    [("a host of a registry", HOSTS), ("a path of one machine", HOME_PATHS)],
    ids=["hosts", "paths"],
)
def test_no_tracked_file_names(what: str, pattern: re.Pattern[str]) -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {found.group()}"
        for path in tracked()
        for number, line in lines_of(path)
        if (found := pattern.search(line))
    ]
    assert hits == [], f"these lines name {what}"


def test_the_patterns_find_what_they_are_for() -> None:
    assert HOSTS.search("https://" + "files.python" + "hosted.org/x")
    assert HOSTS.search("https://re" + "po1.maven.org/maven2")
    assert HOME_PATHS.search("open('/ho" + "me/ann/x')")
    assert not HOME_PATHS.search("persistent://public/home/x")


def test_modules_are_short() -> None:
    sizes = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in modules()}
    assert {name: lines for name, lines in sizes.items() if lines > MODULE_LINES} == {}


def test_functions_are_short() -> None:
    long = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                # A command's options, each with its help, are in its signature: they are not code.
                lines = (node.end_lineno or node.lineno) - body[0].lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")
    assert long == []


def size_of_class(found: ast.ClassDef) -> tuple[int, int]:
    """Return how many attributes a class sets, on itself or in its methods, and how many methods it has."""
    methods = [n for n in found.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = {n.target.id for n in found.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for node in (n for method in methods for n in ast.walk(method)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            names |= {node.attr} if node.value.id == "self" else set()
    return len(names), len(methods)


def test_classes_of_the_bridge_are_small() -> None:
    large = {}
    for path in modules():
        tier, *below = path.relative_to(ROOT).parts
        if tier == "bridge" and below[0] not in ("settings", "contract"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    attributes, methods = size_of_class(node)
                    if attributes > CLASS_ATTRIBUTES or methods > CLASS_METHODS:
                        large[node.name] = (attributes, methods)
    assert large == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(p.relative_to(ROOT)) for p in modules() if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_the_lock_has_hashes_and_no_hosts() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"https?:|--(extra-)?index-url|--find-links", text)
    pins = re.findall(r"^[a-z0-9][^\n]*==[^\n]*\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE)) > 50


def test_no_other_lock_file_is_tracked() -> None:
    assert [p.name for p in tracked() if p.name in ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock")] == []
