"""Whole folders: which there are, and giving one's files a second place without a second copy."""

from __future__ import annotations

import contextlib
import os

from clrflow.storage.files import copy_file, list_files
from clrflow.storage.uris import filesystem, is_local, join, local_path, name_of


def list_folders(uri: str) -> list[str]:
    """The folders right below a URI, sorted; none where it isn't there."""
    fs, path = filesystem(uri)
    if not fs.exists(path):
        return []
    entries = fs.ls(path, detail=True)
    return sorted(join(uri, name_of(entry["name"])) for entry in entries if entry["type"] == "directory")


def link_files(source: str, target: str) -> None:
    """Make the files below `source` be below `target` too, under the same names.

    Files are never changed in place here, so on this machine both names share one file where the disk allows it; object stores copy, without
    the data passing through here.
    """
    for file in list_files(source):
        place = join(target, file.removeprefix(source.rstrip("/")))
        if is_local(file):
            path = local_path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # another disk, or one without links: then it is copied
                os.link(local_path(file), path)
                continue
        copy_file(file, place)
