"""The lock of a schedule's runs: one holds it, a second one sees who, and a dead one's is anybody's."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import pytest

from clrflow import lock, storage
from clrflow.errors import BadInput


def aged(workspace: str, name: str, seconds: float) -> None:
    """Let the holder's last sign of life be that old."""
    raw = storage.read_json(lock.place(workspace, name))
    storage.write_json(lock.place(workspace, name), {**raw, "beat": raw["beat"] - seconds})


def test_a_second_run_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    workspace = str(tmp_path)
    assert lock.take(workspace, "daily", "first") is None
    other = lock.take(workspace, "daily", "second")
    assert other is not None
    assert other.run == "first"
    assert lock.take(workspace, "weekly", "second") is None


def test_taking_it_again_is_fine_as_a_retried_step_does(tmp_path: Path) -> None:
    for _ in range(2):
        assert lock.take(str(tmp_path), "daily", "first", settle_s=0) is None


def test_only_its_holder_gives_it_back(tmp_path: Path) -> None:
    lock.take(str(tmp_path), "daily", "first")
    assert not lock.release(str(tmp_path), "daily", "second")
    assert lock.release(str(tmp_path), "daily", "first")
    assert not lock.release(str(tmp_path), "daily", "first")
    assert lock.take(str(tmp_path), "daily", "second") is None


def test_a_holder_without_a_sign_of_life_loses_it_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = str(tmp_path)
    lock.take(workspace, "daily", "dead")
    aged(workspace, "daily", lock.STALE_S - 60)
    assert lock.take(workspace, "daily", "second", settle_s=0) is not None
    aged(workspace, "daily", 120)
    assert lock.take(workspace, "daily", "second", settle_s=0) is None
    assert "run dead gave no sign of life" in capsys.readouterr().out
    assert not lock.beat(workspace, "daily", "dead")


def test_of_many_that_ask_at_once_one_gets_it(tmp_path: Path) -> None:
    held: list[str] = []

    def ask(run: str) -> None:
        if lock.take(str(tmp_path), "daily", run) is None:
            held.append(run)

    threads = [threading.Thread(target=ask, args=(f"run-{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1
    holder = lock.holder(str(tmp_path), "daily")
    assert holder is not None
    assert holder.run == held[0]


def test_of_two_that_find_it_stale_at_once_one_gets_it(tmp_path: Path) -> None:
    lock.take(str(tmp_path), "daily", "dead")
    aged(str(tmp_path), "daily", lock.STALE_S + 1)
    answers: dict[str, lock.Holder | None] = {}
    threads = [
        threading.Thread(target=lambda run=run: answers.update({run: lock.take(str(tmp_path), "daily", run, settle_s=0.5)}))  # type: ignore[misc]
        for run in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(answer is None for answer in answers.values()) == 1


def test_work_gives_signs_of_life_and_one_at_its_end(tmp_path: Path) -> None:
    workspace = str(tmp_path)
    lock.take(workspace, "daily", "run")

    def beat() -> float:
        found = lock.holder(workspace, "daily")
        assert found is not None
        return found.beat

    with lock.kept(workspace, "daily", "run", every_s=0.05):
        started = beat()
        deadline = time.monotonic() + 20
        while beat() == started and time.monotonic() < deadline:
            time.sleep(0.02)
        assert beat() > started
        during = time.time()
    assert beat() >= during


def test_work_goes_on_when_no_sign_can_be_written_and_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock.take(str(tmp_path), "daily", "run")
    (tmp_path / "locks" / "daily.json").write_text("not json")
    with lock.kept(str(tmp_path), "daily", "run", every_s=0.01):
        time.sleep(0.2)
    assert capsys.readouterr().out.count("no sign of life could be written") == 1


def test_a_run_without_a_lock_writes_none(tmp_path: Path) -> None:
    with lock.kept(str(tmp_path), "", "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_lock_is_refused_with_a_way_out(tmp_path: Path) -> None:
    storage.write_json(lock.place(str(tmp_path), "daily"), {"colour": 1})
    with pytest.raises(BadInput, match=r"is no lock .* delete it"):
        lock.take(str(tmp_path), "daily", "run")


def test_it_works_the_same_on_an_object_store() -> None:
    workspace = f"memory://{uuid.uuid4().hex}/w"
    assert lock.take(workspace, "daily", "first") is None
    assert lock.take(workspace, "daily", "first", settle_s=0) is None
    assert lock.take(workspace, "daily", "second") is not None
    assert lock.release(workspace, "daily", "first")
    assert lock.take(workspace, "daily", "second") is None
