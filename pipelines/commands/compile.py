"""`clrflow compile`: the pipeline as the YAML that Kubeflow Pipelines takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines import console


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")] = Path("pipeline.yaml"),
    config: Annotated[
        str, typer.Option(help="YAML file of settings whose part launch says what the steps' pods mount and are given.", metavar="FILE")
    ] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting as launch.field=value; may be given again.", metavar="K=V")
    ] = None,
    image: Annotated[
        str, typer.Option(help="Name of the pipeline images, e.g. registry.example/clrflow/pipeline:1.2; `-data` or `-torch-cpu` is added.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print path, size and parameters as JSON.")] = False,
) -> None:
    """Write the pipeline as intermediate-representation YAML, and load it again to be sure.

    Mounts, environment, secrets and requests of the steps' pods are fixed here, from the part launch of the settings; all other settings are
    parameters of a run.

    Example: clrflow compile -o pipeline.yaml --config cluster.yaml
    """
    from clrflow.config import load_config
    from pipelines.compiled import compile_pipeline, parameters_of

    launch = load_config("" if config else "small", config, set_ or ()).launch
    size = compile_pipeline(output, image=image, launch=launch)
    parameters = parameters_of(output)
    if as_json:
        console.print_json({"path": str(output), "bytes": size, "parameters": parameters})
        return
    console.print_table(["parameter", "default"], [[name, repr(value)] for name, value in parameters.items()])
    console.line(f"{output}: {size:,} bytes, {len(parameters)} parameters")
