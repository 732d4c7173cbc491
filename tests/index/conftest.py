"""Builds what the earlier steps leave for the index: a catalogue of any size with its vectors, a few boards and user states."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clrflow import contracts, storage
from clrflow.config import load_config
from clrflow.data.tables import write_table
from clrflow.index.export import write_bundle
from clrflow.manifest import Manifest, Output
from clrflow.steps import Outcome, Run, StepContext, execute

DIM = 8
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def unit_vectors(num: int, seed: int = 0, dim: int = DIM) -> np.ndarray[Any, Any]:
    """Directions drawn at random, float32 [num, dim]."""
    vectors = np.random.default_rng(seed).normal(size=(num, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def table_of(vectors: np.ndarray[Any, Any], schema: pa.Schema, **columns: Any) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    return pa.table({**columns, "vector": lists}).cast(schema)


class Factory:
    """Exports bundles and publishes them, in a folder of the test's own."""

    def __init__(self, folder: Path):
        self.folder, self.workspace = folder, str(folder / "workspace")
        self.made = 0

    def manifest(self, step: str, outputs: dict[str, Output], facts: dict[str, Any] | None = None) -> str:
        uri = str(self.folder / f"{step}{self.made}")
        Manifest(step=step, key="k", uri=uri, outputs=outputs, metrics={}, facts=facts or {}, config={}, inputs={}, step_version=1).save()
        return uri

    def inputs(self, item_ids: Any, vectors: Any = None, boards: Any = (), num_queries: int = 50) -> dict[str, str]:
        """Manifests of validate_data, bootstrap and train; boards: rows (board, user, item, hour)."""
        self.made += 1
        place = self.folder / f"data{self.made}"
        ids = np.asarray(item_ids, np.int64)
        vectors = unit_vectors(len(ids)) if vectors is None else np.asarray(vectors, np.float32)
        dim = vectors.shape[1] if vectors.ndim == 2 else DIM

        def table(name: str, rows: Any, schema: pa.Schema) -> Output:
            made = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
            return write_table(str(place / name), made, schema)

        items = pa.schema([("item_id", pa.int64()), ("interests", pa.list_(pa.int64())), ("title", pa.string())])
        board_schema = pa.schema(
            [
                ("board_id", pa.int64()),
                ("user_id", pa.int64()),
                ("item_id", pa.int64()),
                ("added_at", contracts.TIME),
                ("name", pa.string()),
            ]
        )
        board_rows = [
            {
                "board_id": board,
                "user_id": user,
                "item_id": item,
                "added_at": NOON + datetime.timedelta(hours=hour),
                "name": f"Board {board}",
            }
            for board, user, item, hour in boards
        ]
        state = {"user_id": 5, "history_items": ids[:2].tolist(), "history_actions": ["watch"] * len(ids[:2]), "conditions": []}
        state["history_times"] = [NOON] * len(ids[:2])
        query_schema = contracts.query_vectors_schema(dim)
        queries = unit_vectors(num_queries, 1, dim)
        serving = place / "serving"
        (serving / "tables").mkdir(parents=True)
        (serving / "tower.json").write_text('{"layers": 2}')
        (serving / "tables" / "items.bin").write_bytes(bytes(range(256)))
        return {
            "validate_data": self.manifest(
                "validate_data",
                {
                    "items": table("items", [{"item_id": int(one), "interests": [1], "title": f"Item {one}"} for one in ids], items),
                    "interests": table(
                        "interests", [{"interest_id": 1, "name": "Comedy"}], pa.schema([("interest_id", pa.int64()), ("name", pa.string())])
                    ),
                    "boards": table("boards", board_rows, board_schema),
                },
            ),
            "bootstrap": self.manifest("bootstrap", {"user_states": table("user_states", [state], contracts.USER_STATES)}),
            "train": self.manifest(
                "train",
                {
                    "item_vectors": table(
                        "item_vectors", table_of(vectors.reshape(-1, dim), contracts.item_vectors_schema(dim), item_id=ids),
                        contracts.item_vectors_schema(dim),
                    ),
                    "query_vectors": table(
                        "query_vectors",
                        table_of(queries, query_schema, request_id=np.arange(num_queries), condition=np.full(num_queries, -1, np.int32)),
                        query_schema,
                    ),
                    "serving": Output.of(str(serving)),
                },
                {"tokenizer_hash": "hash-of-codes", "schedule": "delayed", "dim": dim},
            ),
        }  # fmt: skip

    def run(self, *overrides: str) -> str:
        return Run(name="r", workspace=self.workspace, config=load_config("demo", overrides=list(overrides))).save()

    def export(self, item_ids: Any, *overrides: str, **more: Any) -> Manifest:
        """What export_index leaves, without its page, which takes most of the time."""
        inputs = {name: Manifest.load(uri) for name, uri in self.inputs(item_ids, **more).items()}
        folder = self.folder / f"exported{self.made}"
        folder.mkdir()
        written = write_bundle(StepContext(run=Run.load(self.run(*overrides)), inputs=inputs, folder=str(folder)))
        return Manifest.load(self.manifest("export_index", {"index": written.output}))

    def execute_export(self, item_ids: Any) -> Outcome:
        """The whole step, as a pipeline runs it."""
        return execute("export_index", self.run(), self.inputs(item_ids))

    def publish(self, bundle: Manifest, *overrides: str, decision: str = "publish") -> Outcome:
        """Run publish on an exported bundle, with a gate that decided so."""
        self.made += 1
        evaluation = self.folder / f"evaluation{self.made}"
        per_request = write_table(str(evaluation / "per_request"), pa.table({"x": [1]}), pa.schema([("x", pa.int64())]))
        storage.write_json(str(evaluation / "evaluation.json"), {"bundle": bundle.uri})
        inputs = {
            "gate": self.manifest("gate", {}, {"decision": decision, "reason": "because", "train": "t", "champion": ""}),
            "export_index": bundle.uri,
            "evaluate": self.manifest("evaluate", {"per_request": per_request, "metrics": Output.of(str(evaluation / "evaluation.json"))}),
        }
        return execute("publish", self.run(*overrides), inputs)


@pytest.fixture
def factory(tmp_path: Path) -> Factory:
    return Factory(tmp_path)


@pytest.fixture
def directions() -> Callable[..., np.ndarray[Any, Any]]:
    return unit_vectors
