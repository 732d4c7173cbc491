"""Where a training job runs: torchrun on this machine, or a job on a cluster. Nothing else in the package knows.

Start with request.py (what a step asks for) and settings.py (where it runs); then local.py, or cluster/launcher.py and, for what happens
inside a pod, worker.py.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clrflow.launch.request import JobRequest
    from clrflow.launch.settings import LaunchSettings


def launch(request: JobRequest, settings: LaunchSettings) -> None:
    """Run the job where the settings say, and return when its output is there.

    Raises BadInput where the job or its place was asked for wrongly, and ClrflowError where it failed, with what it said last.
    """
    from clrflow import storage
    from clrflow.errors import BadInput, ClrflowError

    if settings.launcher == "local":
        from clrflow.launch.local import run_torchrun

        for uri in request.stale:
            storage.remove(uri)
        run_torchrun(request.module, request.arguments, num_processes=request.num_processes, what=request.what)
        if not storage.exists(request.output):
            raise ClrflowError(f"{request.what} ended without an error but left no {request.output}; look at what it printed.")
        return
    if importlib.util.find_spec("kubernetes") is None:
        raise BadInput(
            f"launch.launcher={settings.launcher} talks to a cluster, but the package `kubernetes` isn't installed here; install clrflow[pipelines], "
            "or run with launch.launcher=local."
        )
    from clrflow.launch.cluster.launcher import launch_on_cluster

    launch_on_cluster(request, settings)
