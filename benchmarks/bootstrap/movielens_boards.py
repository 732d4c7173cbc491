"""MovieLens-boards as the input tables: tags that users gave to films; a board is one user's one tag, an event the first tag of a film.

The data may be used for research and not passed on: they are read from a folder where it exists and never copied into the repository. Genres
serve as interests. Cite: Harper and Konstan, The MovieLens Datasets, 2015.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clrflow import storage
from clrflow.contracts import TIME
from clrflow.data import sources
from clrflow.data.schema import BOARDS, EVENTS, INTERESTS, ITEMS, USER_INTERESTS, with_width
from clrflow.data.tables import write_table
from clrflow.data.text_encoder import DIM, encode_texts
from clrflow.errors import BadInput
from clrflow.manifest import Output

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "movielens-boards"
"""Beside the project; README.md there says where the files come from."""
VERSION = 1


def prepare(folder: str, given: Path = FOLDER) -> dict[str, Any]:
    """Write the five tables into `folder`, complete or not at all. `given` holds events, boards and items as Parquet files."""
    if not given.is_dir():
        raise BadInput(f"movielens-boards: {str(given)!r} does not exist; put the set's events, boards and items there as Parquet files.")
    source = {"name": "movielens-boards", "version": VERSION, "files": storage.fingerprint(str(given))}
    return sources.publish(folder, source, lambda draft: _write(draft, given))


def _write(folder: str, given: Path) -> dict[str, Output]:
    tags, named, films = (pq.read_table(given / f"{name}.parquet") for name in ("events", "boards", "items"))
    user, item, board = (tags.column(name).to_numpy().astype(np.int64) for name in ("user_id", "item_id", "board_id"))
    seconds = tags.column("timestamp").to_numpy().astype(np.int64)
    times = pa.array(seconds * 1_000_000).cast(TIME)
    names = dict(zip(named.column("board_id").to_pylist(), named.column("tag").to_pylist(), strict=True))
    boards = pa.table(
        {"board_id": board, "user_id": user, "item_id": item, "added_at": times, "name": [names[one] for one in board.tolist()]},
        schema=BOARDS.columns,
    )
    # Rows come by user and time: a pair's first row is its first tag.
    _, first = np.unique(np.stack([user, item]), axis=1, return_index=True)
    first.sort()
    events = pa.table(
        {
            "user_id": user[first], "item_id": item[first], "timestamp": times.take(pa.array(first)),
            "action": pa.array(["tag"] * len(first)), "board_id": board[first],
        }
    )  # fmt: skip
    items, interests = _films(films, item, seconds)
    tables = {
        "events": (events, pa.schema([*EVENTS.required, EVENTS.optional.field("board_id")])),
        "items": (items, with_width(ITEMS.columns, DIM)),
        "boards": (boards, BOARDS.columns),
        "user_interests": (USER_INTERESTS.columns.empty_table(), USER_INTERESTS.columns),
        "interests": (interests, INTERESTS.columns),
    }
    return {name: write_table(storage.join(folder, name), table, schema) for name, (table, schema) in tables.items()}


def _films(films: pa.Table, tagged: np.ndarray, seconds: np.ndarray) -> tuple[pa.Table, pa.Table]:
    """Items and interests; a film is born in its year, or when it is first tagged if that is earlier."""
    ids = films.column("item_id").to_numpy().astype(np.int64)
    first = np.full(int(ids.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, tagged, seconds)
    genres = [[genre for genre in row if not genre.startswith("(")] for row in films.column("genres").to_pylist()]
    names = sorted({genre for row in genres for genre in row})
    number = {name: place + 1 for place, name in enumerate(names)}
    years = [int(year or 1900) for year in films.column("year").to_pylist()]
    born = np.array([np.datetime64(f"{year}-01-01", "s").astype(np.int64) for year in years])
    titles = films.column("title").to_pylist()
    vectors = encode_texts([f"{title}. {' '.join(row)}" for title, row in zip(titles, genres, strict=True)])
    items = pa.table(
        {
            "item_id": ids,
            "created_at": pa.array(np.minimum(born, first[ids]) * 1_000_000).cast(TIME),
            "interests": pa.array([[number[genre] for genre in row] for row in genres], pa.list_(pa.int64())),
            "content_embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIM),
            "title": pa.array(titles, pa.string()),
        }
    )
    return items, pa.table({"interest_id": pa.array(list(number.values()), pa.int64()), "name": pa.array(names, pa.string())})
