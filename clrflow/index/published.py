"""What is published in a workspace: versions side by side and one small pointer that says which is current.

`<workspace>/published/current.json` names the version; `<workspace>/published/<version>/` holds it whole. A version counts once its
version.json lies in it, which is written last. Light to import: resume checks read it.
"""

from __future__ import annotations

import dataclasses

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.manifest import FILE_NAME, Manifest

FOLDER, POINTER, COMPLETE = "published", "current.json", "version.json"
EVALUATION = "evaluation"
"""Folder of a version that holds evaluation.json and per_request/, by which the next model is compared with it."""
PROFILE = "data_profile.json"
"""File of a version that says what the data were like that it was trained from (clrflow/data/profile.py); the next data are held against it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """The current version, as the pointer says it."""

    version: str
    uri: str
    """Where it lies, found from where the pointer lies, so that a moved workspace still works."""
    fingerprint: str
    """Of the bundle."""
    train: str
    """Fingerprint of the train step's result that it serves."""
    champion: str
    """What the gate that let it through compared it with (gate.champion_fingerprint at that time)."""


def read_published(published: str) -> Published | None:
    """The current version of a published folder; None when nothing is published there."""
    try:
        raw = storage.read_json(storage.join(published, POINTER))
    except FileNotFoundError:
        return None
    try:
        return Published(
            version=raw["version"],
            uri=storage.join(published, raw["version"]),
            fingerprint=raw["fingerprint"],
            train=raw["train"],
            champion=raw["champion"],
        )
    except (KeyError, TypeError) as error:
        raise ClrflowError(
            f"{storage.join(published, POINTER)}: not a pointer to a published version ({error!r} is missing); delete it and publish again."
        ) from None


def published_folder(workspace: str) -> str:
    return storage.join(workspace, FOLDER)


def published_train(workspace: str) -> str:
    """URI of the train step's result that the current version serves; "" when nothing is published or the result is gone."""
    current = read_published(published_folder(workspace))
    fs, path = storage.filesystem(storage.join(workspace, "steps", "train"))
    if current is None or not fs.exists(path):
        return ""
    for entry in fs.ls(path, detail=False):
        folder = storage.join(workspace, "steps", "train", storage.name_of(entry))
        if storage.exists(storage.join(folder, FILE_NAME)) and Manifest.load(folder).fingerprint == current.train:
            return folder
    return ""


def is_complete(version_uri: str) -> bool:
    """Whether a version's folder was written to its end."""
    return storage.exists(storage.join(version_uri, COMPLETE))


def versions(published: str) -> list[str]:
    """Names of all complete versions, oldest first."""
    fs, path = storage.filesystem(published)
    if not fs.exists(path):
        return []
    names = [storage.name_of(entry) for entry in fs.ls(path, detail=False)]
    return sorted(name for name in names if not name.startswith(".") and is_complete(storage.join(published, name)))
