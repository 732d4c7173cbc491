"""What a workspace may lose: results that no kept run refers to, checkpoints that nothing starts from, old runs. First listed, then removed.

A run is kept when it is among the newest, young, or unfinished: one that neither published nor failed may be at work, or be resumed, and stays
for UNFINISHED_S. A result is kept when a kept run refers to it, or when a published version was trained by it (the next run starts from its
tables and its tokenizer). What another process holds is left alone. Published versions are copies and are retired by the step publish.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from clrflow import storage
from clrflow.errors import BadInput, ClrflowError
from clrflow.index.published import COMPLETE, published_folder, versions
from clrflow.manifest import FILE_NAME, Manifest
from clrflow.steps import STEPS

UNFINISHED_S = 7 * 86400.0

Kind = Literal["run", "result", "unfinished", "checkpoint", "pointer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something that may be removed."""

    kind: Kind
    uri: str
    why: str
    num_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What would be removed, and what stays."""

    remove: tuple[Leftover, ...]
    kept_runs: tuple[str, ...]
    held: tuple[str, ...]
    """Folders that another process is at work on."""

    @property
    def num_bytes(self) -> int:
        return sum(leftover.num_bytes for leftover in self.remove)


def plan(workspace: str, *, keep_runs: int = 10, keep_days: float = 30, now: float | None = None) -> Plan:
    """Look through a workspace; `now` is Unix time. Raises BadInput where there is none."""
    now = time.time() if now is None else now
    if not storage.exists(storage.join(workspace, "runs")):
        raise BadInput(f"{workspace} holds no runs, so it is no workspace; give the folder that --workspace named.")
    runs = sorted(
        storage.list_folders(storage.join(workspace, "runs")), key=lambda uri: (_modified(storage.join(uri, "run.json")), uri), reverse=True
    )
    kept = [uri for place, uri in enumerate(runs) if place < keep_runs or _stays(uri, now, keep_days)]
    gone = [uri for uri in runs if uri not in kept]
    needed = _needed(workspace, kept)
    remove = [Leftover(kind="run", uri=uri, why="older than what is kept", num_bytes=storage.size_bytes(uri)) for uri in gone]
    held = []
    for step in STEPS:
        for folder in storage.list_folders(storage.join(workspace, "steps", step)):
            with storage.unless_held(folder) as free:
                if not free:
                    held.append(folder)
                    continue
                remove += _of_result(folder, needed, now)
    remove += _pointers(workspace, {storage.name_of(uri) for uri in gone})
    return Plan(remove=tuple(remove), kept_runs=tuple(storage.name_of(uri) for uri in kept), held=tuple(held))


def remove(planned: Plan, tell: Callable[[Leftover], None] | None = None) -> int:
    """Remove what was planned and return the bytes freed; what somebody took hold of meanwhile stays."""
    freed = 0
    for leftover in planned.remove:
        if leftover.kind in ("result", "unfinished"):
            with storage.unless_held(leftover.uri) as free:
                if not free:
                    continue
                storage.remove(storage.join(leftover.uri, FILE_NAME))  # first: from here on nobody takes it for a result
                storage.remove(leftover.uri)
        else:
            storage.remove(leftover.uri)
        freed += leftover.num_bytes
        if tell is not None:
            tell(leftover)
    return freed


def _stays(run: str, now: float, keep_days: float) -> bool:
    age_s = now - _modified(storage.join(run, "run.json"))
    ended = any(storage.exists(storage.join(run, name)) for name in ("publish.json", "failure.json"))
    return age_s < keep_days * 86400 or (not ended and age_s < UNFINISHED_S)


def _needed(workspace: str, kept: list[str]) -> set[str]:
    """Folders of results, as `<step>/<key>`, that a kept run refers to or a published version was trained by."""
    needed = set()
    for run in kept:
        for step in STEPS:
            reference = storage.join(run, f"{step}.json")
            if storage.exists(reference):
                needed.add(f"{step}/{storage.name_of(storage.read_json(reference)['uri'])}")
        needed |= _sources_of(run)
    published = published_folder(workspace)
    trained = {storage.read_json(storage.join(published, version, COMPLETE)).get("train") for version in versions(published)}
    tokenizers = set()
    for folder, manifest in _results(workspace, "train") if trained else ():
        if manifest.fingerprint in trained:
            needed.add(f"train/{storage.name_of(folder)}")
            tokenizers.add(manifest.inputs.get("semantic_ids"))
    for folder, manifest in _results(workspace, "semantic_ids") if tokenizers else ():
        if manifest.fingerprint in tokenizers:
            needed.add(f"semantic_ids/{storage.name_of(folder)}")
    return needed


def _results(workspace: str, step: str) -> Iterator[tuple[str, Manifest]]:
    for folder in storage.list_folders(storage.join(workspace, "steps", step)):
        manifest = _manifest(folder)
        if manifest is not None:
            yield folder, manifest


def _sources_of(run: str) -> set[str]:
    """The results that the run's settings name as what it goes on from: frozen tables, tokenizers."""
    try:
        settings: Any = storage.read_json(storage.join(run, "run.json"))["config"]
        named = [("train", settings["training"].get("frozen_table_from", ""))]
        named += [("semantic_ids", settings["semantic_ids"].get(setting, "")) for setting in ("tokenizer", "start_from")]
    except (FileNotFoundError, KeyError, TypeError, AttributeError, BadInput):
        return set()
    # A tokenizer may be named by its own folder, which lies in that of its result.
    return {f"{step}/{storage.name_of(str(uri).rstrip('/').removesuffix('/tokenizer'))}" for step, uri in named if "/" in str(uri)}


