"""The training job as one process sees it: build, train each schedule, keep what validation picks, write vectors and serving tables.

Started by torchrun (see launch/) through `python -m clrflow.training`; all processes run this file.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist

from clrflow import storage
from clrflow.contracts import TEST, TRAIN, VALIDATION, item_vectors_schema, query_vectors_schema
from clrflow.errors import DataError
from clrflow.launch.lease import LeaseWatch
from clrflow.launch.torchrun import ABANDONED
from clrflow.manifest import Manifest
from clrflow.model.two_tower import LossWeights, TwoTower
from clrflow.progress import say
from clrflow.steps import Run
from clrflow.training.batches import Collator, EpochPlan
from clrflow.training.catalogue import Catalogue, load_catalogue
from clrflow.training.checkpoints import Checkpoints
from clrflow.training.device import training_device
from clrflow.training.loop import BEST, FIRST, Loop, StopReason, StopSignal
from clrflow.training.ragged import Index, Ragged
from clrflow.training.requests import RequestTable, load_requests
from clrflow.training.schedules import RANDOM, Schedule, planned
from clrflow.training.serving_export import write_serving
from clrflow.training.sharding import ShardedLookup, ShardedModel, shard
from clrflow.training.vectors import item_tokens_and_vectors, query_vectors, share


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What a job is told: everything by URI, so that it can run anywhere."""

    run: str
    inputs: dict[str, str]
    """Results of validate_data, bootstrap and semantic_ids by step name."""
    folder: str
    """The train step's folder."""
    tables_from: str = ""
    """Checkpoint folder that frozen tables come from, resolved by the step."""


def train_job(spec: JobSpec, *, lease: str = "") -> None:
    """Train and write everything below `spec.folder`; collective over all processes of the default group.

    `lease`: URI that a launcher renews while it follows the job; when it stops, the job saves and raises Preempted. "" watches none.
    """
    run = Run.load(spec.run)
    config, settings = run.config, run.config.training
    manifests = {name: Manifest.load(uri) for name, uri in spec.inputs.items()}
    catalogue = load_catalogue(manifests["validate_data"], manifests["bootstrap"], manifests["semantic_ids"], config.model)
    requests = load_requests(manifests["bootstrap"].output("requests"), catalogue, config.data, config.model)
    rows = requests.of_split(TRAIN)
    if len(rows) < dist.get_world_size():
        raise DataError(
            f"bootstrap left {len(rows)} training requests for {dist.get_world_size()} processes; widen data.window_days, shorten the held-out "
            "days of bootstrap.split, or lower training.num_processes."
        )
    collator = Collator(requests, catalogue, settings.num_negatives, settings.condition_softness)
    plan = EpochPlan(rows=rows, batch_size=settings.batch_size, world_size=dist.get_world_size(), seed=settings.seed)
    if plan.num_dropped > settings.max_dropped_share * len(rows):
        raise DataError(
            f"training.max_dropped_share={settings.max_dropped_share}: {plan.num_dropped} of {len(rows)} requests would be left out of each epoch, as "
            f"they don't fill a step of {plan.local_batch} requests on each of {plan.world_size} processes; lower training.batch_size."
        )
    stop = StopSignal()
    if dist.get_rank() == 0 and lease:
        LeaseWatch(lease, lambda: stop.receive(StopReason.ABANDONED), on_overdue=lambda: os._exit(ABANDONED)).start()
    if dist.get_rank() == 0:
        sizes = catalogue.sizes.rows(config.model)
        say(
            f"train: {len(rows):,} requests, {len(catalogue):,} items, {sum(sizes.values()):,} table rows of {config.model.dim} over "
            f"{dist.get_world_size()} process(es); {plan.num_steps} steps an epoch, {plan.num_dropped} requests left out of each"
        )

    results: dict[str, dict[str, Any]] = {}
    model: ShardedModel | None = None
    for schedule in planned(settings):
        checkpoints = Checkpoints(storage.join(spec.folder, "checkpoints", schedule.name))
        note = storage.join(spec.folder, "checkpoints", schedule.name, "result.json")
        model = build(run, catalogue)
        if storage.exists(note):
            results[schedule.name] = storage.read_json(note)
            continue
        load_starting_tables(schedule, model, checkpoints, spec)
        loop = Loop(
            schedule=schedule, settings=settings, model=model, requests=requests, catalogue=catalogue, collator=collator, plan=plan,
            checkpoints=checkpoints, stop=stop,
        )  # fmt: skip
        history = loop.run()
        results[schedule.name] = {"history": list(history), "score": max(figures["score"] for figures in history), "checkpoint": BEST}
        if dist.get_rank() == 0:
            storage.write_json(note, results[schedule.name])
        dist.barrier()
    if settings.schedule == "auto":
        first = results["co_train"]["history"][0]
        results["single"] = {"history": [first], "score": first["score"], "checkpoint": FIRST}
    picked = max(results, key=lambda name: results[name]["score"])
    assert model is not None
    checkpoints = Checkpoints(
        storage.join(spec.folder, "checkpoints", "co_train" if picked == "single" and "co_train" in results else picked)
    )
    checkpoints.load(model, name=results[picked]["checkpoint"])
    if dist.get_rank() == 0:
        figures = ", ".join(f"{name} {result['score']:.4f}" for name, result in results.items())
        say(f"train: validation picks {picked} ({figures})")
    write_outputs(spec, run, model, collator, requests, catalogue, picked, results, plan)


