"""Which tokenizer a run goes on from: one that it was told of, or the one that the published model was trained with.

Light to import, as looking up finished results calls `fingerprint`. Next: step.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from clrflow import storage
from clrflow.errors import ClrflowError, ConfigError
from clrflow.index.published import published_train
from clrflow.manifest import FILE_NAME, Manifest
from clrflow.semantic_ids.settings import PUBLISHED, PUBLISHED_OR_NEW

if TYPE_CHECKING:
    from clrflow.semantic_ids.settings import SemanticIdSettings
    from clrflow.steps import Run

DESCRIPTION = "tokenizer.json"
"""Written last into a tokenizer's folder."""


def fingerprint(run: Run) -> str:
    """Of what the step goes on from; "" where it starts fresh."""
    source = source_of(run.config.semantic_ids, run.workspace)
    if not source.uri:
        return ""
    said = storage.read_json(storage.join(source.uri, DESCRIPTION))
    return storage.fingerprint_of(source.setting, said["hash"], said.get("ids_hash", said["num_items"]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A tokenizer to go on from."""

    setting: str
    """The setting that names it: tokenizer (its ids stay) or start_from (training goes on from it)."""
    uri: str
    """Its folder; "" for none."""


def source_of(settings: SemanticIdSettings, workspace: str) -> Source:
    """What the settings go on from; ConfigError where it isn't there."""
    setting = "tokenizer" if settings.tokenizer else "start_from"
    return Source(setting=setting, uri=_folder_of(getattr(settings, setting), workspace, f"semantic_ids.{setting}"))


def _folder_of(named: str, workspace: str, setting: str) -> str:
    if not named:
        return ""
    if named in (PUBLISHED, PUBLISHED_OR_NEW):
        found = published_tokenizer(workspace)
        if not found and named == PUBLISHED:
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
        if not storage.exists(storage.join(folder, "tokenizer", DESCRIPTION)) or not storage.exists(storage.join(folder, FILE_NAME)):
            continue
        try:
            found = Manifest.load(folder).fingerprint
        except (ClrflowError, KeyError, TypeError):  # of another version; what isn't understood isn't found
            continue
        if found == wanted:
            return storage.join(folder, "tokenizer")
    return ""


def hash_of(tokenizer: str) -> str:
    """The hash of the tokenizer in a folder."""
    return str(storage.read_json(storage.join(tokenizer, DESCRIPTION))["hash"])
