"""MovieLens-100k as the input tables: 943 users, 1,682 films, 100,000 ratings read as "watched".

The data may be used for research and not passed on, so nothing of it lies here: it is read out of the wheel of recbole 1.2.1, which carries
the set, and what came is held against known sizes and hashes. Genres serve as interests. The set has no boards; those written here are
DERIVED (`_boards`). Cite: Harper and Konstan, The MovieLens Datasets, 2015.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from clrflow import storage
from clrflow.contracts import TIME
from clrflow.data import sources
from clrflow.data.schema import BOARDS, EVENT_ORDER, EVENTS, INTERESTS, ITEMS, USER_INTERESTS, with_width
from clrflow.data.tables import write_table
from clrflow.data.text_encoder import DIM, encode_texts
from clrflow.errors import BadInput
from clrflow.manifest import Output
from clrflow.progress import say

VERSION = 2
"""Raised when the same files would give other tables."""

PACKAGE = "recbole==1.2.1"
FILES = {
    "ml-100k.inter": (1_979_230, "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"),
    "ml-100k.item": (66_632, "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532"),
}
"""Bytes and sha256 of the two files that are read."""

LIKED = 4
"""Stars from which a rating puts a film on the user's derived board."""
BOARD_STARTS_AT = 3
"""A derived board begins when its user has liked so many films of the genre."""


def prepare(folder: str, wheel: str = "") -> dict[str, Any]:
    """Write the five tables into `folder`, complete or not at all; a second call finds them and returns at once.

    `wheel`: path of the wheel where this machine has no package index. Returns what `source.json` holds (see sources.publish). BadInput when the
    wheel can't be had or isn't the one expected.
    """
    source = {"name": "movielens-100k", "version": VERSION, "sha256": {name: digest for name, (_, digest) in FILES.items()}}

    def build(draft: str) -> dict[str, Output]:
        if wheel:
            files = read_wheel(Path(wheel))
        else:
            with tempfile.TemporaryDirectory() as downloads:
                files = read_wheel(_download(Path(downloads)))
        return _write(draft, files)

    return sources.publish(folder, source, build)


def _download(folder: Path) -> Path:
    say(f"movielens: fetching the wheel of {PACKAGE}")
    command = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--only-binary", ":all:", "--quiet", "-d", str(folder)]
    way_out = f"Run `pip download {PACKAGE} --no-deps` where there is a network, and give the file with --wheel PATH."
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"movielens: pip did not bring {PACKAGE} within 300 s, so there is no data to read. {way_out}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise BadInput(f"movielens: pip could not bring {PACKAGE} (exit code {done.returncode}: {said}). {way_out}")
    return wheels[0]


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """The two files out of the wheel, checked; BadInput names what differs."""
    way_out = f"Give the wheel of {PACKAGE} with --wheel PATH."
    files = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, (size, digest) in FILES.items():
                content = archive.read(f"recbole/dataset_example/ml-100k/{name}")
                found = hashlib.sha256(content).hexdigest()
                if len(content) != size or found != digest:
                    raise BadInput(
                        f"movielens: {name} in {wheel} has {len(content)} bytes and sha256 {found[:12]}…, "
                        f"expected {size} and {digest[:12]}…: not the file that was tested. {way_out}"
                    )
                files[name] = content
    except FileNotFoundError:
        raise BadInput(f"movielens: wheel {str(wheel)!r} does not exist. {way_out}") from None
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise BadInput(f"movielens: {str(wheel)!r} can't be read as that wheel ({error}). {way_out}") from None
    return files


def _write(folder: str, files: dict[str, bytes]) -> dict[str, Output]:
    ratings = _parse(files["ml-100k.inter"], {"user_id": pa.int64(), "item_id": pa.int64(), "rating": pa.int64(), "timestamp": pa.int64()})
    films = _parse(files["ml-100k.item"], {"item_id": pa.int64()})
    # Half of the events share their second with another of the user; the file's order says which came first.
    times = pc.cast(pc.multiply(ratings["timestamp"], 1_000_000), TIME)
    events = pa.table(
        {
            "user_id": ratings["user_id"],
            "item_id": ratings["item_id"],
            "timestamp": times,
            "action": pa.array(["watch"]).take(pa.array(np.zeros(len(ratings), dtype=np.int64))),
            EVENT_ORDER: pa.array(np.arange(len(ratings))),
        },
        schema=EVENTS.required.append(EVENTS.columns.field(EVENT_ORDER)),
    )
    items, interests, genres_of = _films(films, ratings)
    boards = _boards(ratings, genres_of, interests)
    embedded = with_width(ITEMS.columns, DIM)
    return {
        "events": write_table(storage.join(folder, "events"), events, events.schema),
        "items": write_table(storage.join(folder, "items"), items, embedded),
        "boards": write_table(storage.join(folder, "boards"), boards, BOARDS.columns),
        "user_interests": write_table(
            storage.join(folder, "user_interests"), USER_INTERESTS.required.empty_table(), USER_INTERESTS.required
        ),
        "interests": write_table(storage.join(folder, "interests"), interests, INTERESTS.required),
    }


