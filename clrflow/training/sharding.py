"""TorchRec's side of the model: one collection of sharded tables, its optimizer, and the towers' data-parallel wrapper.

One EmbeddingCollection holds all tables, so a step spends five collectives on lookups however many tables there are. Tables are split
by rows over the processes and updated by row-wise Adagrad fused into their backward; towers are replicated and use AdamW.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from clrflow.errors import ClrflowError


class ShardedLookup(nn.Module):
    """{table: distinct rows [n]} → {table: vectors [n, dim]} through one EmbeddingCollection."""

    def __init__(self, num_rows: dict[str, int], dim: int, device: torch.device | None = None):
        super().__init__()
        self.tables = list(num_rows)
        configs = [
            EmbeddingConfig(
                name=name, feature_names=[name], num_embeddings=rows, embedding_dim=dim,
                init_fn=lambda weight: nn.init.normal_(weight, std=0.05),
            )
            for name, rows in num_rows.items()
        ]  # fmt: skip
        self.collection = EmbeddingCollection(tables=configs, device=device or torch.device("cpu"))

    def forward(self, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
        lengths = torch.tensor([len(wanted[name]) for name in self.tables], dtype=torch.int64)
        values = torch.cat([wanted[name] for name in self.tables])
        features = KeyedJaggedTensor(keys=self.tables, values=values, lengths=lengths.to(values.device))
        found = self.collection(features)
        return {name: found[name].values() for name in self.tables}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedModel:
    """A wrapped model with its one optimizer."""

    wrapped: DistributedModelParallel
    optimizer: CombinedOptimizer
    """Of tables and towers together."""
    dense: KeyedOptimizerWrapper
    """Of the towers alone."""
    device: torch.device
    """Where the towers and this process's shards are."""

    @property
    def module(self) -> Any:
        """The TwoTower below the wrappers."""
        return self.wrapped.module

    def set_dense_learning_rate(self, rate: float) -> None:
        """Change the towers' learning rate; the tables keep theirs."""
        for group in self.dense.param_groups:
            group["lr"] = rate


def shard(
    model: nn.Module, *, device: torch.device, table_learning_rate: float, dense_learning_rate: float, weight_decay: float
) -> ShardedModel:
    """Shard `model.lookup` over all processes by rows and replicate the rest. Needs an initialised process group."""
    lookup = model.lookup
    if not isinstance(lookup, ShardedLookup):
        raise ClrflowError(f"shard() needs a model whose lookup is a ShardedLookup, got {type(lookup).__name__}.")
    apply_optimizer_in_backward(RowWiseAdagrad, lookup.collection.parameters(), {"lr": table_learning_rate, "eps": 1e-8})
    world_size = dist.get_world_size()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))  # set by torchrun: processes of this node
    sharder = cast(ModuleSharder[nn.Module], EmbeddingCollectionSharder())
    plan = construct_module_sharding_plan(
        lookup.collection,
        per_param_sharding={name: row_wise() for name in lookup.tables},
        sharder=sharder,
        world_size=world_size,
        local_size=local_size,
        device_type=device.type,
    )
    env = ShardingEnv.from_process_group(dist.distributed_c10d._get_default_group())
    env.output_dtensor = True  # what asynchronous checkpoints and resharding need
    wrapped = DistributedModelParallel(
        module=model, env=env, device=device, plan=ShardingPlan(plan={"lookup.collection": plan}), sharders=[sharder]
    )
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(wrapped.named_parameters())),
        lambda parameters: torch.optim.AdamW(parameters, lr=dense_learning_rate, weight_decay=weight_decay),
    )
    optimizer = CombinedOptimizer([("tables", wrapped.fused_optimizer), ("dense", dense)])
    return ShardedModel(wrapped=wrapped, optimizer=optimizer, dense=dense, device=device)


def local_rows(value: Tensor) -> Tensor:
    """This process's part of a sharded tensor (weights or optimizer state); a plain tensor is returned as it is."""
    local = value.to_local() if hasattr(value, "to_local") else value
    if hasattr(local, "local_shards"):
        shards = local.local_shards()
        return torch.cat(shards) if shards else torch.empty(0)
    return local


def local_table_shards(model: ShardedModel) -> Iterator[tuple[str, Tensor]]:
    """(table, this process's rows [n, dim]) of every table."""
    for name, value in model.module.lookup.collection.state_dict().items():
        yield name.removeprefix("embeddings.").removesuffix(".weight"), local_rows(value)
