"""Runs one job of a benchmark: `python -m benchmarks.job MODULE JOB ARGUMENTS ANSWER`, JSON in, JSON out. Started by processes.py.

A job is a function of JSON-able arguments that returns a dictionary of facts, found by its name in the module's JOBS. It imports heavy modules
inside, so that its memory is its own; where it says `seconds`, that is the time that counts.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from pathlib import Path


def main(module: str, job: str, arguments: str, answer: str) -> None:
    """Run a job and write its answer: facts, seconds, and the kernel's count of this process's peak memory."""
    run = importlib.import_module(module).JOBS[job]
    started = time.monotonic()
    facts = run(**json.loads(arguments))
    seconds = facts.pop("seconds", time.monotonic() - started)
    mine, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime
    said = {"facts": facts, "seconds": seconds, "cpu_seconds": cpu, "own_peak_bytes": mine.ru_maxrss * 1024}
    Path(answer).write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:5])