def _parse(content: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    """A tab-separated file whose header line is `name:type` a column; the columns that aren't in `types` come as text."""
    table = csv.read_csv(
        io.BytesIO(content),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=csv.ConvertOptions(column_types={name: pa.string() for name in content.split(b"\n", 1)[0].decode().split("\t")}),
    )
    table = table.rename_columns([name.split(":")[0] for name in table.column_names])
    for name, kind in types.items():
        index = table.column_names.index(name)
        table = table.set_column(index, name, pc.cast(table[name], kind))
    return table


def _films(films: pa.Table, ratings: pa.Table) -> tuple[pa.Table, pa.Table, list[list[int]]]:
    """Items and interests; also each film's interests by position, for the boards."""
    first = ratings.group_by("item_id").aggregate([("timestamp", "min")])
    first_seen = dict(zip(first["item_id"].to_pylist(), first["timestamp_min"].to_pylist()))
    item_ids = films["item_id"].to_pylist()
    genres = [[genre for genre in text.split(" ") if genre != "unknown"] for text in films["class"].to_pylist()]
    names = sorted({genre for row in genres for genre in row})
    interest_of = {name: position + 1 for position, name in enumerate(names)}

    titles, created, texts = [], [], []
    for item_id, name, year, kinds in zip(item_ids, films["movie_title"].to_pylist(), films["release_year"].to_pylist(), genres):
        if not year.isdigit():  # two films: one's year is "V" with the real one in its title, one is unknown altogether
            inside = name[-5:-1]
            year = inside if inside.isdigit() and name.endswith(")") else ""
            name = name.removesuffix(f" ({year})")
        title = f"{name} ({year})" if year else name
        # Fourteen films of 1998 were watched in 1997: nothing is watched before it is born.
        seen = np.datetime64(first_seen[item_id], "s")
        created.append(min(np.datetime64(f"{year}-01-01", "s"), seen) if year else seen)
        titles.append(title)
        texts.append(f"{title}. {' '.join(kinds)}".strip())
    vectors = encode_texts(texts)
    items = pa.table(
        {
            "item_id": pa.array(item_ids, pa.int64()),
            "created_at": pa.array(np.array(created, dtype="datetime64[us]")).cast(TIME),
            "interests": pa.array([[interest_of[kind] for kind in kinds] for kinds in genres], pa.list_(pa.int64())),
            "content_embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIM),
            "title": pa.array(titles, pa.string()),
        }
    )
    interests = pa.table({"interest_id": pa.array(list(interest_of.values()), pa.int64()), "name": pa.array(names, pa.string())})
    by_item = dict(zip(item_ids, ([interest_of[kind] for kind in kinds] for kinds in genres)))
    largest = max(item_ids)
    return items, interests, [by_item.get(item_id, []) for item_id in range(largest + 1)]


def _boards(ratings: pa.Table, genres_of: list[list[int]], interests: pa.Table) -> pa.Table:
    """DERIVED boards: a user's board collects the films of one genre that the user rated LIKED or more, board_id = user_id * 100 + genre.

    A board begins with the user's BOARD_STARTS_AT-th such film and takes in the ones before it at that moment, so whether a board exists is
    known from the past alone. Sorted by user, time, file order.
    """
    liked = ratings["rating"].to_numpy() >= LIKED
    user, item, time = (ratings[name].to_numpy()[liked] for name in ("user_id", "item_id", "timestamp"))
    order = np.lexsort((np.arange(len(user)), time, user))
    user, item, time = user[order], item[order], time[order]
    num_genres = np.array([len(kinds) for kinds in genres_of])
    starts = np.concatenate([[0], np.cumsum(num_genres)])
    flat = np.array([kind for kinds in genres_of for kind in kinds], dtype=np.int64)
    repeats = num_genres[item]
    row = np.repeat(np.arange(len(user)), repeats)
    within = np.arange(len(row)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    genre = flat[starts[item[row]] + within]
    board = user[row] * 100 + genre

    by_board = np.lexsort((np.arange(len(board)), board))  # stable: time order inside a board stays
    sorted_board = board[by_board]
    _, begin, size = np.unique(sorted_board, return_index=True, return_counts=True)
    place = np.arange(len(board)) - np.repeat(begin, size)
    enough = size >= BOARD_STARTS_AT
    start_time = time[row][by_board][begin + np.minimum(BOARD_STARTS_AT, size) - 1]
    added = np.where(place < BOARD_STARTS_AT, np.repeat(start_time, size), time[row][by_board])
    keep = np.repeat(enough, size)
    chosen = by_board[keep]
    table = pa.table(
        {
            "board_id": pa.array(board[chosen]),
            "user_id": pa.array(user[row][chosen]),
            "item_id": pa.array(item[row][chosen]),
            "added_at": pc.cast(pa.array(added[keep] * 1_000_000), TIME),
            "name": pc.binary_join_element_wise(
                interests["name"].combine_chunks().take(pa.array(genre[chosen] - 1)),
                pc.cast(pa.array(user[row][chosen]), pa.string()),
                " of user ",
            ),
        },
        schema=BOARDS.columns,
    )
    final = np.lexsort((np.arange(len(table)), added[keep], user[row][chosen]))
    return table.take(pa.array(final))
