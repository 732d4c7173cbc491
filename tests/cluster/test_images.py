"""The images in real pods: no root, no writable root file system, no capabilities, and inside what each needs and nothing more."""

# ruff: noqa: S108  (/tmp of a pod)
from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from tests.cluster.conftest import Images, TestCluster, eventually

pytestmark = pytest.mark.cluster


def probe() -> None:
    """Runs inside a pod, hence imports what it needs; prints one line of JSON."""
    import importlib
    import importlib.metadata
    import importlib.util
    import json
    import os
    import pathlib
    import subprocess
    import sys
    import tempfile

    os.environ["_KFP_RUNTIME"] = "true"  # as KFP's launcher sets it: kfp then imports its executor's part only
    modules, packages = json.loads(sys.argv[1]), json.loads(sys.argv[2])

    def writes(folder: str) -> bool:
        try:
            with tempfile.TemporaryFile(dir=folder):
                return True
        except OSError:
            return False

    def run(*command: str) -> str:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.stdout if ended.returncode == 0 else f"exit {ended.returncode}: {ended.stderr[-500:]}"

    def kfp_executor() -> Any:
        """A lightweight component as KFP's launcher starts it in a pod."""
        component = pathlib.Path("/tmp/component.py")
        component.write_text(
            "import kfp\nfrom kfp import dsl\nfrom kfp.dsl import *\nfrom typing import *\n\ndef add(a: int, b: int) -> int:\n    return a + b\n"
        )
        outputs = {"parameters": {"Output": {"outputFile": "/tmp/output"}}, "outputFile": "/tmp/outputs.json"}
        request = json.dumps({"inputs": {"parameterValues": {"a": 2, "b": 3}}, "outputs": outputs})
        arguments = ["--component_module_path", str(component), "--executor_input", request, "--function_to_execute", "add"]
        said = run("python3", "-m", "kfp.dsl.executor_main", *arguments)
        written = pathlib.Path("/tmp/outputs.json")
        return json.loads(written.read_text())["parameterValues"]["Output"] if written.exists() else said

    def operators() -> list[str]:
        from clrflow.training.operators import installed_wheels, run_operator

        return [*installed_wheels(), run_operator()]

    there = [name for name in packages if importlib.util.find_spec(name)]
    for module in modules:
        importlib.import_module(module)
    print(
        json.dumps(
            {
                "user": os.getuid(),
                "packages": there,
                "writes": {folder: writes(folder) for folder in ("/", "/opt/clrflow", "/tmp", os.environ["HOME"])},
                "capabilities": next(
                    line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
                ),
                "kfp": kfp_executor() if "kfp" in there else "",
                "fbgemm": operators() if "fbgemm_gpu" in there else [],
                "version": importlib.metadata.version("clrflow"),
                "command": run("clrflow", "--help") if "typer" in there else "",
            }
        )
    )


MODULES = {
    "data": (
        "clrflow.configure", "clrflow.data.validate", "clrflow.bootstrap.step", "clrflow.evaluation.step", "clrflow.evaluation.gate",
        "clrflow.index.export", "clrflow.index.publish", "clrflow.ending",
    ),
    "torch": ("clrflow.semantic_ids.step", "clrflow.training.job", "clrflow.launch.cluster.launcher"),
    "trainer": ("clrflow.training.job", "clrflow.launch.worker"),
    "serving": ("clrflow.serving.server",),
}  # fmt: skip
"""What an image is for, imported for real."""
IN_PIPELINE = {"kfp", "kubernetes", "duckdb", "ibis", "implicit", "faiss"}
PACKAGES = {
    "data": IN_PIPELINE,
    "torch": IN_PIPELINE | {"torch", "torchrec", "fbgemm_gpu"},
    "trainer": {"torch", "torchrec", "fbgemm_gpu"},
    "serving": {"torch", "faiss", "starlette"},
}
"""All of these that an image holds."""
ASKED = sorted({"pip", "typer", "pyarrow"}.union(*PACKAGES.values()))


@pytest.fixture(scope="module")
def found(cluster: TestCluster, module_namespace: str, images: Images) -> dict[str, dict[str, Any]]:
    """What the probe saw in a pod of each image; all four run at once."""
    source = "from __future__ import annotations\n" + inspect.getsource(probe) + "\nprobe()\n"
    for target in MODULES:
        container = {
            "name": "probe",
            "image": getattr(images, target),
            "command": ["python", "-c", source, json.dumps(MODULES[target]), json.dumps(ASKED)],
            "securityContext": {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
        spec = {"restartPolicy": "Never", "containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}]}
        cluster.core.create_namespaced_pod(module_namespace, {"metadata": {"name": target}, "spec": spec})

    def result(target: str) -> dict[str, Any]:
        def ended() -> str:
            phase = cluster.core.read_namespaced_pod(target, module_namespace).status.phase
            return phase if phase in ("Succeeded", "Failed") else ""

        phase = eventually(ended, within_s=180, what=f"end of the pod of {getattr(images, target)}")
        # Not read as text by the client: it takes a line of JSON apart and puts it together as Python's repr.
        log = cluster.core.read_namespaced_pod_log(target, module_namespace, _preload_content=False).data.decode()
        assert phase == "Succeeded", log
        loaded: dict[str, Any] = json.loads(log.splitlines()[-1])
        return loaded

    return {target: result(target) for target in MODULES}


@pytest.mark.parametrize("target", MODULES)
class TestEveryImage:
    def test_runs_without_root_and_capabilities_and_writes_below_tmp_only(self, found: dict[str, dict[str, Any]], target: str) -> None:
        assert found[target]["user"] == 10001
        assert found[target]["writes"] == {"/": False, "/opt/clrflow": False, "/tmp": True}  # HOME is /tmp
        assert found[target]["capabilities"].split() == ["CapEff:", "0000000000000000"]

    def test_holds_what_it_needs_and_no_other_step_s_packages(self, found: dict[str, dict[str, Any]], target: str) -> None:
        assert {*found[target]["packages"]} == PACKAGES[target] | {"typer", "pyarrow"}

    def test_holds_this_version(self, found: dict[str, dict[str, Any]], target: str) -> None:
        assert found[target]["version"] == "0.1.0"
        assert "Usage: clrflow" in found[target]["command"]


@pytest.mark.parametrize("target", ["data", "torch"])
def test_kfps_executor_runs_a_component_without_kfps_dependencies(found: dict[str, dict[str, Any]], target: str) -> None:
    assert found[target]["kfp"] == 5


@pytest.mark.parametrize("target", ["torch", "trainer"])
def test_one_fbgemm_wheel_whose_operator_runs(found: dict[str, dict[str, Any]], target: str) -> None:
    assert found[target]["fbgemm"] == ["fbgemm-gpu-cpu 1.9.0", "cpu"]
