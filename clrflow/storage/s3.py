"""The driver of S3: s3fs, with one way for every request, on which all of them are repeated, given fresh credentials and explained alike.

Where a store is, how one is known there and how often a request is tried is configured as everywhere: botocore's variables, profiles and
roles. Two things are ours. A body that breaks off is read again (botocore repeats only what breaks before an answer begins). And whatever
can't be helped ends as an error that names the URI, the cause and a remedy (s3_errors.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
from typing import Any, NoReturn

import aiohttp
from botocore.exceptions import HTTPClientError, IncompleteReadError
from botocore.parsers import ResponseParserError
from fsspec.asyn import sync_wrapper
from s3fs.core import S3File, S3FileSystem

from clrflow.errors import BadInput, ClrflowError
from clrflow.storage.s3_errors import code_of, explain

ATTEMPTS = 6
"""Times that an answer is read which breaks off on the way; waits of 0.1 s to 3 s in between."""
CONCURRENT_READS = 8
READ_BLOCK_BYTES, READ_BLOCKS = 4 << 20, 16
"""A file that is read here and there is read in blocks, of which so many are kept: columns of a table lie far apart."""
BROKEN = (aiohttp.ClientError, HTTPClientError, IncompleteReadError, ResponseParserError, asyncio.TimeoutError, ConnectionError)
"""What an answer that breaks off looks like."""
AGAIN = {"OperationAborted", "ConditionalRequestConflict"}
"""Answers by which a store asks for the same request once more; those that mean a busy store are botocore's."""
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}


