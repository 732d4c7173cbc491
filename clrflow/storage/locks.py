"""Holding a folder against other processes: the kernel's lock on this machine, an object that is renewed on S3.

A lock on S3 is `<folder>/.lock`, made only where none is. Its holder writes it again every BEAT_S; the store's own clock says how old it is,
and one older than STALE_S is anybody's, of whom the store lets one have it. A holder that was away longer finds out at its next beat and says
so; it isn't stopped, and which of two equal results counts is decided by the manifest, written last. Other object stores hold nothing.
"""

from __future__ import annotations

import contextlib
import email.utils
import fcntl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from clrflow.progress import say
from clrflow.storage.files import place_errors
from clrflow.storage.uris import filesystem, is_local, is_s3, join, local_path

BEAT_S, STALE_S, POLL_S = 10.0, 60.0, 1.0
NAME = ".lock"


@contextlib.contextmanager
def exclusive(uri: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a folder against other processes, on S3 also those of other machines; `waiting` is called once if another holds it.

    When the holder dies, however it dies, it is let go: at once where the kernel holds it, after STALE_S on S3.
    """
    if is_s3(uri):
        with _held_object(uri, waiting, wait=True):
            yield
        return
    if not is_local(uri):
        yield
        return
    folder = local_path(uri)
    with place_errors(uri, "written"):
        folder.mkdir(parents=True, exist_ok=True)
    with (folder / NAME).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def unless_held(uri: str) -> Iterator[bool]:
    """Hold a folder as `exclusive` does if nobody else does (True), else don't wait (False)."""
    if is_s3(uri):
        with _held_object(uri, None, wait=False) as held:
            yield held
        return
    if not is_local(uri):
        yield True
        return
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context((local_path(uri) / NAME).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except PermissionError:
            yield False  # another user's, who may be at work
        else:
            yield True


@contextlib.contextmanager
def _held_object(uri: str, waiting: Callable[[], None] | None, *, wait: bool) -> Iterator[bool]:
    lock = _ObjectLock(uri)
    while not lock.take():
        if not wait:
            yield False
            return
        if waiting is not None:
            waiting()
            waiting = None
        time.sleep(POLL_S)
    lock.keep()
    try:
        yield True
    finally:
        lock.release()


class _ObjectLock:
    """One object, one holder: every write names the version that it replaces."""

    def __init__(self, folder: str):
        self.uri = join(folder, NAME)
        self.fs, self.path = filesystem(self.uri)
        bucket, _, key = self.path.partition("/")
        self.place = {"Bucket": bucket, "Key": key}
        self.content = uuid.uuid4().hex.encode()
        self.etag = ""
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lock {folder}", daemon=True)

    def take(self) -> bool:
        """Make the object, or replace one that is stale; False where somebody holds it."""
        if self._put(IfNoneMatch="*"):
            return True
        try:
            found = self.fs.call_s3("head_object", **self.place)
        except FileNotFoundError:
            return False  # given back just now; the next try makes it
        return _age_s(found) > STALE_S and self._put(IfMatch=found["ETag"])

    def keep(self) -> None:
        self._thread.start()

    def release(self) -> None:
        """Remove it, unless another process has taken it over."""
        self._released.set()
        self._thread.join()
        with contextlib.suppress(FileNotFoundError):
            if self.fs.cat_file(self.path) == self.content:
                self.fs.rm(self.path)

    def _put(self, **condition: str) -> bool:
        from clrflow.storage.s3_errors import Replaced

        try:
            self.etag = self.fs.call_s3("put_object", Body=self.content, **self.place, **condition)["ETag"]
        except (FileExistsError, FileNotFoundError, Replaced):
            # A request that was repeated because its answer got lost finds what it wrote itself.
            return self._is_mine()
        return True

    def _is_mine(self) -> bool:
        try:
            found = self.fs.call_s3("get_object", **self.place)
        except FileNotFoundError:
            return False
        self.etag = found["ETag"]
        return bool(found["Body"].data == self.content)

    def _beat(self) -> None:
        said = False
        while not self._released.wait(BEAT_S):
            try:
                # It is gone where the folder was removed under us, as its holder may do.
                ours = self._put(IfMatch=self.etag) or self._put(IfNoneMatch="*")
                trouble = "" if ours else "another process took it over, as no sign of life came through"
            except Exception as error:  # whatever the storage's driver raises
                trouble = f"no sign of life could be written ({type(error).__name__}: {error})"
            if trouble and not said:
                said = True
                say(f"lock {self.uri}: {trouble}")


def _age_s(found: dict[str, Any]) -> float:
    """Seconds since an object was written, by the store's clock."""
    now = email.utils.parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
    return float((now - found["LastModified"]).total_seconds())
