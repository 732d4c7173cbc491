"""The version under which the pipeline is uploaded tells the source's revision, local changes too."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from clrflow import __version__
from pipelines.kubeflow.version import revision, version_name


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for package in ("clrflow", "components", "pipelines"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "cli.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_committed_source_is_named_by_its_commit(source: Path) -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", revision(source))


def test_a_local_change_is_named_and_each_change_otherwise(source: Path) -> None:
    clean = revision(source)
    (source / "clrflow" / "cli.py").write_text("2\n")
    first = revision(source)
    assert re.fullmatch(rf"{clean}-dirty-[0-9a-f]{{8}}", first)
    (source / "clrflow" / "new.py").write_text("3\n")
    assert revision(source) not in (clean, first)
    (source / "clrflow" / "new.py").unlink()
    assert revision(source) == first


def test_a_change_beside_the_packages_is_none(source: Path) -> None:
    clean = revision(source)
    (source / "notes.txt").write_text("x")
    assert revision(source) == clean


def test_an_installed_package_inside_another_repository_has_its_own_version(source: Path, tmp_path: Path) -> None:
    git(source, "rm", "-q", "--cached", "pipelines/cli.py")
    assert revision(source) == f"v{__version__}"


def test_equal_source_with_another_compiled_content_is_another_version(source: Path) -> None:
    one, other = version_name(b"a", source), version_name(b"b", source)
    assert one != other
    assert one == version_name(b"a", source)
    assert one.startswith(revision(source))
