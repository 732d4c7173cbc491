"""The first thing a run does: parameters as a person typed them become a checked config and a saved Run, or a clear refusal.

Empty texts and zeros mean "as in the preset", since a pipeline's parameters always have a value. Next: config.py, steps.py.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clrflow import lock as locks
from clrflow import storage
from clrflow.config import PipelineConfig, is_inline, load_config, parse_config, read_inline, with_overrides
from clrflow.errors import BadInput, ConfigError
from clrflow.index.published import published_train
from clrflow.manifest import Manifest
from clrflow.progress import say
from clrflow.run_names import name_for_job, new_run_name
from clrflow.semantic_ids.previous import hash_of, published_tokenizer, source_of
from clrflow.semantic_ids.settings import PUBLISHED, PUBLISHED_OR_NEW
from clrflow.steps import Run

_MACRO = re.compile(r"\[\[.*?\]\]|\{\{.*?\}\}")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FIELD = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
# A separator counts only where another `name=` follows, so that values may hold spaces and semicolons: data.now=2026-01-01 00:00.
_SEPARATOR = re.compile(r"[\s;]+(?=[A-Za-z_]\w*(?:\.\w+)*=)")


def is_name(text: str) -> bool:
    """Whether a run or a lock may be called so: it becomes a folder's or a file's name."""
    return _RUN_NAME.fullmatch(text) is not None


def split_overrides(text: str) -> list[str]:
    """`"training.epochs=3; model.dim=32"` → one string an override; separated by spaces, line ends or semicolons."""
    return [part for part in _SEPARATOR.split(text.strip(" ;\n\t")) if part]


def join_overrides(overrides: Sequence[str]) -> str:
    """Overrides that were given one by one as the one text that a parameter holds; one that would melt into its neighbour is refused."""
    joined = []
    for override in overrides:
        path, equals, value = override.partition("=")
        if not equals or not _FIELD.fullmatch(path.strip()):
            raise ConfigError(f"override {override!r} is no assignment; write it as part.field=value, e.g. training.epochs=3.")
        joined.append(f"{path.strip()}={value}")
    return "\n".join(joined)


def refuse_macros(parameters: Mapping[str, Any]) -> None:
    """A schedule's macro that nobody expanded would be read as a folder's name or a date; it is refused by its parameter's name."""
    for name, value in parameters.items():
        found = _MACRO.search(value) if isinstance(value, str) else None
        if found:
            raise BadInput(
                f"parameter {name}={value!r}: {found.group()} is a macro that was not expanded (schedules don't expand them in every "
                f'field). Give {name} a plain value; for a date leave it "", and the step computes it.'
            )


def configure_run(
    *,
    preset: str = "",
    config: str = "",
    resume: str = "",
    workspace: str,
    run_name: str = "",
    shortcuts: Mapping[str, Any] | None = None,
    overrides: str = "",
    job: str = "",
    lock: str = "",
) -> Run:
    """Resolve the parameters and save the run; `shortcuts` are overrides whose "" and 0 mean unset.

    Of `resume`, `config` and `preset` the first that is given decides where the settings start. `job` is Kubeflow's id of the run: without
    `run_name` it gets a name that the exit handler and a retried step find again by it. `lock` is the name of a lock that the run must hold;
    while another run holds it, the run is saved with `held_by`, and its steps do nothing. Raises BadInput or ConfigError.
    """
    shortcuts = shortcuts or {}
    given = {"preset": preset, "resume": resume, "workspace": workspace, "run_name": run_name, "job": job, "lock": lock, **shortcuts}
    refuse_macros({**given, **_texts_of(config), "overrides": overrides})
    if not workspace:
        raise BadInput(
            'parameter workspace="": results need a place. Give the URI of a folder, e.g. ./clrflow-workspace or s3://bucket/path.'
        )
    workspace = storage.absolute(workspace)
    for parameter, value in (("run_name", run_name), ("job", job), ("lock", lock)):
        if value and not is_name(value):
            raise BadInput(f"parameter {parameter}={value!r}: letters, digits, '.', '_' and '-' only, 100 at most; choose another name.")
    changes = [f"{path}={json.dumps(value)}" for path, value in shortcuts.items() if value not in ("", 0)] + split_overrides(overrides)
    checked = (
        _resumed(resume, workspace, changes) if resume else load_config(preset="" if config else preset, file=config, overrides=changes)
    )
    ready = _with_absolute_places(_with_published(checked, workspace))
    run_name = run_name or (name_for_job(workspace, job) if job else new_run_name())
    # Last, so that a run with a wrong setting holds nothing.
    other = locks.take(workspace, lock, run_name) if lock else None
    if other is not None:
        say(f"lock {lock}: run {other.run} holds it and is at work; this run does nothing and ends")
    run = Run(name=run_name, workspace=workspace, config=ready, lock=lock, held_by=other.run if other else "")
    run.save()
    return run


