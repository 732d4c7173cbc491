"""Options that several commands share, so that each has one name and one explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.kubeflow.client import Client

Preset = Annotated[str, typer.Option(help="Settings to start from: demo, small, production. Default: small.")]
Config = Annotated[
    str,
    typer.Option(help="YAML file of settings, instead of a preset; its part launch says what the steps' pods are given.", metavar="FILE"),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="One setting as part.field=value; may be given again.", metavar="K=V")]
Launcher = Annotated[str, typer.Option(help="Where training runs: local, pytorchjob or trainjob. Default: as in the settings.")]
Endpoint = Annotated[
    str,
    typer.Option(
        envvar="KFP_ENDPOINT", help="Base URL of Kubeflow Pipelines, e.g. http://localhost:8888 or https://host/pipeline.", metavar="URL"
    ),
]
Namespace = Annotated[str, typer.Option(help="Profile's namespace, where the installation has several users.")]
TokenFile = Annotated[
    str,
    typer.Option(
        help="File with a bearer token. Default: the variable CLRFLOW_KFP_TOKEN, else the pod's own token, else none.", metavar="FILE"
    ),
]
Authority = Annotated[str, typer.Option("--ca", help="PEM file of the authority that signed the server's certificate.", metavar="FILE")]
Experiment = Annotated[str, typer.Option(help="Experiment that groups the runs; made where there is none.")]
Pipeline = Annotated[str, typer.Option(help="Name of the pipeline on the server; made where there is none.")]
Image = Annotated[
    str, typer.Option(help="Name of the pipeline images, e.g. registry.example/clrflow/pipeline:1.2; `-data` or `-torch-cpu` is added.")
]
ServiceAccount = Annotated[str, typer.Option(help="Service account of the steps' pods. Default: Kubeflow's own.", metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON; all else goes to stderr.")]


def client_of(endpoint: str, token_file: str, ca: str, namespace: str, tell: Callable[[str], None]) -> Client:
    """A client of the server that the options name."""
    from clrflow.errors import BadInput
    from pipelines.kubeflow.client import Client
    from pipelines.kubeflow.credentials import credentials

    if not endpoint:
        raise BadInput("--endpoint is missing: give the base URL of Kubeflow Pipelines, or set KFP_ENDPOINT.")
    return Client(endpoint, credentials(token_file), namespace=namespace, ca_file=ca, tell=tell)
