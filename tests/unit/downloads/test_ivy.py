"""What is asked of Ivy and what is read from its notes."""

from __future__ import annotations

import tarfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pulsebridge.downloads.distributions import ARTEMIS, PULSAR, unpack
from pulsebridge.downloads.ivy import (
    Artifact,
    artifact_path,
    ivy_module,
    ivy_settings,
    proxy_properties,
    root_from_ivydata,
)
from pulsebridge.local.lifecycle import hours

ARTIFACT = Artifact("org.example", "thing", "1.2", "tar.gz", "bin")


def test_the_module_names_the_artifact_and_what_is_left_out() -> None:
    tree = ElementTree.fromstring(ivy_module([ARTIFACT], excluded=["a", "b&c"]))
    dependency = tree.find("dependencies/dependency")
    assert dependency is not None
    assert dependency.get("rev") == "1.2"
    artifact = dependency.find("artifact")
    assert artifact is not None
    assert artifact.get("ext") == "tar.gz"
    assert [e.get("module") for e in tree.findall("dependencies/exclude")] == ["a", "b&c"]


def test_the_repository_is_read_from_where_a_file_came_from() -> None:
    path = artifact_path(ARTIFACT)
    assert path == "org/example/thing/1.2/thing-1.2-bin.tar.gz"
    text = f"#c\nresolver=main\nartifact\\:thing\\#bin.location=https\\://mirror.test/m2/{path}\n"
    assert root_from_ivydata(text, ARTIFACT) == "https://mirror.test/m2/"
    assert root_from_ivydata(text.replace("https\\:", "file\\:"), ARTIFACT) is None
    assert root_from_ivydata(text.replace("thing-1.2", "thing-1.3"), ARTIFACT) is None


def test_proxies_of_the_environment_reach_the_jvm() -> None:
    options = proxy_properties(
        {
            "https_proxy": "http://me:secret@proxy.test:3128",
            "HTTP_PROXY": "proxy.test:8000",
            "no_proxy": "localhost,.corp",
        }
    )
    assert "-Dhttps.proxyHost=proxy.test" in options
    assert "-Dhttps.proxyPort=3128" in options
    assert "-Dhttps.proxyUser=me" in options
    assert "-Dhttp.proxyPort=8000" in options
    assert "-Dhttp.nonProxyHosts=localhost|*.corp" in options
    assert proxy_properties({}) == []


def test_ivy_settings_are_the_named_ones_else_the_users(tmp_path: Path) -> None:
    assert ivy_settings({"HOME": str(tmp_path)}) is None
    usual = tmp_path / ".ivy2/ivysettings.xml"
    usual.parent.mkdir()
    usual.touch()
    assert ivy_settings({"HOME": str(tmp_path)}) == usual
    assert ivy_settings({"HOME": str(tmp_path), "PULSEBRIDGE_IVY_SETTINGS": "/mine.xml"}) == Path("/mine.xml")


def test_the_pinned_distributions_have_whole_checksums() -> None:
    for distribution in (PULSAR, ARTEMIS):
        assert len(distribution.sha512) == 128
        assert distribution.size > 10_000_000


def test_unpacking_is_all_or_nothing(tmp_path: Path) -> None:
    source = tmp_path / "thing-1/lib"
    source.mkdir(parents=True)
    (source / "a.jar").write_bytes(b"x")
    tarball = tmp_path / "t.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(tmp_path / "thing-1", "thing-1")
    home = tmp_path / "servers/thing"
    unpack(tarball, home)
    assert (home / "lib/a.jar").read_bytes() == b"x"
    tarball.write_bytes(tarball.read_bytes()[:40])
    other = tmp_path / "servers/other"
    with pytest.raises((EOFError, tarfile.TarError)):
        unpack(tarball, other)
    assert sorted(p.name for p in home.parent.iterdir()) == ["thing"]


def test_times_on_the_command_line() -> None:
    assert [hours(t) for t in ("90m", "12h", "2d", "3", "1.5h")] == [1.5, 12.0, 48.0, 3.0, 1.5]
