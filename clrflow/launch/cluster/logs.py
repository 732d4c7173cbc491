"""Rank 0's log, followed through everything that breaks a stream: a server that restarts, a silent connection, a pod that is replaced.

Lines carry the node's time stamps. After a break the log is asked for from the last stamp on, and what was shown already is skipped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from clrflow.errors import ClrflowError
from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.torchrun import Output

REOPEN_S = 1.0
SILENCE_S = 60.0
"""A connection that brings nothing for so long is opened again; half-open ones look the same as quiet jobs."""


class LogStream:
    """A thread that reads the log of the pod it was last told of, and hands each line on once.

    `on_line` gets every raw line (without its stamp), `show` those that a person should see.
    """

    def __init__(self, cluster: Cluster, container: str, show: Callable[[str], None], on_line: Callable[[str], None]):
        self.cluster, self.container, self.show, self.on_line = cluster.another(), container, show, on_line
        self.output = Output()
        self._pod: tuple[str, str] | None = None
        self._last = ("", 0)
        """The newest stamp and how many lines bore it."""
        self._news = time.monotonic()
        self._finishing, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def follow(self, pod: dict[str, Any]) -> None:
        """From now on this pod; the one followed already goes on."""
        wanted = (pod["metadata"]["name"], pod["metadata"]["uid"])
        if wanted != self._pod:
            self._news = time.monotonic()
            self._pod = wanted

    @property
    def idle_s(self) -> float:
        """Seconds since the last line, or since the pod is followed; time without a server doesn't count."""
        return time.monotonic() - self._news

    def excuse(self, seconds: float) -> None:
        """Take away from the silence: nobody could have heard anything."""
        self._news = min(self._news + seconds, time.monotonic())

    def finish(self, timeout_s: float = 10.0) -> None:
        """The job has ended: read what is left, then stop."""
        self._finishing.set()
        if self._pod is not None:
            self._thread.join(timeout_s)
        self._closed.set()

    def _run(self) -> None:
        reading: tuple[str, str] | None = None
        while not self._closed.is_set():
            if self._pod != reading:
                reading, self._last = self._pod, ("", 0)
            ended = reading is not None and self._read(reading)
            if self._finishing.is_set() and ended and reading == self._pod:
                return
            self._closed.wait(REOPEN_S)

    def _read(self, pod: tuple[str, str]) -> bool:
        """Read to the stream's end; False where it broke and there may be more."""
        query = {"container": self.container, "follow": "true", "timestamps": "true"}
        stamp, seen = self._last
        if stamp:
            query["sinceTime"] = stamp.partition(".")[0] + "Z"
        catching_up = bool(stamp)
        try:
            with self.cluster.lines(self.cluster.core("pods", pod[0], "log"), query, timeout_s=SILENCE_S) as lines:
                for line in lines:
                    at, _, text = line.partition(" ")
                    at = at.rstrip("Z").ljust(len("2026-01-31T00:00:00.000000000"), "0")
                    if catching_up and (at < stamp or (at == stamp and seen > 0)):
                        seen -= at == stamp
                        continue
                    catching_up = False
                    self._last = (at, self._last[1] + 1 if at == self._last[0] else 1)
                    self._take(text)
                    if self._pod != pod or self._closed.is_set():
                        return False
        except ApiError as error:
            if error.status == 401:
                self.cluster.log_in_again()
            return error.status == 404  # 400: the container hasn't started yet
        except ClrflowError:
            self.cluster.log_in_again()
            return False
        return True

    def _take(self, line: str) -> None:
        self._news = time.monotonic()
        self.on_line(line)
        if (shown := self.output.read(line)) is not None:
            self.show(shown)


def tail(cluster: Cluster, pod: str, container: str, num_lines: int = 200) -> list[str]:
    """The last lines of a pod's log; none where it has no log or the pod is gone."""
    query = {"container": container, "tailLines": str(num_lines), "limitBytes": "200000"}
    try:
        with cluster.lines(cluster.core("pods", pod, "log"), query, timeout_s=20) as lines:
            return list(lines)
    except ClrflowError:
        return []
