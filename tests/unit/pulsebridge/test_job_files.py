from __future__ import annotations

import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bridge.errors import ConfigError
from pulsebridge.job_files import job_files
from pulsebridge.project import Answers, project_files, write_project
from pulsebridge.submission import FOLDER, JOB, Target, dockerfile, line, write_files

SETTINGS = """\
mqtt:
  password_file: mqtt-password
pulsar:
  tls_ca: /etc/ca.pem
  token_file: token
streaming:
  root: lakehouse
  schema_name:
  modules: [flows/presses.py, plant.views]
  suites: quality
  alerts: /etc/rules.yaml
  spark: {log: spark.log}
  tables:
    - name: presses
      decoding: [{filter: plant/+device, format: protobuf, message: Press, descriptor: press.desc}]
  decoders:
    - {filter: old/+device, format: protobuf, message: Press, descriptor: press.desc}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("flows/presses.py", "quality/great_expectations.yml", "quality/uncommitted/data_docs/a.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "press.desc").write_bytes(b"desc")
    (tmp_path / "lakehouse").mkdir()
    (tmp_path / "plant.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_the_driver_reads_is_copied_with_its_path(project: Path) -> None:
    files = job_files(Path("plant.yaml"))
    files.copy_to(project / "dist")
    copied = {str(file.relative_to(project / "dist" / FOLDER)) for file in (project / "dist").rglob("*.*")}
    assert copied == {"pulsebridge.yaml", "flows/presses.py", "quality/great_expectations.yml", "press.desc"}


@pytest.mark.parametrize("root", ["s3a://bucket/lakehouse", "/mnt/lakehouse"])
def test_a_root_that_all_machines_may_have_is_not_noted(root: str, project: Path) -> None:
    (project / "plant.yaml").write_text(f"streaming: {{root: {root}}}\n")
    assert job_files(Path("plant.yaml")).notes == ()


def test_what_the_cluster_must_have_is_noted(project: Path) -> None:
    noted = {note.partition(":")[0]: note for note in job_files(Path("plant.yaml")).notes}
    assert set(noted) == {
        "mqtt.password_file", "pulsar.tls_ca", "pulsar.token_file", "streaming.modules.1", "streaming.alerts",
        "streaming.root",
    }  # fmt: skip
    assert "/etc/rules.yaml is not packed" in noted["streaming.alerts"]
    assert "--py-files" in noted["streaming.modules.1"]


def test_a_missing_file_is_refused_with_its_setting(project: Path) -> None:
    (project / "press.desc").unlink()
    with pytest.raises(ConfigError, match=r"streaming\.tables\.0\.decoding\.0\.descriptor: press\.desc does not exist"):
        job_files(Path("plant.yaml"))


def test_without_settings_a_note_says_how_to_pack_them() -> None:
    (note,) = job_files(None).notes
    assert "--config" in note


def test_a_folder_that_holds_the_packed_files_is_not_copied_into_itself(project: Path) -> None:
    (project / "plant.yaml").write_text("streaming: {suites: .}")
    for _ in range(2):
        job_files(Path("plant.yaml")).copy_to(project / "dist")
    assert not list((project / "dist" / FOLDER).rglob(FOLDER))


@pytest.mark.parametrize("target", [Target.yarn, Target.k8s])
def test_the_submission_ships_a_new_project_whole(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, project_files(Answers()))
    monkeypatch.chdir(tmp_path)
    pex, properties = tmp_path / "dist/p.pex", tmp_path / "p.conf"
    properties.write_text("")
    written = write_files(
        target, pex, files=job_files(Path("pulsebridge.yaml")), jars=[], properties=properties, job={}
    )
    words = shlex.split(line(target, pex, target.master, []))
    wanted = {"pulsebridge.yaml", "pipeline.py", "quality/great_expectations.yml"}
    if target is Target.yarn:
        archive, _, link = words[words.index("--archives") + 1].partition("#")
        assert link == words[-1]
        assert wanted <= set(zipfile.ZipFile(tmp_path / "dist" / archive).namelist())
        assert tmp_path / "dist" / archive in written
    else:
        assert f"{FOLDER} {words[-1]}" in dockerfile(pex)
        assert all((tmp_path / "dist" / FOLDER / name).is_file() for name in wanted)


def test_the_script_starts_the_job_in_the_folder_of_the_settings(tmp_path: Path) -> None:
    """The job reads the module by its relative path, and refuses it by its own text."""
    project = tmp_path / FOLDER
    project.mkdir()
    (project / "pulsebridge.yaml").write_text("streaming: {modules: [flows.py]}")
    (project / "flows.py").write_text("raise RuntimeError('read')")
    (tmp_path / "p.conf").write_text("")
    write_files(
        Target.standalone, tmp_path / "p.pex", files=job_files(None), jars=[], properties=tmp_path / "p.conf", job={}
    )
    done = subprocess.run(
        [sys.executable, JOB, FOLDER, "--available-now"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "streaming.modules: 'flows.py' cannot be imported: RuntimeError: read" in done.stdout + done.stderr
