"""Reads what training/serving_export.py wrote: the user tower's weights and quantised rows, looked up by id; safe tensors only."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
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
