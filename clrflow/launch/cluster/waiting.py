"""Pods that don't start: says what they wait for, and gives up at once where waiting can't help.

The scheduler's and the kubelet's own words are shown, as they name the resource, the taint or the image.
"""

from __future__ import annotations

import re
import time
from typing import Any

from clrflow.launch.cluster.api import ApiError, Cluster
from clrflow.launch.cluster.diagnosis import JobFailed
from clrflow.launch.cluster.lasting import Lasting
from clrflow.launch.settings import LaunchSettings
from clrflow.progress import duration, say

SAY_EVERY_S = 30.0
EVENTS_EVERY_S = 3.0
REFUSED_S = 4.0
"""How long pods may be refused: what is missing at first, e.g. a new namespace's service account, comes within seconds."""
PULL_PATIENCE_S = 30.0
"""How long a registry may fail before that counts; the kubelet tries twice or thrice meanwhile."""
NO_PODS_S = 60.0
"""How long an operator may take to make the first pod."""
HOPELESS = {"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "ImageInspectError"}
PULLING = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"}
FINAL_PULL = re.compile(r"not found|unauthorized|denied|forbidden|manifest unknown|invalid reference", re.IGNORECASE)


class Waiting:
    """Looks at the pods of one job until all run; `look` raises JobFailed when that can't or doesn't happen."""

    def __init__(self, cluster: Cluster, job: str, settings: LaunchSettings):
        self.cluster, self.job, self.settings = cluster, job, settings
        self.began = self._waits_since = time.monotonic()
        self._said = ("", 0.0)
        self._lasts = Lasting()
        self._events_at, self._events_readable = 0.0, True
        self._events: list[dict[str, Any]] = []
        self._all_ran = False

    def look(self, pods: list[dict[str, Any]]) -> None:
        pending = [pod for pod in pods if pod["status"].get("phase") == "Pending"]
        if len(pods) >= self.settings.nodes and not pending:
            if not self._all_ran:
                say(f"job {self.job}: all {len(pods)} pods run, after {duration(time.monotonic() - self._waits_since)}")
            self._all_ran = True
            self._waits_since = time.monotonic()
            return
        self._all_ran = False
        waited = time.monotonic() - self._waits_since
        if len(pods) < self.settings.nodes:
            self._check_refused(len(pods), waited)
        for pod in pending:
            self._check_containers(pod)
        scheduled = [pod for pod in pods if _is_scheduled(pod)]
        why = self._why(pods, pending)
        self._tell(len(scheduled), waited, why)
        if waited > self.settings.provision_timeout_s:
            raise JobFailed(
                f"only {len(scheduled)} of {self.settings.nodes} pods of job {self.job} were scheduled, and {len(pods) - len(pending)} ran, after "
                f"launch.provision_timeout_s={self.settings.provision_timeout_s:g}: {why or 'no reason was given'}. Free or add nodes that fit "
                "launch.instance, launch.resources and launch.zone, or raise the timeout.",
                restartable=False,
            )

    def _check_refused(self, num_pods: int, waited: float) -> None:
        """The operator can't make pods: a quota, an admission rule, a missing account; it only says so in an event."""
        refusals = [
            event for event in self._read_events() if event["involvedObject"].get("name") == self.job and "forbidden" in event["message"]
        ]
        if self._lasts("refused", bool(refusals), REFUSED_S):
            message = refusals[-1]["message"].removeprefix("Error creating: ")
            remedy = "Raise the quota or wait until others free it." if "exceeded quota" in message else "Mend what the message names."
            raise JobFailed(
                f"{num_pods} of {self.settings.nodes} pods of job {self.job} were made, the rest was refused: {message}. {remedy}",
                restartable=False,
            )
        if not num_pods and waited > NO_PODS_S:
            raise JobFailed(
                f"no pod of job {self.job} was made in {duration(waited)}: the operator doesn't run, or may not make pods in namespace "
                f"{self.cluster.namespace} (a quota, an admission rule). `clrflow doctor --cluster` and `kubectl describe` of the job say more.",
                restartable=False,
            )

    def _check_containers(self, pod: dict[str, Any]) -> None:
        """Images and configuration that can't come right by waiting."""
        name = pod["metadata"]["name"]
        statuses = (*(pod["status"].get("initContainerStatuses") or ()), *(pod["status"].get("containerStatuses") or ()))
        waits = [(status, status["state"].get("waiting") or {}) for status in statuses]
        stuck = next(((status, wait) for status, wait in waits if wait.get("reason") in HOPELESS | PULLING), None)
        pulling = stuck is not None and stuck[1]["reason"] in PULLING
        patience_over = self._lasts(f"pull {name}", pulling, PULL_PATIENCE_S)
        if stuck is None:
            return
        status, wait = stuck
        message = wait.get("message") or wait["reason"]
        if pulling and not (patience_over or FINAL_PULL.search(message)):
            return
        if wait["reason"] == "CreateContainerConfigError":
            remedy = "Create what is missing (launch.secret_env, launch.volumes) or correct its name."
        else:
            remedy = "Check launch.image, launch.pull_secrets and that the nodes reach the registry."
        raise JobFailed(
            f"pod {name} of job {self.job} can't start: {wait['reason']}, image {status.get('image')}: {message}. {remedy}",
            restartable=False,
        )

    def _why(self, pods: list[dict[str, Any]], pending: list[dict[str, Any]]) -> str:
        """The scheduler's word for the first pod that isn't scheduled, else the newest warning about one that is."""
        for pod in pending:
            for condition in pod["status"].get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False" and condition.get("message"):
                    return str(condition["message"])
        names = {pod["metadata"]["name"] for pod in pending}
        if not names:
            return "" if pods else "no pod was made yet"
        warnings = [event for event in self._read_events() if event["involvedObject"].get("name") in names]
        return f"{warnings[-1].get('reason')}: {warnings[-1]['message']}" if warnings else ""

    def _tell(self, scheduled: int, waited: float, why: str) -> None:
        line = f"{scheduled} of {self.settings.nodes} pods scheduled"
        now = time.monotonic()
        if (line + why == self._said[0] and now - self._said[1] < SAY_EVERY_S) or waited < 2:
            return
        self._said = (line + why, now)
        say(f"job {self.job}: {line} for {duration(waited)}{': ' + why if why else ''}")

    def _read_events(self) -> list[dict[str, Any]]:
        """The namespace's warnings, oldest first; none where this account may not list events."""
        if not self._events_readable or time.monotonic() - self._events_at < EVENTS_EVERY_S:
            return self._events
        self._events_at = time.monotonic()
        query = {"fieldSelector": "type=Warning", "limit": "500"}
        try:
            found = self.cluster.call("GET", self.cluster.core("events"), query=query)["items"]
        except ApiError as error:
            if error.status != 403:
                raise
            self._events_readable = False
            say("events can't be listed with this account; if pods are refused or wait, the reason may not show")
            return []
        mine = [event for event in found if str(event["involvedObject"].get("name", "")).startswith(self.job)]
        self._events = sorted(mine, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return self._events


def _is_scheduled(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("nodeName"))
