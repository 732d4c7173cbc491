"""MovieLens-100k out of the wheel; skipped where no wheel can be had."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clrflow.data import movielens
from clrflow.data.tables import read_table
from clrflow.data.text_encoder import DIM, encode_texts
from clrflow.errors import BadInput


@pytest.fixture(scope="module")
def wheel(request) -> Path:
    """The real wheel, kept between test runs."""
    folder = Path(request.config.cache.mkdir("movielens"))
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    try:
        return movielens._download(folder)
    except BadInput as error:
        pytest.skip(f"no wheel: {error}")


@pytest.fixture(scope="module")
def tables(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("movielens") / "tables"
    movielens.prepare(str(folder), wheel=str(wheel))
    return folder


def test_events_are_the_ratings_in_the_files_order(tables):
    events = read_table(str(tables / "events"))
    assert len(events) == 100_000
    assert (len(set(events["user_id"].to_pylist())), len(set(events["item_id"].to_pylist()))) == (943, 1682)
    # The first line of the file: user 196, film 242, second 881250949.
    first = events.slice(0, 1)
    assert (first["user_id"][0].as_py(), first["item_id"][0].as_py()) == (196, 242)
    assert first["timestamp"].cast(pa.int64())[0].as_py() == 881_250_949 * 1_000_000
    assert events["event_order"].to_pylist() == list(range(100_000))


def test_films_carry_genres_titles_and_vectors(tables):
    items = read_table(str(tables / "items"))
    names = dict(zip(*(read_table(str(tables / "interests"))[column].to_pylist() for column in ("interest_id", "name"))))
    assert list(names) == list(range(1, 19))
    assert list(names.values()) == sorted(names.values())
    assert "unknown" not in names.values()
    rows = {row["item_id"]: row for row in items.drop(["content_embedding"]).to_pylist()}
    assert rows[1]["title"] == "Toy Story (1995)"
    assert [names[interest] for interest in rows[1]["interests"]] == ["Animation", "Children's", "Comedy"]
    assert rows[1]["created_at"].isoformat() == "1995-01-01T00:00:00+00:00"
    assert rows[1412]["title"] == "Land Before Time III: The Time of the Great Giving (1995)"  # its year column holds "V"
    assert rows[267]["interests"] == []  # the one film of which nothing is known
    vectors = np.stack(items["content_embedding"].to_numpy(zero_copy_only=False))
    assert vectors.shape == (1682, 256)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


def test_no_film_is_watched_before_it_is_born(tables):
    items, events = read_table(str(tables / "items")), read_table(str(tables / "events"))
    born = np.zeros(1683, dtype=np.int64)
    born[items["item_id"].to_numpy()] = items["created_at"].cast(pa.int64()).to_numpy()
    assert (events["timestamp"].cast(pa.int64()).to_numpy() >= born[events["item_id"].to_numpy()]).all()


def test_derived_boards_hold_liked_films_from_the_third_on(tables):
    boards, events = read_table(str(tables / "boards")), read_table(str(tables / "events"))
    watched = dict(zip(zip(events["user_id"].to_pylist(), events["item_id"].to_pylist()), events["timestamp"].cast(pa.int64()).to_pylist()))
    genres = dict(zip(*(read_table(str(tables / "items"))[column].to_pylist() for column in ("item_id", "interests"))))
    contents: dict[int, list[tuple[int, int]]] = {}
    for board, user, item, added in zip(
        *(boards[name].to_pylist() for name in ("board_id", "user_id", "item_id")), boards["added_at"].cast(pa.int64()).to_pylist()
    ):
        assert board // 100 == user
        assert board % 100 in genres[item]
        contents.setdefault(board, []).append((added, watched[user, item]))
    assert min(len(entries) for entries in contents.values()) == 3
    for entries in contents.values():
        started = sorted(time for _, time in entries)[2]  # the third liked film starts the board and takes the first two in
        assert [added for added, _ in entries] == [max(time, started) for _, time in entries]
        assert [added for added, _ in entries] == sorted(added for added, _ in entries)


def test_the_second_call_returns_what_is_there(tables, wheel):
    assert movielens.prepare(str(tables), wheel=str(wheel))["reused"]
    assert movielens.prepare(str(tables))["reused"]  # without fetching anything


def test_a_wheel_with_other_content_is_refused(tmp_path):
    fake = tmp_path / "recbole-1.2.1-py3-none-any.whl"
    with zipfile.ZipFile(fake, "w") as archive:
        archive.writestr("recbole/dataset_example/ml-100k/ml-100k.inter", "user_id:token\n1\n")
    with pytest.raises(BadInput, match=r"ml-100k\.inter in .* has 16 bytes .*expected 1979230"):
        movielens.prepare(str(tmp_path / "tables"), wheel=str(fake))
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize("content", [None, b"no zip"])
def test_a_wheel_that_is_missing_or_broken_is_refused(tmp_path, content):
    path = tmp_path / "some.whl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=r"some\.whl.*Give the wheel of recbole==1\.2\.1 with --wheel PATH"):
        movielens.prepare(str(tmp_path / "tables"), wheel=str(path))


def test_without_an_index_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip as on a machine without a network
    with pytest.raises(BadInput, match=r"pip could not bring recbole==1\.2\.1 .*--wheel PATH"):
        movielens.prepare(str(tmp_path / "tables"))


def test_texts_become_unit_vectors_and_likeness_shows():
    vectors = encode_texts(["A cartoon for children", "An animated film for kids", "Statistics of rainfall in ports", ""])
    assert vectors.shape == (4, DIM)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0], abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert (encode_texts(["An animated film for kids"])[0] == vectors[1]).all()  # whatever else is in the batch
    assert encode_texts([]).shape == (0, DIM)
