"""What tests of any part may ask for: a place on a real S3 server, started once for all of them, or a place of either kind; and Ctrl-C."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator

import pytest

from tests.object_store import BUCKET, FaultyProxy, ObjectStoreServer, environment, use

_numbers = itertools.count(1)

# Whoever runs the tests in the background of a shell has Ctrl-C ignored, and children inherit that: then what tests say of Ctrl-C would wait
# for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStoreServer]:
    """A running server; tests write below the place that `s3` gives them."""
    with ObjectStoreServer(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture
def s3(s3_server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URI of the test's own, below which it may do everything; this process and its children are known to the server."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    use(environment("writer", s3_server.endpoint), monkeypatch.setenv)
    yield f"s3://{BUCKET}/test-{next(_numbers)}"
    use({}, monkeypatch.setenv)


@pytest.fixture
def faulty(s3: str, s3_server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before the server that fails on demand; requests of this process go through it."""
    with FaultyProxy(s3_server.endpoint) as proxy:
        use({"AWS_ENDPOINT_URL": proxy.endpoint}, monkeypatch.setenv)
        yield proxy
        use({"AWS_ENDPOINT_URL": s3_server.endpoint}, monkeypatch.setenv)


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """An empty place on this machine, then one on S3: what is promised of places holds on both."""
    if request.param == "s3":
        uri: str = request.getfixturevalue("s3")
        return uri
    return str(request.getfixturevalue("tmp_path") / "place")
