"""Does this environment hold exactly one fbgemm wheel, and does one of its operators run?

Two wheels own the import folder fbgemm_gpu: with both, whichever came last wins, and the wrong one fails only when an operator is called.
So images check it when they are built, and the CUDA one, whose build has no driver, when its container starts. Runs as a plain file
too, before the package is installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys

WHEELS = ("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-nightly", "fbgemm-gpu-nightly-cpu")


def installed_wheels() -> list[str]:
    """`name version` of each wheel that brings the library; the repository's stand-in for CPU machines is empty and isn't one."""
    found = []
    for name in WHEELS:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if any(file.suffix == ".so" for file in files):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def run_operator() -> str:
    """Call one operator on the GPU where there is one; returns the device's name. Raises RuntimeError when the result is wrong."""
    import torch
    import torchrec  # type: ignore[import-untyped,unused-ignore]  # noqa: F401  (loads the operators)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([2, 0, 3], device=device))
    if offsets.tolist() != [0, 2, 2, 5]:
        raise RuntimeError(f"asynchronous_complete_cumsum([2, 0, 3]) gave {offsets.tolist()}, not [0, 2, 2, 5]")
    return device


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clrflow.training.operators", description="Check fbgemm: one wheel, one operator.")
    parser.add_argument("--wheels-only", action="store_true", help="run no operator: a build of a CUDA image has no driver")
    arguments = parser.parse_args()
    wheels = installed_wheels()
    if len(wheels) != 1:
        print(
            f"error: {len(wheels)} fbgemm wheels are installed ({', '.join(wheels) or 'none'}), but exactly one must be: they own the same folder. "
            "Reinstall with fbgemm-gpu-cpu (no GPU) or fbgemm-gpu (GPU), not both.",
            file=sys.stderr,
        )
        return 1
    if arguments.wheels_only:
        print(f"fbgemm: {wheels[0]}")
        return 0
    try:
        device = run_operator()
    except Exception as error:
        print(
            f"error: {wheels[0]} is installed but its operator fails: {type(error).__name__}: {error}. On a GPU node check the driver "
            "and the device plugin; without a GPU use the image with ACCEL=cpu.",
            file=sys.stderr,
        )
        return 1
    print(f"fbgemm: {wheels[0]}, an operator ran on {device}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
