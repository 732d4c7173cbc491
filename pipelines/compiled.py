"""The compiled form of the pipeline: written, sized, and loaded again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from clrflow import __version__
from clrflow.errors import BadInput, ClrflowError
from clrflow.launch.settings import LaunchSettings

MAX_BYTES = 500_000
"""Kubeflow stores the whole specification with every run; beyond about a megabyte its database and Argo refuse it."""
TARGETS = ("data", "torch-cpu")
_IMAGE = re.compile(r"[a-z0-9][\w.:/{}-]*")


def compile_pipeline(path: Path, image: str = "", max_bytes: int = MAX_BYTES, launch: LaunchSettings | None = None) -> int:
    """Write the pipeline's YAML to `path` and load it again; returns its size in bytes.

    `image` takes the place of the components' own (see images_of); `launch` says what the steps' pods mount and are given. Nothing is left
    behind when it is too large or can't be loaded.
    """
    from kfp import compiler, components

    from components import PIPELINE_IMAGE, TORCH_IMAGE
    from pipelines.conditional_retrieval import build

    if path.suffix not in (".yaml", ".yml"):
        raise BadInput(f"output {str(path)!r}: Kubeflow takes .yaml files; give a name that ends so, e.g. pipeline.yaml.")
    if not path.parent.is_dir():
        raise BadInput(f"output {str(path)!r}: the folder {str(path.parent)!r} does not exist; create it first.")
    if path.is_dir():
        raise BadInput(f"output {str(path)!r} is a folder; give the name of a file.")
    images = images_of(image) if image else {}
    draft = path.with_name(f".{path.name}.draft.yaml")
    try:
        draft.touch()
    except OSError as error:
        raise BadInput(f"output {str(path)!r} can't be written ({error.strerror}); give a place where this user may write.") from None
    try:
        compiler.Compiler().compile(build(launch or LaunchSettings()), str(draft))
        if images:
            text = draft.read_text()
            for own, target in ((PIPELINE_IMAGE, "data"), (TORCH_IMAGE, "torch-cpu")):
                text = text.replace(f"image: {own}\n", f"image: {images[target]}\n")
            draft.write_text(text)
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


def images_of(image: str) -> dict[str, str]:
    """The images of the steps by target, from one name: `registry/clrflow/pipeline:1.2` → `…:1.2-data` and `…:1.2-torch-cpu`.

    Without a tag the version of clrflow stands in its place; `{target}` says where the target goes, if not at the end of the tag.
    """
    if not _IMAGE.fullmatch(image) or "@" in image or ("{" in image and image.count("{target}") != 1):
        raise BadInput(
            f"image {image!r}: give the name of the pipeline images with or without a tag, e.g. registry.example/clrflow/pipeline:1.2, or with "
            "{target} where `data` and `torch-cpu` belong."
        )
    if "{target}" not in image:
        tagged = ":" in image.rsplit("/", 1)[-1]
        image = f"{image}-{{target}}" if tagged else f"{image}:{__version__}-{{target}}"
    return {target: image.replace("{target}", target) for target in TARGETS}


def parameters_of(path: Path) -> dict[str, Any]:
    """The parameters of a compiled pipeline with their defaults, in the order in which the UI shows them."""
    from kfp import components

    inputs = components.load_component_from_file(str(path)).component_spec.inputs or {}
    return {name: spec.default for name, spec in inputs.items()}
