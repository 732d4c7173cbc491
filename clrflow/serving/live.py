"""The index that is served now: loaded in a thread, followed when another version is published, swapped by replacing one reference.

A request keeps the version that it began with. A new version is served only after it was read whole, its hashes, format and tokenizer were
checked and it answered a question; until then, and whenever it can't be loaded, the old one goes on. Nothing is read from the version's
folder after loading, so a publisher may remove it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

from clrflow import storage
from clrflow.contracts import NONE
from clrflow.errors import ClrflowError
from clrflow.index.bundle import resolve
from clrflow.progress import duration, say
from clrflow.serving.metrics import Metrics
from clrflow.serving.query import Condition, Retriever

MAX_RETRY_S = 300.0
"""A version that can't be loaded is tried again after twice the time each, up to this: reading gigabytes each few seconds helps nobody."""


@dataclasses.dataclass(frozen=True)
class Served:
    """A loaded version."""

    version: str
    retriever: Retriever


class LiveIndex:
    """`current` is None until the first version is loaded; afterwards there always is one."""

    def __init__(self, uri: str, poll_s: float, metrics: Metrics):
        self.uri, self.poll_s, self.metrics = uri, poll_s, metrics
        self.current: Served | None = None
        self.failure: Exception | None = None
        """Why the first version could not be loaded; there is nothing to serve then."""
        self._failed_uri, self._retry_at, self._retry_s = "", 0.0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def start(self, on_failure: Callable[[], None]) -> None:
        """Begin to load; on_failure is called from the thread if the first version can't be loaded."""
        self._on_failure = on_failure
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End following; whether the thread ended in time (it can't leave a load that is under way)."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._load()
        except Exception as error:
            self.failure = error
            self._on_failure()
            return
        while not self._stop.wait(self.poll_s):
            self._follow()

    def _follow(self) -> None:
        """Look at the pointer, and load what it names if that isn't served; an error leaves everything as it is."""
        wanted = "the pointer"
        try:
            wanted = resolve(self.uri)
            if self.current is not None and wanted == self.current.retriever.bundle.uri:
                self._failed_uri = ""
                self.metrics.current.set(1)
                return
            self.metrics.current.set(0)
            if self._too_early(wanted):
                return
            self._load()
            self._failed_uri = ""
        except Exception as error:
            self.metrics.current.set(0)
            if self._too_early(wanted):
                return
            self.metrics.failures.inc()
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S) if wanted == self._failed_uri else 2 * self.poll_s
            self._failed_uri, self._retry_at = wanted, time.monotonic() + self._retry_s
            served = self.current.version if self.current is not None else "nothing"
            say(f"serve: {wanted} can't be loaded, {served} is still served; next try in {duration(self._retry_s)}. {_why(error)}")

    def _too_early(self, wanted: str) -> bool:
        return wanted == self._failed_uri and time.monotonic() < self._retry_at

    def _load(self) -> None:
        started = time.monotonic()
        retriever = _load_whole(self.uri)
        # A model that doesn't fit its index shows here, and the first caller doesn't pay for what is set up on first use.
        retriever.search(0, [Condition(NONE)], k=1)
        # The bundle of an export step lies in a folder `index` below the step's key.
        version = storage.name_of(retriever.bundle.uri.removesuffix("/index"))
        self.current = Served(version, retriever)
        self.metrics.serves(version, retriever.bundle.num_items)
        say(f"serve: {version} is served: {retriever.bundle.num_items:,} items, loaded in {duration(time.monotonic() - started)}")


def _load_whole(uri: str) -> Retriever:
    """Load what a URI points at; when it was retired while it was read, load what is current then."""
    while True:
        pointed = resolve(uri)
        try:
            return Retriever.load(uri)
        except (ClrflowError, OSError):
            if resolve(uri) == pointed:
                raise


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, ClrflowError) else f"{type(error).__name__}: {error}"
