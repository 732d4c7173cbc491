"""Files and folders of any place: written complete-or-absent, listed, compared, removed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clrflow.errors import BadInput
from clrflow.storage.uris import filesystem, is_local, is_s3, name_of

BLOCK_BYTES = 4 << 20
"""Read and written at a time where a whole file need not be in memory."""
FOLDER_MARKER = "_$folder$"
"""End of the names of empty objects by which Hadoop's older drivers say that there is a folder."""


@contextlib.contextmanager
def place_errors(uri: str, doing: str) -> Iterator[None]:
    """A place that can't be used is the caller's input: a path below a file, a folder for a file, no permission, a read-only disk."""
    try:
        yield
    except (NotADirectoryError, IsADirectoryError, PermissionError, FileExistsError) as error:
        raise BadInput(
            f"{uri}: can't be {doing} ({error.strerror or error}); check the path and who may use it, or name another one."
        ) from error
    except OSError as error:
        # FileNotFoundError stays for callers who ask whether a file is there; a write that ends so has no parent that could be made.
        if error.errno != errno.EROFS and not (doing == "written" and isinstance(error, FileNotFoundError)):
            raise
        raise BadInput(f"{uri}: can't be {doing} ({error.strerror}); name a place on a disk that takes files.") from error


def exists(uri: str) -> bool:
    fs, path = filesystem(uri)
    return bool(fs.exists(path))


def make_folder(uri: str) -> None:
    """Make a folder; on object stores nothing happens, as names there need none."""
    fs, path = filesystem(uri)
    with place_errors(uri, "written"):
        fs.makedirs(path, exist_ok=True)


def remove(uri: str) -> None:
    """Remove a file or a folder; absent is fine."""
    fs, path = filesystem(uri)
    with contextlib.suppress(FileNotFoundError):
        fs.rm(path, recursive=True)


def _found(uri: str) -> list[tuple[str, dict[str, Any]]]:
    """(path, what the listing says of it) of everything below a URI, by path."""
    fs, path = filesystem(uri)
    # Some drivers say nothing of a file that is asked for by its own name.
    return [(file, info or fs.info(file)) for file, info in sorted(fs.find(path, detail=True).items())]


def _files(uri: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(path, path below the URI, what the listing says of it) of all files that count, by path: one listing, no request a file.

    Empty objects that stand for folders don't: `name/`, and what Hadoop's older drivers left.
    """
    base = filesystem(uri)[1].rstrip("/")
    found = []
    for file, info in _found(uri):
        relative = file[len(base) :].lstrip("/")
        if not file.endswith("/") and _is_data(relative or name_of(file), info):
            found.append((file, relative, info))
    return found


def _is_data(relative: str, info: dict[str, Any]) -> bool:
    if any(part.startswith((".", "_")) for part in relative.split("/")):
        return False
    return not (relative.endswith(FOLDER_MARKER) and not info["size"])


def list_files(uri: str, suffix: str = "") -> list[str]:
    """All files below a URI (or the file itself), sorted, as URIs.

    Hidden ones, names that start with `_`, and empty objects that stand for folders are skipped.
    """
    fs, _ = filesystem(uri)
    return [file if is_local(uri) else fs.unstrip_protocol(file) for file, _, _ in _files(uri) if file.endswith(suffix)]


def read_bytes(uri: str) -> bytes:
    fs, path = filesystem(uri)
    with place_errors(uri, "read"):
        data: bytes = fs.cat_file(path)
    return data


def write_bytes(uri: str, data: bytes) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never a part."""
    fs, path = filesystem(uri)
    if not is_local(uri):
        fs.pipe_file(path, data)
        return
    target = Path(path)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    with place_errors(uri, "written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)


def create_bytes(uri: str, data: bytes) -> bool:
    """Write a whole file unless it exists; False where it does. Of several callers at once at most one gets True."""
    fs, path = filesystem(uri)
    if not is_local(uri):
        try:
            fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            # If it was our own writing whose answer got lost, the caller finds what it wrote.
            return False
        except OSError:
            # Stores refuse in words of their own, which drivers don't all know.
            if fs.exists(path):
                return False
            raise
        return True
    target = Path(path)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    with place_errors(uri, "written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(data)
            try:
                os.link(draft, target)  # unlike a rename it fails where the name is taken
            except FileExistsError:
                return False
        finally:
            draft.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def open_write(uri: str) -> Iterator[Any]:
    """A stream to a new file, of any size and in little memory; `discard` says what is left when the body raises."""
    fs, path = filesystem(uri)
    if is_local(uri):
        with place_errors(uri, "written"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    stream = fs.open(path, "wb")
    try:
        yield stream
    except BaseException:
        discard(stream)
        raise
    stream.close()


def discard(stream: Any) -> None:
    """Let go of a stream without finishing its file: a local one stays as far as it got, on S3 nothing appears."""
    give_up = getattr(stream, "give_up", stream.close)
    give_up()


def copy_file(source: str, target: str) -> None:
    """Copy one file, from S3 to S3 within the store, else in pieces through this machine."""
    fs, path = filesystem(source)
    if is_s3(source) and is_s3(target):
        fs.cp_file(path, filesystem(target)[1])
        return
    with fs.open(path, "rb") as reader, open_write(target) as writer:
        while block := reader.read(BLOCK_BYTES):
            writer.write(block)


def read_json(uri: str) -> Any:
    try:
        return json.loads(read_bytes(uri))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{uri}: not JSON ({error}). Delete it or point at another file.") from error


def write_json(uri: str, value: Any) -> None:
    write_bytes(uri, json.dumps(value, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n")


def write_text(uri: str, text: str) -> None:
    write_bytes(uri, text.encode())


def fingerprint(uri: str) -> str:
    """A hash of the names and contents below a URI; equal content under another folder has an equal fingerprint.

    On S3 sizes and ETags of the listing stand for contents, and nothing is downloaded. Equal fingerprints still mean equal contents. Equal
    contents have equal ones where they were put in the same way (in one request, or in parts cut at the same places) into buckets that don't
    encrypt with customer keys or KMS, which makes ETags random. Local and S3 fingerprints are never equal. So at worst a step is run again.
    """
    fs, _ = filesystem(uri)
    total = hashlib.blake2b(digest_size=16)
    for file, relative, info in _files(uri):
        total.update((f"/{relative}" if relative else "").encode())
        if is_s3(uri) and info.get("ETag"):
            total.update(f"\0{info['size']}\0{info['ETag']}\0".encode())
            continue
        with fs.open(file, "rb") as stream:
            digest = hashlib.blake2b(digest_size=16)
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
        total.update(digest.digest())
    return total.hexdigest()


def size_bytes(uri: str) -> int:
    """Bytes of all files below a URI, hidden ones too (checkpoints have them), as their listing says."""
    return sum(int(info["size"] or 0) for _, info in _found(uri))


def fingerprint_of(*parts: Any) -> str:
    """A hash of JSON-able values, independent of the order of mappings."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=10).hexdigest()
