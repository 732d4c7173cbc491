"""Follows one job from its first pod to its output, and finds out early when it can't get there.

A job's status is a claim: operators have said Restarting for ever, Succeeded while workers held GPUs, Failed while a master ran on. So pods are
looked at beside it, every wait has a limit, and only the output, written last by the job itself, counts as success. Looking once a second is
simpler than watching and survives a server that restarts; the pods of a job are few.
Next: waiting.py (pods that don't start), diagnosis.py (why it failed).
"""

from __future__ import annotations

import time
from typing import Any

from clrflow import storage
from clrflow.errors import BadInput, ClrflowError
from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.diagnosis import JobFailed, container_status, explain, failed_pods
from clrflow.launch.cluster.lasting import Lasting
from clrflow.launch.cluster.logs import LogStream
from clrflow.launch.cluster.plan import Backend
from clrflow.launch.cluster.transport import TransportCheck, is_chatter
from clrflow.launch.cluster.waiting import Waiting
from clrflow.launch.lease import Lease
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings
from clrflow.launch.torchrun import BAD_INPUT
from clrflow.progress import duration, say

POLL_S = 1.0
LAG_S, DONE_S = 45.0, 5.0
"""How far a job's status may lag behind its pods before they are believed to have failed, or to have succeeded; after a restart of the API
server operators take half a minute to come back."""
OUTPUT_S = 20.0
"""How long a finished job's output may take to show up; file systems over the network show new files late."""
RETRIED_CODES = 128
"""From this exit code on the operator starts an elastic job's pod again."""


