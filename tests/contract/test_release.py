"""What a release has: one version, a changelog in the usual form, pinned actions, forms for issues."""

from __future__ import annotations

import datetime
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from bridge import __version__

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_has_one_source() -> None:
    project = text("pyproject.toml")
    assert not re.search(r"^version *=", project, re.MULTILINE)
    assert '[tool.hatch.version]\npath = "bridge/__init__.py"' in project
    assert version("pulsebridge") == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "docs/operate/containers.md"])
def test_images_are_named_with_the_version(name: str) -> None:
    tags = re.findall(r"pulsebridge(?:-spark)?:(\d[\w.]*)", text(name))
    assert set(tags) == {__version__}


def test_the_changelog_keeps_its_form() -> None:
    found = text("CHANGELOG.md")
    titles = re.findall(r"^## (.*)$", found, re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    releases = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", title) for title in titles[1:]]
    assert all(releases)
    assert releases[0] is not None
    assert releases[0][1] == __version__
    dates = [datetime.date.fromisoformat(one[2]) for one in releases if one is not None]
    assert dates == sorted(dates, reverse=True)
    assert set(re.findall(r"^### (.*)$", found, re.MULTILINE)) <= KINDS


def test_the_actions_of_workflows_are_pinned_by_commit() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        content = path.read_text(encoding="utf-8")
        uses = re.findall(r"uses: *(.*)$", content, re.MULTILINE)
        assert uses
        for one in uses:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one), one
        assert yaml.safe_load(content)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.name)
def test_the_forms_of_issues_are_complete(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": False}
        return
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "title", "labels", "body"}
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(set(ids)) == len(ids) > 0
    for field in form["body"]:
        assert field["type"] in FIELDS
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]
        assert (field["type"] == "dropdown") == ("options" in field["attributes"])
    assert any(field.get("validations") == {"required": True} for field in form["body"])


def test_the_policy_covers_this_version() -> None:
    assert f"| {__version__.rpartition('.')[0]} | yes |" in text("SECURITY.md")
