"""The lease: a job goes on as long as somebody renews it, by the job's own clock, and ends when nobody does."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from clrflow import storage
from clrflow.launch.lease import Lease, LeaseWatch, place

LEASE_S = 0.6


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return place(str(tmp_path))


def watch(uri: str) -> threading.Event:
    abandoned = threading.Event()
    LeaseWatch(uri, abandoned.set, overdue_s=60).start()
    return abandoned


def test_a_job_whose_launcher_is_gone_is_told(uri: str) -> None:
    Lease(uri, LEASE_S).take(goes_on=False)
    started = time.monotonic()
    assert watch(uri).wait(20)
    assert time.monotonic() - started >= LEASE_S


def test_a_job_that_is_followed_goes_on(uri: str) -> None:
    lease = Lease(uri, LEASE_S)
    lease.take(goes_on=False)
    lease.start()
    abandoned = watch(uri)
    assert not abandoned.wait(4 * LEASE_S)
    lease.stop()
    assert abandoned.wait(20)


def test_an_adopting_launcher_keeps_the_job_alive_and_the_counts(uri: str) -> None:
    first = Lease(uri, LEASE_S)
    first.take(goes_on=False)
    first.add_restarts(1)
    abandoned = watch(uri)
    time.sleep(LEASE_S / 2)
    first.write()
    second = Lease(uri, LEASE_S)
    second.take(goes_on=True)
    second.start()
    assert not abandoned.wait(3 * LEASE_S)
    second.stop()
    assert second.restarts == 1
    assert second.used_s >= LEASE_S / 2 + 3 * LEASE_S


def test_a_new_launch_starts_counting_anew(uri: str) -> None:
    first = Lease(uri, LEASE_S)
    first.take(goes_on=False)
    first.add_restarts(1)
    second = Lease(uri, LEASE_S)
    second.take(goes_on=False)
    assert second.restarts == 0
    assert storage.read_json(uri)["beat"] == 3  # two of the first and one of its own: what a job watches never goes back


def test_the_times_in_it_do_not_matter(uri: str) -> None:
    # A launcher whose clock is a year behind renews a lease as well as any other.
    Lease(uri, LEASE_S).take(goes_on=False)
    abandoned = watch(uri)
    for beat in range(8):
        storage.write_json(uri, {"beat": -beat, "lease_s": LEASE_S})
        assert not abandoned.wait(LEASE_S / 3)


def test_time_without_storage_says_nothing_about_the_launcher(uri: str) -> None:
    Lease(uri, LEASE_S).take(goes_on=False)
    abandoned = watch(uri)
    file = Path(uri)
    content = file.read_bytes()
    file.unlink()
    file.mkdir()  # reading it fails now, and not because it is missing
    assert not abandoned.wait(3 * LEASE_S)
    file.rmdir()
    file.write_bytes(content)
    assert abandoned.wait(20)


def test_a_write_that_fails_is_tried_again_and_said_once(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    lease = Lease(uri, LEASE_S)
    lease.take(goes_on=False)
    Path(uri).unlink()
    Path(uri).parent.rmdir()
    Path(uri).parent.write_text("a file where the folder was")
    lease.start()
    time.sleep(2 * LEASE_S)
    Path(uri).parent.unlink()
    deadline = time.monotonic() + 20
    while not Path(uri).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    lease.stop()
    said = capsys.readouterr().out
    assert said.count("can't be renewed") == 1
    assert said.count("renewed again") == 1


def test_a_process_that_hangs_is_ended_when_it_is_overdue(uri: str) -> None:
    Lease(uri, LEASE_S).take(goes_on=False)
    abandoned, overdue = threading.Event(), threading.Event()
    LeaseWatch(uri, abandoned.set, on_overdue=overdue.set, overdue_s=0.5).start()
    assert overdue.wait(20)
    assert abandoned.is_set()
