"""The made-up log: the same for the same arguments, consistent in time, and with the structure that it promises."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from clrflow import storage
from clrflow.data.settings import DataSettings
from clrflow.data.synthetic import generate
from clrflow.data.tables import read_table
from clrflow.data.validate import checked
from clrflow.errors import BadInput

SIZE = {"users": 400, "items": 600, "days": 10, "seed": 3, "events_per_user": 20}


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "tables"
    generate(str(folder), **SIZE)
    return folder


def fingerprints(made: dict) -> dict:
    return {name: table["fingerprint"] for name, table in made["tables"].items()}


def test_equal_arguments_give_equal_bytes_and_another_seed_others(tmp_path, log):
    again = fingerprints(generate(str(tmp_path / "again"), **SIZE))
    other = fingerprints(generate(str(tmp_path / "other"), **{**SIZE, "seed": 4}))
    assert again == {name: storage.fingerprint(str(log / name)) for name in again}
    assert all(again[name] != other[name] for name in ("events", "items", "boards", "user_interests"))


def test_the_draws_of_a_chunk_do_not_depend_on_how_many_users_follow(tmp_path, log, monkeypatch):
    monkeypatch.setattr("clrflow.data.synthetic.USERS_PER_CHUNK", 100)
    generate(str(tmp_path / "few"), **{**SIZE, "users": 100})
    generate(str(tmp_path / "many"), **{**SIZE, "users": 250})
    few, many = (read_table(str(tmp_path / name / "events")) for name in ("few", "many"))
    assert many.slice(0, len(few)).equals(few)
    assert np.unique(many["user_id"]).tolist() == list(range(1, 251))


def test_a_second_call_finds_the_first_ones_work_and_other_arguments_are_refused(log):
    assert generate(str(log), **SIZE)["reused"]
    with pytest.raises(BadInput, match="already holds something else"):
        generate(str(log), **{**SIZE, "seed": 9})


def test_a_folder_that_lost_a_file_is_not_taken_for_whole(tmp_path):
    folder = tmp_path / "tables"
    generate(str(folder), **SIZE)
    (folder / "events" / "part-00000.parquet").unlink()
    with pytest.raises(BadInput, match="already holds something else"):
        generate(str(folder), **SIZE)


def test_a_killed_attempt_leaves_nothing_and_the_next_one_clears_up_after_it(tmp_path, log):
    large = {**SIZE, "users": 50_000}
    code = f"from clrflow.data.synthetic import generate; generate({str(tmp_path / 'tables')!r}, **{large!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob("events/*.parquet")):  # half-written tables are on the disk
            assert time.monotonic() < deadline, "the child wrote nothing within 60 s"
            time.sleep(0.02)
        child.kill()
    assert not (tmp_path / "tables").exists()
    made = generate(str(tmp_path / "tables"), **SIZE)
    assert fingerprints(made)["events"] == storage.fingerprint(str(log / "events"))
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_it_passes_the_data_contract_without_losing_a_row(log):
    with checked(DataSettings(tables=str(log), now="2026-01-01T00:00:00+00:00")) as result:
        assert result.dropped == {}
        assert result.num_outside_window == 0
        assert result.embedding_dim == 64


def test_nothing_is_engaged_with_shown_or_put_on_a_board_before_its_birth(log):
    items = read_table(str(log / "items"))
    born = dict(zip(items["item_id"].to_pylist(), items["created_at"].cast("int64").to_pylist()))
    for table, column in (("events", "timestamp"), ("boards", "added_at")):
        rows = read_table(str(log / table))
        births = np.array([born[item] for item in rows["item_id"].to_pylist()])
        assert (rows[column].cast("int64").to_numpy() > births).all()
    events = read_table(str(log / "events"))
    first = events["timestamp"].cast("int64").to_numpy().min()
    engaged = set(events["item_id"].to_pylist())
    assert sum(birth > first for item, birth in born.items() if item in engaged) > 50  # items do get born inside the window, and found


def test_engagements_follow_theme_interest_and_popularity(log):
    events = read_table(str(log / "events")).filter(~(read_table(str(log / "events"))["action"].to_numpy() == "impression"))
    items = read_table(str(log / "items"))
    theme_of = {
        item: title.rsplit(" ", 1)[0].split(" ", 1)[1] for item, title in zip(items["item_id"].to_pylist(), items["title"].to_pylist())
    }
    themes = np.array([theme_of[item] for item in events["item_id"].to_pylist()])
    users = events["user_id"].to_numpy()
    same_user = users[1:] == users[:-1]
    goes_on = (themes[1:] == themes[:-1])[same_user].mean()
    by_chance = (np.random.default_rng(0).permutation(themes)[1:] == themes[:-1])[same_user].mean()
    assert goes_on > 0.35 > 0.1 > by_chance
    _, counts = np.unique(events["item_id"], return_counts=True)
    top_tenth = np.sort(counts)[::-1][:60].sum() / counts.sum()
    assert top_tenth > 0.25


def test_saves_go_onto_boards_of_one_theme(log):
    boards = read_table(str(log / "boards"))
    events = read_table(str(log / "events"))
    saved = events.filter(events["action"].to_numpy() == "save")
    assert sorted(zip(saved["board_id"].to_pylist(), saved["item_id"].to_pylist())) == sorted(
        zip(boards["board_id"].to_pylist(), boards["item_id"].to_pylist())
    )
    names = {}
    for board, name in zip(boards["board_id"].to_pylist(), boards["name"].to_pylist()):
        assert names.setdefault(board, name) == name
    _, sizes = np.unique(boards["board_id"], return_counts=True)
    assert sizes.mean() > 1.5


def test_a_share_of_engagements_knows_its_generator_and_condition(log):
    events = read_table(str(log / "events"))
    engaged = events["action"].to_numpy() != "impression"
    known = np.array([name is not None for name in events["generator"].to_pylist()])
    assert known[engaged].mean() == pytest.approx(0.2, abs=0.02)
    assert not known[~engaged].any()
    boards = set(read_table(str(log / "boards"))["board_id"].to_pylist())
    interests = set(read_table(str(log / "interests"))["interest_id"].to_pylist())
    rows = zip(events["condition_type"].to_pylist(), events["condition_id"].to_pylist())
    for kind, condition in rows:
        assert kind is not None or condition is None
        assert kind != "board" or condition in boards
        assert kind != "interest" or condition in interests
        assert kind != "none" or condition is None


def test_embeddings_of_one_interest_are_closer_than_others(log):
    items = read_table(str(log / "items"))
    vectors = np.stack(items["content_embedding"].to_numpy(zero_copy_only=False))
    leaf = np.array([row[0] for row in items["interests"].to_pylist()])
    similar = vectors @ vectors.T
    same = leaf[:, None] == leaf[None, :]
    np.fill_diagonal(same, False)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert similar[same].mean() > 0.6 > 0.3 > similar[~same].mean()


@pytest.mark.parametrize(("name", "value"), [("users", 0), ("items", 5), ("days", 0), ("seed", -1), ("logged_share", 1.5)])
def test_sizes_that_make_no_log_are_refused(tmp_path, name, value):
    with pytest.raises(BadInput, match=rf"{name}[ =]{value}"):
        generate(str(tmp_path / "tables"), **{**SIZE, name: value})
    assert not (tmp_path / "tables").exists()
