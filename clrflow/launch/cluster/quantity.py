"""Kubernetes quantities ("500m", "64Gi", "8") as exact numbers, to count what fits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

_SCALE = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3), "M": Fraction(10**6),
    "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
_WRITTEN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?")


def parse_quantity(text: str | int) -> Fraction:
    """ "1.5Gi" → 1610612736, in units of the resource (cores, bytes, devices). Raises ValueError for what Kubernetes would refuse."""
    match = _WRITTEN.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is no Kubernetes quantity; write e.g. 8, 500m, 64Gi")
    number, exponent, suffix = match.groups()
    return Fraction(number + (exponent or "")) * _SCALE[suffix or ""]


def parse_resources(resources: Mapping[str, str | int]) -> dict[str, Fraction]:
    return {name: parse_quantity(amount) for name, amount in resources.items()}


def show_quantity(name: str, amount: Fraction) -> str:
    """For messages: memory-like resources in Gi, others as they are."""
    if name.startswith(("memory", "hugepages-", "ephemeral-storage")) or name.endswith((".memory", ".ephemeral-storage")):
        return f"{float(amount / 2**30):.4g}Gi"
    return f"{float(amount):g}"