def build(run: Run, catalogue: Catalogue) -> ShardedModel:
    """A fresh model, the same on every process and for every schedule."""
    config, settings = run.config, run.config.training
    torch.manual_seed(settings.seed)
    lookup = ShardedLookup(catalogue.sizes.rows(config.model), config.model.dim)
    tower = TwoTower(
        config.model,
        lookup,
        num_levels=catalogue.sizes.num_levels,
        content_dim=catalogue.content.shape[1],
        num_actions=len(config.data.actions),
        temperature=settings.temperature,
        weights=LossWeights(
            conditioned=settings.conditioned_loss_weight, history=settings.history_loss_weight, history_places=settings.history_places
        ),
    )
    return shard(
        tower,
        device=training_device(),
        table_learning_rate=settings.table_learning_rate,
        dense_learning_rate=settings.dense_learning_rate,
        weight_decay=settings.weight_decay,
    )


def load_starting_tables(schedule: Schedule, model: ShardedModel, checkpoints: Checkpoints, spec: JobSpec) -> None:
    """Fill the tables that a schedule freezes, unless it resumes (then its own checkpoint has them)."""
    if not schedule.tables_from or schedule.tables_from == RANDOM or checkpoints.latest() is not None:
        return
    if schedule.tables_from == "single":
        Checkpoints(storage.join(spec.folder, "checkpoints", "co_train")).load_tables(model, name=FIRST)
    else:
        Checkpoints(storage.parent_of(spec.tables_from)).load_tables(model, name=storage.name_of(spec.tables_from))


def write_outputs(
    spec: JobSpec, run: Run, model: ShardedModel, collator: Collator, requests: RequestTable, catalogue: Catalogue, picked: str,
    results: dict[str, Any], plan: EpochPlan,
) -> None:  # fmt: skip
    """The job's last phase: vectors of all items and held-out queries, serving tables, curves; each process writes its own share."""
    started = time.monotonic()
    model.wrapped.eval()
    rank, dim = dist.get_rank(), run.config.model.dim
    tokens, vectors = item_tokens_and_vectors(model, catalogue)
    first, last = share(len(catalogue))
    items = pa.table([pa.array(catalogue.item_ids[first:last]), fixed_size(vectors)], schema=item_vectors_schema(dim))
    _write(storage.join(spec.folder, "item_vectors"), rank, [items])

    held_out = np.sort(np.concatenate([requests.of_split(VALIDATION), requests.of_split(TEST)]))
    _write(
        storage.join(spec.folder, "query_vectors"), rank, _query_tables(model, collator, requests, held_out, dim), query_vectors_schema(dim)
    )

    error = write_serving(
        storage.join(spec.folder, "serving"), model, catalogue, tokens, run.config.model, [action.name for action in run.config.data.actions],
        run.config.training.serving_table_bits, {"schedule": picked},
    )  # fmt: skip
    dist.barrier()
    if rank == 0:
        curves = {
            "picked": picked, "schedules": results, "quantisation_error": error, "num_steps_an_epoch": plan.num_steps,
            "num_dropped_an_epoch": plan.num_dropped, "num_processes": dist.get_world_size(), "export_s": round(time.monotonic() - started, 2),
            "scale": float(model.module.log_scale.exp().item()), "table_rows": catalogue.sizes.rows(run.config.model),
        }  # fmt: skip
        storage.write_json(storage.join(spec.folder, "curves.json"), curves)
    dist.barrier()


def _query_tables(model: ShardedModel, collator: Collator, requests: RequestTable, rows: Index, dim: int) -> Any:
    if not len(rows):
        return

    def every_condition(chunk: Index) -> Ragged:
        _, offsets = requests.conditions.places(chunk)
        return Ragged(np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets)), offsets)

    for _, request, condition, vectors in query_vectors(model, collator, rows, every_condition):
        columns = [pa.array(requests.request_ids[request]), pa.array(condition.astype(np.int32)), fixed_size(vectors)]
        yield pa.table(columns, schema=query_vectors_schema(dim))


def fixed_size(vectors: np.ndarray) -> pa.Array:
    """[n, D] float32 → a fixed-size list column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(vectors, dtype=np.float32).ravel()), vectors.shape[1])


def _write(folder: str, rank: int, tables: Any, schema: pa.Schema | None = None) -> None:
    """This process's part file; the step's manifest, written after all parts, is what makes it count."""
    with storage.open_write(storage.join(folder, f"part-{rank:05d}.parquet")) as file:
        writer = pq.ParquetWriter(file, schema, compression="zstd") if schema else None
        for table in tables:
            writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
            writer.write_table(table)
        if writer:
            writer.close()
