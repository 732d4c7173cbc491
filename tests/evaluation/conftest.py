"""Builds small worlds that keep the contracts: catalogue, events, requests, candidates and vectors as the earlier steps would leave them."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clrflow import contracts, storage
from clrflow.config import PipelineConfig, load_config
from clrflow.data.tables import write_table
from clrflow.evaluation.step import Evaluation
from clrflow.evaluation.step import evaluate as measure_all
from clrflow.manifest import Manifest, Output
from clrflow.steps import Outcome, Run, StepContext, execute

DAY = datetime.timedelta(days=1)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclasses.dataclass
class Request:
    """One request of a user: the items engaged with, in order."""

    user: int
    split: str
    items: list[int]
    known: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    oracle: list[tuple[int, list[int]]] = dataclasses.field(default_factory=list)
    """(interest, the targets that it was drawn from)."""
    candidates: dict[str, list[list[int]]] = dataclasses.field(default_factory=dict)
    """Lists a generator."""
    at: float = -1.0
    """Seconds after START of all its events; -1: one second after the event before."""
    query: list[float] | None = None
    """The unconditional query's direction; None: the first axis."""
    under: list[list[float]] = dataclasses.field(default_factory=list)
    """Directions under its conditions, known ones first; missing ones are the unconditional one."""


class World:
    """The results of validate_data, bootstrap and train for a handful of items and requests."""

    def __init__(
        self, folder: Path, items: dict[int, list[int]], requests: list[Request], vectors: dict[int, list[float]] | None = None,
        split_by: str = "last_requests", skips: list[tuple[int, int, str]] | None = None,
    ):  # fmt: skip
        """items: interests by item. skips: (user, item, action) events before everything else that belong to no request."""
        self.folder = folder
        self.item_ids = sorted(items)
        self.vectors = vectors or {item: list(row) for item, row in zip(self.item_ids, np.eye(len(self.item_ids)))}
        self.dim = len(next(iter(self.vectors.values())))
        self.interests = sorted({interest for carried in items.values() for interest in carried})
        self._validated(items, requests, skips or [])
        self._bootstrapped(requests, split_by)
        self._trained(requests)

    def _save(self, step: str, outputs: dict[str, Output], facts: dict[str, Any], config: dict[str, Any] | None = None) -> None:
        folder = str(self.folder / step)
        Manifest(
            step=step, key="k", uri=folder, outputs=outputs, metrics={}, facts=facts, config=config or {}, inputs={}, step_version=1
        ).save()

    def _table(self, step: str, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> Output:
        return write_table(str(self.folder / step / name), pa.Table.from_pylist(rows, schema=schema), schema)

    def _validated(self, items: dict[int, list[int]], requests: list[Request], skips: list[tuple[int, int, str]]) -> None:
        time = contracts.TIME
        rows = []
        clock: dict[int, float] = {}
        self.times: list[list[datetime.datetime]] = []

        def add(user: int, item: int, moment: datetime.datetime, action: str) -> None:
            place = sum(row["user_id"] == user and row["timestamp"] == moment for row in rows)
            rows.append({"user_id": user, "item_id": item, "timestamp": moment, "action": action, "event_order": place})

        for user, item, action in skips:
            add(user, item, START - DAY, action)
        for request in requests:
            moments = []
            for item in request.items:
                clock[request.user] = request.at if request.at >= 0 else clock.get(request.user, 0.0) + 1
                moments.append(START + datetime.timedelta(seconds=clock[request.user]))
                add(request.user, item, moments[-1], "watch")
            self.times.append(moments)
        events = pa.schema(
            [("user_id", pa.int64()), ("item_id", pa.int64()), ("timestamp", time), ("action", pa.string()), ("event_order", pa.int64())]
        )
        rows.sort(key=lambda row: (row["user_id"], row["timestamp"], row["event_order"]))
        item_schema = pa.schema(
            [("item_id", pa.int64()), ("created_at", time), ("interests", pa.list_(pa.int64())), ("title", pa.string())]
        )
        boards = pa.schema(
            [("board_id", pa.int64()), ("user_id", pa.int64()), ("item_id", pa.int64()), ("added_at", time), ("name", pa.string())]
        )
        self._save(
            "validate_data",
            {
                "events": self._table("validate_data", "events", rows, events),
                "items": self._table(
                    "validate_data", "items",
                    [{"item_id": item, "created_at": START - 3 * DAY, "interests": items[item], "title": f"Item {item}"} for item in self.item_ids],
                    item_schema,
                ),
                "interests": self._table(
                    "validate_data", "interests", [{"interest_id": one, "name": f"Interest {one}"} for one in self.interests],
                    pa.schema([("interest_id", pa.int64()), ("name", pa.string())]),
                ),
                "boards": self._table("validate_data", "boards", [], boards),
            },
            {},
        )  # fmt: skip

    def _bootstrapped(self, requests: list[Request], split_by: str) -> None:
        rows, candidates = [], []
        history: dict[int, list[tuple[int, datetime.datetime]]] = {}
        counts = dict.fromkeys(self.item_ids, 0)
        for number, (request, moments) in enumerate(zip(requests, self.times)):
            past = history.setdefault(request.user, [])
            conditions = [{"type": kind, "id": one, "items": [], "score": 1.0, "role": contracts.KNOWN} for kind, one in request.known]
            targets = []
            for position, (item, moment) in enumerate(zip(request.items, moments)):
                one = {"item_id": item, "action": "watch", "timestamp": moment, "position": position, "weight": 1.0, "generator": ""}
                targets.append({**one, "condition": -1, "source": contracts.UNCONDITIONAL})
                for place, (_, drawn_from) in enumerate(request.oracle):
                    if item in drawn_from:
                        targets.append({**one, "condition": len(request.known) + place, "source": contracts.ORACLE})
                if request.split == contracts.TRAIN:
                    counts[item] += 1
            conditions += [
                {"type": contracts.INTEREST, "id": one, "items": [], "score": 0.0, "role": contracts.ORACLE} for one, _ in request.oracle
            ]
            rows.append(
                {
                    "request_id": number, "user_id": request.user, "requested_at": moments[0], "split": request.split,
                    "history_items": [item for item, _ in past], "history_actions": ["watch"] * len(past),
                    "history_times": [moment for _, moment in past], "conditions": conditions, "targets": targets, "impressions": [],
                }
            )  # fmt: skip
            past += zip(request.items, moments)
            for generator, lists in request.candidates.items():
                for place, listed in enumerate(lists):
                    candidates.append(
                        {
                            "request_id": number, "generator": generator, "condition_type": contracts.INTEREST, "condition_id": place,
                            "items": listed, "scores": [1.0] * len(listed),
                        }
                    )  # fmt: skip
        self.num_engagements = counts
        statistics = [{"item_id": item, "num_engagements": count, "first_engaged_at": None} for item, count in counts.items()]
        self._save(
            "bootstrap",
            {
                "requests": self._table("bootstrap", "requests", rows, contracts.REQUESTS),
                "candidates": self._table("bootstrap", "candidates", candidates, contracts.CANDIDATES),
                "item_statistics": self._table("bootstrap", "item_statistics", statistics, contracts.ITEM_STATISTICS),
                "user_states": self._table("bootstrap", "user_states", [], contracts.USER_STATES),
            },
            {},
            {"bootstrap": {"split": {"by": split_by}}},
        )

    def _trained(self, requests: list[Request]) -> None:
        def unit(vector: list[float]) -> list[float]:
            return [float(value) for value in np.asarray(vector) / np.linalg.norm(vector)]

        plain = [1.0] + [0.0] * (self.dim - 1)
        queries = []
        for number, request in enumerate(requests):
            if request.split == contracts.TRAIN:
                continue
            own = request.query or plain
            queries.append({"request_id": number, "condition": -1, "vector": unit(own)})
            for place in range(len(request.known) + len(request.oracle)):
                direction = request.under[place] if place < len(request.under) else own
                queries.append({"request_id": number, "condition": place, "vector": unit(direction)})
        vectors = [{"item_id": item, "vector": unit(self.vectors[item])} for item in self.item_ids]
        (self.folder / "train" / "serving").mkdir(parents=True)
        (self.folder / "train" / "serving" / "tower.json").write_text("{}")
        self._save(
            "train",
            {
                "item_vectors": self._table("train", "item_vectors", vectors, contracts.item_vectors_schema(self.dim)),
                "query_vectors": self._table("train", "query_vectors", queries, contracts.query_vectors_schema(self.dim)),
                "serving": Output.of(str(self.folder / "train" / "serving")),
            },
            {"tokenizer_hash": "t", "schedule": "co_train", "dim": self.dim},
        )

    def manifest(self, step: str) -> Manifest:
        return Manifest.load(str(self.folder / step))

    def uri(self, step: str, output: str) -> str:
        return self.manifest(step).output(output)

    def config(self, *overrides: str) -> PipelineConfig:
        return load_config("demo", overrides=["evaluation.baselines=[]", *overrides])

    def execute(self, step: str, inputs: dict[str, str], *overrides: str, run: str = "r") -> Outcome:
        """Run a step of a run in this world's workspace, as a pipeline would."""
        one = Run(name=run, workspace=str(self.folder / "workspace"), config=self.config(*overrides))
        uri = one.save()
        storage.write_json(storage.join(uri, "train.json"), {"uri": str(self.folder / "train"), "reused": False})
        return execute(step, uri, inputs)

    def measure(self, *overrides: str) -> Evaluation:
        """The step's figures without its page, which takes most of the time."""
        run = Run(name="m", workspace=str(self.folder / "workspace"), config=self.config(*overrides))
        inputs = {name: self.manifest(name) for name in ("validate_data", "bootstrap", "train")}
        folder = self.folder / f"measured{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return measure_all(StepContext(run=run, inputs=inputs, folder=str(folder)))[0]

    def evaluate(self, *overrides: str) -> Outcome:
        return self.execute("evaluate", {name: str(self.folder / name) for name in ("validate_data", "bootstrap", "train")}, *overrides)


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[..., World]:
    """World(items, requests, ...) in a folder of the test's own."""

    def make(items: dict[int, list[int]], requests: list[Request], **more: Any) -> World:
        return World(tmp_path / f"world{len(list(tmp_path.iterdir()))}", items, requests, **more)

    return make


@pytest.fixture
def request_of() -> type[Request]:
    """The class of a request, for tests to build with."""
    return Request
