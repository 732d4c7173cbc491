"""From nearest codes to unique ones: collided items move to the free code that costs least reconstruction.

The ids form a tree in which a prefix of d codes has room for `num_codes ** (levels - d)` items. Level by level, from the root, each
prefix that would hold more than its room keeps the items that would lose most by moving, and the others go to the nearest sibling with
room. As only a full prefix pushes items out, the last level is used up before an earlier code changes; and as ids that exist are counted
first, they never change. The result depends on items and codebooks only: not on batches, not on the order of the rows.
Next: tokenizer.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray

from clrflow.errors import ConfigError
from clrflow.semantic_ids.quantiser import ResidualQuantiser

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assigned:
    """Codes int32 [items, levels] in the order of the rows that were given."""

    codes: NDArray[np.int32]
    """Unique, also against the ids that existed."""
    nearest: NDArray[np.int32]
    """What the quantiser alone says."""

    @property
    def moved(self) -> tuple[int, ...]:
        """Items whose code first differs from the nearest one at level 1, 2, ..."""
        differs = self.codes != self.nearest
        first = np.where(differs.any(1), differs.argmax(1), -1)
        return tuple(int((first == level).sum()) for level in range(self.codes.shape[1]))


def check_capacity(num_items: int, num_levels: int, num_codes: int) -> None:
    """ConfigError when there are fewer ids than items."""
    capacity = num_codes**num_levels
    if num_items > capacity:
        raise ConfigError(
            f"semantic_ids.num_levels={num_levels} with semantic_ids.num_codes={num_codes} give {capacity:,} ids for {num_items:,} items; "
            "each item needs its own: raise one of the two."
        )


def unique_codes(
    latents: NDArray[np.float64], item_ids: Ints, quantiser: ResidualQuantiser, taken: NDArray[np.int32] | None = None
) -> Assigned:
    """Unique codes for latents float64 [items, dim]; `quantiser` in float64; `taken` int32 [existing, levels] are the ids in use.

    Of items that compete on equal terms the one with the lower item id keeps the code.
    """
    num_levels, num_codes = quantiser.num_levels, quantiser.num_codes
    taken = np.zeros((0, num_levels), dtype=np.int32) if taken is None else taken
    check_capacity(len(latents) + len(taken), num_levels, num_codes)
    order = np.argsort(item_ids, kind="stable")
    points, codes = latents[order], _nearest(latents[order], quantiser, 0)
    nearest = codes.copy()
    nodes, taken_nodes = np.zeros(len(points), dtype=np.int64), np.zeros(len(taken), dtype=np.int64)
    residuals = points.copy()
    for level in range(num_levels):
        room = num_codes ** (num_levels - level - 1)
        children, taken_children = nodes * num_codes + codes[:, level], taken_nodes * num_codes + taken[:, level]
        if room < len(points) + len(taken):
            moved = _make_room(level, room, nodes, children, taken_children, points, residuals, quantiser)
            if len(moved):
                codes[moved, level] = children[moved] % num_codes
        chosen = quantiser.centres[level].cpu().numpy()[codes[:, level]]
        residuals -= chosen
        if room < len(points) + len(taken) and len(moved) and level + 1 < num_levels:
            codes[moved, level + 1 :] = _nearest(residuals[moved], quantiser, level + 1)
        _, dense = np.unique(np.concatenate([children, taken_children]), return_inverse=True)
        nodes, taken_nodes = dense[: len(points)], dense[len(points) :]
    back = np.argsort(order, kind="stable")
    return Assigned(codes=codes[back].astype(np.int32), nearest=nearest[back].astype(np.int32))


@torch.no_grad()
def _nearest(residuals: Floats, quantiser: ResidualQuantiser, first_level: int) -> Ints:
    found = quantiser.nearest_from(torch.from_numpy(residuals).to(quantiser.centres.device), first_level)
    return np.asarray(found.codes.cpu().numpy())


def _make_room(
    level: int,
    room: int,
    nodes: Ints,
    children: Ints,
    taken_children: Ints,
    points: Floats,
    residuals: Floats,
    quantiser: ResidualQuantiser,
) -> Ints:
    """Change `children` in place so that none holds more than `room`; returns the rows that moved, ascending."""
    num_codes = quantiser.num_codes
    keys, counts = np.unique(np.concatenate([children, taken_children]), return_counts=True)
    wanted = np.unique(children)
    full = np.intersect1d(keys[counts > room], wanted, assume_unique=True)
    if len(full) == 0:
        return np.zeros(0, dtype=np.int64)
    centres = quantiser.centres[level].cpu().numpy()
    by_node, taken_sorted = np.argsort(nodes, kind="stable"), np.sort(taken_children)
    sorted_nodes = nodes[by_node]
    moved = []
    for node in np.unique(full // num_codes):
        rows = by_node[slice(*np.searchsorted(sorted_nodes, [node, node + 1]))]  # ascending, so in the order of item ids
        taken_here = taken_sorted[slice(*np.searchsorted(taken_sorted, [node * num_codes, (node + 1) * num_codes]))] - node * num_codes
        rooms = room - np.bincount(taken_here, minlength=num_codes)
        # Equal vectors are told by the vectors, as sums in another order may differ in their last bits.
        _, first, same = np.unique(points[rows].astype(np.float32), axis=0, return_index=True, return_inverse=True)
        costs = (
            np.square(residuals[rows[first]][:, None, :] - centres).sum(2)
            if len(first) * centres.size <= 1 << 24
            else np.stack([np.square(residual - centres).sum(1) for residual in residuals[rows[first]]])
        )
        codes = _share_out(children[rows] % num_codes, costs, same.reshape(-1), rooms)
        changed = codes != children[rows] % num_codes
        children[rows] = node * num_codes + codes
        moved.append(rows[changed])
    return np.sort(np.concatenate(moved))


def _share_out(wanted: Ints, costs: Floats, same: Ints, rooms: Ints) -> Ints:
    """Codes for the items of one prefix so that no code gets more than its room.

    wanted [items]: nearest code; costs [vectors, codes]: squared distances; same [items]: the item's row of `costs`; rooms [codes].
    """
    codes = wanted.copy()
    spare = rooms - np.bincount(wanted, minlength=len(rooms))
    # What an item would lose by moving decides who stays.
    alternative = np.where(spare > 0, costs, np.inf).min(1)
    regret = np.where(np.isfinite(alternative), alternative, 0)[same] - costs[same, wanted]
    stays = _within_room(wanted, regret, rooms)
    left = rooms - np.bincount(wanted[stays], minlength=len(rooms))
    waiting = np.flatnonzero(~stays)
    while len(waiting):
        vectors, rows = np.unique(same[waiting], return_inverse=True)
        options = np.where(left > 0, costs[vectors], np.inf)
        ranking = np.argsort(options, axis=1, kind="stable")
        # Equal vectors would all ask for one code: the n-th of them asks for what is left when n before it were served.
        place = np.cumsum(np.maximum(left, 0)[ranking], axis=1)
        turn = _turn_in_group(rows)
        position = (place[rows] > turn[:, None]).argmax(1)
        asked = ranking[rows, position]
        served = _within_room(asked, -options[rows, asked], np.maximum(left, 0))
        codes[waiting[served]] = asked[served]
        left = left - np.bincount(asked[served], minlength=len(left))
        waiting = waiting[~served]
    return codes


def _within_room(codes: Ints, priority: Floats, rooms: Ints) -> NDArray[np.bool_]:
    """Which items get the code that they ask for: highest priority first, then the earlier row."""
    order = np.lexsort((np.arange(len(codes)), -priority, codes))
    granted = np.zeros(len(codes), dtype=bool)
    granted[order] = _turn_in_sorted(codes[order]) < rooms[codes[order]]
    return granted


def _turn_in_sorted(groups: Ints) -> Ints:
    """0, 1, 2, ... within each run of equal values."""
    starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))


def _turn_in_group(groups: Ints) -> Ints:
    """How many earlier rows have the same value."""
    order = np.argsort(groups, kind="stable")
    turn = np.empty(len(groups), dtype=np.int64)
    turn[order] = _turn_in_sorted(groups[order])
    return turn