def _texts_of(config: str) -> dict[str, Any]:
    """The parameter config for the search for macros: a file's URI as it is, settings by their values, since nested lists look like a macro."""
    if not is_inline(config):
        return {"config": config}
    found = read_inline(config)
    return {f"config ({path})": value for path, value in _leaves(found if isinstance(found, Mapping) else {})}


def _with_published(config: PipelineConfig, workspace: str) -> PipelineConfig:
    """training.frozen_table_from=published_or_auto and semantic_ids.tokenizer=published_or_new decided, once and for all steps.

    The first run has no table that it could freeze and no ids to keep.
    """
    changes = []
    if config.semantic_ids.tokenizer == PUBLISHED_OR_NEW:
        there = bool(published_tokenizer(workspace))
        if not there:
            say(f"{workspace} has no tokenizer of a published model: semantic ids are made anew")
        changes.append(f"semantic_ids.tokenizer={PUBLISHED if there else ''}")
    training = config.training
    if training.frozen_table_from == "published_or_auto":
        if training.schedule not in ("frozen", "delayed") or _keeps_published_ids(config, workspace):
            changes.append("training.frozen_table_from=published")
        else:
            say(
                f"{workspace} has no published tables for this run's semantic ids: training.schedule={training.schedule} becomes auto, and "
                "validation picks"
            )
            changes += ["training.schedule=auto", "training.frozen_table_from="]
    return with_overrides(config, changes) if changes else config


def _keeps_published_ids(config: PipelineConfig, workspace: str) -> bool:
    """Whether the published model's tables stand for the ids that this run will have."""
    train, source = published_train(workspace), source_of(config.semantic_ids, workspace)
    if not train or not source.uri or source.setting != "tokenizer":
        return False
    return hash_of(source.uri) == str(Manifest.load(train).facts["tokenizer_hash"])


def _resumed(resume: str, workspace: str, changes: list[str]) -> PipelineConfig:
    """The settings of an earlier run, by its name or URI; where its job runs may be another place, as no result depends on it."""
    others = [change for change in changes if not change.startswith("launch.")]
    if others:
        raise ConfigError(
            f"resume={resume!r} takes all settings but launch.* from that run, but {', '.join(others)} was given too. Leave out one of them: a "
            "run with other settings finds the finished steps that they don't touch by itself."
        )
    uri = resume if "/" in resume else storage.join(workspace, "runs", resume)
    if not storage.exists(storage.join(uri, "run.json")):
        raise BadInput(f"resume={resume!r}: {uri} holds no run. `clrflow report --list` names the runs of a workspace.")
    return with_overrides(Run.load(uri).config, changes)


def _with_absolute_places(config: PipelineConfig) -> PipelineConfig:
    """Steps run in other working directories, and a resumed run may start in another one."""
    if not config.data.tables:
        raise ConfigError(
            "data.tables='' names no folder of input tables; give one with --set data.tables=FOLDER (or the parameter tables)."
        )
    raw = config.model_dump(mode="json")
    raw["data"]["tables"] = storage.absolute(config.data.tables)
    for name in ("tokenizer", "start_from"):
        if raw["semantic_ids"][name] not in ("", PUBLISHED, PUBLISHED_OR_NEW):
            raw["semantic_ids"][name] = storage.absolute(raw["semantic_ids"][name])
    return parse_config(raw, "run")


def page(run: Run) -> str:
    """The settings as a small HTML page, those that differ from the defaults first."""
    # Written by hand and not by clrflow.reporting, whose matplotlib takes 1.3 s to import: longer than all else in this step.
    defaults = dict(_leaves(PipelineConfig(data=type(run.config.data)()).model_dump(mode="json")))
    rows = [(path, value, defaults.get(path)) for path, value in _leaves(run.config.model_dump(mode="json"))]
    rows.sort(key=lambda row: row[1] == row[2])
    cells = "".join(
        f"<tr{' class=same' if value == default else ''}><td>{html.escape(path)}</td><td>{html.escape(json.dumps(value))}</td>"
        f"<td>{html.escape(json.dumps(default))}</td></tr>"
        for path, value, default in rows
    )
    return (
        "<!doctype html><meta charset=utf-8><title>Settings</title><style>body{font:15px/1.5 system-ui,sans-serif;color:#1d232b;margin:32px}"
        "table{border-collapse:collapse}td,th{text-align:left;padding:3px 18px 3px 0;border-bottom:1px solid #e1e5ea}.same{color:#8a8d91}"
        f"</style><h1>Settings of run {html.escape(run.name)}</h1><p>What differs from the defaults comes first.</p>"
        f"<table><tr><th>setting</th><th>value</th><th>default</th></tr>{cells}</table>\n"
    )


def _leaves(tree: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """`{"a": {"b": 1}}` → `[("a.b", 1)]`."""
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        inner = f"{path}.{name}" if path else name
        found.extend(_leaves(value, inner) if isinstance(value, Mapping) else [(inner, value)])
    return found
