"""What came before a request, to the event."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from clrflow.bootstrap.duckdb_engine import DuckdbEngine
from clrflow.bootstrap.histories import recent_items, slices


def test_slices_spell_out_ranges() -> None:
    # [2, 5), an empty one, [0, 2)
    offsets, places = slices(np.array([2, 4, 0]), np.array([5, 4, 2]))
    assert offsets.tolist() == [0, 3, 3, 5]
    assert places.tolist() == [2, 3, 4, 0, 1]


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4, 7, 10])
def test_recent_items_are_the_newest_before_the_query(before: int) -> None:
    # Items are named by their place in the user's sequence, so the newest 3 before place n are n-1, n-2, n-3.
    events = pa.table({"user_id": [5] * 10, "item_id": list(range(10)), "seq": list(range(10)), "day": [0] * 10})
    query = pa.table({"query_id": [0], "user_id": [5], "period": [1], "day": [1], "first_seq": [before]})
    with DuckdbEngine(memory_limit="200MB") as engine:
        found = engine.arrow(recent_items(engine.load("q", query), engine.load("e", events), 3).order_by("age")).to_pylist()
    assert [row["item_id"] for row in found] == list(range(before - 1, max(before - 4, -1), -1))
    assert [row["age"] for row in found] == list(range(1, len(found) + 1))
