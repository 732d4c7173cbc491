"""Makes one list of several conditions' lists, each condition with an equal share."""

from __future__ import annotations

from collections.abc import Sequence


def merge(lists: Sequence[Sequence[tuple[int, float]]], k: int) -> list[tuple[int, float]]:
    """The first k of all lists, each list in turn giving its best (item_id, score) that no list gave before.

    Scores of different conditions aren't on one scale, so ranks are merged and not scores: the result isn't sorted by score. A list that
    ends early leaves its turns to the others.
    """
    taken: dict[int, float] = {}
    rest = [iter(ranked) for ranked in lists]
    while rest and len(taken) < k:
        still = []
        for ranked in rest:
            found = next((row for row in ranked if row[0] not in taken), None)
            if found is not None and len(taken) < k:
                taken[found[0]] = found[1]
                still.append(ranked)
        rest = still
    return list(taken.items())
