"""Tokenizers of other packages, used as their documentation says, each behind `fit(...) -> Fitted`.

They get all cores. What is set otherwise than by a package itself is said where it is set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """A tokenizer that was trained."""

    encode: Callable[[Floats], Ints]
    """Unit vectors [items, dim] → codes [items, levels]."""
    decode: Callable[[Ints], Floats]
    """Codes → what they stand for, [items, dim]."""


def sum_of(codebooks: list[Floats], codes: Ints) -> Floats:
    """What residual codes stand for where nothing but codebooks [codes, dim] is involved."""
    total = codebooks[0][codes[:, 0]].copy()
    for level, codebook in enumerate(codebooks[1:], 1):
        total += codebook[codes[:, level]]
    return total
