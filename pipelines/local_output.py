"""Turns what kfp.local prints into lines that a person reads: step started, its own lines, step found or finished with its time.

kfp.local has no hook for its log: it prints colours, rules and every output's path, and hides how a child ended. This stands in for
stdout while a pipeline runs, keeps everything in the run's log, and shows what matters.
"""

from __future__ import annotations

import io
import re
import time
from typing import TextIO

from clrflow.progress import duration

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_KFP_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} - (?:INFO|WARNING|ERROR) - (.*)")
_STARTED = re.compile(r"Executing task '([^']+)'")
_ENDED = re.compile(r"Task '([^']+)' finished with status (\w+)")
_INDENT = "    "


class StepOutput(io.TextIOBase):
    """A text stream; `times` holds the seconds of each finished step, `failed` the one that broke."""

    def __init__(self, screen: TextIO, log: TextIO):
        self.screen, self.log = screen, log
        self.times: dict[str, float] = {}
        self.reused: set[str] = set()
        self.failed = ""
        self.killed = False
        self._step = ""
        self._started = 0.0
        self._in_child = False
        self._in_traceback = False
        self._in_input = False
        self._rest = ""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False  # children's lines arrive through a pipe, so nothing is redrawn in place

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def flush(self) -> None:
        self.screen.flush()
        self.log.flush()

    def _line(self, raw: str) -> None:
        line = _COLOUR.sub("", raw)
        self.log.write(line + "\n")
        kfp = _KFP_LINE.fullmatch(line)
        if kfp:
            self._kfp(kfp.group(1))
        elif self._in_child:
            self._child(line.removeprefix(_INDENT))

    def _kfp(self, message: str) -> None:
        if started := _STARTED.match(message):
            self._step, self._started = started.group(1).replace("-", "_"), time.monotonic()
            self._in_traceback = self._in_input = False
        elif message.startswith("Streamed logs"):
            self._in_child = True
        elif ended := _ENDED.match(message):
            self._in_child = False
            took = time.monotonic() - self._started
            if ended.group(2) == "SUCCESS":
                self.times[self._step] = took
                self._show(f"✓ {self._step} {'found' if self._step in self.reused else 'finished'} ({duration(took)})")
            else:
                self.failed = self._step
                self._show(f"✗ {self._step} failed after {duration(took)}")

    def _child(self, line: str) -> None:
        text = line.strip()
        if self._in_input:  # kfp prints each step's places as JSON; the log has them
            self._in_input = line != "}"
            return
        if not text or text.startswith("[KFP Executor"):
            self._in_input = text.endswith("Got executor_input:")
            return
        if text.startswith("ModuleNotFoundError(\"No module named 'faiss."):
            return  # second line of a note that faiss makes at import where its CPU-specific builds are absent
        if text == "Killed":  # sh says so when a signal ended its child
            self.killed = True
        if text.startswith("Traceback (most recent call last)"):
            self._in_traceback = True  # the log keeps it; what the user needs is printed at the end
        if self._in_traceback:
            return
        if text.startswith(f"{self._step}: found its finished result"):
            self.reused.add(self._step)
        elif text.startswith(f"{self._step}: started, writing to"):
            self._show(f"▸ {self._step}")
        elif not text.startswith(f"{self._step}: finished in"):
            self._show(f"  {line.rstrip()}")

    def _show(self, line: str) -> None:
        self.screen.write(line + "\n")
        self.screen.flush()
