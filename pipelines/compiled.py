"""The compiled form of the pipeline: written, sized, and loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clrflow.errors import BadInput, ClrflowError


def compile_pipeline(path: Path, image: str = "", max_bytes: int = 500_000) -> int:
    """Write the pipeline's YAML to `path` and load it again; returns its size in bytes.

    `image` takes the place of the components' own. Nothing is left behind when it is too large or can't be loaded.
    """
    from kfp import compiler, components

    from components import PIPELINE_IMAGE
    from pipelines.conditional_retrieval import conditional_retrieval

    if path.suffix not in (".yaml", ".yml"):
        raise BadInput(f"output {str(path)!r}: Kubeflow takes .yaml files; give a name that ends so, e.g. pipeline.yaml.")
    if not path.parent.is_dir():
        raise BadInput(f"output {str(path)!r}: the folder {str(path.parent)!r} does not exist; create it first.")
    if path.is_dir():
        raise BadInput(f"output {str(path)!r} is a folder; give the name of a file.")
    draft = path.with_name(f".{path.name}.draft.yaml")
    try:
        draft.touch()
    except OSError as error:
        raise BadInput(f"output {str(path)!r} can't be written ({error.strerror}); give a place where this user may write.") from None
    try:
        compiler.Compiler().compile(conditional_retrieval, str(draft))
        if image:
            draft.write_text(draft.read_text().replace(PIPELINE_IMAGE, image))
        size = draft.stat().st_size
        if size > max_bytes:
            raise ClrflowError(
                f"the compiled pipeline has {size:,} bytes, more than {max_bytes:,}; move settings into a file (parameter config)."
            )
        components.load_component_from_file(str(draft))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return size


def parameters_of(path: Path) -> dict[str, Any]:
    """The parameters of a compiled pipeline with their defaults, in the order in which the UI shows them."""
    from kfp import components

    inputs = components.load_component_from_file(str(path)).component_spec.inputs or {}
    return {name: spec.default for name, spec in inputs.items()}
