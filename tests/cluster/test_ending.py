"""The exit handler on a real cluster: it ends the jobs of its own run, and of no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clrflow.configure import configure_run
from clrflow.ending import end_run
from clrflow.launch.cluster.naming import run_labels
from tests.cluster.conftest import TestCluster

pytestmark = pytest.mark.cluster

JOBS = ("kubeflow.org", "v1")


def job(name: str, run_name: str) -> dict[str, Any]:
    """A PyTorchJob that asks for no pod."""
    container = {"name": "pytorch", "image": "localhost/none:1"}
    master = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name, "labels": run_labels(run_name=run_name)},
        "spec": {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Master": master}},
    }  # fmt: skip


def test_it_ends_what_its_run_left_and_nothing_of_another_run(
    cluster: TestCluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    for name, run_name in (("mine", "nightly-1"), ("other", "nightly-2")):
        cluster.custom.create_namespaced_custom_object(*JOBS, namespace, "pytorchjobs", job(name, run_name))
    settings = f"data.tables=/t launch.namespace={namespace} launch.image=localhost/none:1 launch.launcher=pytorchjob"
    configure_run(preset="small", workspace=str(tmp_path), run_name="nightly-1", overrides=settings)
    end_run(workspace=str(tmp_path), run_name="nightly-1", state="RUNNING")
    assert "jobs: ended mine" in capsys.readouterr().out
    left = cluster.custom.list_namespaced_custom_object(*JOBS, namespace, "pytorchjobs")["items"]
    assert [found["metadata"]["name"] for found in left] == ["other"]
    end_run(workspace=str(tmp_path), run_name="nightly-1", state="COMPLETE")
    assert "jobs: none was left" in capsys.readouterr().out
