"""An image holds one fbgemm wheel whose operator runs; anything else is said with what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clrflow.training import operators


def check(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The check as an image's build runs it: a plain file."""
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, operators.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def add_wheel(folder: Path, name: str) -> None:
    described = folder / f"{name.replace('-', '_')}-1.9.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.0\n")
    (described / "RECORD").write_text("fbgemm_gpu/fbgemm_gpu_py.so,,\n")


def test_an_operator_runs_here() -> None:
    ended = check()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("fbgemm: fbgemm-gpu-cpu 1.9.0, an operator ran on ")


def test_two_wheels_are_refused_by_name(tmp_path: Path) -> None:
    add_wheel(tmp_path, "fbgemm-gpu")
    ended = check("--wheels-only", path=tmp_path)
    assert ended.returncode == 1
    assert "2 fbgemm wheels are installed (fbgemm-gpu 1.9.0, fbgemm-gpu-cpu 1.9.0)" in ended.stderr


def test_no_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(operators, "WHEELS", ())
    monkeypatch.setattr(sys, "argv", ["operators"])
    assert operators.main() == 1
    assert "0 fbgemm wheels are installed (none)" in capsys.readouterr().err


def test_an_operator_that_fails_names_its_wheel_and_a_remedy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> str:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(operators, "run_operator", fails)
    monkeypatch.setattr(sys, "argv", ["operators"])
    assert operators.main() == 1
    error = capsys.readouterr().err
    assert "fbgemm-gpu-cpu 1.9.0 is installed but its operator fails: OSError: libcuda.so.1" in error
    assert "ACCEL=cpu" in error
