"""The step `export_index`: all that answering a query needs, in one folder.

index.faiss (original ids), index.json (what it is, hashes of every file), model/ (turns a request into vectors, as train wrote it),
items.parquet, interests.parquet, boards.parquet (newest items of each board), user_states.parquet. Recall against exact search is
measured and gated here. Next: bundle.py reads it, publish.py makes it current.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clrflow import storage
from clrflow.contracts import USER_STATES
from clrflow.data.tables import iter_batches, read_table, register
from clrflow.errors import GateError
from clrflow.index.build import Array, build_index, recall_against_exact
from clrflow.index.bundle import INDEX, INFO, METRIC, MODEL, SCHEMA_VERSION, sha256, write_index
from clrflow.index.settings import IndexSettings
from clrflow.manifest import Output
from clrflow.progress import say
from clrflow.reporting import Report, new_figure
from clrflow.reporting.report import COLOURS
from clrflow.steps import StepContext, StepResult

ITEMS = pa.schema([("item_id", pa.int64()), ("title", pa.string()), ("interests", pa.list_(pa.int64()))])
INTERESTS = pa.schema([("interest_id", pa.int64()), ("name", pa.string())])
BOARDS = pa.schema([("board_id", pa.int64()), ("user_id", pa.int64()), ("name", pa.string()), ("items", pa.list_(pa.int64()))])
"""items: the newest ones as of the end of the data, newest last."""
MEMORY_LIMIT = "2GB"
"""Of DuckDB while it gathers the boards; it spills beyond."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """A bundle as it was written."""

    output: Output
    info: dict[str, Any]
    """What index.json says."""
    num_rows: dict[str, int]
    """Rows of each table."""
    cosines: Array
    """Of some queries with their nearest items, best first, float32 [queries, ranks]; for the report."""


def run(context: StepContext) -> StepResult:
    """Build the index, measure it, gather the bundle."""
    written = write_bundle(context)
    info, output = written.info, written.output
    return StepResult(
        outputs={"index": output},
        report=_report(written).html(),
        metrics={
            f"index_recall@{info['recall_k']}": info["recall_at_k"],
            "index_items": float(info["num_items"]),
            "bundle_bytes": float(output.num_bytes),
        },
        facts={name: info[name] for name in ("kind", "dim", "num_items", "tokenizer_hash")},
    )


def write_bundle(context: StepContext) -> Written:
    """Everything of the step but its report. Raises GateError when the index misses too much of what exact search finds."""
    settings = context.config.index
    validated, bootstrap, train = (context.inputs[name] for name in ("validate_data", "bootstrap", "train"))
    bundle = context.place("index")
    table = read_table(train.output("item_vectors")).sort_by("item_id")
    item_ids, vectors = table["item_id"].to_numpy(), _vectors(table["vector"])
    index, kind = build_index(item_ids, vectors, settings)
    queries = _queries(train.output("query_vectors"), vectors, settings)
    recall = recall_against_exact(index, vectors, queries, settings.recall_k)
    say(f"export_index: {kind} index of {len(item_ids):,} items, recall@{settings.recall_k} {recall:.4f} against exact search")
    if recall < settings.min_recall:
        raise GateError(
            f"recall@{settings.recall_k}={recall:.4f} of the {kind} index against exact search is below index.min_recall="
            f"{settings.min_recall}; raise {_remedy(kind)}, use index.kind=flat, or lower index.min_recall."
        )
    write_index(storage.join(bundle, INDEX), index)
    num_rows = {
        "items": write_file(storage.join(bundle, "items.parquet"), [_columns(validated.output("items"), ITEMS)], ITEMS),
        "interests": write_file(storage.join(bundle, "interests.parquet"), [_columns(validated.output("interests"), INTERESTS)], INTERESTS),
        "boards": write_file(storage.join(bundle, "boards.parquet"), _newest_of_boards(context, settings.board_items), BOARDS),
        "user_states": write_file(storage.join(bundle, "user_states.parquet"), iter_batches(bootstrap.output("user_states")), USER_STATES),
    }
    copy_folder(train.output("serving"), storage.join(bundle, MODEL))
    base = _path(bundle).rstrip("/")
    files = [_path(file)[len(base) :].lstrip("/") for file in storage.list_files(bundle)]
    info = {
        "schema_version": SCHEMA_VERSION, "metric": METRIC, "kind": kind, "asked_kind": settings.kind, "dim": int(vectors.shape[1]),
        "num_items": len(item_ids), "recall_k": settings.recall_k, "recall_at_k": recall, "recall_queries": len(queries),
        "hnsw_ef_search": settings.hnsw_ef_search, "ivf_probes": settings.ivf_probes,
        "tokenizer_hash": train.facts["tokenizer_hash"], "schedule": train.facts.get("schedule", ""), "train_fingerprint": train.fingerprint,
        "files": {name: sha256(storage.join(bundle, name)) for name in files},
    }  # fmt: skip
    storage.write_json(storage.join(bundle, INFO), info)
    cosines, _ = index.search(queries[:200], min(200, len(item_ids)))
    return Written(output=Output.of(bundle, num_rows=len(item_ids)), info=info, num_rows=num_rows, cosines=cosines)


def _path(uri: str) -> str:
    return storage.filesystem(uri)[1]


def _remedy(kind: str) -> str:
    return {"hnsw": "index.hnsw_ef_search or index.hnsw_links", "ivf": "index.ivf_probes"}.get(kind, "index.recall_queries")


def _vectors(column: pa.ChunkedArray) -> Array:
    """float32 [n, dim] of a fixed-size-list column; build_index checks the values."""
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False) if len(column) else np.zeros(0, np.float32)
    return np.ascontiguousarray(flat.reshape(-1, column.type.list_size), np.float32)


def _queries(query_vectors_uri: str, vectors: Array, settings: IndexSettings) -> Array:
    """Queries like those that will be asked: drawn from the held-out requests' vectors, or from the items' where there are none."""
    held = _vectors(read_table(query_vectors_uri, ["vector"])["vector"])
    pool = held if len(held) else vectors
    chosen = np.random.default_rng(settings.seed).choice(len(pool), min(settings.recall_queries, len(pool)), replace=False)
    return np.ascontiguousarray(pool[np.sort(chosen)])


def _columns(uri: str, schema: pa.Schema) -> pa.Table:
    table = read_table(uri, schema.names)
    return table.select(schema.names).cast(schema)


def _newest_of_boards(context: StepContext, num_items: int) -> Iterable[pa.RecordBatch]:
    """One row a board with its newest items, newest last; ties in time by item id. Streams from DuckDB, which spills."""
    scratch = str(storage.local_path(context.folder)) if storage.is_local(context.folder) else None
    with (
        tempfile.TemporaryDirectory(prefix=".duckdb-", dir=scratch) as spill,
        duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "temp_directory": spill}) as con,
    ):
        register(con, "boards", context.inputs["validate_data"].output("boards"))
        reader = con.execute(
            """SELECT board_id, user_id, any_value(name) AS name, list(item_id ORDER BY added_at, item_id) AS items FROM (
                 SELECT *, row_number() OVER (PARTITION BY board_id, user_id ORDER BY added_at DESC, item_id DESC) AS place FROM boards
               ) WHERE place <= ? GROUP BY board_id, user_id ORDER BY board_id, user_id""",
            [num_items],
        ).to_arrow_reader(16_384)
        yield from reader


def write_file(uri: str, batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema) -> int:
    """Write one Parquet file batch by batch; returns its rows."""
    total = 0
    with storage.open_write(uri) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for batch in batches:
            rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            writer.write_table(rows.select(schema.names).cast(schema))
            total += len(rows)
    return total


def copy_folder(source: str, target: str) -> None:
    """Copy every file below a URI, hidden ones left out, in pieces."""
    base = _path(source).rstrip("/")
    for file in storage.list_files(source):
        path = _path(file)
        relative = path[len(base) :].lstrip("/") or storage.name_of(path)
        storage.copy_file(file, storage.join(target, relative))


def _report(written: Written) -> Report:
    info, output = written.info, written.output
    report = Report("Index", f"{info['num_items']:,} items behind a {info['kind']} index, {info['dim']} dimensions, inner product.")
    report.tiles(
        {
            "items": info["num_items"], "kind": info["kind"], f"recall@{info['recall_k']}": info["recall_at_k"],
            "bundle, MB": output.num_bytes / 1e6, "users": written.num_rows["user_states"],
        }
    )  # fmt: skip
    report.section("What the bundle holds", "Everything that answering a query needs; a reader checks each file against its hash.")
    report.table(["table", "rows"], [[name, rows] for name, rows in written.num_rows.items()])
    report.table(["file", "sha256"], [[name, digest[:16]] for name, digest in info["files"].items()])
    report.section("Recall", f"{info['recall_queries']:,} queries of held-out requests, each against exact search over all items.")
    figure, axes = new_figure(7.0, 2.8)
    ranks = np.arange(1, written.cosines.shape[1] + 1)
    for level, style in ((0.5, "-"), (0.1, ":"), (0.9, ":")):
        axes[0].plot(ranks, np.quantile(written.cosines, level, axis=0), style, color=COLOURS[0])
    axes[0].axvline(min(info["recall_k"], info["num_items"]), color=COLOURS[1], linewidth=1)
    axes[0].set_xlabel("rank")
    axes[0].set_ylabel("cosine")
    report.figure(figure, "Cosine of a query with its n-th nearest item (median and outer tenths); the line is the k of the recall.")
    report.section("Facts")
    report.table(["name", "value"], [[name, str(value)] for name, value in info.items() if name != "files"])
    return report
