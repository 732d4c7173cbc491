"""The heuristic candidate generators as rankers: the lists that bootstrapping kept for the held-out requests, merged by turns.

A request without candidates of a generator gets an empty list and so a recall of 0: that generator couldn't serve it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from clrflow.data.tables import open_dataset
from clrflow.evaluation.groups import Array
from clrflow.evaluation.heldout import Catalogue, HeldOut
from clrflow.evaluation.ranking import Ranking, rank_lists
from clrflow.evaluation.scorers import round_robin, without

ALL = "all"
"""Name of the merge of all generators."""
_REQUESTS_AT_A_TIME = 2048


def rank_generators(candidates_uri: str, held: HeldOut, catalogue: Catalogue, depth: int) -> dict[str, Ranking]:
    """One ranking a generator and one of them all; empty when there are no candidates.

    Memory: the candidates of 2,048 requests at a time, and the merged lists.
    """
    candidates = open_dataset(candidates_uri)
    names = sorted(str(name) for name in pc.unique(candidates.to_table(columns=["generator"])["generator"]).to_pylist())
    if not names:
        return {}
    merged = {name: np.full((len(held), depth), -1, np.int32) for name in [*names, ALL]}
    for start in range(0, len(held), _REQUESTS_AT_A_TIME):
        request_ids = held.request_ids[start : start + _REQUESTS_AT_A_TIME]
        table = candidates.to_table(
            columns=["request_id", "generator", "items"], filter=ds.field("request_id").isin(pa.array(request_ids))
        ).combine_chunks()
        lists = table["items"].combine_chunks() if len(table) else pa.array([], pa.list_(pa.int64()))
        counts = np.nan_to_num(lists.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
        row = np.repeat(np.searchsorted(request_ids, table["request_id"].to_numpy()), counts)
        order = np.repeat(np.arange(len(table)), counts)
        position = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        item = catalogue.places(lists.flatten().to_numpy(), "candidates.items")
        generator = np.repeat(np.asarray(table["generator"].to_pylist(), dtype=object), counts)
        chunk = np.arange(start, start + len(request_ids))
        unseen = without(row, item, held.masked.take(chunk), catalogue.num_items)
        for name in merged:
            chosen: Array = unseen if name == ALL else unseen & (generator == name)
            merged[name][chunk] = round_robin(
                row[chosen], order[chosen], position[chosen], item[chosen], len(chunk), catalogue.num_items, depth
            )
    if len(names) == 1:
        del merged[ALL]
    return {name: rank_lists(lists, held.relevant, catalogue.num_items) for name, lists in merged.items()}
