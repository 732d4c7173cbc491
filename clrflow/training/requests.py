"""The request-level table as flat arrays, ready to be cut into batches: everything that can be looked up once is looked up here."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clrflow.contracts import BOARD, CONDITION_TYPES, INTEREST, ORACLE, SPLITS
from clrflow.data.settings import DataSettings
from clrflow.data.tables import read_table
from clrflow.model.settings import ModelSettings
from clrflow.model.tables import hashed_rows, vocabulary_rows
from clrflow.training.catalogue import Catalogue
from clrflow.training.ragged import Index, Ragged, flattened

MAX_CONDITION_ITEMS = 10
"""Newest items of a board that its token shows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestTable:
    """R requests. Items are places in the catalogue, actions places in the config's list, times seconds."""

    request_ids: Index
    users: Index
    splits: npt.NDArray[np.int8]
    """[R]: place in SPLITS."""
    history: Ragged
    actions: Ragged
    times_s: Ragged
    conditions: Ragged
    """Values are 0 … number of conditions; the arrays below are indexed by them."""
    condition_types: Index
    condition_interests: Index
    """Row of the interest table; 0 unless an interest condition."""
    condition_boards: Index
    """Row of the board table; 0 unless a board condition."""
    condition_items: Ragged
    targets: Ragged
    """Values are 0 … number of target rows; the arrays below are indexed by them."""
    target_items: Index
    target_conditions: Index
    """Place of the condition within its request, -1 for the unconditional query."""
    target_weights: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.request_ids)

    def of_split(self, split: str) -> Index:
        """Rows of a split, in the table's order."""
        return np.flatnonzero(self.splits == SPLITS.index(split))


def load_requests(uri: str, catalogue: Catalogue, data: DataSettings, model: ModelSettings) -> RequestTable:
    """Read the whole table; targets whose condition is an oracle are left out, as nothing may be learnt from them."""
    table = read_table(uri)
    actions = pa.array([action.name for action in data.actions])
    history = Ragged.of(table["history_items"]).last(model.max_history)

    def seconds(flat: pa.Array) -> Index:
        return flat.cast(pa.int64()).to_numpy() // 1_000_000

    def action_places(flat: pa.Array) -> Index:
        return pc.index_in(flat, actions).fill_null(0).to_numpy().astype(np.int64)

    flat_conditions, condition_offsets = flattened(table["conditions"])
    types = pc.index_in(flat_conditions.field("type"), pa.array(CONDITION_TYPES)).to_numpy().astype(np.int64)
    ids = flat_conditions.field("id").to_numpy()
    items = Ragged.of(flat_conditions.field("items")).last(MAX_CONDITION_ITEMS)

    flat_targets, target_offsets = flattened(table["targets"])
    learnable = pc.not_equal(flat_targets.field("source"), ORACLE).to_numpy(zero_copy_only=False)
    request_of = np.repeat(np.arange(len(table)), np.diff(target_offsets))[learnable]
    target_offsets = np.concatenate([[0], np.cumsum(np.bincount(request_of, minlength=len(table)))])
    return RequestTable(
        request_ids=table["request_id"].to_numpy(),
        users=table["user_id"].to_numpy(),
        splits=pc.index_in(table["split"].combine_chunks(), pa.array(SPLITS)).to_numpy().astype(np.int8),
        history=Ragged(catalogue.index_of(history.values, f"{uri}: history_items"), history.offsets),
        actions=Ragged.of(table["history_actions"], action_places).last(model.max_history),
        times_s=Ragged.of(table["history_times"], seconds).last(model.max_history),
        conditions=Ragged(np.arange(len(flat_conditions)), condition_offsets),
        condition_types=types,
        condition_interests=np.where(types == CONDITION_TYPES.index(INTEREST), vocabulary_rows(ids, catalogue.interest_ids), 0),
        condition_boards=np.where(types == CONDITION_TYPES.index(BOARD), hashed_rows(ids, model.board_rows), 0),
        condition_items=Ragged(catalogue.index_of(items.values, f"{uri}: condition items"), items.offsets),
        targets=Ragged(np.arange(len(request_of)), target_offsets),
        target_items=catalogue.index_of(flat_targets.field("item_id").to_numpy()[learnable], f"{uri}: targets"),
        target_conditions=flat_targets.field("condition").to_numpy()[learnable].astype(np.int64),
        target_weights=flat_targets.field("weight").to_numpy()[learnable].astype(np.float32),
    )
