"""What the tests against a Kubeflow Pipelines server share: the server, and a machine without credentials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipelines.kfp_server import KfpServer


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer() as running:
        yield running


@pytest.fixture
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of this machine's endpoint, token or pod counts."""
    for name in ("CLRFLOW_KFP_TOKEN", "KF_PIPELINES_SA_TOKEN_PATH", "KFP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
