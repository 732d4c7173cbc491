"""What a server holds in memory, looked up by id: what training/serving_export.py wrote (the user tower's weights and quantised rows, safe
tensors only) and the bundle's tables.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load

from clrflow import storage
from clrflow.contracts import CONDITION_TYPES, SERVING_FORMAT_VERSION
from clrflow.errors import ClrflowError
from clrflow.model.settings import ModelSettings
from clrflow.model.user_tower import UserTower

Ids = np.ndarray[Any, np.dtype[np.int64]]


class QuantisedRows:
    """Rows by sorted key: values [n, D] int8 or float32, a scale a row."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, scales: torch.Tensor):
        order = torch.argsort(keys, stable=True)
        self.keys = keys[order].numpy()
        self.values, self.scales = values[order], scales[order]

    def find(self, keys: Ids) -> tuple[torch.Tensor, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Rows [n, D] float32 of keys [n] and which were found; the others are zero."""
        if len(self.keys) == 0:
            return torch.zeros(len(keys), self.values.shape[1] if self.values.dim() == 2 else 0), np.zeros(len(keys), dtype=bool)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = self.keys[place] == keys
        at = torch.from_numpy(place)
        rows = self.values[at].float() * self.scales[at].unsqueeze(1)
        return rows * torch.from_numpy(found).unsqueeze(1), found


class KeyedTable:
    """An Arrow table whose rows are found by an int64 column, in the logarithm of its length; of equal keys the first row counts."""

    def __init__(self, table: pa.Table, key: str):
        if table[key].null_count:
            raise ClrflowError(f"column {key} holds {table[key].null_count} nulls, so ids would turn into floats; export the index again.")
        # Only the keys are made contiguous: the lists of all users in one array may pass Arrow's 2^31 offsets.
        self._table, keys = table, table[key].to_numpy()
        # Exported tables are sorted as a rule; then no second array of their length is kept.
        self._order = None if (keys[1:] >= keys[:-1]).all() else np.argsort(keys, kind="stable")
        self._keys = keys if self._order is None else keys[self._order]

    def __contains__(self, key: int) -> bool:
        return self._place(key) is not None

    def find(self, key: int) -> dict[str, Any] | None:
        """The row as a dict, or None."""
        place = self._place(key)
        return None if place is None else self._table.slice(place, 1).to_pylist()[0]

    def _place(self, key: int) -> int | None:
        at = int(np.searchsorted(self._keys, np.int64(key)))
        if at == len(self._keys) or self._keys[at] != key:
            return None
        return at if self._order is None else int(self._order[at])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingModel:
    """The query side of the model on a CPU."""

    settings: ModelSettings
    actions: list[str]
    tower: UserTower
    item_tokens: QuantisedRows
    interests: QuantisedRows
    boards: QuantisedRows
    interest_ids: Ids
    tokenizer_hash: str


def load_model(folder: str, tokenizer_hash: str | None = None) -> ServingModel:
    """Read the `model/` folder of a bundle; refuses another format and a tokenizer other than the index was made with."""
    note = storage.read_json(storage.join(folder, "model.json"))
    if note["format_version"] != SERVING_FORMAT_VERSION:
        raise ClrflowError(
            f"{folder}: serving format {note['format_version']}, this version reads {SERVING_FORMAT_VERSION}; train and export again."
        )
    if tokenizer_hash is not None and note["tokenizer_hash"] != tokenizer_hash:
        raise ClrflowError(
            f"{folder}: the model was trained with tokenizer {note['tokenizer_hash']}, the index was made with {tokenizer_hash}; "
            "export the index of the same train result."
        )
    settings = ModelSettings(**note["model"])
    tower = UserTower(settings, len(note["actions"]), len(CONDITION_TYPES))
    tower.load_state_dict(load(storage.read_bytes(storage.join(folder, "user_tower.safetensors"))))
    tower.eval()

    def rows(name: str, key: str) -> QuantisedRows:
        shards = [
            load(storage.read_bytes(storage.join(folder, f"{name}-{shard:05d}.safetensors"))) for shard in range(int(note["num_shards"]))
        ]
        return QuantisedRows(*(torch.cat([shard[part] for shard in shards]) for part in (key, "values", "scales")))

    return ServingModel(
        settings=settings,
        actions=note["actions"],
        tower=tower,
        item_tokens=rows("item_tokens", "item_ids"),
        interests=rows("interests", "rows"),
        boards=rows("boards", "rows"),
        interest_ids=load(storage.read_bytes(storage.join(folder, "interest_ids.safetensors")))["ids"].numpy(),
        tokenizer_hash=note["tokenizer_hash"],
    )
