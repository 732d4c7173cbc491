"""Which tokenizer a run goes on from: one that it was told of, or the one that the published model was trained with.

Light to import, as looking up finished results calls `fingerprint`. Next: step.py.
"""

from __future__ import annotations

from clrflow import storage
from clrflow.errors import ConfigError
from clrflow.index.published import published_train
from clrflow.manifest import FILE_NAME, Manifest
from clrflow.steps import Run

PUBLISHED, PUBLISHED_OR_NEW = "published", "published_or_new"
DESCRIPTION = "tokenizer.json"
"""Written last into a tokenizer's folder."""


def fingerprint(run: Run) -> str:
    """Of what the step goes on from; "" where it starts fresh."""
    settings, found = run.config.semantic_ids, []
    for setting in ("tokenizer", "start_from"):
        source = tokenizer_of(getattr(settings, setting), run.workspace, f"semantic_ids.{setting}")
        if source:
            said = storage.read_json(storage.join(source, DESCRIPTION))
            found.append((setting, said["hash"], said.get("ids_hash", said["num_items"])))
    return storage.fingerprint_of(found) if found else ""


def tokenizer_of(named: str, workspace: str, setting: str) -> str:
    """Folder of the tokenizer that a setting names, "" for none; ConfigError where it isn't there."""
    if not named or named == PUBLISHED_OR_NEW:  # which configure has decided
        return ""
    if named == PUBLISHED:
        found = published_tokenizer(workspace)
        if not found:
            raise ConfigError(
                f"{setting}=published, but nothing was published yet in {workspace}, or the tokenizer of what is published was removed; leave "
                f"{setting} empty for a first run, or set semantic_ids.tokenizer=published_or_new."
            )
        return found
    for folder in (named, storage.join(named, "tokenizer")):
        if storage.exists(storage.join(folder, DESCRIPTION)):
            return folder
    raise ConfigError(
        f"{setting}={named!r} is no tokenizer and no result of a step semantic_ids (no {DESCRIPTION} in it); give such a folder."
    )


def published_tokenizer(workspace: str) -> str:
    """Folder of the tokenizer that the published model was trained with; "" where nothing is published or it is gone."""
    train = published_train(workspace)
    wanted = Manifest.load(train).inputs.get("semantic_ids") if train else None
    for folder in storage.list_folders(storage.join(workspace, "steps", "semantic_ids")) if wanted else ():
        if storage.exists(storage.join(folder, FILE_NAME)) and Manifest.load(folder).fingerprint == wanted:
            return storage.join(folder, "tokenizer")
    return ""
