"""One typed, frozen tree of settings: presets, files and overrides in, a checked config or a clear refusal out.

Each step's settings stand beside the step; this file assembles them and checks what only shows when they meet.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

import pydantic
import yaml

from clrflow import storage
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.data.settings import DataSettings
from clrflow.errors import ConfigError
from clrflow.evaluation.settings import EvaluationSettings, GateSettings
from clrflow.index.settings import IndexSettings, PublishSettings
from clrflow.launch.settings import LaunchSettings
from clrflow.model.settings import ModelSettings
from clrflow.semantic_ids.settings import SemanticIdSettings
from clrflow.settings import Settings
from clrflow.training.settings import TrainingSettings

MAX_INLINE_BYTES = 20_000
"""Of settings that travel in a pipeline's parameter; Kubeflow takes about 100 kB for all parameters of a step together."""


class PipelineConfig(Settings):
    """Everything that a run of the pipeline can be told."""

    data: DataSettings
    """Where the tables are, what their actions mean, how they are split."""
    bootstrap: BootstrapSettings = BootstrapSettings()
    """Heuristic candidate generators and the attribution of engagements to conditions."""
    semantic_ids: SemanticIdSettings = SemanticIdSettings()
    """RQ-VAE levels, codes and their quality gate."""
    model: ModelSettings = ModelSettings()
    """Sizes of the towers and what they read."""
    training: TrainingSettings = TrainingSettings()
    """Epochs, schedule, optimizers, sharding, checkpoints."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Cut-offs, slices and baselines."""
    gate: GateSettings = GateSettings()
    """When a new model may replace the published one."""
    index: IndexSettings = IndexSettings()
    """ANN index and quantised serving tables."""
    publish: PublishSettings = PublishSettings()
    """How many published versions are kept."""
    launch: LaunchSettings = LaunchSettings()
    """Where the training job runs: on this machine or on a cluster. No result depends on it, so finished steps are found whatever it says."""

    @pydantic.model_validator(mode="after")
    def _parts_agree(self) -> PipelineConfig:
        if self.model.max_history > self.bootstrap.request.max_history:
            raise ValueError(
                f"model.max_history={self.model.max_history} is longer than what bootstrap keeps "
                f"(bootstrap.request.max_history={self.bootstrap.request.max_history}); lower the first or raise the second"
            )
        self._processes_fit_nodes()
        return self

    def _processes_fit_nodes(self) -> None:
        processes, nodes = self.training.num_processes, self.launch.nodes
        if self.launch.launcher == "local":
            return
        if processes % nodes:
            raise ValueError(
                f"training.num_processes={processes} can't be shared evenly among launch.nodes={nodes}; make the first a multiple of the second"
            )
        gpus = self.launch.gpus_per_node
        if gpus and processes // nodes > gpus:
            raise ValueError(
                f"training.num_processes={processes} on launch.nodes={nodes} are {processes // nodes} a node, but launch.instance="
                f"{self.launch.instance} has {gpus} GPUs for them; lower the first to {gpus * nodes} or raise the second"
            )


def load_config(preset: str = "", file: str = "", overrides: Sequence[str] = ()) -> PipelineConfig:
    """The config of a preset or a YAML/JSON file (one of the two), with `part.field=value` overrides on top.

    Instead of a file's URI the settings themselves may be given as JSON text: that is how they travel in a pipeline's parameter.
    Raises ConfigError naming every wrong field, its value and the remedy.
    """
    from clrflow.presets import PRESETS

    if preset and file:
        raise ConfigError(f"preset {preset!r} and file {file!r} were both given; give one, and use --set for differences.")
    if file:
        raw, source = _read_file(file), "settings given as text" if is_inline(file) else file
    else:
        preset = preset or "demo"
        if preset not in PRESETS:
            raise ConfigError(f"preset {preset!r} is unknown{_closest(preset, list(PRESETS))}; there are {', '.join(PRESETS)}.")
        raw, source = PRESETS[preset]().model_dump(mode="json"), f"preset {preset}"
    _refuse_other_than_parts(raw, source)
    for override in overrides:
        _apply_override(raw, override)
    return parse_config(raw, source)


