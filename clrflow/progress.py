"""Progress that a person can read: share done, rate and time left; a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO


def say(message: str) -> None:
    """One line of plain progress, flushed at once so that a log reader sees it live."""
    print(message, flush=True)


def duration(seconds: float) -> str:
    """`4.2s`, `3m12s` or `2h05m`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


class Progress:
    """Counts work towards a total and prints how it goes.

    On a terminal the line is redrawn; elsewhere a line is printed every `every_s` seconds and at the end.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "rows", every_s: float = 5.0, stream: TextIO | None = None):
        self.what, self.total, self.unit, self.every_s = what, total, unit, every_s
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self.done = 0
        self.shown = -1
        self.note = ""
        self.started = time.monotonic()
        self.printed = self.started

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count finished work; `note` is shown behind the rate (a loss, a usage)."""
        self.done += count
        self.note = note or self.note
        now = time.monotonic()
        if now - self.printed >= (0.2 if self.live else self.every_s):
            self.printed = now
            self._print(now, end="\r" if self.live else "\n")

    def close(self) -> None:
        if self.live or self.done != self.shown:
            self._print(time.monotonic(), end="\n")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _print(self, now: float, end: str) -> None:
        self.shown = self.done
        elapsed = max(now - self.started, 1e-9)
        rate = self.done / elapsed
        if self.total:
            left = (self.total - self.done) / rate if rate else float("inf")
            share = f"{self.done:,}/{self.total:,} {self.unit} ({self.done / self.total:.0%})"
            timing = f"{duration(left)} left" if self.done < self.total and rate else f"took {duration(elapsed)}"
        else:
            share, timing = f"{self.done:,} {self.unit}", duration(elapsed)
        note = f" · {self.note}" if self.note else ""
        clear = "\x1b[2K" if self.live else ""
        print(f"{clear}{self.what}: {share} · {rate:,.0f} {self.unit}/s · {timing}{note}", end=end, flush=True, file=self.stream)
