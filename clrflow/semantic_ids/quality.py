"""The figures by which semantic ids are judged: pure functions of codes, embeddings and interests.

Next: report.py shows them, step.py gates them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
ROWS_AT_ONCE = 65_536
"""Rows that are looked at together, so that a large catalogue isn't copied."""
PAIRS = 20_000
"""Pairs of items drawn for each neighbour agreement: its standard error is then below 0.004."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """How one level's codes are used by the nearest codes of all items."""

    used: int
    """Codes that some item has."""
    usable: int
    """Codes that could have an item: as many as there are different residuals to tell apart, at most all."""
    perplexity: float
    """exp(entropy) of the codes: between 1 and `used`."""
    prefix_collision: float
    """(items - different prefixes up to here) / items."""

    @property
    def usage(self) -> float:
        return self.used / self.usable

    @property
    def evenness(self) -> float:
        """Perplexity over codes used: 1 when all used codes have equally many items."""
        return self.perplexity / self.used


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """Do items with a common prefix share interests?

    Mean Jaccard index of the interests of two different items, over pairs drawn so: an item at random among those that have interests
    and whose prefix another such item shares, then one of those others at random.
    """

    by_prefix: tuple[float | None, ...]
    """For prefixes of 1, 2, ... codes; None where no two items share one."""
    random: float | None
    """The same for pairs drawn from all items that have interests."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """What became of the ids that a previous tokenizer had given out."""

    previous: str
    """Its hash."""
    num_known: int
    """Items of the catalogue that had an id."""
    num_new: int
    """Items of the catalogue that had none."""
    num_gone: int
    """Items with an id that the catalogue no longer has; their ids are given to nobody else while the tokenizer lives."""
    kept: tuple[float, ...]
    """Share of known items whose first 1, 2, ... codes are what they were; 1 where none is known, as none lost its id."""
    still_nearest: float
    """Share of known items whose old first code is still the nearest one to their present embedding: what falls as embeddings drift."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quality:
    """A tokenizer's figures on a catalogue: of the codes nearest to the items' embeddings, and of the ids that the items have."""

    num_items: int
    num_zero: int
    """Items whose embedding is all zero; left out of cosines."""
    levels: tuple[Level, ...]
    collision: float
    """(items - different nearest tuples) / items, before ids are made unique."""
    collision_floor: float
    """The same of the embeddings themselves: what no tokenizer could tell apart."""
    collision_after: float
    """The same of the final ids; always 0."""
    moved: tuple[int, ...]
    """Of the items that got their id now, those whose id first differs from the nearest codes at level 1, 2, ..."""
    reconstruction_cosine: float
    """Mean cosine of an embedding and what its nearest codes decode to."""
    reconstruction_cosine_unique: float
    """The same for the ids: what uniqueness costs and, where ids are kept, what their embeddings have drifted."""
    agreement: Agreement


def change_of(before: NDArray[np.int32], after: NDArray[np.int32], nearest: NDArray[np.int32], **counts: Any) -> Change:
    """Of the codes of known items, int32 [items, levels] each: before, after, and the previous tokenizer's nearest ones now."""
    same = np.cumprod(before == after, axis=1)
    return Change(
        kept=tuple(same.mean(0).tolist()) if len(same) else (1.0,) * after.shape[1],
        still_nearest=float((before[:, 0] == nearest[:, 0]).mean()) if len(same) else 1.0,
        num_known=len(same),
        **counts,
    )


