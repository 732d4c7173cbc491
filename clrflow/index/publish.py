"""The step `publish`: makes a bundle current in one move, so that a reader sees the old version or the new one, never a mixture.

The version is copied whole under a hidden name, then renamed; only then is the small pointer replaced. A kill in between leaves a hidden
draft, which the next publishing removes, or a whole version that nobody points at. On object stores, which can't rename, version.json is
written last and says that a version is whole; one that stayed without it for a day is removed.
"""

from __future__ import annotations

import datetime
import uuid

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.index.published import (
    COMPLETE,
    EVALUATION,
    POINTER,
    PROFILE,
    Published,
    is_complete,
    published_folder,
    read_published,
    versions,
)
from clrflow.manifest import Output
from clrflow.progress import say
from clrflow.steps import Run, StepContext, StepResult

DRAFT, TRASH = ".draft-", ".trash-"
_VERSION_TIME = "%Y%m%dT%H%M%S%fZ"
_HALF_WRITTEN_FOR = datetime.timedelta(days=1)


def published_fingerprint(run: Run) -> str:
    """What is published now. Where nothing whole is, an earlier result can't be taken for granted: the key is new each time."""
    current = read_published(published_folder(run.workspace))
    return storage.fingerprint_of(current.version) if current is not None and is_complete(current.uri) else uuid.uuid4().hex


def run(context: StepContext) -> StepResult:
    """Publish what the gate let through; a held model publishes nothing."""
    gate, export, evaluation = (context.inputs[name] for name in ("gate", "export_index", "evaluate"))
    published = published_folder(context.workspace)
    decision, reason = gate.facts["decision"], gate.facts["reason"]
    bundle = export.outputs["index"]
    with storage.exclusive(published):
        clean(published)
        current = read_published(published)
        changed = False
        if decision == "publish":
            if current is None or current.fingerprint != bundle.fingerprint or not is_complete(current.uri):
                parts = {
                    "": bundle.uri,
                    storage.join(EVALUATION, "per_request"): evaluation.output("per_request"),
                    storage.join(EVALUATION, "evaluation.json"): evaluation.output("metrics"),
                }
                validated = context.run.manifest_of("validate_data")
                if validated is not None and "profile" in validated.outputs:  # this run's, from which its model was trained
                    parts[PROFILE] = validated.output("profile")
                current = publish_version(
                    published, parts, fingerprint=bundle.fingerprint, train=gate.facts["train"], champion=gate.facts["champion"]
                )
                changed = True
            say(f"publish: {current.version} is current" + ("" if changed else ", as it was before"))
        else:
            say(f"publish: nothing published, the gate held the model ({reason})")
        removed = retire(published, context.config.publish.keep)
    note = context.place("published.json")
    facts = {
        "decision": decision, "published": current.version if current else "", "uri": current.uri if current else "", "changed": changed,
        "reason": reason,
    }  # fmt: skip
    storage.write_json(note, {**facts, "removed": removed})
    return StepResult(
        outputs={"published": Output.of(note)},
        report=_page(published, current, facts),
        metrics={"published_changed": float(changed), "versions": float(len(versions(published)))},
        facts=facts,
    )


def publish_version(published: str, parts: dict[str, str], *, fingerprint: str, train: str, champion: str) -> Published:
    """Copy the parts (place in the version → URI of a file or folder) to a new version and point at it. The caller holds the folder."""
    from clrflow.index.export import copy_folder

    name = next_version(published, fingerprint)
    local = storage.is_local(published)
    place = storage.join(published, (DRAFT if local else "") + name)
    for target, source in parts.items():
        fs, path = storage.filesystem(source)
        if fs.isfile(path):
            storage.write_bytes(storage.join(place, target), storage.read_bytes(source))
        else:
            copy_folder(source, storage.join(place, target))
    pointer = {"version": name, "uri": storage.join(published, name), "fingerprint": fingerprint, "train": train, "champion": champion}
    storage.write_json(storage.join(place, COMPLETE), pointer)
    if local:
        storage.local_path(place).rename(storage.local_path(storage.join(published, name)))
    storage.write_json(storage.join(published, POINTER), pointer)
    found = read_published(published)
    if found is None or found.version != name:
        raise ClrflowError(f"{published}: another publisher replaced version {name} at once; publish from one place at a time.")
    return found


def next_version(published: str, fingerprint: str) -> str:
    """UTC time to the microsecond and a short key; later than every version that exists, even after the clock was set back."""
    now = datetime.datetime.now(datetime.UTC)
    existing = versions(published)
    if existing:
        now = max(now, _time_of(existing[-1]) + datetime.timedelta(microseconds=1))
    return f"{now.strftime(_VERSION_TIME)}-{fingerprint[:8]}"


def _time_of(version: str) -> datetime.datetime:
    return datetime.datetime.strptime(version.split("-")[0], _VERSION_TIME).replace(tzinfo=datetime.UTC)


def clean(published: str) -> None:
    """Remove what a killed publisher left: drafts, and versions that were being written or removed. The caller holds the folder."""
    fs, path = storage.filesystem(published)
    if not fs.exists(path):
        return
    for entry in fs.ls(path, detail=False):
        name = storage.name_of(entry)
        if name.startswith((DRAFT, TRASH)) or _is_abandoned(published, name):
            storage.remove(storage.join(published, name))


def _is_abandoned(published: str, name: str) -> bool:
    """A version that never became whole, on a store where it couldn't be written under another name."""
    try:
        age = datetime.datetime.now(datetime.UTC) - _time_of(name)
    except ValueError:
        return False  # no version
    return age > _HALF_WRITTEN_FOR and not is_complete(storage.join(published, name))


def retire(published: str, keep: int) -> list[str]:
    """Remove all but the newest `keep` versions and the current one; returns the names removed. The caller holds the folder."""
    current = read_published(published)
    names = versions(published)
    old = [name for name in names[:-keep] if current is None or name != current.version]
    for name in old:
        place = storage.join(published, name)
        if storage.is_local(published):
            # Out of sight in one move, so that nobody reads a version that is half removed.
            hidden = storage.join(published, TRASH + name)
            storage.local_path(place).rename(storage.local_path(hidden))
            place = hidden
        else:
            storage.remove(storage.join(place, COMPLETE))
        storage.remove(place)
    return old


def _page(published: str, current: Published | None, facts: dict[str, object]) -> str:
    from clrflow.reporting import Report

    report = Report("Publish", str(facts["reason"]))
    report.tiles({"decision": facts["decision"], "current version": current.version if current else "none", "changed": facts["changed"]})
    report.section("Versions", f"Kept under {published}; readers follow {POINTER}.")
    names = versions(published)
    report.table(["version", "current"], [[name, current is not None and name == current.version] for name in reversed(names)])
    return report.html()
