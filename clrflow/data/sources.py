"""Publishes a whole folder of input tables at once: complete with its `source.json`, or absent.

The real (movielens.py) and the made-up (synthetic.py) source both go through here, so a killed attempt never leaves half a data set and a
second call finds the first one's work.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clrflow import storage
from clrflow.data.schema import TABLES
from clrflow.errors import BadInput
from clrflow.manifest import Output
from clrflow.progress import say

MARKER = "source.json"
"""Written with the tables: what they were made from, with which arguments, and what came out."""


def publish(folder: str, source: Mapping[str, Any], build: Callable[[str], Mapping[str, Output]]) -> dict[str, Any]:
    """Fill `folder` by `build(draft_folder)`, or return at once when it already holds exactly this.

    `source` names the maker, its version and every argument that decides the content. Returns what `source.json` holds, plus `folder` and
    `reused`. BadInput when the folder holds anything else: nothing of another owner is overwritten.
    """
    target = storage.local_path(storage.absolute(folder))
    # A sibling, so that the last step is one rename on one file system; a killed attempt's leftovers are cleared by the next one.
    draft = target.with_name(f".{target.name}.draft")
    found = _look(target, source)
    if found is None:
        with storage.exclusive(
            str(draft), lambda: say(f"{target}: another process is making these tables; waiting for it to finish or die.")
        ):
            found = _look(target, source)
            if found is None:
                try:
                    return {**_build(draft, target, source, build), "folder": str(target), "reused": False}
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(draft, ignore_errors=True)
    say(f"{target}: the tables are there already")
    return {**found, "folder": str(target), "reused": True}


def _build(draft: Path, target: Path, source: Mapping[str, Any], build: Callable[[str], Mapping[str, Output]]) -> dict[str, Any]:
    tables = draft / "tables"
    shutil.rmtree(tables, ignore_errors=True)
    outputs = build(str(tables))
    marker = {
        "source": dict(source),
        "tables": {name: {"num_rows": out.num_rows, "fingerprint": out.fingerprint} for name, out in outputs.items()},
    }
    storage.write_json(storage.join(str(tables), MARKER), marker)
    tables.rename(target)
    return marker


def _look(target: Path, source: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the folder's marker says when all of this source is there; None when the folder is free; BadInput otherwise."""
    found = _whole(str(target), source)
    if found is None and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(
            f"folder {str(target)!r} already holds something else than {source['name']} with these arguments; "
            "nothing in it is overwritten: name another folder, or delete it."
        )
    return found


def _whole(folder: str, source: Mapping[str, Any]) -> dict[str, Any] | None:
    """The marker of a folder that holds all tables of this source unchanged; otherwise None."""
    if not storage.exists(storage.join(folder, MARKER)):
        return None
    marker: dict[str, Any] = storage.read_json(storage.join(folder, MARKER))
    if marker.get("source") != dict(source):
        return None
    for table in TABLES:
        uri = storage.join(folder, table.name)
        expected = marker.get("tables", {}).get(table.name, {}).get("fingerprint")
        if not storage.exists(uri) or storage.fingerprint(uri) != expected:
            return None
    return marker