def code_shares(codes: Tensor, num_codes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Share of codes used, and perplexity over codes used, by level, of codes int64 [items, levels]."""
    usage, evenness = [], []
    for level in codes.T:
        counts = torch.bincount(level, minlength=num_codes).double()
        used = int((counts > 0).sum())
        usage.append(used / num_codes)
        evenness.append(perplexity(counts.cpu().numpy()) / used)
    return tuple(usage), tuple(evenness)


def perplexity(counts: NDArray[np.float64] | Ints) -> float:
    """exp(entropy) of a distribution given by counts."""
    shares = counts[counts > 0] / counts.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def num_distinct(rows: NDArray[np.generic]) -> int:
    """Different rows of a matrix."""
    distinct: pa.Array | None = None
    width = rows.itemsize * rows.shape[1]
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = np.ascontiguousarray(rows[start : start + ROWS_AT_ONCE]) + rows.dtype.type(0)  # adding 0 makes -0 equal to 0
        hashed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(part), [None, pa.py_buffer(part)])
        distinct = hashed.unique() if distinct is None else pa.concat_arrays([distinct, hashed]).unique()
    return 0 if distinct is None else len(distinct)


def collision(rows: NDArray[np.generic]) -> float:
    """(rows - different rows) / rows."""
    return 1 - num_distinct(rows) / len(rows)


def levels_of(codes: NDArray[np.int32], usable: tuple[int, ...], num_codes: int) -> tuple[Level, ...]:
    """Figures of each level of the codes int32 [items, levels]."""
    levels = []
    for level in range(codes.shape[1]):
        counts = np.bincount(codes[:, level], minlength=num_codes)
        levels.append(
            Level(
                used=int((counts > 0).sum()),
                usable=usable[level],
                perplexity=perplexity(counts),
                prefix_collision=collision(codes[:, : level + 1]),
            )
        )
    return tuple(levels)


def mean_cosine(embeddings: NDArray[np.float32], reconstructions: NDArray[np.float32]) -> float:
    """Mean over rows that aren't zero; 1 where there are none, as nothing was lost."""
    real = embeddings.any(1)
    if not real.any():
        return 1.0
    total, rows = 0.0, np.flatnonzero(real)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        left, right = embeddings[part].astype(np.float64), reconstructions[part].astype(np.float64)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        total += float(((left * right).sum(1) / np.maximum(lengths, 1e-12)).sum())
    return total / len(rows)


def neighbour_agreement(codes: NDArray[np.int32], lengths: Ints, interests: Ints, seed: int, depth: int = 3) -> Agreement:
    """See Agreement; item i has the interests `interests[sum(lengths[:i]) : ... + lengths[i]]`."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    having = np.flatnonzero(lengths > 0)
    rng = np.random.default_rng(seed)

    def jaccard_of_pairs(groups: Ints) -> float | None:
        pairs = _pairs_within(having, groups, rng)
        return None if pairs is None else float(_jaccard(*pairs, starts, lengths, interests).mean())

    by_prefix = []
    for level in range(1, min(depth, codes.shape[1]) + 1):
        _, groups = np.unique(codes[having, :level], axis=0, return_inverse=True)
        by_prefix.append(jaccard_of_pairs(groups.reshape(-1).astype(np.int64)))
    return Agreement(by_prefix=tuple(by_prefix), random=jaccard_of_pairs(np.zeros(len(having), dtype=np.int64)))


def _pairs_within(items: Ints, groups: Ints, rng: np.random.Generator) -> tuple[Ints, Ints] | None:
    """PAIRS pairs of different items of one group; None where every group has one item."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups, minlength=1)
    shared = np.flatnonzero(sizes[groups[order]] > 1)  # positions in `order`
    if len(shared) == 0:
        return None
    starts = np.cumsum(sizes) - sizes
    first = shared[rng.integers(len(shared), size=PAIRS)]
    group = groups[order[first]]
    # One of the other places of the group: draw among size - 1 and step over the first item's own place.
    second = starts[group] + rng.integers(sizes[group] - 1)
    second += second >= first
    return items[order[first]], items[order[second]]


def _jaccard(left: Ints, right: Ints, starts: Ints, lengths: Ints, interests: Ints) -> NDArray[np.float64]:
    """Jaccard index of the interests of each pair of items."""

    def of(items: Ints) -> tuple[Ints, Ints]:
        """(pair, interest) of all interests of each pair's item, each once."""
        pair = np.repeat(np.arange(len(items)), lengths[items])
        offset = np.arange(len(pair)) - np.repeat(np.cumsum(lengths[items]) - lengths[items], lengths[items])
        keys = np.unique(np.stack([pair, dense[starts[items][pair] + offset]], 1), axis=0)
        return keys[:, 0], keys[:, 1]

    _, dense = np.unique(interests, return_inverse=True)
    num = int(dense.max()) + 1
    (left_pair, left_interest), (right_pair, right_interest) = of(left), of(right)
    common = np.intersect1d(left_pair * num + left_interest, right_pair * num + right_interest, assume_unique=True) // num
    both = np.bincount(common, minlength=len(left))
    total = np.bincount(left_pair, minlength=len(left)) + np.bincount(right_pair, minlength=len(left))
    return np.asarray(both / (total - both))
