"""What an error of an S3 store means for whoever asked: which URI, what was tried, why it failed, what to do.

Wrong names, missing rights and refused credentials are BadInput; a store that is away or breaks off is ClrflowError, as the same command may
work later. What is only absent stays FileNotFoundError. A message holds no key, token or signature: only the store's own words and the name
of the source that the credentials came from.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import aiohttp
from botocore import exceptions
from botocore.parsers import ResponseParserError

from clrflow.errors import BadInput, ClrflowError

WORDS = 300
"""At most so many characters of what a store says."""
ACTIONS = {
    "get_object": ("read", "s3:GetObject"),
    "head_object": ("looked up", "s3:GetObject and s3:ListBucket"),
    "head_bucket": ("looked up", "s3:ListBucket"),
    "list_objects_v2": ("listed", "s3:ListBucket"),
    "delete_object": ("removed", "s3:DeleteObject"),
    "delete_objects": ("removed", "s3:DeleteObject"),
    "abort_multipart_upload": ("written", "s3:AbortMultipartUpload"),
}
WRITTEN = ("written", "s3:PutObject")
SOURCES = {
    "env": "the environment's variables",
    "shared-credentials-file": "the file of credentials",
    "config-file": "the configuration file",
    "custom-process": "the profile's credential_process",
    "assume-role": "the profile's role",
    "assume-role-with-web-identity": "the pod's role (web identity)",
    "container-role": "the pod's role (container credentials)",
    "iam-role": "the machine's role",
    "sso": "single sign-on",
}
DENIED = {"AccessDenied", "403", "AllAccessDisabled", "AccountProblem", "UnauthorizedAccess", "MethodNotAllowed"}
REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId", "UnrecognizedClientException", "401"}
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307"}
NOT_FOUND = {"404", "NoSuchKey", "NotFound"}
TRANSPORT = (exceptions.BotoCoreError, aiohttp.ClientError, ResponseParserError, TimeoutError, ConnectionError)


class Replaced(ClrflowError):
    """Another process replaced an object that this one had looked at."""


def code_of(error: Any) -> str:
    """The store's code of what went wrong; "" where no answer came or it wasn't a store that failed."""
    if isinstance(error, Mapping):
        return str(error.get("Code", ""))
    for candidate in (error, getattr(error, "__cause__", None)):
        if isinstance(candidate, exceptions.ClientError):
            return str(candidate.response.get("Error", {}).get("Code", ""))
    return ""


def explain(error: Any, method: str, request: Mapping[str, Any], *, endpoint: str = "", source: str = "", attempts: int = 1) -> Exception:
    """The error to raise instead; `error` itself where it has nothing to do with the store.

    error: an exception, or an entry of the errors that an answer lists. method, request: botocore's. source: botocore's name of where the
    credentials come from. attempts: times that the answer was read.
    """
    uri = f"s3://{request.get('Bucket', '')}/{request.get('Key') or request.get('Prefix') or ''}".rstrip("/")
    doing, right = ACTIONS.get(method, WRITTEN)
    what = f"{uri}: can't be {doing}"
    code = code_of(error)
    if not code:
        return _without_answer(error, what, endpoint, attempts)
    said = _said(error)
    if code in NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, "there is no such object", uri)
    if code in ("PreconditionFailed", "412"):
        if "IfNoneMatch" in request:
            return FileExistsError(errno.EEXIST, "there is such an object", uri)
        return Replaced(f"{what}: another process replaced it meanwhile. Run again.")
    if code == "NoSuchBucket":
        return BadInput(
            f"{what}: there is no bucket {request.get('Bucket')!r} at {endpoint or 'this store'}. Check the name, and AWS_ENDPOINT_URL where "
            "the store isn't AWS; buckets are never made from here."
        )
    return _of_credentials(code, what, right, said, endpoint, source) or ClrflowError(
        f"{what}: the store answers {code}{said}. Run the same command again; if it stays, ask who keeps the store."
    )


def _of_credentials(code: str, what: str, right: str, said: str, endpoint: str, source: str) -> BadInput | None:
    """Answers that have to do with who asks, and where."""
    whose = SOURCES.get(source, source or "an unknown source")
    if code in DENIED:
        return BadInput(f"{what}: access denied{said}. Grant {right} to the credentials in use (from {whose}), or name another place.")
    if code in REFUSED:
        return BadInput(
            f"{what}: the store at {endpoint or 'AWS'} refuses the credentials (from {whose}; {code}). Check them, and that AWS_ENDPOINT_URL "
            "names the store that they belong to."
        )
    if code in EXPIRED:
        return BadInput(
            f"{what}: the credentials (from {whose}) have expired. Renew them and run again; a role or credential_process renews itself."
        )
    if code == "RequestTimeTooSkewed":
        return BadInput(f"{what}: this machine's clock differs from the store's{said}. Set the clock.")
    if code in ELSEWHERE:
        return BadInput(f"{what}: the bucket is in another region{said}. Set AWS_DEFAULT_REGION to the bucket's region.")
    if code in ("InvalidBucketName", "KeyTooLongError", "InvalidObjectState"):
        return BadInput(f"{what}: {code}{said}. Name another place, or fetch the object from its archive first.")
    return None


def _without_answer(error: Exception, what: str, endpoint: str, attempts: int) -> Exception:
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return BadInput(
            f"{what}: no credentials were found. Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the pod a role."
        )
    if isinstance(error, (exceptions.CredentialRetrievalError, exceptions.TokenRetrievalError)):
        provider = error.kwargs.get("provider", "")
        return BadInput(
            f"{what}: no credentials could be fetched from {SOURCES.get(provider, provider)}. Try that source by hand (aws configure list)."
        )
    if isinstance(error, exceptions.ConnectionError):
        return ClrflowError(
            f"{what}: the store at {endpoint or 'AWS'} can't be reached ({type(error).__name__}). Check AWS_ENDPOINT_URL, AWS_DEFAULT_REGION "
            "and the network, then run again."
        )
    if isinstance(
        error, (exceptions.ProfileNotFound, exceptions.ConfigParseError, exceptions.ConfigNotFound, exceptions.ParamValidationError)
    ):
        return BadInput(f"{what}: {' '.join(str(error).split())[:WORDS]}. Correct it in the URI, AWS_PROFILE or the configuration file.")
    if isinstance(error, (ClrflowError, FileNotFoundError)) or not isinstance(error, TRANSPORT):
        return error
    return ClrflowError(
        f"{what}: the connection to {endpoint or 'the store'} broke off each time, {attempts} time(s) in a row ({type(error).__name__}). "
        "Run the same command again; AWS_MAX_ATTEMPTS raises how often one request is tried."
    )


def _said(error: Any) -> str:
    """`: what the store says`, in one line; "" where it says nothing."""
    if isinstance(error, Mapping):
        message = error.get("Message", "")
    else:
        answer = error if isinstance(error, exceptions.ClientError) else error.__cause__
        message = answer.response.get("Error", {}).get("Message", "")
    message = " ".join(str(message).split())[:WORDS].rstrip(".")
    return f" ({message})" if message else ""
