"""requirements.py PYPROJECT CONSTRAINTS OUT: one requirements file for each layer of the images, written into the folder OUT.

What a layer holds is asked of pyproject.toml, and its versions of constraints.txt, so that images and `make install` can't differ. torch has
a layer and a file of its own with nothing but its own pins: it is the largest by far and must not be built again for another package's
new version.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT_LAYERS = {
    "base": ("", "s3"),
    "data": ("data", "evaluate"),
    "train": ("train",),
    "serving": ("serve",),
}
"""Extras of pyproject.toml a layer holds; "" stands for what every image needs."""

TORCH = re.compile(
    r"(torch|triton|nvidia-.*|cuda-.*|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|numpy|setuptools|sympy|typing[-_]extensions)=="
)
KFP = "kfp"
"""Installed without its dependencies: a step's pod runs kfp's executor, which imports nothing else, and not its client and compiler."""
LAUNCHER = "kubernetes"
"""The client with which a step starts a job on the cluster."""


def main(pyproject: Path, constraints: Path, out: Path) -> None:
    project = tomllib.loads(pyproject.read_text())["project"]
    pins = [line for line in constraints.read_text().splitlines() if line and not line.startswith("#")]
    out.mkdir(parents=True, exist_ok=True)

    def write(name: str, lines: list[str]) -> None:
        (out / f"{name}.txt").write_text("\n".join(lines) + "\n")

    for layer, extras in PROJECT_LAYERS.items():
        wanted = [line for extra in extras for line in (project["optional-dependencies"][extra] if extra else project["dependencies"])]
        write(layer, wanted)
    write("torch", [pin for pin in pins if TORCH.match(pin.lower())])
    write("kfp", [pinned(KFP, pins)])
    write("launcher", [pinned(LAUNCHER, pins)])
    write("constraints", pins)


def pinned(name: str, pins: list[str]) -> str:
    for pin in pins:
        if pin.partition("==")[0].lower().replace("_", "-") == name:
            return pin
    raise SystemExit(f"requirements.py: constraints.txt pins no {name}, which an image needs; add it as `pip freeze` shows it")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
