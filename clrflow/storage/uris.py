"""Names of places: put together, taken apart, and the file system behind them."""

from __future__ import annotations

from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from clrflow.errors import BadInput

S3 = ("s3://", "s3a://")


def join(base: str, *parts: str) -> str:
    """`base/part/part`, whatever the scheme; empty parts are ignored."""
    return "/".join([base.rstrip("/"), *(part.strip("/") for part in parts if part)])


def name_of(uri: str) -> str:
    """The last segment of a URI."""
    return uri.rstrip("/").rsplit("/", 1)[-1]


def parent_of(uri: str) -> str:
    """The folder that a URI lies in. Object stores know no `..`: there it would be a name like any other."""
    return uri.rstrip("/").rpartition("/")[0]


def is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")


def is_s3(uri: str) -> bool:
    return uri.startswith(S3)


def local_path(uri: str) -> Path:
    """The path of a local URI; a remote one is refused, as its caller needs a real file."""
    if not is_local(uri):
        raise BadInput(f"{uri!r} is not on this machine; fetch it first or give a local path.")
    return Path(uri.removeprefix("file://"))


def absolute(uri: str) -> str:
    """Local paths made absolute, so that another process with another working directory finds them; others unchanged."""
    return str(local_path(uri).expanduser().absolute()) if is_local(uri) else uri.rstrip("/")


def filesystem(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system behind a URI and the path on it; an unknown scheme is refused with its name."""
    if is_s3(uri):
        return _s3(uri)
    if is_local(uri):
        return LocalFileSystem(), LocalFileSystem._strip_protocol(uri)
    try:
        # A listing that is kept doesn't show what another process has written since.
        fs, path = fsspec.core.url_to_fs(uri, use_listings_cache=False)
    except (ValueError, ImportError) as error:
        raise BadInput(f"{uri!r}: {error}. Use a local path, file:// or a scheme whose fsspec driver is installed.") from error
    return fs, path


def _s3(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Names are taken as they are: `?` or `::` in a key mean nothing, unlike in fsspec's own reading of URLs."""
    path = uri.partition("://")[2].rstrip("/")
    bucket = path.partition("/")[0]
    if not bucket:
        raise BadInput(f"{uri!r} names no bucket; give s3://bucket/folder.")
    if "@" in bucket:
        raise BadInput(
            "an s3:// URI holds an @ before its first slash; credentials don't belong there, they would be logged. "
            "Give s3://bucket/folder and set AWS_PROFILE or another source of credentials."
        )
    try:
        from clrflow.storage.s3 import ObjectStore
    except ImportError as error:
        raise BadInput(f"{uri!r}: S3 needs the package s3fs ({error}); pip install 'clrflow[s3]'.") from error
    return ObjectStore(), path
