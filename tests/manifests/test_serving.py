"""The InferenceService starts the server as the server wants to be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from clrflow.serving import app
from clrflow.serving.settings import serve_settings
from tests.manifests.files import the

(CONTAINER,) = the("InferenceService", "clrflow")["spec"]["predictor"]["containers"]


def test_the_arguments_are_settings_of_the_server() -> None:
    assert CONTAINER["command"] == ["python", "-m", "clrflow.serving"]
    names, values = CONTAINER["args"][::2], CONTAINER["args"][1::2]
    settings = serve_settings(**{name.removeprefix("--").replace("-", "_"): value for name, value in zip(names, values, strict=True)})
    assert settings.index == "/mnt/workspace/published"
    assert settings.host == "0.0.0.0"  # noqa: S104  a pod's address isn't known beforehand


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_a_probe_asks_for_what_the_server_answers(probe: str) -> None:
    asked = CONTAINER[probe]["httpGet"]
    assert f'"{asked["path"]}"' in Path(app.__file__).read_text()
    assert asked["port"] == CONTAINER["ports"][0]["containerPort"] == int(CONTAINER["args"][CONTAINER["args"].index("--port") + 1])
