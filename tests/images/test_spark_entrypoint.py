"""The Spark image starts what Spark's scheduler for Kubernetes asks for."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.manifests.files import the

ROOT = Path(__file__).parents[2]
command = runpy.run_path(str(ROOT / "images" / "spark" / "entrypoint.py"))["command"]

EXECUTOR = {
    "SPARK_HOME": "/spark",
    "SPARK_EXECUTOR_MEMORY": "4g",
    "SPARK_DRIVER_URL": "spark://driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-3",
}


def test_a_driver_submits_itself_in_its_own_pod() -> None:
    found = command(["driver", "--class", "A", "local:///b.py"], {"SPARK_HOME": "/spark", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"})
    assert found == [
        "/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.7", "--deploy-mode", "client", "--class", "A", "local:///b.py",
    ]  # fmt: skip


def test_an_executor_gets_its_memory_its_options_in_order_and_its_driver() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in (10, 2, 0)}
    found = command(["executor"], EXECUTOR | options)
    assert found[:6] == ["java", "-Dnumber=0", "-Dnumber=2", "-Dnumber=10", "-Xms4g", "-Xmx4g"]
    assert found[6:8] == ["-cp", "/spark/jars/*"]
    told = dict(zip(found[9::2], found[10::2], strict=True))
    assert told["--driver-url"] == "spark://driver:7078"
    assert told["--executor-id"] == "3"


@pytest.mark.parametrize("missing", EXECUTOR)
def test_a_pod_that_the_scheduler_did_not_make_names_what_is_missing(missing: str) -> None:
    with pytest.raises(SystemExit, match=missing):
        command(["executor"], {name: value for name, value in EXECUTOR.items() if name != missing})


def test_other_commands_run_as_they_are() -> None:
    assert command(["python", "-V"], {}) == ["python", "-V"]


def test_application_image_and_constraints_name_one_version_of_spark() -> None:
    (pin,) = re.findall(r"^pyspark==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    application = the("SparkApplication", "clrflow-bootstrap")["spec"]
    assert application["sparkVersion"] == pin
    assert application["image"].startswith("clrflow/spark:")
