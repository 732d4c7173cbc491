#!/usr/bin/env python3
"""What Spark's scheduler for Kubernetes starts in a pod: `driver ARGUMENTS` or `executor`; anything else is run as it is.

The scheduler says the rest in the environment. Spark's own images do this in shell; these hold PySpark from the package index, which brings
Spark's classes and no such script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""What an executor is told, by the variable that holds it."""


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The process that the pod becomes; SystemExit names a variable that the scheduler should have set."""
    role, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if role == "driver":
        address = _needed("SPARK_DRIVER_BIND_ADDRESS", role, environment)
        submit = str(Path(_needed("SPARK_HOME", role, environment)) / "bin" / "spark-submit")
        return [submit, "--conf", f"spark.driver.bindAddress={address}", "--deploy-mode", "client", *rest]
    if role == "executor":
        memory = _needed("SPARK_EXECUTOR_MEMORY", role, environment)
        jars = str(Path(_needed("SPARK_HOME", role, environment)) / "jars" / "*")
        path = ":".join(part for part in (environment.get("SPARK_CLASSPATH", ""), jars) if part)
        told = [word for option, name in OPTIONS.items() for word in (option, _needed(name, role, environment))]
        return ["java", *_java_options(environment), f"-Xms{memory}", f"-Xmx{memory}", "-cp", path, EXECUTOR, *told]
    if not role:
        raise SystemExit("entrypoint.py: give `driver ARGUMENTS`, `executor` or a command; Spark's scheduler gives one of the first two")
    return list(arguments)


def _java_options(environment: Mapping[str, str]) -> list[str]:
    """SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ... in the order of their numbers."""
    prefix = "SPARK_JAVA_OPT_"
    numbered = {int(name.removeprefix(prefix)): value for name, value in environment.items() if name.startswith(prefix)}
    return [numbered[number] for number in sorted(numbered)]


def _needed(name: str, role: str, environment: Mapping[str, str]) -> str:
    if not environment.get(name):
        raise SystemExit(
            f"entrypoint.py: {name} isn't set, which Spark's scheduler sets in the pod of a Spark {role}; start it by spark-submit"
        )
    return environment[name]


if __name__ == "__main__":
    process = command(sys.argv[1:], os.environ)
    os.execvp(process[0], process)  # noqa: S606 - the pod becomes this process, so signals reach it
