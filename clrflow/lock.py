"""A lock in the workspace that one run at a time holds: a schedule's next run sees it and ends cleanly, having done nothing.

Only runs that name a lock take it (clrflow schedule names one for each schedule). Runs that people start take none: results are found by
content and published atomically, so several at once are legitimate, as in a comparison of settings.

The file names its holder and the time of the holder's last sign of life, which every step renews while it works. A holder that was killed
without its exit handler gives no more signs, and after STALE_S the lock is anybody's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator

from clrflow import storage
from clrflow.errors import BadInput
from clrflow.progress import say

STALE_S = 1800.0
"""Longer than a step's pod waits for a node and its image between two steps; a daily schedule loses nothing by it."""
BEAT_S = 60.0
_SETTLE_S = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lock."""

    run: str
    since: float
    """Unix time, seconds."""
    beat: float
    """Unix time of the last sign of life, by the clock of the pod that gave it; clocks may differ by minutes, STALE_S is longer."""

    def is_stale(self, stale_s: float = STALE_S) -> bool:
        return time.time() - self.beat > stale_s


def place(workspace: str, name: str) -> str:
    return storage.join(workspace, "locks", f"{name}.json")


def holder(workspace: str, name: str) -> Holder | None:
    """Who holds the lock, dead or alive; None when nobody does."""
    uri = place(workspace, name)
    try:
        return Holder(**storage.read_json(uri))
    except FileNotFoundError:
        return None
    except TypeError as error:
        raise BadInput(f"{uri} is no lock ({error}); delete it if no run of this schedule is at work.") from None


def take(workspace: str, name: str, run: str, *, stale_s: float = STALE_S, settle_s: float = _SETTLE_S) -> Holder | None:
    """Take the lock for a run; returns the run that holds it instead, or None when it is taken. Taking it twice is fine (a retried step)."""
    uri = place(workspace, name)
    mine = Holder(run=run, since=time.time(), beat=time.time())
    if storage.create_bytes(uri, _encoded(mine)):
        return None
    current = holder(workspace, name)
    if current is not None and current.run != run and not current.is_stale(stale_s):
        return current
    if current is not None and current.run != run:
        say(f"lock {name}: run {current.run} gave no sign of life for {time.time() - current.beat:.0f} s; taking its lock")
    storage.write_bytes(uri, _encoded(mine))
    # Two runs may find the same stale lock; whoever wrote last has it, and both look once both have written.
    time.sleep(settle_s)
    settled = holder(workspace, name)
    return None if settled is None or settled.run == run else settled


def release(workspace: str, name: str, run: str) -> bool:
    """Give the lock back; False when this run doesn't hold it (any more)."""
    current = holder(workspace, name)
    if current is None or current.run != run:
        return False
    storage.remove(place(workspace, name))
    return True


def beat(workspace: str, name: str, run: str) -> bool:
    """Give a sign of life; False when another run holds the lock by now."""
    current = holder(workspace, name)
    if current is None or current.run != run:
        return False
    storage.write_bytes(place(workspace, name), _encoded(dataclasses.replace(current, beat=time.time())))
    return True


@contextlib.contextmanager
def kept(workspace: str, name: str, run: str, every_s: float = BEAT_S) -> Iterator[None]:
    """Give signs of life while the body runs, and a last one after it; without a lock's name nothing happens.

    A sign that can't be written is said once and tried again: a storage that hiccups is no reason to end a training.
    """
    if not name:
        yield
        return
    done, said = threading.Event(), False

    def give_signs() -> None:
        nonlocal said
        while True:
            try:
                if not beat(workspace, name, run) and not said:
                    said = True
                    say(f"lock {name}: this run doesn't hold it any more; another one may be at work in {workspace}")
            except Exception as error:  # whatever the storage's driver raises
                if not said:
                    said = True
                    say(
                        f"lock {name}: no sign of life could be written ({type(error).__name__}: {error}); trying again each {every_s:.0f} s"
                    )
            if done.is_set():
                return
            done.wait(every_s)

    thread = threading.Thread(target=give_signs, name=f"lock {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=10)


def _encoded(value: Holder) -> bytes:
    return json.dumps(dataclasses.asdict(value)).encode()
