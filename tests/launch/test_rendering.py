"""The objects that the launcher creates, field by field where a field decides something; tests/cluster holds them against the real API."""
# ruff: noqa: S108  (paths are those inside pods)

from __future__ import annotations

from typing import Any

import pytest

from clrflow.config import load_config
from clrflow.errors import BadInput, ConfigError
from clrflow.launch.cluster.identity import Identity
from clrflow.launch.cluster.instances import INSTANCES
from clrflow.launch.cluster.planning import backend_of, plan_job
from clrflow.launch.cluster.pytorchjob import PyTorchJobBackend
from clrflow.launch.cluster.quantity import parse_quantity
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings

ARGUMENTS = ("/mnt/fsx/w/job.json",)


def request(num_processes: int = 2) -> JobRequest:
    return JobRequest(
        what="training", module="clrflow.training", arguments=ARGUMENTS, num_processes=num_processes, run_name="nightly", step="train",
        key="5e0f", folder="/mnt/fsx/w", output="/mnt/fsx/w/curves.json",
    )  # fmt: skip


def settings(**changes: Any) -> LaunchSettings:
    return LaunchSettings.model_validate({"launcher": "pytorchjob", "image": "trainer:1", "nodes": 2, **changes})


def p5(**changes: Any) -> LaunchSettings:
    return settings(nodes=8, instance="p5.48xlarge", transport="efa", **changes)


def render(chosen: LaunchSettings, num_processes: int = 0, identity: Identity | None = None, zone: str = "") -> dict[str, Any]:
    asked = request(num_processes or chosen.nodes * (chosen.gpus_per_node or 1))
    plan = plan_job(asked, chosen, namespace="team", identity=identity or Identity(), zone=zone)
    return backend_of(chosen).render(plan)


def pod_of(job: dict[str, Any], replica: str = "Worker") -> dict[str, Any]:
    template: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"][replica]["template"]
    return template


def container_of(job: dict[str, Any], replica: str = "Worker") -> dict[str, Any]:
    (only,) = pod_of(job, replica)["spec"]["containers"]
    return dict(only)


def env_of(job: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container_of(job)["env"] if "value" in variable}


def test_a_static_job_is_a_master_and_workers_that_the_operator_never_restarts() -> None:
    spec = render(settings(nodes=4), num_processes=8)["spec"]
    replicas = {kind: (replica["replicas"], replica["restartPolicy"]) for kind, replica in spec["pytorchReplicaSpecs"].items()}
    assert replicas == {"Master": (1, "Never"), "Worker": (3, "Never")}
    assert spec["nprocPerNode"] == "2"
    assert "elasticPolicy" not in spec


