"""What a person typed becomes a run's parameters, checked here before anything is sent: settings cost a second, not a pod."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import yaml

from clrflow import storage
from clrflow.config import MAX_INLINE_BYTES, PipelineConfig, is_inline, load_config
from clrflow.configure import join_overrides, refuse_macros
from clrflow.errors import BadInput, ConfigError
from clrflow.launch.settings import Launcher

MAX_BYTES = 90_000
"""Of all parameters together; Kubeflow was seen to take 100 KiB a step and to refuse 200."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """Settings as they were given, and as they come out."""

    parameters: dict[str, Any]
    """Of the pipeline, without those that are unset."""
    config: PipelineConfig


def choose(
    *, preset: str = "", config: str = "", overrides: Sequence[str] = (), workspace: str, resume: str = "", launcher: str = "",
    run_name: str = "", lock: str = "",
) -> Chosen:  # fmt: skip
    """Check the settings and pack them; raises BadInput or ConfigError as a run's first step would, and for places that no pod reaches.

    A local file of settings is sent as text. With `resume` the earlier run's settings count, and a run's first step checks them; `config` then
    only says what the steps' pods are given (its part launch).
    """
    if preset and (config or resume):
        other = f"--config {config}" if config else f"--resume {resume}"
        raise ConfigError(f"--preset {preset} and {other} were both given; give one, and use --set for differences.")
    if resume and (others := [override for override in overrides if not override.strip().startswith("launch.")]):
        raise ConfigError(f"--resume {resume} takes all settings but launch.* from that run; leave out --set {others[0]}.")
    joined = join_overrides(overrides)
    given: dict[str, Any] = {"preset": "" if config or resume else preset or "small", "resume": resume, "workspace": workspace}
    given |= {"run_name": run_name, "launcher": launcher, "lock": lock}
    refuse_macros({**given, "config": config, **dict(override.split("=", 1) for override in overrides)})
    if not workspace:
        raise BadInput("--workspace is missing: give the URI of the folder for all results that every pod reaches, e.g. s3://bucket/path.")
    _refuse_local_place("--workspace", workspace)
    if launcher and launcher not in Launcher.__args__:  # type: ignore[attr-defined]
        raise ConfigError(f"--launcher {launcher!r} is unknown; there are {', '.join(Launcher.__args__)}.")  # type: ignore[attr-defined]
    changes = [*([f"launch.launcher={launcher}"] if launcher else []), *overrides]
    checked = load_config("" if config else given["preset"] or "small", config, changes)
    if not resume:
        _refuse_local_place("data.tables", checked.data.tables)
    parameters = {**given, "config": "" if resume else _travelling(config), "overrides": joined}
    parameters = {name: value for name, value in parameters.items() if value}
    size = len(json.dumps(parameters).encode())
    if size > MAX_BYTES:
        raise BadInput(
            f"the run's parameters have {size:,} bytes, more than {MAX_BYTES:,}; put settings into a file that every pod can read and give its URI."
        )
    return Chosen(parameters=parameters, config=checked)


def _travelling(config: str) -> str:
    """What the parameter config holds: a URI that pods read, or a local file's settings as text."""
    if not config or is_inline(config) or not storage.is_local(config):
        return config
    text = json.dumps(yaml.safe_load(storage.read_bytes(config)), default=str, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_INLINE_BYTES:
        raise ConfigError(
            f"--config {config}: its settings have {size:,} bytes, more than the {MAX_INLINE_BYTES:,} that travel with a run; copy it to where "
            "every pod can read it (s3://bucket/config.yaml) and give that URI."
        )
    return text


def _refuse_local_place(what: str, uri: str) -> None:
    if not storage.is_local(uri):
        return
    if not uri.removeprefix("file://").startswith("/"):
        raise BadInput(
            f"{what}={uri!r} is relative to a folder of this machine, and steps run in pods; give a path below a volume that they mount "
            "(launch.volumes), e.g. /mnt/data, or a URI, e.g. s3://bucket/path."
        )
