"""URIs and atomic publishing: the only place that touches a file system by name.

A place is a string: a local path, `file://…`, `s3://…` or whatever fsspec knows. Whatever is read by others is written
complete-or-absent: under another name first, then moved (local) or put in one request (object stores).

uris.py takes names apart, files.py reads, writes, lists and compares, locks.py holds a folder; s3.py is the driver of S3 and s3_errors.py
says what an answer of the store means and what to do about it.
"""

from clrflow.storage.files import (
    copy_file,
    create_bytes,
    discard,
    exists,
    fingerprint,
    fingerprint_of,
    list_files,
    make_folder,
    open_write,
    read_bytes,
    read_json,
    remove,
    size_bytes,
    write_bytes,
    write_json,
    write_text,
)
from clrflow.storage.folders import link_files, list_folders
from clrflow.storage.locks import exclusive, unless_held
from clrflow.storage.uris import absolute, filesystem, is_local, join, local_path, name_of, parent_of

__all__ = [
    "absolute",
    "copy_file",
    "create_bytes",
    "discard",
    "exclusive",
    "exists",
    "filesystem",
    "fingerprint",
    "fingerprint_of",
    "is_local",
    "join",
    "link_files",
    "list_files",
    "list_folders",
    "local_path",
    "make_folder",
    "name_of",
    "open_write",
    "parent_of",
    "read_bytes",
    "read_json",
    "remove",
    "size_bytes",
    "unless_held",
    "write_bytes",
    "write_json",
    "write_text",
]