def _of_result(folder: str, needed: set[str], now: float) -> Iterator[Leftover]:
    step, key = folder.rstrip("/").split("/")[-2:]
    manifest = _manifest(folder)
    if manifest is None:
        files = storage.list_files(folder)
        newest = max((_modified(file) for file in files), default=0.0)
        if files and now - newest < UNFINISHED_S:
            return
        yield Leftover(kind="unfinished", uri=folder, why="begun, never finished, and left alone", num_bytes=storage.size_bytes(folder))
    elif f"{step}/{key}" not in needed:
        yield Leftover(kind="result", uri=folder, why="no kept run or published version needs it", num_bytes=storage.size_bytes(folder))
    elif "checkpoint" in manifest.facts:
        chosen = storage.join(folder, manifest.facts["checkpoint"])
        for schedule in storage.list_folders(storage.join(folder, "checkpoints")):
            for checkpoint in storage.list_folders(schedule):
                if storage.name_of(checkpoint) != storage.name_of(chosen) or storage.name_of(schedule) != chosen.split("/")[-2]:
                    size = storage.size_bytes(checkpoint)
                    yield Leftover(kind="checkpoint", uri=checkpoint, why="training is finished and picked another one", num_bytes=size)


def _pointers(workspace: str, gone: set[str]) -> Iterator[Leftover]:
    for pointer in storage.list_files(storage.join(workspace, "jobs"), ".json") if gone else ():
        if storage.read_json(pointer).get("run") in gone:
            yield Leftover(kind="pointer", uri=pointer, why="its run goes", num_bytes=storage.size_bytes(pointer))


def _manifest(folder: str) -> Manifest | None:
    """None where there is none, or one that this version can't read: what isn't understood isn't found again either."""
    if not storage.exists(storage.join(folder, FILE_NAME)):
        return None
    try:
        return Manifest.load(folder)
    except (ClrflowError, KeyError, TypeError):
        return None


def _modified(uri: str) -> float:
    """Unix time of the last change; 0 where there is no such file."""
    fs, path = storage.filesystem(uri)
    return float(fs.modified(path).timestamp()) if fs.exists(path) else 0.0