class Follower:
    """Follows the job `name`; `follow` returns when its output is there, or raises BadInput or JobFailed."""

    def __init__(self, cluster: Cluster, backend: Backend, name: str, request: JobRequest, settings: LaunchSettings, lease: Lease):
        self.cluster, self.backend, self.name, self.request, self.settings, self.lease = cluster, backend, name, request, settings, lease
        self.path = cluster.custom(backend.group, backend.version, backend.plural, name)
        self.transport = TransportCheck() if settings.transport == "efa" and settings.nodes > 1 else None
        self.log = LogStream(
            cluster, backend.container, show=self._show, on_line=self.transport.read if self.transport else lambda line: None
        )
        self.waiting = Waiting(cluster, name, settings)
        self.restarts = 0
        """Within this job: of its processes or its pods. A launcher that adopts the job reads them from the log again."""
        self._uids: dict[str, str] = {}
        self._replaced = 0
        self._lasts = Lasting()

    def follow(self) -> None:
        try:
            while not self._look():
                before = time.monotonic()
                time.sleep(POLL_S)
                self.log.excuse(time.monotonic() - before - POLL_S)
        finally:
            self.log.finish(timeout_s=0)

    def _look(self) -> bool:
        """One look at everything; True when the job is done."""
        before = time.monotonic()
        job, pods = self._read()
        if (took := time.monotonic() - before) > 5:
            self.log.excuse(took)  # the API server was away, and the log with it
        state = self.backend.state(job)
        first = next((pod for pod in pods if self.backend.rank(pod) == 0), None)
        if first is not None and first["status"].get("phase") != "Pending":
            self.log.follow(first)
        if state.phase == "succeeded":
            return self._finish()
        if state.phase == "failed":
            return self._fail(pods, state.reason)
        self.waiting.look(pods)
        self._check_limits(pods)
        self._count_restarts(pods)
        return self._check_claims(state.phase, pods)

    def _read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        try:
            job = self.cluster.call("GET", self.path)
        except ApiError as error:
            if error.status != 404:
                raise
            raise JobFailed(
                f"{self.request.what}: job {self.name} was deleted while it was followed, by a person, a quota or the deletion of its run. Run again: "
                "training goes on from its last checkpoint.",
                restartable=False,
            ) from None
        query = {"labelSelector": self.backend.pod_selector(self.name)}
        pods = self.cluster.call("GET", self.cluster.core("pods"), query=query)["items"]
        return job, pods

    def _show(self, line: str) -> None:
        if not is_chatter(line):
            say(line)

    def _finish(self) -> bool:
        self.log.finish()
        give_up = time.monotonic() + OUTPUT_S
        while not storage.exists(self.request.output):
            if time.monotonic() > give_up:
                raise JobFailed(
                    f"{self.request.what}: job {self.name} says that it succeeded, but {self.request.output} isn't there. Either its program "
                    "ended early without an error, or the launcher and the pods don't see the same storage (launch.volumes).",
                    restartable=False,
                )
            time.sleep(1)
        self._let_go()
        return True

    def _let_go(self) -> None:
        """A job that succeeded may leave pods that run on and hold GPUs."""
        give_up = time.monotonic() + LAG_S
        while True:
            query = {"labelSelector": self.backend.pod_selector(self.name)}
            running = [
                pod["metadata"]["name"]
                for pod in self.cluster.call("GET", self.cluster.core("pods"), query=query)["items"]
                if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
            ]
            if not running:
                return
            if time.monotonic() > give_up:
                say(f"{self.request.what} succeeded, but {', '.join(running[:3])} run on; job {self.name} is deleted to free them")
                self.cluster.call("DELETE", self.path)
                return
            time.sleep(POLL_S)

    def _fail(self, pods: list[dict[str, Any]], reason: str) -> bool:
        self.log.finish()
        # Reading the pods again: the status may have been quicker than the list.
        _, pods = self._read()
        if storage.exists(self.request.output):
            say(
                f"{self.request.what}: job {self.name} is called {reason or 'failed'}, but its output is whole: what failed came after all work"
            )
            return True
        raise explain(self.cluster, self.backend.container, pods, what=self.request.what, job=self.name, said=self.log.output)

    def _check_limits(self, pods: list[dict[str, Any]]) -> None:
        what, settings = self.request.what, self.settings
        if self.log.output.error_code == BAD_INPUT:
            self.log.finish(timeout_s=2)
            raise BadInput(self.log.output.error)
        if self.transport and self.transport.problem:
            raise JobFailed(f"{what}: launch.transport=efa, but {self.transport.problem}", restartable=False)
        if self.lease.used_s > settings.deadline_s:
            raise JobFailed(
                f"{what}: not finished after launch.deadline_s={settings.deadline_s:g} (restarts included); raise it. Run again: training goes on from "
                "its last checkpoint.",
                restartable=False,
            )
        running = any(pod["status"].get("phase") == "Running" and self.backend.rank(pod) == 0 for pod in pods)
        if running and self.log.idle_s > settings.stall_timeout_s:
            raise JobFailed(
                f"{what}: the first pod of job {self.name} has said nothing for launch.stall_timeout_s={settings.stall_timeout_s:g} although it runs; "
                f"a rank hangs, or storage does. The last it said: {(list(self.log.output.last) or ['nothing'])[-1]}",
                restartable=True,
            )

    def _count_restarts(self, pods: list[dict[str, Any]]) -> None:
        """Of an elastic job's processes (by their own words) or pods (by their uids), whichever is more: a lost pod shows as both.

        A static job doesn't go on by itself; it fails, and is made again.
        """
        if not self.settings.elastic:
            self._uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods} or self._uids
            return
        for pod in pods:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            self._replaced += name in self._uids and self._uids[name] != uid
            self._uids[name] = uid
        in_place = sum(int(container_status(pod, self.backend.container).get("restartCount", 0)) for pod in pods)
        restarts = max(self.log.output.starts - 1, self._replaced + in_place, self.restarts)
        if restarts == self.restarts:
            return
        self.restarts = restarts
        total, most = self.lease.restarts + restarts, self.settings.max_restarts
        if total > most:
            raise JobFailed(self._too_often(), restartable=False)
        say(f"{self.request.what}: restart {total} of {most}, within job {self.name}")

    def _too_often(self) -> str:
        said = self.log.output
        lines = [said.error] if said.error else list(said.last)
        return (
            f"{self.request.what}: job {self.name} restarted more than launch.max_restarts={self.settings.max_restarts} times; the last its first pod "
            "said:\n  " + "\n  ".join(lines or ["nothing"])
        )

    def _check_claims(self, phase: str, pods: list[dict[str, Any]]) -> bool:
        """Believe the pods where the status says otherwise for long; True when they are done and the output is there."""
        alive = [
            pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")
        ]
        succeeded = bool(pods) and all(pod["status"].get("phase") == "Succeeded" for pod in pods)
        if self._lasts("all is done", succeeded, DONE_S) and storage.exists(self.request.output):
            say(f"{self.request.what}: job {self.name} is called {phase} still, but its pods have succeeded and its output is there")
            self.log.finish()
            return True
        if self._lasts("nothing runs", bool(self._uids) and not alive, LAG_S):
            raise self._unsaid(pods, f"job {self.name} is called {phase}, but none of its pods runs")
        dead = [pod for pod in failed_pods(pods) if not self._comes_again(pod)]
        if self._lasts("a pod failed", bool(dead), LAG_S):
            raise self._unsaid(pods, f"job {self.name} is called {phase}, but its pod {dead[0]['metadata']['name']} failed for good")
        return False

    def _comes_again(self, pod: dict[str, Any]) -> bool:
        ended = container_status(pod, self.backend.container).get("state", {}).get("terminated") or {}
        return self.settings.elastic and int(ended.get("exitCode", RETRIED_CODES)) >= RETRIED_CODES

    def _unsaid(self, pods: list[dict[str, Any]], why: str) -> ClrflowError:
        error = explain(self.cluster, self.backend.container, pods, what=self.request.what, job=self.name, said=self.log.output)
        say(f"{self.request.what}: {why} for {duration(LAG_S)}; it counts as failed")
        return error
