"""What a step asks of a launcher: a program, its processes, and the file whose existence says that it succeeded."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job, wherever it runs; every place is a URI that each of its processes can reach."""

    what: str
    """In messages: `training`."""
    module: str
    """Each process runs `python -m module *arguments` under torchrun."""
    arguments: tuple[str, ...]
    num_processes: int
    run_name: str
    step: str
    key: str
    """Key of the step's result; with the run and the step it makes the job's name, so a retry finds the job of its own run."""
    folder: str
    """The step's folder; the launcher keeps its notes (lease) below `folder/launch/`."""
    output: str
    """Written last by the job; a job without it has not succeeded, whatever its status says."""
    stale: tuple[str, ...] = ()
    """Left by an earlier attempt and removed before a new job is made; never when a running one is adopted."""
