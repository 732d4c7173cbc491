"""`clrflow compile`: the pipeline as the YAML that Kubeflow Pipelines takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines import console

MAX_BYTES = 500_000
"""Kubeflow stores the whole specification with every run; beyond about a megabyte its database and Argo refuse it."""


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")] = Path("pipeline.yaml"),
    image: Annotated[str, typer.Option(help="Image of the steps' pods, if it isn't the default one.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print path, size and parameters as JSON.")] = False,
) -> None:
    """Write the pipeline as intermediate-representation YAML, and load it again to be sure.

    Example: clrflow compile -o pipeline.yaml
    """
    from pipelines.compiled import compile_pipeline, parameters_of

    size = compile_pipeline(output, image=image, max_bytes=MAX_BYTES)
    parameters = parameters_of(output)
    if as_json:
        console.print_json({"path": str(output), "bytes": size, "parameters": parameters})
        return
    console.print_table(["parameter", "default"], [[name, repr(value)] for name, value in parameters.items()])
    console.line(f"{output}: {size:,} bytes, {len(parameters)} parameters")
