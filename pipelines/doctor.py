"""What a machine must have to run the pipeline, each with the remedy when it hasn't."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from clrflow import storage

State = Literal["ok", "note", "missing"]

PACKAGES = {
    "pyarrow": "pip install clrflow",
    "pydantic": "pip install clrflow",
    "ibis-framework": "pip install 'clrflow[data]'",
    "duckdb": "pip install 'clrflow[data]'",
    "wordllama": "pip install 'clrflow[data]'",
    "torch": "pip install 'clrflow[train]'",
    "torchrec": "pip install 'clrflow[train]'",
    "faiss-cpu": "pip install 'clrflow[evaluate]'",
    "implicit": "pip install 'clrflow[evaluate]'",
    "kfp": "pip install 'clrflow[pipelines]'",
}
MIN_MEMORY_GB, MIN_DISK_GB = 6.0, 2.0
"""What the demo needs: peak of all processes, and the workspace."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the doctor; `note` is worth knowing but stops nothing."""

    name: str
    state: State
    found: str
    remedy: str = ""


def check_machine(workspace: str = ".") -> list[Check]:
    """All checks, in the order in which one would repair things. Takes some seconds: it imports torch and torchrec."""
    return [_python(), *_packages(), _settings(), _fbgemm(), _collectives(), _threads(), _memory(), _disk(workspace), _java()]


def _python() -> Check:
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    return Check(
        name="python",
        state="ok" if fits else "missing",
        found=f"{version} ({sys.executable})",
        remedy=""
        if fits
        else "Use Python 3.11 or 3.12: `make install` looks for one, or give it as `make install PYTHON=/path/to/python3.11`.",
    )


def _packages() -> list[Check]:
    checks = []
    for package, remedy in PACKAGES.items():
        try:
            checks.append(Check(name=package, state="ok", found=importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            checks.append(Check(name=package, state="missing", found="not installed", remedy=remedy))
    return checks


def _attempt(name: str, look: Callable[[], str], remedy: str) -> Check:
    """A check that is missing when looking raises; what was raised is shown, as the remedy may not be the only one."""
    try:
        return Check(name=name, state="ok", found=look())
    except Exception as error:
        return Check(name=name, state="missing", found=f"{type(error).__name__}: {error}"[:300], remedy=remedy)


def _settings() -> Check:
    def look() -> str:
        from clrflow.config import load_config
        from clrflow.presets import PRESETS

        for preset in PRESETS:
            load_config(preset)
        return f"presets {', '.join(PRESETS)} are sound"

    return _attempt("settings", look, "Reinstall clrflow: its presets and settings come from different versions.")


def _fbgemm() -> Check:
    """Two wheels own the import folder fbgemm_gpu; whichever came last wins, and the wrong one fails only when an operator runs."""

    def look() -> str:
        from clrflow.training.operators import installed_wheels, run_operator

        device = run_operator()
        return f"an operator ran on {device}; wheel: {' and '.join(installed_wheels()) or 'unknown'}"

    return _attempt(
        "fbgemm operator",
        look,
        "Install exactly one of the wheels: without a GPU `pip install --force-reinstall --no-deps fbgemm-gpu-cpu==1.9.0`, with one fbgemm-gpu.",
    )


def _collectives() -> Check:
    def look() -> str:
        import torch.distributed as dist

        if not dist.is_gloo_available():
            raise RuntimeError("torch.distributed has no gloo backend")
        return "gloo" + (", nccl" if dist.is_nccl_available() else "")

    return _attempt("collectives", look, "Install a torch build with distributed support, e.g. torch==2.14.1 from the package index.")


def _threads() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    set_to = os.environ.get("OMP_NUM_THREADS", "")
    found = f"{cores} cores; OMP_NUM_THREADS={set_to or 'unset'}"
    if set_to and set_to.isdigit() and int(set_to) > cores:
        return Check(
            name="threads", state="note", found=found, remedy=f"More threads than cores spin against each other; set it to {cores} or less."
        )
    return Check(name="threads", state="ok", found=found + ("" if set_to else " (`clrflow run` uses 1 a process)"))


def _memory() -> Check:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free_gb = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1e6
    except (OSError, StopIteration):
        return Check(name="memory", state="note", found="not known on this system", remedy=f"The demo needs up to {MIN_MEMORY_GB:.0f} GB.")
    fits = free_gb >= MIN_MEMORY_GB
    remedy = "" if fits else f"The demo needs up to {MIN_MEMORY_GB:.0f} GB; close other programs or lower bootstrap.memory_limit."
    return Check(name="memory", state="ok" if fits else "note", found=f"{free_gb:.1f} GB available", remedy=remedy)


def _disk(workspace: str) -> Check:
    if not storage.is_local(workspace):
        return Check(name="disk", state="note", found=f"{workspace} is not on this machine")
    folder = storage.local_path(workspace).absolute()
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    fits = free_gb >= MIN_DISK_GB
    remedy = "" if fits else f"Free {MIN_DISK_GB - free_gb:.1f} GB, or give another --workspace."
    return Check(name="disk", state="ok" if fits else "missing", found=f"{free_gb:.1f} GB free at {folder}", remedy=remedy)


def _java() -> Check:
    java = shutil.which("java")
    if not java:
        return Check(name="java (optional)", state="note", found="none", remedy="Only bootstrap on Spark needs it: install a JRE 17.")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    return Check(
        name="java (optional)", state="ok", found=(said.stderr or said.stdout).splitlines()[0] if said.stderr or said.stdout else java
    )
