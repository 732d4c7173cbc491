"""The Spark application: its fields are those of v1beta2, and its driver does the step's work under the step's key."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from clrflow.config import load_config
from clrflow.data.synthetic import generate
from clrflow.steps import Run, execute
from tests.manifests.files import MANIFESTS, the

SPEC = {
    "suspend", "type", "pythonVersion", "mode", "sparkVersion", "image", "imagePullPolicy", "imagePullSecrets", "mainApplicationFile",
    "arguments", "sparkConf", "hadoopConf", "volumes", "driver", "executor", "deps", "restartPolicy", "timeToLiveSeconds",
    "dynamicAllocation", "monitoring", "batchScheduler", "batchSchedulerOptions", "memoryOverheadFactor", "nodeSelector",
}  # fmt: skip
POD = {
    "cores", "coreLimit", "coreRequest", "memory", "memoryOverhead", "image", "configMaps", "secrets", "env", "envFrom", "labels", "annotations",
    "volumeMounts", "affinity", "tolerations", "podSecurityContext", "securityContext", "nodeSelector", "serviceAccount", "initContainers",
    "terminationGracePeriodSeconds", "template",
}  # fmt: skip
APPLICATION = the("SparkApplication", "clrflow-bootstrap")["spec"]


def test_the_application_uses_fields_of_v1beta2() -> None:
    assert set(APPLICATION) <= SPEC
    assert {"type", "sparkVersion", "mainApplicationFile", "driver", "executor"} <= set(APPLICATION)
    assert set(APPLICATION["driver"]) <= POD
    assert set(APPLICATION["executor"]) <= POD | {"instances", "deleteOnTermination"}
    assert APPLICATION["restartPolicy"] == {"type": "Never"}


def test_applying_the_component_starts_nothing() -> None:
    assert APPLICATION["suspend"] is True


@pytest.mark.parametrize("part", ["driver", "executor"])
def test_every_mount_has_its_volume(part: str) -> None:
    volumes = {volume["name"] for volume in APPLICATION["volumes"]}
    assert {mount["name"] for mount in APPLICATION[part]["volumeMounts"]} <= volumes


def test_the_driver_is_the_mounted_file() -> None:
    (mount,) = [mount for mount in APPLICATION["driver"]["volumeMounts"] if mount["name"] == "driver"]
    assert APPLICATION["mainApplicationFile"] == f"local://{mount['mountPath']}/bootstrap_driver.py"
    assert (MANIFESTS / "components/spark/bootstrap_driver.py").exists()


def test_the_step_of_the_pipeline_finds_what_the_driver_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(str(tmp_path / "tables"), users=10, items=24, days=4, seed=1, events_per_user=8)
    settings = [f"data.tables={tmp_path / 'tables'}", "bootstrap.item.enabled=false", "bootstrap.board.enabled=false"]  # for speed
    run = Run(name="r", workspace=str(tmp_path / "w"), config=load_config("small", overrides=settings)).save()
    checked = execute("validate_data", run).uri

    driver = str(MANIFESTS / "components/spark/bootstrap_driver.py")
    monkeypatch.setattr(sys, "argv", [driver, run, checked])
    runpy.run_path(driver, run_name="__main__")
    made = capsys.readouterr().out.splitlines()[-1]

    found = execute("bootstrap", run, {"validate_data": checked})
    assert found.uri == made
    assert found.reused
