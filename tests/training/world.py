"""A tiny world for training tests: contract-conformant results of validate_data, bootstrap and semantic_ids, made by hand.

40 items in two interests (even ids, odd ids) and 30 users who like one of them, six requests each; the last two are held out.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clrflow import storage
from clrflow.config import PipelineConfig, load_config
from clrflow.contracts import ITEM_STATISTICS, REQUESTS, USER_STATES, codes_schema
from clrflow.data.schema import BOARDS
from clrflow.manifest import Manifest, Output
from clrflow.steps import Run

NUM_ITEMS, NUM_USERS, NUM_REQUESTS, TARGETS = 40, 30, 6, 3
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ITEM_IDS = np.arange(NUM_ITEMS, dtype=np.int64) * 3 + 2**60  # sparse, beyond what a float64 holds
INTERESTS = (7, 9)


def config(**overrides: Any) -> PipelineConfig:
    """Small sizes; overrides are `part__field=value`."""
    small = {
        "model__dim": 8, "model__max_history": 6, "model__semantic_rows": 64, "model__board_rows": 16, "training__batch_size": 16,
        "training__num_negatives": 16, "training__epochs": 2, "training__schedule": "co_train", "training__warm_up_steps": 2,
        "data__actions": "[{name: watch}]",
    }  # fmt: skip
    values = {name.replace("__", "."): value for name, value in {**small, **overrides}.items()}
    return load_config("small", overrides=[f"{name}={value}" for name, value in values.items()])


def make_run(folder: str, settings: PipelineConfig) -> Run:
    run = Run(name="test", workspace=folder, config=settings)
    run.save()
    return run


def make_inputs(folder: str) -> dict[str, str]:
    """Write the three results; returns their URIs by step."""
    rng = np.random.default_rng(0)
    content = rng.normal(size=(NUM_ITEMS, 4)).astype(np.float32)
    content[:, 0] = np.where(np.arange(NUM_ITEMS) % 2, 3.0, -3.0)
    items = pa.table(
        {
            "item_id": ITEM_IDS,
            "title": [f"title {at}" for at in range(NUM_ITEMS)],
            "interests": pa.array([[INTERESTS[at % 2]] for at in range(NUM_ITEMS)], pa.list_(pa.int64())),
            "content_embedding": pa.FixedSizeListArray.from_arrays(pa.array(content.ravel()), 4),
        }
    )
    interests = pa.table({"interest_id": pa.array(INTERESTS, pa.int64()), "name": ["even", "odd"]})
    requests, counts = _requests(rng)
    boards = _boards(requests)
    states = _states(requests)
    statistics = pa.table(
        [pa.array(ITEM_IDS), pa.array(counts), pa.nulls(NUM_ITEMS, ITEM_STATISTICS.field(2).type)], schema=ITEM_STATISTICS
    )
    codes = np.stack([np.arange(NUM_ITEMS) % 2, np.arange(NUM_ITEMS) // 2 % 8, np.arange(NUM_ITEMS) // 16], axis=1).astype(np.int32)
    tokens = pa.table([pa.array(ITEM_IDS), pa.FixedSizeListArray.from_arrays(pa.array(codes.ravel()), 3)], schema=codes_schema(3))
    facts = {"num_levels": 3, "num_codes": 8, "tokenizer_hash": "abc"}
    return {
        "validate_data": _save(folder, "validate_data", {"items": items, "interests": interests, "boards": boards}, {}),
        "bootstrap": _save(folder, "bootstrap", {"requests": requests, "item_statistics": statistics, "user_states": states}, {}),
        "semantic_ids": _save(folder, "semantic_ids", {"codes": tokens}, facts),
    }


def _requests(rng: np.random.Generator) -> tuple[pa.Table, np.ndarray]:
    rows: list[dict[str, Any]] = []
    counts = np.zeros(NUM_ITEMS, dtype=np.int64)
    for user in range(NUM_USERS):
        liked = np.arange(user % 2, NUM_ITEMS - 2, 2)  # the last two items are cold: nobody has touched them
        order = rng.permutation(liked)[: NUM_REQUESTS * TARGETS]
        times = [START + datetime.timedelta(hours=user, minutes=at) for at in range(len(order))]
        for number in range(NUM_REQUESTS):
            split = "test" if number == NUM_REQUESTS - 1 else "validation" if number == NUM_REQUESTS - 2 else "train"
            first = number * TARGETS
            now = order[first : first + TARGETS]
            if split == "train":
                counts[now] += 1
            rows.append(_request(len(rows), user, split, order[:first], now, times, first))
    return pa.Table.from_pylist(rows, schema=REQUESTS), counts


def _request(request_id: int, user: int, split: str, past: Any, now: Any, times: list[Any], first: int) -> dict[str, Any]:
    known = [{"type": "interest", "id": INTERESTS[user % 2], "items": [], "score": 1.0, "role": "known"}]
    if len(past):
        known.append({"type": "item", "id": int(ITEM_IDS[past[-1]]), "items": [int(ITEM_IDS[past[-1]])], "score": 1.0, "role": "known"})
        known.append({"type": "board", "id": user, "items": ITEM_IDS[past[-2:]].tolist(), "score": 1.0, "role": "known"})
    targets = []
    for position, item in enumerate(now):
        base = {
            "item_id": int(ITEM_IDS[item]),
            "action": "watch",
            "timestamp": times[first + position],
            "position": position,
            "generator": "",
        }
        targets.append({**base, "condition": -1, "weight": 1.0, "source": "unconditional"})
        targets.append({**base, "condition": position % len(known), "weight": 1.0, "source": "attributed"})
    return {
        "request_id": request_id, "user_id": user, "requested_at": times[first], "split": split, "history_items": ITEM_IDS[past].tolist(),
        "history_actions": ["watch"] * len(past), "history_times": times[:first], "conditions": known, "targets": targets, "impressions": [],
    }  # fmt: skip


def _boards(requests: pa.Table) -> pa.Table:
    """User u's board u holds the two items that the last request's board condition shows, oldest first."""
    rows = []
    for request in requests.to_pylist():
        if request["split"] == "test":
            shown = request["conditions"][2]["items"]
            rows += [
                {"board_id": request["user_id"], "user_id": request["user_id"], "item_id": item, "added_at": START + datetime.timedelta(days=at),
                 "name": f"board of {request['user_id']}"}
                for at, item in enumerate(shown)
            ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=BOARDS.columns)


def _states(requests: pa.Table) -> pa.Table:
    """Each user as the test request finds them, so that a server's vectors can be compared with those of training."""
    rows = [request for request in requests.to_pylist() if request["split"] == "test"]
    return pa.Table.from_pylist([{name: row[name] for name in USER_STATES.names} for row in rows], schema=USER_STATES)


def _save(folder: str, step: str, tables: dict[str, pa.Table], facts: dict[str, Any]) -> str:
    uri = storage.join(folder, "inputs", step)
    outputs = {}
    for name, table in tables.items():
        storage.make_folder(storage.join(uri, name))
        pq.write_table(table, storage.join(uri, name, "part-00000.parquet"))
        outputs[name] = Output.of(storage.join(uri, name))
    Manifest(step=step, key="k", uri=uri, outputs=outputs, metrics={}, facts=facts, config={}, inputs={}, step_version=1).save()
    return uri
