"""What can be set of a server. `python -m clrflow.serving` makes a flag of each field, so this is also its reference."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from clrflow.errors import ConfigError
from clrflow.settings import Settings


class ServeSettings(Settings):
    """A server of one index."""

    index: str
    """URI of a workspace, its published folder, a version or a bundle. Of the first two the current version is served, and followed."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all of the machine, as a pod needs. There is no authentication: put what checks callers in front."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port to listen on; 0 takes a free one and prints it."""
    model_name: str = Field(default="clrflow", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    """Name in the URLs, /v1/models/NAME:predict; on KServe the InferenceService's own."""
    threads: int = Field(default=2, ge=1, le=256)
    """Requests that are computed at once, one core each; as many as the pod has cores."""
    poll_s: float = Field(default=5.0, ge=0.1, le=3600)
    """Seconds between two looks at what is published. No effect for a fixed version or bundle."""
    grace_s: int = Field(default=20, ge=1, le=3600)
    """Seconds that running requests get to finish after SIGTERM; below the pod's terminationGracePeriodSeconds, which is 30 by default."""
    body_timeout_s: float = Field(default=10.0, gt=0, le=600)
    """Seconds in which a request's body must have arrived."""
    max_body_bytes: int = Field(default=1 << 20, ge=1024, le=1 << 28)
    """Bytes of a request's body; a larger one is answered with 413."""
    max_instances: int = Field(default=64, ge=1, le=10_000)
    """Instances (users) in one request."""
    max_items: int = Field(default=50_000, ge=1000, le=10_000_000)
    """Items that one request may ask for: the sum of conditions times k over its instances. It bounds the answer's size."""
    max_waiting: int = Field(default=256, ge=1, le=100_000)
    """Requests that are computed or wait for a thread; one more is answered with 503, so that a queue never grows without end."""


def serve_settings(**values: Any) -> ServeSettings:
    """Settings from a command line; raises ConfigError that names each wrong one with its value."""
    try:
        return ServeSettings(**values)
    except ValidationError as error:
        wrong = "; ".join(f"{found['loc'][0]}={found['input']!r}: {found['msg']}" for found in error.errors())
        raise ConfigError(f"the server can't be started with {wrong}. Change what is named; --help says what each setting takes.") from None
