"""Vectors of all items and of held-out queries, computed in lock-step: every lookup is a collective, so all processes make equally many."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from clrflow.training.batches import Collator
from clrflow.training.catalogue import Catalogue
from clrflow.training.ragged import Index, Ragged
from clrflow.training.sharding import ShardedModel

ITEMS_A_CHUNK = 8192
REQUESTS_A_CHUNK = 256
Vectors = npt.NDArray[np.float32]


def share(total: int) -> tuple[int, int]:
    """This process's contiguous part of `total` things, [first, last)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return total * rank // world, total * (rank + 1) // world


def _chunks(total: int, size: int) -> Iterator[Index]:
    """This process's part in chunks, as many on every process; a chunk beyond its part is empty."""
    world = dist.get_world_size()
    first, last = share(total)
    most = max(total * (rank + 1) // world - total * rank // world for rank in range(world))
    for start in range(first, first + most, size):
        yield np.arange(min(start, last), min(start + size, last))


def item_tokens_and_vectors(model: ShardedModel, catalogue: Catalogue) -> tuple[Vectors, Vectors]:
    """Tokens [n, D] and unit vectors [n, D] of this process's share of the catalogue, in its order."""
    tokens, vectors = [], []
    for places in _chunks(len(catalogue), ITEMS_A_CHUNK):
        items, interest_rows = catalogue.item_rows(places if len(places) else np.zeros(1, dtype=np.int64))
        found = model.module.encode_items(items.to(model.device), torch.from_numpy(interest_rows).to(model.device))
        tokens.append(found[0][: len(places)].cpu().numpy())
        vectors.append(found[1][: len(places)].cpu().numpy())
    return np.concatenate(tokens), np.concatenate(vectors)


def query_vectors(
    model: ShardedModel, collator: Collator, rows: Index, conditions: Callable[[Index], Ragged]
) -> Iterator[tuple[Index, Index, Index, Vectors]]:
    """(requests, request of each vector, its condition, vectors [n, D]) chunk by chunk for this process's share of `rows`.

    conditions(rows) says which conditions of each request are wanted; the unconditional query (-1) always comes too.
    """
    for places in _chunks(len(rows), REQUESTS_A_CHUNK):
        chunk = rows[places] if len(places) else rows[:1]
        wanted = conditions(chunk)
        batch = collator.queries(chunk, wanted)
        vectors = model.module.encode_queries(batch.to(model.device)).cpu().numpy()
        if not len(places):
            continue
        request, slot = np.nonzero(batch.query_present.numpy())
        condition = np.where(slot > 0, wanted.values[np.minimum(wanted.offsets[:-1][request] + slot - 1, max(len(wanted.values) - 1, 0))], -1) \
            if len(wanted.values) else np.full(len(slot), -1)  # fmt: skip
        yield chunk, chunk[request], condition, vectors[request, slot]


def gathered(local: Vectors, total: int) -> Vectors:
    """All processes' parts of `share(total)`, in order, on every process."""
    world = dist.get_world_size()
    if world == 1:
        return local
    sizes = [total * (rank + 1) // world - total * rank // world for rank in range(world)]
    padded = torch.zeros(max(sizes), *local.shape[1:])
    padded[: len(local)] = torch.from_numpy(local)
    parts = [torch.zeros_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return np.concatenate([part[:size].numpy() for part, size in zip(parts, sizes, strict=True)])