class ObjectStore(S3FileSystem):
    """S3 as a file system whose listings are always fresh."""

    retries = 1  # s3fs would repeat what botocore has repeated, 25 times in all
    default_block_size = 32 << 20  # of a part that is written, hence memory of an open file; 10,000 parts are the most that S3 takes

    def __init__(self, **options: Any):
        super().__init__(**{**options, "use_listings_cache": False})

    async def _call_s3(self, method: str, *given: Any, **request: Any) -> Any:
        """Every request of s3fs goes through here."""
        attempt, is_renewed = 1, False
        while True:
            answered = False
            try:
                answer = await super()._call_s3(method, *given, **request)
                answered = True
                if method == "get_object":
                    await self._read_now(answer)
                return answer
            except Exception as error:
                if not is_renewed and _is_expired(error, method):
                    # Sources that know when they expire are asked again by botocore itself; files and variables are read once a session.
                    is_renewed = True
                    await self.set_session(refresh=True)
                elif attempt < ATTEMPTS and _is_worth_repeating(error, answered):
                    await asyncio.sleep(min(3.0, 0.2 * 2**attempt) * random.uniform(0.5, 1.0))
                    attempt += 1
                else:
                    await self._fail(error, method, request, attempt)

    call_s3 = sync_wrapper(_call_s3)

    async def _read_now(self, answer: dict[str, Any]) -> None:
        """Read an answer's body to its end, so that what breaks off is asked for again; large ones are left to be read in ranges."""
        if answer["ContentLength"] > self.default_block_size:
            return
        body = answer["Body"]
        try:
            data = await body.read()
        finally:
            body.close()
        answer["Body"] = _Read(data)

    async def _fail(self, error: Exception, method: str, request: dict[str, Any], attempts: int) -> NoReturn:
        endpoint = getattr(getattr(self._s3, "meta", None), "endpoint_url", "") or ""
        found = explain(error, method, request, endpoint=endpoint, source=await self._source(), attempts=attempts)
        if found is error:
            raise error
        # What a program that fetches credentials said may hold them, so it isn't kept as the cause.
        raise found from (None if type(error).__name__ == "CredentialRetrievalError" else error)

    async def _source(self) -> str:
        """Where the credentials come from, in botocore's words; "" where there are none."""
        try:
            found = await self.session.get_credentials()
        except Exception:  # whatever a source of credentials raises: this is asked on the way to another error
            return ""
        return str(getattr(found, "method", "") or "")

    async def _cat_file(self, path: str, version_id: Any = None, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """A whole object is one request or, if it is large, ranges of one and the same version of it."""
        if start is not None or end is not None:
            return bytes(await super()._cat_file(path, version_id, start, end, **options))
        bucket, key, _ = self.split_path(path)
        answer = await self._call_s3("get_object", Bucket=bucket, Key=key)
        size, block = answer["ContentLength"], self.default_block_size
        if size <= block:
            return bytes(await answer["Body"].read())
        answer["Body"].close()
        data, turn = bytearray(size), asyncio.Semaphore(CONCURRENT_READS)

        async def read(first: int) -> None:
            async with turn:
                last = min(first + block, size) - 1
                part = await self._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={first}-{last}", IfMatch=answer["ETag"])
                data[first : last + 1] = await part["Body"].read()

        await asyncio.gather(*(read(first) for first in range(0, size, block)))
        return bytes(data)

    async def _info(self, path: str, bucket: Any = None, key: Any = None, refresh: bool = False, version_id: Any = None) -> dict[str, Any]:
        """A folder is there as long as something lies below it, at whatever depth; some stores list emptied ones for a while."""
        bucket, key, _ = self.split_path(path)
        if not key:
            return dict(await super()._info(path))
        try:
            head = await self._call_s3("head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            below = await self._call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{key.rstrip('/')}/", MaxKeys=1)
            if not below.get("Contents"):
                raise
            return {"name": path, "type": "directory", "size": 0}
        return {
            "name": path, "type": "file", "size": head["ContentLength"], "ETag": head.get("ETag", ""), "LastModified": head["LastModified"],
        }  # fmt: skip

    async def _rm(self, path: str, recursive: bool = False, **options: Any) -> None:
        """Remove an object and, if recursive, everything below its name. Names are taken literally, and what is refused is an error."""
        bucket, key, _ = self.split_path(path)
        if not key:
            raise BadInput(f"s3://{bucket}: a whole bucket is never removed from here; name a folder in it.")
        await self._delete(bucket, [key])
        if recursive:
            async for page in self._list_pages("list_objects_v2", Bucket=bucket, Prefix=f"{key.rstrip('/')}/"):
                if found := [entry["Key"] for entry in page.get("Contents", ())]:
                    await self._delete(bucket, found)

    async def _delete(self, bucket: str, keys: list[str]) -> None:
        request = {"Bucket": bucket, "Delete": {"Objects": [{"Key": key} for key in keys], "Quiet": True}}
        answer = await self._call_s3("delete_objects", **request)
        for refused in answer.get("Errors", ()):
            if refused.get("Code") != "NoSuchKey":
                where = {"Bucket": bucket, "Key": refused.get("Key", keys[0])}
                raise explain(refused, "delete_object", where, source=await self._source())

    async def _mkdir(self, path: str, acl: Any = False, create_parents: bool = True, **options: Any) -> None:
        """Nothing: names need no folders, and a bucket that isn't there is a mistake and not a wish."""

    mkdir = sync_wrapper(_mkdir)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing, as above."""

    makedirs = sync_wrapper(_makedirs)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, cache_options: Any = None, **options: Any) -> Any:
        if mode == "rb":
            options.setdefault("cache_type", "blockcache")
            block_size, cache_options = block_size or READ_BLOCK_BYTES, cache_options or {"maxblocks": READ_BLOCKS}
            return super()._open(path, mode, block_size=block_size, cache_options=cache_options, **options)
        return _Upload(self, path, mode, block_size or self.default_block_size, s3_additional_kwargs=self.s3_additional_kwargs.copy())


class _Upload(S3File):
    """A file that is being written: it appears when it is closed, in one request."""

    closed: bool

    def close(self) -> None:
        try:
            super().close()
        except BaseException:
            self._remove_parts()
            raise

    def give_up(self) -> None:
        """End without an object; parts that were sent are removed."""
        if not self.closed:
            self.closed, self.buffer = True, None
            self._remove_parts()

    def __del__(self) -> None:
        # s3fs would finish the object of a writer that was forgotten in the middle.
        self.closed, self.buffer = True, None

    def _remove_parts(self) -> None:
        with contextlib.suppress(ClrflowError, OSError):  # we come from another error, which matters more
            self._abort_mpu()


class _Read:
    """A body that was read already, as s3fs reads bodies."""

    def __init__(self, data: bytes):
        self.data, self._stream = data, io.BytesIO(data)

    async def read(self, size: int = -1) -> bytes:
        return self._stream.read(size)

    def close(self) -> None:
        self._stream.close()


def _is_expired(error: Exception, method: str) -> bool:
    # An answer to HEAD has no body that could say why: an expired token is a bare 400.
    return code_of(error) in EXPIRED or (method.startswith("head_") and code_of(error) == "400")


def _is_worth_repeating(error: Exception, answered: bool) -> bool:
    if isinstance(error, ClrflowError):
        return False
    if code_of(error):
        return code_of(error) in AGAIN
    # Before an answer begins botocore has repeated what it calls HTTPClientError itself.
    return isinstance(error, BROKEN) and (answered or not isinstance(error, HTTPClientError))
