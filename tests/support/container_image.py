"""Images built and run without a registry and without a daemon: buildah with chroot isolation, on a base by debootstrap.

Both are Debian packages, and need root. Nothing is installed into the machine: storage and base are below one folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import patient

__all__ = ["Images", "require_tools"]

ROOT: Final = Path(__file__).resolve().parents[2]
_GIVEN_BASE: Final = os.environ.get("TEST_IMAGE_BASE")
"""Folder with the root file system of a Debian with Python, venv and libstdc++, instead of one by debootstrap."""
_PACKAGES: Final = "python3,python3-venv,libstdc++6,ca-certificates"


def require_tools() -> None:
    """Skip the test where images cannot be built."""
    needed = ("buildah",) if _GIVEN_BASE else ("buildah", "debootstrap", "apt-get")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    if os.geteuid() != 0:
        pytest.skip("building an image on a base of one's own needs root")


def _run(*command: str | Path, timeout: float = 1200, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, timeout=patient(timeout), check=False, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-8000:]}"
    return done.stdout


def _debootstrap(root: Path) -> None:
    """Install a small Debian below a folder, from the mirror that apt uses."""
    words = _run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages").split()
    mirror, suite = next((uri, name) for uri, name in zip(words[::2], words[1::2], strict=True) if "-" not in name)
    _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", suite, root, mirror, timeout=1800)
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)


def _pip_settings() -> str:
    """Return the settings with which pip reaches its index here."""
    lines = _run(sys.executable, "-m", "pip", "config", "list").splitlines()
    given = dict(line.replace("'", "").split("=", 1) for line in lines if "=" in line)
    kept = {key.rpartition(".")[2]: value for key, value in given.items() if key.endswith((".cert", ".index-url"))}
    return "".join(("[global]\n", *(f"{key} = {value}\n" for key, value in kept.items())))


class Images:
    """Builds images below a folder, and runs programs in containers of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._options = ("--root", folder / "storage", "--runroot", folder / "run", "--storage-driver", "vfs")

    def buildah(self, command: str, *arguments: str | Path) -> str:
        """Run a command of buildah, and return what it printed."""
        return _run("buildah", *self._options, command, *arguments).strip()

    def base(self, name: str) -> str:
        """Make an image of Debian with its Python, and with pip's settings and the certificates of this machine."""
        root = self.folder / "base"
        if _GIVEN_BASE:
            shutil.copytree(_GIVEN_BASE, root, symlinks=True)
        else:
            _debootstrap(root)
        certificates = Path("/usr/local/share/ca-certificates")  # of this machine: of a proxy, for example
        if certificates.is_dir():
            shutil.copytree(certificates, root / certificates.relative_to("/"), dirs_exist_ok=True)
            subprocess.run(["chroot", root, "update-ca-certificates"], check=True, capture_output=True)
        (root / "etc/pip.conf").write_text(_pip_settings(), encoding="utf-8")
        container = self.buildah("from", "scratch")
        self.buildah("copy", "--quiet", container, root, "/")
        self.buildah("commit", "--quiet", "--rm", container, name)
        shutil.rmtree(root)
        return name

    def build(self, target: str, base: str, tag: str, **arguments: str) -> str:
        """Build a target of the Dockerfile, and return its tag."""
        given = [f"--build-arg={name}={value}" for name, value in {"BASE": base, **arguments}.items()]
        self.buildah(
            "build",
            "--isolation",
            "chroot",
            "--format",
            "docker",
            "--pull-never",
            *given,
            "--target",
            target,
            "--tag",
            tag,
            ROOT,
        )
        return tag

    def container(self, tag: str) -> str:
        """Return a new container of an image."""
        return self.buildah("from", "--pull-never", tag)

    def command(self, container: str, *words: str, volumes: Mapping[Path, str] | None = None) -> list[str]:
        """Return the command line that runs words in a container, as the user of its image. ``volumes``: files and
        folders of this machine, and where the container has them; such as ``/lakehouse:rw``, if it may write there.
        """
        mounts = [
            f"--volume={source}:{target if target.endswith(':rw') else f'{target}:ro'}"
            for source, target in (volumes or {}).items()
        ]
        return ["buildah", *map(str, self._options), "run", "--isolation", "chroot", *mounts, container, "--", *words]

    def run(self, container: str, *words: str, volumes: Mapping[Path, str] | None = None, timeout: float = 120) -> str:
        """Run words in a container, and return what they printed; they must succeed, in ``timeout`` seconds."""
        return _run(*self.command(container, *words, volumes=volumes), timeout=timeout)
