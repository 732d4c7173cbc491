"""Makes a job on a cluster, or takes over the one that a killed launcher left, follows it to its output, and leaves none that still runs.

    plan → is a job of ours there? adopt it, else: check, place, create → follow → output there, or restart, or fail and delete the job

Four nets end a job whose launcher is gone: the handler of SIGTERM (termination.py), the pipeline's exit handler (cleanup.py), the owner
reference to the Workflow, and the lease that nobody renews.
Next: follow.py.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from typing import Any

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.launch import lease
from clrflow.launch.cluster import placement, preflight, termination
from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.diagnosis import JobFailed
from clrflow.launch.cluster.follow import Follower
from clrflow.launch.cluster.identity import Identity
from clrflow.launch.cluster.plan import Backend, JobPlan
from clrflow.launch.cluster.planning import backend_of, plan_job
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings
from clrflow.progress import duration, say

ATTEMPT = "clrflow/attempt"
"""Annotation of a job: how many were made before it for the same result, plus one."""
OURS = "clrflow/"
"""Labels that tell whose job it is."""
GONE_MARGIN_S = 60.0
"""Beyond the pods' own grace period, until a deleted job's pods must be gone."""


def launch_on_cluster(request: JobRequest, settings: LaunchSettings) -> None:
    """Run the job on the cluster and return when its output is there.

    Raises BadInput for what must be changed first, ClrflowError for what failed; no job is left behind in either case.
    """
    cluster = Cluster.connect(settings.namespace)
    Launch(cluster, Identity.from_environment(cluster), request, settings).run()


class Launch:
    """One launch of one request."""

    def __init__(self, cluster: Cluster, identity: Identity, request: JobRequest, settings: LaunchSettings):
        self.cluster, self.identity, self.request, self.settings = cluster, identity, request, settings
        self.backend: Backend = backend_of(settings)
        self.plan = self._plan()
        self.path = cluster.custom(self.backend.group, self.backend.version, self.backend.plural, self.plan.name)
        self.lease = lease.Lease(lease.place(request.folder), settings.lease_s)
        self.checked = False
        self.holds_job = False
        """Whether there may be a job that this launch must end."""

    def run(self) -> None:
        try:
            job = self._existing()
        except ApiError as error:
            if error.status == 403:
                preflight.check(self.cluster, self.backend, self.settings)  # names all rights that are missing, and the remedy
            raise
        if job and self.backend.state(job).phase == "succeeded" and storage.exists(self.request.output):
            say(f"{self.request.what}: job {self.plan.name} has finished before; its output is there")
            return
        self.lease.take(goes_on=job is not None)
        with termination.handled(self.cluster, self.identity, self.path):
            self.lease.start()
            try:
                self._to_the_end(job)
            except BaseException as error:
                self._end(error)
                if isinstance(error, termination.Terminated):
                    raise ClrflowError(f"{self.request.what}: {error}; its job {self.plan.name} was deleted.") from None
                raise
            finally:
                self.lease.stop()

    def _to_the_end(self, job: dict[str, Any] | None) -> None:
        adopted = self.holds_job = job is not None and self._may_adopt(job)
        while True:
            if not adopted:
                self._make(job)
            follower = Follower(self.cluster, self.backend, self.plan.name, self.request, self.settings, self.lease)
            try:
                follower.follow()
                return
            except JobFailed as failure:
                self.lease.add_restarts(follower.restarts)
                if not failure.restartable or self.lease.restarts >= self.settings.max_restarts:
                    raise self._final(failure) from None
                self.lease.add_restarts(1)
                say(f"{failure}\n{self.request.what}: restart {self.lease.restarts} of {self.settings.max_restarts} with a new job")
                adopted, job = False, self._existing()  # one that stalls still runs: never again this one

    def _plan(self, zone: str = "") -> JobPlan:
        return plan_job(self.request, self.settings, namespace=self.cluster.namespace, identity=self.identity, zone=zone)

    def _existing(self) -> dict[str, Any] | None:
        """The job of our name, if there is one; raises ClrflowError where it isn't of this run."""
        try:
            job: dict[str, Any] = self.cluster.call("GET", self.path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        labels = job["metadata"].get("labels") or {}
        foreign = {
            name: labels.get(name) for name, value in self.plan.labels.items() if name.startswith(OURS) and labels.get(name) != value
        }
        if foreign:
            raise ClrflowError(
                f"{self.backend.kind} {self.plan.name} in namespace {self.cluster.namespace} isn't of this run (its labels say {foreign}); delete it "
                "if nobody needs it, or give the run another name."
            )
        return job

    def _may_adopt(self, job: dict[str, Any]) -> bool:
        state = self.backend.state(job)
        if state.phase in ("succeeded", "failed") or job["metadata"].get("deletionTimestamp"):
            return False
        say(f"{self.request.what}: job {self.plan.name} of this run is {state.phase} already; following it")
        return True

    def _make(self, old: dict[str, Any] | None) -> None:
        """Create the job, after the old one of the same name is gone."""
        attempt = 1
        if old is not None:
            attempt = int((old["metadata"].get("annotations") or {}).get(ATTEMPT, "1")) + 1
            self._delete_and_wait()
        if not self.checked:
            preflight.check(self.cluster, self.backend, self.settings)
            self.checked = True
        placed = placement.choose_zone(self.cluster, self.settings)
        for note in placed.notes if attempt == 1 else ():
            say(f"{self.request.what}: {note}")
        for uri in self.request.stale:
            storage.remove(uri)
        plan = self._plan(placed.zone)
        left = max(self.settings.max_restarts - self.lease.restarts, 0)
        plan = dataclasses.replace(plan, annotations={**plan.annotations, ATTEMPT: str(attempt)}, max_restarts=left)
        self.holds_job = True
        try:
            self.cluster.call("POST", self._collection(), body=self.backend.render(plan))
        except ApiError as error:
            # 409 is our own request, whose answer was lost; any other answer means that nothing was made.
            self.holds_job = error.status == 409 and self._existing() is not None
            if not self.holds_job:
                raise
        where = f" of {self.cluster.context}" if self.cluster.context else ""
        zone = f", zone {placed.zone}" if placed.zone else ""
        say(
            f"{self.request.what}: {self.backend.kind} {plan.name} made in namespace {self.cluster.namespace}{where}: {plan.nodes} pod(s) of "
            f"{plan.processes_per_node} process(es), image {self.settings.image}{zone}"
        )

    def _collection(self) -> str:
        return self.cluster.custom(self.backend.group, self.backend.version, self.backend.plural)

    def _delete_and_wait(self) -> None:
        """Until the old pods are gone: two jobs must never write at the same time."""
        self._delete()
        give_up = time.monotonic() + self.settings.grace_s + GONE_MARGIN_S
        pods: list[dict[str, Any]] = []
        query = {"labelSelector": self.backend.pod_selector(self.plan.name)}
        while self._existing() or (pods := self.cluster.call("GET", self.cluster.core("pods"), query=query)["items"]):
            if time.monotonic() > give_up:
                names = ", ".join(pod["metadata"]["name"] for pod in pods[:3])
                raise ClrflowError(
                    f"{self.request.what}: job {self.plan.name} was deleted, but {names or 'the job'} is still there; a node that is lost keeps its "
                    "pods until it is removed. Delete them by force once it is certain that they don't run, then run again."
                )
            time.sleep(0.5)

    def _delete(self) -> None:
        try:
            self.cluster.call("DELETE", self.path, body=termination.DELETE_OPTIONS)
        except ApiError as error:
            if error.status != 404:
                raise

    def _end(self, error: BaseException) -> None:
        """Delete the job that can't or shan't go on; the error that led here stays the one that is told."""
        if not self.holds_job:
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, signal.SIG_IGN
            )  # a second one must not stop the deletion; the handler before ours comes back later
        if not isinstance(error, Exception):
            say(f"{self.request.what}: stopped; deleting job {self.plan.name}")
        try:
            self._delete()
        except ClrflowError as problem:
            say(
                f"{self.request.what}: job {self.plan.name} could not be deleted ({problem}); it saves and ends by itself within "
                f"{duration(self.settings.lease_s)}, as its lease isn't renewed any more"
            )

    def _final(self, failure: JobFailed) -> JobFailed:
        restarts = (
            f" (after {self.lease.restarts} restart(s), launch.max_restarts={self.settings.max_restarts})" if self.lease.restarts else ""
        )
        return JobFailed(f"{failure}{restarts}\nJob {self.plan.name} was deleted.", restartable=False)
