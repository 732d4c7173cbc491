"""How a step is run, found again and resumed; the one entry that KFP components, job pods and tests share.

A step's result lies under `<workspace>/steps/<step>/<key>/`. The key is a hash of its inputs' fingerprints, the settings that it
reads and its own version, so equal work is found and changed work is done anew. `execute` looks for the finished manifest before it
imports anything heavy; that is how a failed run resumes in a new one.

A step is a function `run(context: StepContext) -> StepResult`. It writes data below `context.folder` only; report and manifest are
written here, the manifest last.
"""

from __future__ import annotations

import dataclasses
import datetime
import html
import importlib
import math
import resource
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from clrflow import lock, storage
from clrflow.errors import ClrflowError
from clrflow.manifest import FILE_NAME, Manifest, Output
from clrflow.progress import duration, say

if TYPE_CHECKING:
    from clrflow.config import PipelineConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A node of the DAG, without its code: known to the command line, to KFP and to the resume check."""

    name: str
    version: int
    """Raised when equal inputs and settings would no longer give an equal result; old results are then left alone."""
    inputs: tuple[str, ...]
    """Names of the steps whose manifests it reads."""
    settings: tuple[str, ...]
    """Names of the parts of the config that it reads."""
    code: str
    """`module:function` of its run function, imported only when there is work to do."""
    outside: str = ""
    """`module:function` that fingerprints what the step reads besides its inputs (source tables, the champion)."""
    keeps_partial: bool = False
    """What a killed attempt left below its folder is kept, as the step knows how to go on from it (checkpoints)."""


STEPS: dict[str, Step] = {
    step.name: step
    for step in (
        Step(
            name="validate_data", version=2, inputs=(), settings=("data",),
            code="clrflow.data.validate:run", outside="clrflow.data.validate:source_fingerprint",
        ),
        Step(
            name="bootstrap", version=3, inputs=("validate_data",), settings=("data", "bootstrap"), code="clrflow.bootstrap.step:run",
            keeps_partial=True,
        ),
        Step(
            name="semantic_ids", version=2, inputs=("validate_data",), settings=("semantic_ids",),
            code="clrflow.semantic_ids.step:run", outside="clrflow.semantic_ids.previous:fingerprint",
        ),
        Step(
            name="train", version=1, inputs=("validate_data", "bootstrap", "semantic_ids"), settings=("data", "model", "training"),
            code="clrflow.training.step:run", outside="clrflow.training.step:warm_start_fingerprint", keeps_partial=True,
        ),
        Step(
            name="evaluate", version=1, inputs=("validate_data", "bootstrap", "train"), settings=("data", "evaluation"),
            code="clrflow.evaluation.step:run",
        ),
        Step(
            name="gate", version=1, inputs=("evaluate", "train"), settings=("gate",),
            code="clrflow.evaluation.gate:run", outside="clrflow.evaluation.gate:champion_fingerprint",
        ),
        Step(
            name="export_index", version=1, inputs=("validate_data", "bootstrap", "train"), settings=("data", "index"),
            code="clrflow.index.export:run",
        ),
        Step(
            name="publish", version=1, inputs=("gate", "export_index", "evaluate"), settings=("publish",),
            code="clrflow.index.publish:run", outside="clrflow.index.publish:published_fingerprint",
        ),
    )
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One submission of the DAG: a name, a workspace and the settings, saved under `<workspace>/runs/<name>/run.json`."""

    name: str
    workspace: str
    config: PipelineConfig
    lock: str = ""
    """Name of the lock that the run holds (clrflow.lock); "" where it needs none."""
    held_by: str = ""
    """Another run that held the lock when this one began; then no step of this one does anything."""

    @property
    def uri(self) -> str:
        return storage.join(self.workspace, "runs", self.name)

    def save(self) -> str:
        """Write it down for the steps; returns its URI."""
        raw = {
            "name": self.name, "workspace": self.workspace, "lock": self.lock, "held_by": self.held_by,
            "config": self.config.model_dump(mode="json"),
        }  # fmt: skip
        storage.write_json(storage.join(self.uri, "run.json"), raw)
        return self.uri

    @classmethod
    def load(cls, uri: str) -> Run:
        from clrflow.config import parse_config

        raw = storage.read_json(storage.join(uri, "run.json"))
        # Where it lies counts, not where it lay when it was written: a workspace may be moved, or mounted elsewhere by another machine.
        workspace, _, name = storage.absolute(uri).rstrip("/").rpartition("/runs/")
        moved = name == raw["name"]
        return cls(
            name=raw["name"], workspace=workspace if moved else raw["workspace"], config=parse_config(raw["config"], source=uri),
            lock=raw.get("lock", ""), held_by=raw.get("held_by", ""),
        )  # fmt: skip

    def manifest_of(self, step: str) -> Manifest | None:
        """The finished result of a step in this run, if there is one."""
        reference = storage.join(self.uri, f"{step}.json")
        if not storage.exists(reference):
            return None
        written = storage.read_json(reference)["uri"]
        here = storage.join(self.workspace, "steps", step, storage.name_of(written))
        return Manifest.load(here if storage.exists(storage.join(here, FILE_NAME)) else written)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepContext:
    """All that a step's function may read."""

    run: Run
    inputs: Mapping[str, Manifest]
    folder: str
    """Where it writes, and nowhere else; exists and, unless the step keeps partial results, is empty."""
    launcher: str = ""
    """Where the step's job runs, stronger than launch.launcher; "" leaves it to that. No effect on steps without a job."""

    @property
    def config(self) -> PipelineConfig:
        return self.run.config

    @property
    def workspace(self) -> str:
        return self.run.workspace

    def place(self, *parts: str) -> str:
        """A URI below the step's folder."""
        return storage.join(self.folder, *parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step's function returns; everything in it is small."""

    outputs: dict[str, Output]
    report: str
    """A whole, self-contained HTML page (clrflow.reporting.Report.html())."""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished step as its caller sees it."""

    manifest: Manifest
    reused: bool

    @property
    def uri(self) -> str:
        return self.manifest.uri

    def scalars(self) -> dict[str, float]:
        return self.manifest.metrics

    def save(self, *, manifest: str, report: str) -> None:
        """Copy the manifest and the report to where KFP wants its artifacts."""
        storage.write_bytes(manifest, storage.read_bytes(storage.join(self.uri, FILE_NAME)))
        storage.write_bytes(report, storage.read_bytes(self.manifest.report_uri))


def _load_function(path: str) -> Any:
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


def settings_of(step: Step, config: PipelineConfig) -> dict[str, Any]:
    """The part of the config that a step reads, as JSON-able values."""
    return {name: getattr(config, name).model_dump(mode="json") for name in step.settings}


def step_key(step: Step, run: Run, inputs: Mapping[str, Manifest]) -> str:
    """The name of the step's result for these inputs and settings."""
    fingerprints = {name: inputs[name].fingerprint for name in step.inputs}
    outside = _load_function(step.outside)(run) if step.outside else ""
    return storage.fingerprint_of(step.name, step.version, fingerprints, settings_of(step, run.config), outside)


def execute(name: str, run_uri: str, inputs: Mapping[str, str] | None = None, launcher: str = "") -> Outcome:
    """Run a step of a run, or return its finished result; a failure is also written to `<run>/failure.json`.

    `inputs` maps the names of earlier steps to the URIs of their results (what their own `execute(...).uri` was). `launcher` is where the
    step's job runs, where that isn't what the settings say.
    """
    run = Run.load(run_uri)
    if run.held_by:
        return _skipped(name, run)
    try:
        with lock.kept(run.workspace, run.lock, run.name):
            outcome = _execute(STEPS[name], run, {key: Manifest.load(uri) for key, uri in (inputs or {}).items()}, launcher)
    except Exception as error:
        kind = type(error).__name__ if isinstance(error, ClrflowError) else f"unexpected {type(error).__name__}"
        code = error.exit_code if isinstance(error, ClrflowError) else 1
        failure = {"step": name, "kind": kind, "message": str(error), "exit_code": code}
        storage.write_json(storage.join(run.uri, "failure.json"), failure)
        raise
    storage.write_json(storage.join(run.uri, f"{name}.json"), {"uri": outcome.uri, "reused": outcome.reused})
    return outcome


def _skipped(name: str, run: Run) -> Outcome:
    """An empty result, below the run and not among the steps' results: nothing was done, and no later step reads anything from it."""
    reason = f"another run, {run.held_by}, held the lock {run.lock} when this one began, so nothing was done."
    say(f"{name}: skipped: {reason}")
    folder = storage.join(run.uri, "skipped", name)
    page = f"<!doctype html><html><meta charset=utf-8><title>Skipped</title><h1>Skipped</h1><p>{html.escape(reason)}</p></html>\n"
    storage.write_text(storage.join(folder, "report.html"), page)
    manifest = Manifest(
        step=name,
        key="",
        uri=folder,
        outputs={},
        metrics={},
        facts={"skipped": reason},
        config={},
        inputs={},
        step_version=STEPS[name].version,
    )
    manifest.save()
    return Outcome(manifest=manifest, reused=False)


def _execute(step: Step, run: Run, inputs: Mapping[str, Manifest], launcher: str) -> Outcome:
    missing = [name for name in step.inputs if name not in inputs]
    if missing:
        raise ClrflowError(f"step {step.name} needs the results of {', '.join(missing)}; run them first.")
    key = step_key(step, run, inputs)
    folder = storage.join(run.workspace, "steps", step.name, key)

    def waiting() -> None:
        say(f"{step.name}: another process is at work on {folder}; waiting for it to finish or die.")

    if storage.exists(storage.join(folder, FILE_NAME)):
        say(f"{step.name}: found its finished result {folder}")
        return Outcome(manifest=Manifest.load(folder), reused=True)
    with storage.exclusive(folder, waiting):
        if storage.exists(storage.join(folder, FILE_NAME)):
            return Outcome(manifest=Manifest.load(folder), reused=True)
        if not step.keeps_partial:
            for leftover in storage.list_files(folder):
                storage.remove(leftover)
        say(f"{step.name}: started, writing to {folder}")
        started = time.monotonic()
        context = StepContext(run=run, inputs=inputs, folder=folder, launcher=launcher)
        result = cast(StepResult, _load_function(step.code)(context))
        took = time.monotonic() - started
        storage.write_text(storage.join(folder, "report.html"), result.report)
        manifest = Manifest(
            step=step.name,
            key=key,
            uri=folder,
            outputs=result.outputs,
            metrics=_finite(step.name, result.metrics),
            facts=result.facts,
            config=settings_of(step, run.config),
            inputs={name: inputs[name].fingerprint for name in step.inputs},
            step_version=step.version,
            duration_s=round(took, 3),
            peak_memory_bytes=_peak_memory_bytes(),
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        manifest.save()
        say(f"{step.name}: finished in {duration(took)}")
        return Outcome(manifest=manifest, reused=False)


def _finite(step: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """KFP fails a step that logs a NaN, so what isn't finite is left out and named."""
    bad = [name for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        say(f"{step}: left out metrics that are not finite: {', '.join(bad)}")
    return {name: float(value) for name, value in metrics.items() if name not in bad}


def _peak_memory_bytes() -> int:
    """The larger of this process's peak and that of its largest finished child."""
    usage = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(usage) * 1024