def test_a_job_of_one_node_has_a_master_only() -> None:
    assert list(render(settings(nodes=1), num_processes=2)["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_an_elastic_job_is_workers_only_that_meet_by_c10d_and_come_again_when_killed() -> None:
    job = render(settings(nodes=2, elastic=True, max_restarts=5))
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    assert (worker["replicas"], worker["restartPolicy"]) == (2, "ExitCode")
    policy = job["spec"]["elasticPolicy"]
    assert (policy["rdzvBackend"], policy["minReplicas"], policy["maxReplicas"], policy["maxRestarts"]) == ("c10d", 2, 2, 5)
    assert "--elastic" in container_of(job)["command"]


def test_pods_that_ended_keep_their_logs_and_pods_that_run_do_not_outlive_the_job() -> None:
    policy = render(settings(ttl_s=600, deadline_s=3600, max_restarts=0))["spec"]["runPolicy"]
    assert policy["cleanPodPolicy"] == "Running"
    assert policy["ttlSecondsAfterFinished"] == 600
    # At 0 the operator deletes a failed pod and its log with the first failure.
    assert policy["backoffLimit"] == 1


def test_the_clusters_deadlines_come_after_the_launchers_own_and_stand_on_the_pods_too() -> None:
    job = render(settings(deadline_s=3600))
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 3660
    assert pod_of(job, "Master")["spec"]["activeDeadlineSeconds"] == pod_of(job)["spec"]["activeDeadlineSeconds"] == 3660


def test_pods_run_the_worker_with_the_steps_module_behind_the_dashes() -> None:
    command = container_of(render(settings(nodes=2), num_processes=4))["command"]
    split = command.index("--")
    assert command[:4] == ["python", "-u", "-m", "clrflow.launch.worker"]
    assert command[split + 1 :] == ["clrflow.training", *ARGUMENTS]
    assert command[command.index("--processes") + 1] == "2"


def test_pods_are_not_root_and_can_write_scratch_only() -> None:
    pod = pod_of(render(settings()))["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", "/dev/shm"}
    assert env_of(render(settings()))["HOME"] == "/tmp"


def test_shared_memory_is_a_memory_volume_of_the_set_size() -> None:
    pod = pod_of(render(settings(shared_memory="8Gi")))["spec"]
    mounted = next(mount["name"] for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == "/dev/shm")
    volume = next(volume for volume in pod["volumes"] if volume["name"] == mounted)
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_sidecars_are_opted_out_of_by_label_and_annotation() -> None:
    metadata = pod_of(render(settings()))["metadata"]
    assert metadata["labels"]["sidecar.istio.io/inject"] == metadata["annotations"]["sidecar.istio.io/inject"] == "false"
    assert metadata["annotations"]["linkerd.io/inject"] == "disabled"


def test_a_p5_pod_asks_for_a_whole_node_with_requests_equal_to_limits() -> None:
    resources = container_of(render(p5()))["resources"]
    assert resources["requests"] == resources["limits"]
    devices = {name: resources["limits"][name] for name in ("nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi")}
    assert devices == {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"}
    assert parse_quantity(resources["limits"]["cpu"]) < 192
    assert parse_quantity(resources["limits"]["memory"]) < parse_quantity("2048Gi")


def test_efa_gets_locked_memory_huge_pages_and_a_log_that_shows_the_network() -> None:
    job = render(p5())
    environment = env_of(job)
    assert container_of(job)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert {"name": "huge-pages", "emptyDir": {"medium": "HugePages"}} in pod_of(job)["spec"]["volumes"]
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["NCCL_DEBUG_SUBSYS"] == "INIT,NET"
    assert environment["FI_PROVIDER"] == "efa"
    assert not {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_NET"} & set(environment)
    command = container_of(job)["command"]
    assert command[command.index("--efa-devices") + 1] == "32"


def test_tcp_gets_socket_tuning_and_neither_efa_devices_nor_locked_memory() -> None:
    job = render(settings(nodes=8, instance="p5.48xlarge"))
    environment = env_of(job)
    assert environment["NCCL_SOCKET_IFNAME"] == "^docker,lo,veth"
    assert int(environment["NCCL_SOCKET_NTHREADS"]) * int(environment["NCCL_NSOCKS_PERTHREAD"]) <= 64  # NCCL's own bound
    assert environment["NCCL_NET"] == "Socket"
    assert "vpc.amazonaws.com/efa" not in container_of(job)["resources"]["limits"]
    assert container_of(job)["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "add" not in container_of(job)["securityContext"]["capabilities"]


@pytest.mark.parametrize("name", sorted(INSTANCES))
def test_every_instance_type_of_the_table_leaves_room_for_the_nodes_own_pods(name: str) -> None:
    instance = INSTANCES[name]
    asked = instance.pod_resources(efa=True)
    huge_pages = parse_quantity(asked["hugepages-2Mi"])
    assert parse_quantity(asked["cpu"]) <= instance.vcpus * 0.95
    assert parse_quantity(asked["memory"]) + huge_pages <= instance.memory_gib * 2**30 * 0.9
    assert int(asked["vpc.amazonaws.com/efa"]) >= 1


def test_pods_of_an_instance_type_never_share_a_node_and_cpu_pods_may() -> None:
    strict = pod_of(render(p5()))["spec"]["affinity"]["podAntiAffinity"]
    soft = pod_of(render(settings()))["spec"]["affinity"]["podAntiAffinity"]
    term = strict["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    job = render(p5())
    assert term["labelSelector"]["matchLabels"] == {"clrflow/job": job["metadata"]["name"]}
    assert pod_of(job)["metadata"]["labels"]["clrflow/job"] == job["metadata"]["name"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in soft


def test_a_chosen_zone_is_pinned_and_an_autoscaled_job_without_one_must_stay_in_one_zone() -> None:
    pinned = pod_of(render(p5(), zone="us-east-1b"))["spec"]
    assert pinned["nodeSelector"] == {"node.kubernetes.io/instance-type": "p5.48xlarge", "topology.kubernetes.io/zone": "us-east-1b"}
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in pinned["affinity"]["podAffinity"]
    floating = pod_of(render(p5(capacity="autoscaled")))["spec"]
    (term,) = floating["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "topology.kubernetes.io/zone"
    assert "topology.kubernetes.io/zone" not in floating["nodeSelector"]


def test_gpu_and_efa_taints_are_tolerated_where_those_devices_are_asked_for() -> None:
    assert [taint["key"] for taint in pod_of(render(p5()))["spec"]["tolerations"]] == ["nvidia.com/gpu", "vpc.amazonaws.com/efa"]
    assert pod_of(render(settings()))["spec"]["tolerations"] == []
    own = settings(tolerations=[{"key": "team", "value": "ml", "effect": "NoSchedule"}])
    assert pod_of(render(own))["spec"]["tolerations"] == [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}]


def test_claims_secrets_and_pull_secrets_reach_every_pod() -> None:
    chosen = settings(
        volumes=[{"claim": "fsx", "path": "/mnt/fsx"}, {"claim": "fsx", "path": "/mnt/tables", "read_only": True}],
        secret_env=[{"name": "AWS_SECRET_ACCESS_KEY", "secret": "s3", "key": "password"}],
        pull_secrets=["registry"], env={"OMP_NUM_THREADS": "3"}, priority_class="training",
    )  # fmt: skip
    job = render(chosen)
    for replica in ("Master", "Worker"):
        spec, container = pod_of(job, replica)["spec"], container_of(job, replica)
        (claim,) = [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
        assert claim["persistentVolumeClaim"] == {"claimName": "fsx"}
        mounted = {m["mountPath"]: m["readOnly"] for m in container["volumeMounts"] if m["name"] == claim["name"]}
        assert mounted == {"/mnt/fsx": False, "/mnt/tables": True}
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["priorityClassName"] == "training"
        by_name = {variable["name"]: variable for variable in container["env"]}
        assert by_name["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "s3", "key": "password"}
    assert env_of(job)["OMP_NUM_THREADS"] == "3"


def test_a_queues_label_is_the_jobs_alone_as_kueue_would_queue_each_pod_too() -> None:
    job = render(settings(labels={"kueue.x-k8s.io/queue-name": "training", "team": "ml"}))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
    assert "kueue.x-k8s.io/queue-name" not in pod_of(job)["metadata"]["labels"]
    assert pod_of(job)["metadata"]["labels"]["team"] == "ml"


def test_a_job_of_a_workflow_is_owned_by_it_without_blocking_its_deletion() -> None:
    identity = Identity(run_id="1f9", workflow="nightly-x7", workflow_uid="abc")
    metadata = render(settings(), identity=identity)["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["blockOwnerDeletion"]) == ("Workflow", "nightly-x7", "abc", False)
    assert (metadata["labels"]["clrflow/run"], metadata["labels"]["clrflow/run-id"]) == ("nightly", "1f9")
    assert "ownerReferences" not in render(settings())["metadata"]


def test_processes_that_can_not_be_shared_evenly_are_refused_with_both_numbers() -> None:
    with pytest.raises(BadInput, match=r"3 processes can't be shared evenly among launch\.nodes=2"):
        render(settings(nodes=2), num_processes=3)
    overrides = ["launch.launcher=pytorchjob", "launch.image=i:1", "launch.nodes=2", "training.num_processes=3"]
    with pytest.raises(ConfigError, match=r"training\.num_processes=3 can't be shared evenly among launch\.nodes=2"):
        load_config("small", overrides=overrides)
    assert load_config("small", overrides=["launch.nodes=2", "training.num_processes=3"]).launch.nodes == 2  # no effect when local


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["launch.image="], ["launch.launcher=pytorchjob", "launch.image is empty"]),
        (["launch.instance=p5.48xlrge"], ["launch.instance=p5.48xlrge", "p5.48xlarge", "cpu, memory, nvidia.com/gpu"]),
        (["launch.transport=efa"], ["launch.transport=efa", "launch.instance is empty", "p5.48xlarge"]),
        (["launch.instance=g6e.24xlarge", "training.num_processes=8"], ["training.num_processes=8", "launch.nodes=1", "4 GPUs"]),
        (["launch.env={PET_NNODES: '2'}"], ["PET_NNODES", "leave it out"]),
        (["launch.resources={cpu: lots}"], ["launch.resources", "lots", "500m"]),
        (["launch.shared_memory=2 gigs"], ["launch.shared_memory", "2 gigs"]),
        (["launch.volumes=[{claim: a, path: /tmp/}]"], ["claim a", "/tmp", "scratch"]),
        (["launch.volumes=[{claim: a, path: /x}, {claim: b, path: /x}]"], ["claim b", "/x", "taken by claim a"]),
        (["launch.launcher=trainjob", "launch.elastic=true"], ["launch.elastic=true", "trainjob", "use pytorchjob"]),
        (["launch.launcher=trainjob", "launch.priority_class=high"], ["launch.priority_class", "the runtime that launch.runtime names"]),
    ],
)  # fmt: skip
def test_settings_that_no_cluster_could_run_are_refused_before_one_is_asked(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("small", overrides=["launch.launcher=pytorchjob", "launch.image=i:1", *overrides])
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_instance_type_may_be_used_when_resources_say_all() -> None:
    chosen = settings(instance="p9.huge", resources={"cpu": 10, "memory": "100Gi", "nvidia.com/gpu": 16})
    assert chosen.gpus_per_node == 16
    assert container_of(render(chosen))["resources"]["limits"] == {"cpu": "10", "memory": "100Gi", "nvidia.com/gpu": "16"}


@pytest.mark.parametrize(
    ("conditions", "phase"),
    [
        ([], "pending"),
        ([("Created", "True")], "pending"),
        ([("Created", "True"), ("Running", "True")], "running"),
        ([("Created", "True"), ("Restarting", "True")], "restarting"),
        ([("Created", "True"), ("Running", "False"), ("Succeeded", "True")], "succeeded"),
        ([("Created", "True"), ("Running", "False"), ("Failed", "True")], "failed"),
        ([("Created", "True"), ("Suspended", "True")], "pending"),
    ],
)
def test_the_strongest_condition_that_holds_is_the_jobs_phase(conditions: list[tuple[str, str]], phase: str) -> None:
    job = {"status": {"conditions": [{"type": kind, "status": status, "reason": "R", "message": "M"} for kind, status in conditions]}}
    assert PyTorchJobBackend().state(job).phase == phase


def test_a_pods_rank_is_what_the_operator_gave_it_or_its_index_among_elastic_workers() -> None:
    labels = {"training.kubeflow.org/replica-index": "1"}
    static = {"metadata": {"labels": labels}, "spec": {"containers": [{"env": [{"name": "PET_NODE_RANK", "value": "2"}]}]}}
    elastic = {"metadata": {"labels": labels}, "spec": {"containers": [{"env": []}]}}
    assert (PyTorchJobBackend().rank(static), PyTorchJobBackend().rank(elastic)) == (2, 1)


def test_a_trainjob_says_of_the_same_plan_what_trainer_can_take() -> None:
    chosen = p5(launcher="trainjob", volumes=[{"claim": "fsx", "path": "/mnt/fsx"}])
    spec = render(chosen, zone="us-east-1a")["spec"]
    assert spec["runtimeRef"]["name"] == "torch-distributed"
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (8, 8)
    assert spec["trainer"]["resourcesPerNode"]["limits"]["vpc.amazonaws.com/efa"] == "32"
    (override,) = spec["podSpecOverrides"]
    assert override["nodeSelector"]["topology.kubernetes.io/zone"] == "us-east-1a"
    assert {"name": "claim-0", "mountPath": "/mnt/fsx", "readOnly": False} in override["containers"][0]["volumeMounts"]
    assert {"medium": "Memory", "sizeLimit": "2Gi"} in [volume.get("emptyDir") for volume in override["volumes"]]


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ({}, "pending"),
        ({"jobsStatus": [{"name": "node", "active": 1}]}, "running"),
        ({"conditions": [{"type": "Complete", "status": "True"}], "jobsStatus": [{"name": "node", "succeeded": 1}]}, "succeeded"),
        ({"conditions": [{"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "m"}]}, "failed"),
        ({"conditions": [{"type": "Suspended", "status": "True"}]}, "pending"),
    ],
)
def test_a_trainjobs_phase(status: dict[str, Any], phase: str) -> None:
    assert backend_of(settings(launcher="trainjob")).state({"status": status}).phase == phase
