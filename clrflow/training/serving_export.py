"""What a server needs of the model: the user tower, quantised rows of item tokens, interests and boards, and how to read them.

Written shard by shard: each process writes its own rows, so no process ever holds a whole table. Rows are int8 with one scale a row;
their relative error is measured here and reported. Safe tensors and JSON only, no pickle.

    model.json                          sizes, vocabulary of actions, hashes
    user_tower.safetensors              the towers' weights
    item_tokens-00000.safetensors …     item_ids [n], values [n, D], scales [n]
    interests-00000.safetensors …       rows [n], values, scales
    boards-00000.safetensors …          rows [n], values, scales
    interest_ids.safetensors            ids [I], ascending: row 1 + place
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save

from clrflow import storage
from clrflow.contracts import SERVING_FORMAT_VERSION
from clrflow.model.settings import ModelSettings
from clrflow.model.tables import BOARD, INTEREST
from clrflow.training.catalogue import Catalogue
from clrflow.training.sharding import ShardedModel, local_table_shards
from clrflow.training.vectors import Vectors, share


@dataclasses.dataclass(frozen=True)
class Quantised:
    """Rows [n, D] as int8 (or float32) with a scale a row."""

    values: torch.Tensor
    scales: torch.Tensor


def quantise(rows: torch.Tensor, bits: int) -> Quantised:
    """Symmetric, one scale a row: value = int8 * scale; a zero row stays zero. bits=32 keeps float32."""
    if bits == 32:
        return Quantised(rows.float().contiguous(), torch.ones(len(rows)))
    scales = rows.abs().amax(dim=1).clamp(min=1e-12) / 127 if len(rows) else torch.ones(0)
    return Quantised((rows / scales.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scales)


def write_serving(
    folder: str,
    model: ShardedModel,
    catalogue: Catalogue,
    tokens: Vectors,
    settings: ModelSettings,
    actions: list[str],
    bits: int,
    facts: dict[str, Any],
) -> float:
    """Write this process's shards (and, on process 0, the rest) → relative error of the quantised item tokens over all processes."""
    rank = dist.get_rank()
    first, last = share(len(catalogue))
    rows = torch.from_numpy(tokens)
    quantised = quantise(rows, bits)
    _save(folder, f"item_tokens-{rank:05d}", item_ids=torch.from_numpy(catalogue.item_ids[first:last].copy()), **vars(quantised))
    error = torch.tensor([(quantised.values * quantised.scales.unsqueeze(1) - rows).double().pow(2).sum(), rows.double().pow(2).sum()])
    dist.all_reduce(error)

    for table, local in local_table_shards(model):
        name = {INTEREST: "interests", BOARD: "boards"}.get(table)
        if name is None:
            continue
        local = local.detach().cpu()
        before = _rows_before(len(local))
        _save(folder, f"{name}-{rank:05d}", rows=torch.arange(before, before + len(local)), **vars(quantise(local, bits)))

    if rank == 0:
        tower = {name: value.detach().cpu().contiguous() for name, value in model.module.user_tower.state_dict().items()}
        _save(folder, "user_tower", **tower)
        _save(folder, "interest_ids", ids=torch.from_numpy(catalogue.interest_ids.copy()))
        note = {
            "format_version": SERVING_FORMAT_VERSION, "model": settings.model_dump(mode="json"), "actions": actions, "bits": bits,
            "num_shards": dist.get_world_size(), "tokenizer_hash": catalogue.tokenizer_hash, "num_items": len(catalogue), **facts,
        }  # fmt: skip
        storage.write_json(storage.join(folder, "model.json"), note)
    return float(np.sqrt(error[0] / error[1].clamp(min=1e-12)))


def _rows_before(local: int) -> int:
    """Rows that processes before this one hold (tables are split by rows, in the order of processes)."""
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    counts[dist.get_rank()] = local
    dist.all_reduce(counts)
    return int(counts[: dist.get_rank()].sum())


def _save(folder: str, name: str, **tensors: torch.Tensor) -> None:
    storage.write_bytes(storage.join(folder, f"{name}.safetensors"), save(tensors))