def parse_config(raw: Any, source: str) -> PipelineConfig:
    """Check a plain tree; `source` is named in the error."""
    _refuse_other_than_parts(raw, source)
    try:
        # By way of JSON: strict there takes lists for tuples, and still refuses "3" for 3. YAML reads 2026-01-01 as a date; as text it is ISO.
        return PipelineConfig.model_validate_json(json.dumps(raw, default=str), strict=True)
    except pydantic.ValidationError as error:
        problems = "\n".join(f"  {_explain(problem)}" for problem in error.errors(include_url=False))
        raise ConfigError(f"{source}: {error.error_count()} setting(s) can't be used:\n{problems}") from None


def _refuse_other_than_parts(raw: Any, source: str) -> None:
    if isinstance(raw, dict):
        return
    got = "nothing" if raw is None else type(raw).__name__
    raise ConfigError(
        f"{source}: a config is a mapping of parts ({', '.join(PipelineConfig.model_fields)}), got {got}; write e.g. `training: {{epochs: 3}}`."
    )


def with_overrides(config: PipelineConfig, overrides: Sequence[str]) -> PipelineConfig:
    """The config with `part.field=value` overrides on top; raises as load_config does."""
    raw = config.model_dump(mode="json")
    for override in overrides:
        _apply_override(raw, override)
    return parse_config(raw, "settings with overrides")


def is_inline(file: str) -> bool:
    """Whether it is settings as JSON text, not the name of a file."""
    return file.lstrip().startswith("{")


def read_inline(text: str) -> Any:
    """Settings given as JSON text; larger ones than MAX_INLINE_BYTES are refused, since all parameters of a step travel in one object."""
    size = len(text.encode())
    if size > MAX_INLINE_BYTES:
        raise ConfigError(
            f"settings given as text have {size:,} bytes, more than {MAX_INLINE_BYTES:,}; put them into a file that every pod can read "
            "(s3://bucket/config.yaml, a mounted path) and give its URI as config."
        )
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"settings given as text are not JSON ({error}); give a file's URI, or correct them.") from None


def _read_file(file: str) -> Any:
    if is_inline(file):
        return read_inline(file)
    try:
        return yaml.safe_load(storage.read_bytes(file))
    except FileNotFoundError:
        raise ConfigError(f"config file {file!r} does not exist; check the path, or start from a preset with --preset demo.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"config file {file!r} is not YAML ({_in_one_line(error)}); correct it there.") from None


def _apply_override(tree: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"override {override!r} has no value; write it as part.field=value, e.g. training.epochs=3.")
    try:
        value = yaml.safe_load(text) if text.strip() else ""
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML ({_in_one_line(error)}); quote it.") from None
    *parents, last = path.strip().split(".")
    node = tree
    for depth, name in enumerate(parents):
        where = ".".join(parents[: depth + 1])
        known = _fields_at(parents[:depth])
        if name not in known:
            raise ConfigError(f"override {override!r}: there is no part {where!r}{_closest(name, known)}; there are {', '.join(known)}.")
        # A file may leave parts out; an override reaches them all the same.
        child = node.setdefault(name, {}) if _fields_at(parents[: depth + 1]) else None
        if not isinstance(child, dict):
            raise ConfigError(f"override {override!r}: {where!r} is one value, not a part with settings; write {where}=VALUE.")
        node = child
    node[last] = value


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _explain(problem: Any) -> str:
    """One line: field, value, why, what to do."""
    field = ".".join(str(part) for part in problem["loc"]) or "config"
    kind, value, message = problem["type"], problem["input"], problem["msg"]
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    if kind == "extra_forbidden":
        known = _fields_at(problem["loc"][:-1])
        return f"{field}={shown}: unknown setting{_closest(str(problem['loc'][-1]), known)}; known here: {', '.join(known)}."
    if kind == "value_error":
        # A check of one field knows its value only; one of a whole part names its fields itself.
        place = f"{field}: " if isinstance(value, str | int | float) else ""
        return f"{place}{message.removeprefix('Value error, ')}."
    if kind == "missing" and (inside := _fields_at(problem["loc"])):
        return (
            f"{field}: has no value and no default; write that part, or give --set {field}.NAME=VALUE with NAME one of {', '.join(inside)}."
        )
    if kind == "missing":
        return f"{field}: has no value and no default; give it with --set {field}=VALUE."
    return f"{field}={shown}: {message[0].lower()}{message[1:]} (got {type(value).__name__}); set {field} to such a value."


def _fields_at(path: Sequence[str | int]) -> list[str]:
    model: Any = PipelineConfig
    for name in path:
        field = getattr(model, "model_fields", {}).get(name)
        if field is None:
            return []
        model = field.annotation
    return sorted(getattr(model, "model_fields", {}))


def _closest(name: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
