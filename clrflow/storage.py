"""URIs and atomic publishing: the only place that touches a file system by name.

A place is a string: a local path, `file://…`, `s3://…` or whatever fsspec knows. Whatever is read by others is written
complete-or-absent: under another name first, then moved (local) or put in one request (object stores).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from clrflow.errors import BadInput


def join(base: str, *parts: str) -> str:
    """`base/part/part`, whatever the scheme; empty parts are ignored."""
    return "/".join([base.rstrip("/"), *(part.strip("/") for part in parts if part)])


def name_of(uri: str) -> str:
    """The last segment of a URI."""
    return uri.rstrip("/").rsplit("/", 1)[-1]


def filesystem(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system behind a URI and the path on it; an unknown scheme is refused with its name."""
    try:
        fs, path = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise BadInput(f"{uri!r}: {error}. Use a local path, file:// or a scheme whose fsspec driver is installed.") from error
    return fs, path


def is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")


def local_path(uri: str) -> Path:
    """The path of a local URI; a remote one is refused, as its caller needs a real file."""
    if not is_local(uri):
        raise BadInput(f"{uri!r} is not on this machine; fetch it first or give a local path.")
    return Path(uri.removeprefix("file://"))


def absolute(uri: str) -> str:
    """Local paths made absolute, so that another process with another working directory finds them; others unchanged."""
    return str(local_path(uri).expanduser().absolute()) if is_local(uri) else uri.rstrip("/")


@contextlib.contextmanager
def _place_errors(uri: str, doing: str) -> Iterator[None]:
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
    fs, path = filesystem(uri)
    with _place_errors(uri, "written"):
        fs.makedirs(path, exist_ok=True)


def remove(uri: str) -> None:
    """Remove a file or a folder; absent is fine."""
    fs, path = filesystem(uri)
    with contextlib.suppress(FileNotFoundError):
        fs.rm(path, recursive=True)


def list_files(uri: str, suffix: str = "") -> list[str]:
    """All files below a URI (or the file itself), sorted, as URIs; hidden ones and names that start with `_` are skipped."""
    fs, path = filesystem(uri)
    found = [path] if fs.isfile(path) else fs.find(path)
    base = path.rstrip("/")
    keep = []
    for file in sorted(found):
        relative = file[len(base) :].lstrip("/") if file != path else name_of(file)
        if any(part.startswith((".", "_")) for part in relative.split("/")) or not file.endswith(suffix):
            continue
        keep.append(file if is_local(uri) else fs.unstrip_protocol(file))
    return keep


def read_bytes(uri: str) -> bytes:
    fs, path = filesystem(uri)
    with _place_errors(uri, "read"):
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
    with _place_errors(uri, "written"):
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
            return False
        except OSError:
            # Stores refuse in words of their own, which drivers don't all know; if it was our own writing whose answer got lost, the caller
            # finds what it wrote.
            if fs.exists(path):
                return False
            raise
        return True
    target = Path(path)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    with _place_errors(uri, "written"):
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
    """A hash of the names and contents below a URI; equal content under another folder has an equal fingerprint."""
    fs, path = filesystem(uri)
    base = path.rstrip("/")
    total = hashlib.blake2b(digest_size=16)
    for file in list_files(uri):
        _, file_path = filesystem(file)
        total.update((file_path[len(base) :] if file_path != path else "").encode())
        with fs.open(file_path, "rb") as stream:
            digest = hashlib.blake2b(digest_size=16)
            while block := stream.read(1 << 22):
                digest.update(block)
        total.update(digest.digest())
    return total.hexdigest()


def size_bytes(uri: str) -> int:
    """Bytes of all files below a URI."""
    return sum(int(filesystem(file)[0].size(filesystem(file)[1]) or 0) for file in list_files(uri))


def fingerprint_of(*parts: Any) -> str:
    """A hash of JSON-able values, independent of the order of mappings."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=10).hexdigest()


@contextlib.contextmanager
def exclusive(uri: str, waiting: Any = None) -> Iterator[None]:
    """Hold a folder against other processes of this machine; the kernel lets go when the holder dies, however it dies.

    `waiting` is called once if another process holds it. On object stores nothing is held: there the manifest, written last,
    decides which of two equal results counts.
    """
    if not is_local(uri):
        yield
        return
    folder = local_path(uri)
    with _place_errors(uri, "written"):
        folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def unless_held(uri: str) -> Iterator[bool]:
    """Hold a folder as `exclusive` does if nobody else does (True), else don't wait (False); on object stores always True."""
    if not is_local(uri):
        yield True
        return
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context((local_path(uri) / ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except PermissionError:
            yield False  # another user's, who may be at work
        else:
            yield True
