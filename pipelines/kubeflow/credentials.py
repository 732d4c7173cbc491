"""Who a client of Kubeflow Pipelines says it is: a token from a file, the environment or the pod; read anew for each call, never shown."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from clrflow.errors import BadInput

TOKEN_ENV = "CLRFLOW_KFP_TOKEN"  # noqa: S105  (a name, no secret)
POD_TOKEN_PATH_ENV = "KF_PIPELINES_SA_TOKEN_PATH"  # noqa: S105
POD_TOKEN = "/var/run/secrets/kubeflow/pipelines/token"  # noqa: S105
"""Where Kubeflow projects a pod's token for the audience pipelines.kubeflow.org."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Credentials:
    """A source of tokens; `source` is how messages call it."""

    source: str
    file: str = ""
    variable: str = ""

    def token(self) -> str:
        """The token now; "" without credentials. A file is read each time, as tokens of pods are rotated."""
        if self.variable:
            return os.environ.get(self.variable, "").strip()
        if not self.file:
            return ""
        try:
            token = Path(self.file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise BadInput(f"{self.source}: can't be read ({why}); give a file that holds a bearer token.") from None
        if not token or len(token.split()) != 1 or not token.isascii() or not token.isprintable():
            raise BadInput(f"{self.source}: holds no single bearer token; write the token alone into it.")
        return token


def credentials(token_file: str = "", environment: Mapping[str, str] = os.environ) -> Credentials:
    """Of --token-file, the environment variable and the pod's own token the first that is there; else none."""
    if token_file:
        return Credentials(source=f"--token-file {token_file}", file=token_file)
    if environment.get(TOKEN_ENV):
        return Credentials(source=f"the environment variable {TOKEN_ENV}", variable=TOKEN_ENV)
    path = environment.get(POD_TOKEN_PATH_ENV) or POD_TOKEN
    if Path(path).is_file():
        return Credentials(source=f"the pod's service account token {path}", file=path)
    return Credentials(source="no credentials")
