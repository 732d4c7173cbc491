"""The train step: starts the job where the settings say, then describes what it left behind."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic

from clrflow import storage
from clrflow.errors import ConfigError
from clrflow.index.published import published_train
from clrflow.launch import launch
from clrflow.launch.request import JobRequest
from clrflow.launch.settings import LaunchSettings
from clrflow.manifest import Manifest, Output
from clrflow.steps import Run, StepContext, StepResult
from clrflow.training.schedules import PUBLISHED, RANDOM
from clrflow.training.settings import TrainingSettings


def run(context: StepContext) -> StepResult:
    """Train; outputs item_vectors, query_vectors, serving, curves."""
    from clrflow.training.report import training_report  # matplotlib: a second that looking up a finished result doesn't need

    settings, tokenizer_hash = context.config.training, context.inputs["semantic_ids"].facts["tokenizer_hash"]
    refuse_tables_of_other_ids(settings, context.workspace, tokenizer_hash)
    spec = {
        "run": context.run.uri,
        "inputs": {name: manifest.uri for name, manifest in context.inputs.items()},
        "folder": context.folder,
        "tables_from": tables_source(settings, context.workspace),
    }
    spec_uri, curves_uri = context.place("job.json"), context.place("curves.json")
    storage.write_json(spec_uri, spec)
    request = JobRequest(
        what="training", module="clrflow.training", arguments=(spec_uri,), num_processes=settings.num_processes, run_name=context.run.name,
        step="train", key=storage.name_of(context.folder), folder=context.folder, output=curves_uri,
        # A killed attempt may have had more processes, hence more parts.
        stale=tuple(context.place(part) for part in ("item_vectors", "query_vectors", "serving", "curves.json")),
    )  # fmt: skip
    launch(request, launch_settings(context))

    curves: dict[str, Any] = storage.read_json(curves_uri)
    picked = curves["schedules"][curves["picked"]]
    best = max(picked["history"], key=lambda figures: figures["score"])
    outputs = {name: Output.of(context.place(name)) for name in ("item_vectors", "query_vectors", "serving")}
    outputs["curves"] = dataclasses.replace(Output.of(curves_uri), fingerprint=storage.fingerprint_of(without_times(curves)))
    metrics = {
        "validation_recall@50": best["recall"],
        "validation_ndcg@10": best["ndcg"],
        "best_epoch": best["epoch"],
        "loss": picked["history"][-1]["loss"],
        "quantisation_error": curves["quantisation_error"],
        "train_seconds": sum(figures["seconds"] for result in curves["schedules"].values() for figures in result["history"]),
    }
    checkpoint_of = "co_train" if curves["picked"] == "single" and "co_train" in curves["schedules"] else curves["picked"]
    facts = {
        "schedule": curves["picked"],
        "dim": context.config.model.dim,
        "tokenizer_hash": tokenizer_hash,
        "checkpoint": storage.join("checkpoints", checkpoint_of, picked["checkpoint"]),
    }
    return StepResult(outputs=outputs, report=training_report(curves, context.config.training).html(), metrics=metrics, facts=facts)


def launch_settings(context: StepContext) -> LaunchSettings:
    """The run's, with the step's own launcher where it was given one."""
    settings = context.config.launch
    if not context.launcher:
        return settings
    try:
        return LaunchSettings.model_validate(settings.model_dump() | {"launcher": context.launcher})
    except pydantic.ValidationError as error:
        raise ConfigError(f"launcher={context.launcher!r}: {error.errors()[0]['msg']}.") from None


def without_times(curves: dict[str, Any]) -> dict[str, Any]:
    """What the curves say of the model alone: equal trainings have equal fingerprints, however long they took."""
    schedules = {
        name: {**result, "history": [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in result["history"]]}
        for name, result in curves["schedules"].items()
    }
    return {**{key: value for key, value in curves.items() if key != "export_s"}, "schedules": schedules}


def tables_source(settings: TrainingSettings, workspace: str) -> str:
    """The checkpoint folder that frozen tables come from; "" where the schedule needs none."""
    source = _source(settings, workspace)
    return storage.join(source, Manifest.load(source).facts["checkpoint"]) if source else ""


def refuse_tables_of_other_ids(settings: TrainingSettings, workspace: str, tokenizer_hash: str) -> None:
    """ConfigError where frozen tables were trained with another tokenizer: their rows would stand for other prefixes."""
    source = _source(settings, workspace)
    other = Manifest.load(source).facts["tokenizer_hash"] if source else tokenizer_hash
    if other != tokenizer_hash:
        raise ConfigError(
            f"training.frozen_table_from={settings.frozen_table_from!r}: the tables of {source} belong to tokenizer {other}, and this run's semantic "
            f"ids are of {tokenizer_hash}. Keep the ids with semantic_ids.tokenizer=published (or that tokenizer's URI), or train tables anew with "
            "training.schedule=auto."
        )


def _source(settings: TrainingSettings, workspace: str) -> str:
    """The train step's result that frozen tables come from; "" where the schedule needs none."""
    source = settings.frozen_table_from
    if settings.schedule not in ("frozen", "delayed") or source == RANDOM:
        return ""
    if source == PUBLISHED:
        source = published_train(workspace)
        if not source:
            raise ConfigError(
                f"training.frozen_table_from=published, but nothing was published yet in {workspace}, or the training result of what is "
                "published was removed; train a first model with training.schedule=auto, or set training.frozen_table_from=published_or_auto."
            )
    if not storage.exists(storage.join(source, "manifest.json")):
        raise ConfigError(
            f"training.frozen_table_from={source!r} is no result of a train step (it has no manifest.json); give such a folder."
        )
    return source


def warm_start_fingerprint(run: Run) -> str:
    """Fingerprint of the tables that training starts from; "" where it starts fresh."""
    source = tables_source(run.config.training, run.workspace)
    return storage.read_json(storage.join(source, "complete.json"))["metadata_hash"] if source else ""
