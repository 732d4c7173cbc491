"""From nearest codes to unique ones: collided items move to the free code that costs least reconstruction.

The ids form a tree in which a prefix of d codes has room for `num_codes ** (levels - d)` items. Level by level, from the root, each
prefix that would hold more than its room keeps the items that would lose most by moving, and the others go to the nearest sibling with
room. As only a full prefix pushes items out, the last level is used up before an earlier code changes; and as ids that exist are counted
first, they never change. The result depends on items and codebooks only: not on batches, not on the order of the rows.
Next: tokenizer.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from clrflow.errors import ConfigError
from clrflow.semantic_ids.quantiser import ResidualQuantiser

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
CELLS_AT_ONCE = 1 << 22
"""Numbers of a table of distances, or of differences, that exist at a time: 32 MB of float64."""
ITEMS_AT_ONCE = 16_384
"""Items whose nearest codes are found at a time."""


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
    points = latents if (np.diff(item_ids) >= 0).all() else latents[order]  # a catalogue of millions is in order and isn't copied
    codes = _nearest(points, quantiser, 0)
    nearest = codes.astype(np.int32)
    nodes, taken_nodes = np.zeros(len(points), dtype=np.int64), np.zeros(len(taken), dtype=np.int64)
    for level in range(num_levels):
        room = num_codes ** (num_levels - level - 1)
        children, taken_children = nodes * num_codes + codes[:, level], taken_nodes * num_codes + taken[:, level]
        if room < len(points) + len(taken):
            moved = _make_room(level, room, nodes, children, taken_children, points, codes, quantiser)
            codes[moved, level] = children[moved] % num_codes
            if len(moved) and level + 1 < num_levels:
                codes[moved, level + 1 :] = _nearest(_residuals(points, codes, moved, level + 1, quantiser), quantiser, level + 1)
        _, dense = np.unique(np.concatenate([children, taken_children]), return_inverse=True)
        nodes, taken_nodes = dense[: len(points)], dense[len(points) :]
    back = np.argsort(order, kind="stable")
    return Assigned(codes=codes[back].astype(np.int32), nearest=nearest[back])


def _residuals(points: Floats, codes: Ints, rows: Ints, level: int, quantiser: ResidualQuantiser) -> Floats:
    """What the codes before `level` leave of these rows' points."""
    rest = points[rows]
    for before in range(level):
        rest -= quantiser.centres[before].cpu().numpy()[codes[rows, before]]
    return rest


@torch.no_grad()
def _nearest(residuals: Floats, quantiser: ResidualQuantiser, first_level: int) -> Ints:
    codes = np.empty((len(residuals), quantiser.num_levels - first_level), dtype=np.int64)
    for start in range(0, len(residuals), ITEMS_AT_ONCE):
        part = torch.from_numpy(residuals[start : start + ITEMS_AT_ONCE]).to(quantiser.centres.device)
        codes[start : start + ITEMS_AT_ONCE] = quantiser.nearest_from(part, first_level).codes.cpu().numpy()
    return codes


