"""The lease: a job's sign that a launcher follows it, kept beside the job's results so that any storage will do.

The launcher writes the file again every quarter of `lease_s`. Rank 0 of the job watches it by its own clock: what counts is that the content
changes, not the time in it, so clocks need not agree. Content that stays the same for `lease_s` means that nobody follows the job any more;
it then saves a checkpoint and ends. A launcher that adopts the job writes on where the last one stopped.

The launcher's own counts (time used, restarts) are kept in the same file, so that an adopting launcher's limits go on from there.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.progress import duration, say

LEASE = "CLRFLOW_LEASE"
"""Environment variable by which a job's processes get the lease's place; without it nobody watches one."""
BEATS_A_LEASE = 4


def place(folder: str) -> str:
    """URI of the lease of a step's folder."""
    return storage.join(folder, "launch", "lease.json")


class Lease:
    """The launcher's side: `take` it before the job is made, `start` the thread that renews it, `stop` when the job has ended."""

    def __init__(self, uri: str, lease_s: float):
        self.uri, self.lease_s = uri, lease_s
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self.restarts = 0
        self._beat, self._used_s = 0, 0.0
        self._taken = time.monotonic()
        self._stopped = threading.Event()
        self._writing = threading.Lock()

    def take(self, *, goes_on: bool) -> None:
        """Write the first beat; `goes_on`: an unfinished launch is taken over, with the time and the restarts it has used.

        Raises what the storage raises: a lease that can't be written would end the job.
        """
        last = _read(self.uri)
        if last is not None:
            self._beat = int(last.get("beat", 0))
            if goes_on:
                self._used_s, self.restarts = float(last.get("used_s", 0)), int(last.get("restarts", 0))
        self._taken = time.monotonic()
        self.write()

    @property
    def used_s(self) -> float:
        """Seconds that launchers have followed this job, all attempts together."""
        return self._used_s + time.monotonic() - self._taken

    def add_restarts(self, number: int) -> None:
        self.restarts += number
        self.write()

    def write(self) -> None:
        with self._writing:
            self._beat += 1
            content = {
                "beat": self._beat, "holder": self.holder, "lease_s": self.lease_s, "used_s": round(self.used_s, 1), "restarts": self.restarts
            }  # fmt: skip
            storage.write_json(self.uri, content)

    def start(self) -> None:
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _renew(self) -> None:
        failing_since = 0.0
        while not self._stopped.wait(self.lease_s / BEATS_A_LEASE if not failing_since else min(1.0, self.lease_s / 20)):
            try:
                self.write()
            except (OSError, ClrflowError) as error:
                if not failing_since:
                    failing_since = time.monotonic()
                    say(
                        f"the job's lease {self.uri} can't be renewed ({error}); trying on, the job saves and ends {self.lease_s:.0f} s from now"
                    )
            else:
                if failing_since:
                    say(f"the job's lease is renewed again, after {duration(time.monotonic() - failing_since)}")
                failing_since = 0.0


class LeaseWatch:
    """The job's side, in one thread of rank 0: calls `on_abandoned` once when nobody renews the lease any more."""

    def __init__(
        self, uri: str, on_abandoned: Callable[[], None], *, on_overdue: Callable[[], None] = lambda: None, overdue_s: float = 300.0
    ):
        self.uri, self.on_abandoned = uri, on_abandoned
        self.on_overdue, self.overdue_s = on_overdue, overdue_s
        """Called when the process is still there `overdue_s` after it was told: a rank that hangs never comes to save."""
        self._thread = threading.Thread(target=self._watch, name="lease-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        seen: dict[str, Any] | None = None
        looked = changed = time.monotonic()
        lease_s = 60.0  # until the file says
        while True:
            now = time.monotonic()
            try:
                content = _read(self.uri)
            except (OSError, ClrflowError):
                changed += now - looked  # storage that is away says nothing about the launcher, so its time doesn't count
            else:
                if content != seen:
                    seen, changed = content, now
                    lease_s = float((content or {}).get("lease_s", lease_s))
            looked = now
            if now - changed > lease_s:
                break
            time.sleep(min(max(lease_s / 20, 0.2), 10.0))
        self.on_abandoned()
        time.sleep(self.overdue_s)
        self.on_overdue()


def _read(uri: str) -> dict[str, Any] | None:
    """The lease's content; None where there is no file, or none that a launcher wrote."""
    try:
        content = json.loads(storage.read_bytes(uri))
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
