"""A job in its own process: what it returns, what its whole tree weighs, how it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.bootstrap.worlds import JOBS
from benchmarks.processes import measured, need_disk, watch
from clrflow.errors import BadInput, ClrflowError


def tables(folder: Path) -> dict[str, str]:
    """Two clicks and a view among the events, both clicks in one request."""
    targets = [{"condition": -1}, {"condition": 0}, {"condition": -1}]
    for name, rows in {"events": {"action": ["click", "view", "click"]}, "requests": {"targets": [targets]}}.items():
        (folder / name).mkdir()
        pq.write_table(pa.table(rows), folder / name / "part-00000.parquet")
    return {name: str(folder / name) for name in ("events", "requests")}


def test_a_job_is_measured_once_and_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {**tables(tmp_path), "positive": ["click"]}
    found = measured(JOBS, "count", tmp_path, arguments)
    assert found.facts == {"engagements_in": 2, "engagements_out": 2}
    assert found.seconds > 0
    assert found.cpu_seconds > 0
    assert found.peak_bytes > 20e6  # pyarrow alone takes more
    assert "found its figures" not in capsys.readouterr().out
    assert measured(JOBS, "count", tmp_path, arguments) == found
    assert "found its figures" in capsys.readouterr().out


def test_a_job_that_fails_says_its_last_lines_and_leaves_no_figures(tmp_path: Path) -> None:
    with pytest.raises(ClrflowError, match=r"count: ended with code 1(?s:.)*holds no Parquet file"):
        measured(JOBS, "count", tmp_path, {"events": str(tmp_path), "requests": str(tmp_path), "positive": ["click"]})
    assert not list((tmp_path / "figures").iterdir()) + list((tmp_path / "tmp").iterdir())


def test_the_memory_of_children_counts_and_what_they_write(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    heavy = f"import time; held = bytearray(200_000_000); open({kept!r}, 'wb').write(held[:4_000_000]); time.sleep(2)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {heavy!r}], check=True)"
    peak, disk = watch(subprocess.Popen([sys.executable, "-c", program]), tmp_path)
    assert peak > 200e6
    assert 4_000_000 <= disk < 5_000_000


def test_a_log_that_does_not_fit_the_disk_is_refused(tmp_path: Path) -> None:
    need_disk(tmp_path, 1e6, "a small log")
    with pytest.raises(BadInput, match=r"a vast log: takes about 1000000000 GB .*CLRFLOW_BENCH_WORKSPACE"):
        need_disk(tmp_path, 1e18, "a vast log")