def _make_room(
    level: int,
    room: int,
    nodes: Ints,
    children: Ints,
    taken_children: Ints,
    points: Floats,
    codes: Ints,
    quantiser: ResidualQuantiser,
) -> Ints:
    """Change `children` in place so that none holds more than `room`; returns the rows that moved, ascending."""
    num_codes = quantiser.num_codes
    keys, counts = np.unique(np.concatenate([children, taken_children]), return_counts=True)
    full = np.intersect1d(keys[counts > room], children)
    if len(full) == 0:
        return np.zeros(0, dtype=np.int64)
    crowded = np.unique(full // num_codes)
    rows = np.flatnonzero(np.isin(nodes, crowded))  # ascending, so in the order of item ids
    # Equal vectors are told by the vectors, as sums in another order may differ in their last bits.
    told = (points[rows].astype(np.float32) + np.float32(0)).view(np.int32)  # adding 0 makes -0 equal to 0
    keyed = np.concatenate([nodes[rows, None], told], axis=1)
    _, first, same = np.unique(keyed, axis=0, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    centres = quantiser.centres[level].cpu().numpy()
    moved = []
    # Vectors are sorted by prefix, so a run of them holds whole prefixes; of a prefix that is larger than a run all are looked at together.
    prefix_of = np.searchsorted(crowded, nodes[rows[first]])
    bounds = np.searchsorted(prefix_of, np.arange(len(crowded) + 1))
    for low, high in _runs(bounds, max(1, CELLS_AT_ONCE // num_codes)):
        vectors = slice(bounds[low], bounds[high])
        mine = (same >= bounds[low]) & (same < bounds[high])
        chosen = rows[mine]
        place = np.searchsorted(crowded, nodes[chosen]) - low
        taken_here = taken_children[np.isin(taken_children // num_codes, crowded[low:high])]
        taken_place = np.searchsorted(crowded, taken_here // num_codes) - low
        used = np.bincount(taken_place * num_codes + taken_here % num_codes, minlength=(high - low) * num_codes)
        costs = _distances(_residuals(points, codes, rows[first[vectors]], level, quantiser), centres)
        shared = _share_out(place, children[chosen] % num_codes, costs, same[mine] - bounds[low], room - used.reshape(-1, num_codes))
        changed = shared != children[chosen] % num_codes
        children[chosen] = nodes[chosen] * num_codes + shared
        moved.append(chosen[changed])
    return np.sort(np.concatenate(moved))


def _runs(bounds: Ints, size: int) -> Iterator[tuple[int, int]]:
    """Ranges [low, high) of prefixes that have at most `size` vectors together, or are one prefix."""
    low = 0
    while low < len(bounds) - 1:
        high = max(low + 1, int(np.searchsorted(bounds, bounds[low] + size, side="right")) - 1)
        yield low, high
        low = high


def _distances(residuals: Floats, centres: Floats) -> Floats:
    """Squared distances [vectors, codes], each summed alone: a product of matrices would round by the shape of the batch."""
    rows = max(1, CELLS_AT_ONCE // centres.size)
    parts = [np.square(residuals[at : at + rows, None, :] - centres).sum(2) for at in range(0, len(residuals), rows)]
    return np.concatenate(parts)


def _share_out(prefixes: Ints, wanted: Ints, costs: Floats, same: Ints, rooms: Ints) -> Ints:
    """Codes for the items of some prefixes so that no code below a prefix gets more than its room.

    prefixes [items]: the row of `rooms` that an item is in; wanted [items]: nearest code; costs [vectors, codes]: squared distances;
    same [items]: the item's row of `costs`, which no two prefixes share; rooms [prefixes, codes].
    """
    num_codes = rooms.shape[1]
    room_of, prefix_of = rooms.reshape(-1), np.zeros(len(costs), dtype=np.int64)
    prefix_of[same] = prefixes
    offset = prefixes * num_codes
    codes = wanted.copy()
    spare = rooms - np.bincount(offset + wanted, minlength=rooms.size).reshape(rooms.shape)
    # What an item would lose by moving decides who stays.
    alternative = np.where(spare[prefix_of] > 0, costs, np.inf).min(1)
    regret = np.where(np.isfinite(alternative), alternative, 0)[same] - costs[same, wanted]
    stays = _within_room(offset + wanted, regret, room_of)
    left = room_of - np.bincount((offset + wanted)[stays], minlength=rooms.size)
    waiting = np.flatnonzero(~stays)
    while len(waiting):
        vectors, rows = np.unique(same[waiting], return_inverse=True)
        open_now = np.maximum(left, 0).reshape(rooms.shape)[prefix_of[vectors]]
        options = np.where(open_now > 0, costs[vectors], np.inf)
        ranking = np.argsort(options, axis=1, kind="stable")
        # Equal vectors would all ask for one code: the n-th of them asks for what is left when n before it were served.
        place = np.cumsum(np.take_along_axis(open_now, ranking, axis=1), axis=1)
        turn = _turn_in_group(rows)
        position = (place[rows] > turn[:, None]).argmax(1)
        asked = ranking[rows, position]
        keys = offset[waiting] + asked
        served = _within_room(keys, -options[rows, asked], np.maximum(left, 0))
        codes[waiting[served]] = asked[served]
        left = left - np.bincount(keys[served], minlength=len(left))
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
