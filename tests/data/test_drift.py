"""New data are held against those of the published version: what moved too far fails, each with its own sentence, and what is usual passes."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clrflow import storage
from clrflow.contracts import TIME
from clrflow.data.drift import Check, compare
from clrflow.data.profile import PERCENTILES, SKETCH_SIZE, Profile, overlap, profile_of
from clrflow.data.settings import DriftSettings
from clrflow.data.validate import checked
from clrflow.errors import DataError
from clrflow.index.publish import publish_version
from clrflow.index.published import PROFILE, published_folder
from clrflow.steps import Outcome
from tests.data.helpers import at, items, settings_of, validate, write

A_DAY = datetime.timedelta(days=1)
ITEMS = np.arange(1, 151)
THRESHOLDS = {"min_events": 50}


def log(first_day: int = 0, num_days: int = 6, last_hour: int = 24) -> dict[str, np.ndarray]:
    """An event every six minutes, 240 a day, by 120 users: 65 % clicks, 5 % saves, 30 % impressions; one engagement in five is logged."""
    number = np.arange(first_day * 240, (first_day + num_days - 1) * 240 + last_hour * 10)
    return {
        "user_id": number % 120 + 1,
        "item_id": number * 7 % 150 + 1,
        "minute": number * 6,
        "action": np.select([number % 20 == 0, number % 10 < 7], ["save", "click"], "impression"),
        "condition": np.where(number // 20 % 5 == 0, np.where(number % 2 == 0, "item", "interest"), ""),
    }


def without(columns: dict[str, np.ndarray], gone: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[~gone] for name, values in columns.items()}


def day_of(columns: dict[str, np.ndarray]) -> np.ndarray:
    return columns["minute"] // 1440


def swapped(values: np.ndarray, one: str, other: str) -> np.ndarray:
    return np.select([values == one, values == other], [other, one], values)


def tables(folder: Path, columns: dict[str, np.ndarray], *, item_ids: np.ndarray = ITEMS, vectors: Any = None) -> str:
    kinds = columns["condition"]
    events = pa.table(
        {
            "user_id": columns["user_id"],
            "item_id": columns["item_id"],
            "timestamp": pa.array([at(float(minute)) for minute in columns["minute"]], TIME),
            "action": columns["action"],
            "condition_type": pa.array(kinds, mask=kinds == ""),
            "condition_id": pa.array(np.where(kinds == "item", item_ids[0], 1), mask=kinds == ""),
        }
    )
    return write(folder, events=events, items=items(*item_ids.tolist(), embeddings=vectors), boards=None)


def run(folder: Path, columns: dict[str, np.ndarray], workspace: Path, drift: dict[str, Any] | None = None, **more: Any) -> Outcome:
    return validate(tables(folder, columns, **more), workspace, drift={**THRESHOLDS, **(drift or {})})


def publish(workspace: Path, outcome: Outcome) -> str:
    """As the step publish does: the version carries the profile of the data that its model was trained from."""
    parts = {PROFILE: outcome.manifest.output("profile")}
    return publish_version(published_folder(str(workspace)), parts, fingerprint="f" * 20, train="t", champion="").version


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A workspace whose published version was trained from `log()`."""
    folder = tmp_path_factory.mktemp("published")
    publish(folder / "w", run(folder / "in", log(), folder / "w"))
    return folder / "w"


def save_became_click(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**columns, "action": np.where(columns["action"] == "save", "click", columns["action"])}


def half_of_day(day: int, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return without(columns, (day_of(columns) == day) & (columns["minute"] // 6 % 2 == 0))


MOVED: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], str]] = {
    "two actions swapped": (
        {**log(), "action": swapped(log()["action"], "click", "impression")}, {},
        r"the mix of actions went from click 65\.0%, impression 30\.0%.* to click 30\.0%, impression 65\.0%.*: 0\.35 against "
        r"data\.drift\.max_action_shift=0\.1; look at how the export maps",
    ),
    "a rare action that vanished": (
        save_became_click(log()), {},
        r"the share of action save went from 5\.00% to 0\.00%: inf against data\.drift\.max_action_ratio=3",
    ),
    "conditions no longer logged": (
        {**log(), "condition": np.full(1440, "")}, {},
        r"the share of engagements with a logged condition went from .*logged 20\.8%.* to .*data\.drift\.max_logged_shift=0\.1",
    ),
    "condition types mixed up": (
        {**log(), "condition": np.where(log()["condition"] == "", "", "item")}, {},
        r"the mix of logged condition types went from .* to interest 0\.0%, item 100\.0%: .*data\.drift\.max_condition_shift=0\.15",
    ),
    "users under other ids": (
        {**log(), "user_id": log()["user_id"] + 1_000_000}, {},
        r"the overlap of users went from 120 users to 120, which hold about 0\.0% of those then: 0 against data\.drift\.min_user_overlap=0\.2; "
        r"look at whether ids of users are made as before",
    ),
    "items under other ids": (
        {**log(), "item_id": log()["item_id"] + 1_000_000}, {"item_ids": ITEMS + 1_000_000},
        r"the overlap of items went from 150 items to 150, which hold about 0\.0% .*data\.drift\.min_item_overlap=0\.5",
    ),
    "half of a known day": (
        half_of_day(3, log()), {},
        r"events of the day with relatively fewest, Sat 2025-01-04 went from 240 to 120: 0\.5 against data\.drift\.max_day_drop=0\.4; "
        r"look at whether the day was exported whole",
    ),
    "half of the new day": (half_of_day(6, log(first_day=1)), {}, r"relatively fewest, Tue 2025-01-07 went from 240 to 120: 0\.5 against"),
    "a hole": (without(log(), day_of(log()) == 2), {}, r"relatively fewest, Fri 2025-01-03 went from 240 to 0: 1 against"),
    "embeddings that are not normalised": (
        log(), {"vectors": [[3.0, 6.0]] * 150},
        r"quantile of embedding norms went from 2\.236 to 6\.708: 2 against data\.drift\.max_norm_change=0\.2; look at whether embeddings are normalised",
    ),
    "embeddings of another width": (
        log(), {"vectors": [[5**0.5, 0.0, 0.0]] * 150},
        r"the width of content embeddings went from 2 to 3: 1 against data\.drift\.same_embedding_dim",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(MOVED))
def test_what_moved_is_refused_with_both_values_threshold_and_way_out(tmp_path, published, case):
    columns, more, message = MOVED[case]
    with pytest.raises(DataError, match=message) as caught:
        run(tmp_path / "in", columns, published, **more)
    assert str(caught.value).startswith("1 distribution(s) moved against the data of published version")
    assert "set data.drift.enabled=false for one run" in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_that_moved_is_told_at_once_and_nothing_is_left_that_looks_finished(tmp_path, published):
    uri = tables(tmp_path / "in", without({**log(), "user_id": log()["user_id"] + 1_000_000}, day_of(log()) == 2))
    for _ in range(2):  # the second attempt isn't served by what the first one left
        with pytest.raises(DataError, match=r"2 distribution\(s\) moved.*\n  the overlap of users.*\n  events of the day"):
            validate(uri, published, drift=THRESHOLDS)


USUAL: dict[str, dict[str, np.ndarray]] = {
    "the same data": log(),
    "the next day": log(first_day=1),
    "a newest day that has just begun": log(first_day=1, num_days=7, last_hour=9),
    "a first day that the window cuts": without(log(), log()["minute"] < 1200),
    "a fifth more events": {name: np.concatenate([values, values[::5]]) for name, values in log().items()} | {
        "minute": np.concatenate([log()["minute"], log()["minute"][::5] + 1])
    },
}  # fmt: skip


@pytest.mark.parametrize("case", list(USUAL))
def test_what_is_usual_passes(tmp_path, published, case):
    outcome = run(tmp_path / "in", USUAL[case], published)
    assert outcome.scalars()["drift_max_day_drop"] < 0.4
    assert "within" in Path(outcome.manifest.report_uri).read_text()


@pytest.mark.parametrize("drift", [{"max_norm_change": None}, {"enabled": False}, {"max_norm_change": 2.5}, {"policy": "warn"}])
def test_a_check_that_is_switched_off_widened_or_only_warns_lets_the_data_pass(tmp_path, published, drift, capsys):
    outcome = run(tmp_path / "in", log(), published, drift, vectors=[[3.0, 6.0]] * 150)
    page = Path(outcome.manifest.report_uri).read_text()
    assert ("distributions moved" in page) == drift.get("enabled", True)
    assert ("embedding norms went from 2.236 to 6.708" in capsys.readouterr().out) == ("policy" in drift)
    assert ("<td>moved</td>" in page) == ("policy" in drift)


def test_without_anything_published_nothing_is_compared(tmp_path):
    outcome = run(tmp_path / "in", log(), tmp_path / "w")
    assert "Nothing was compared: nothing is published yet" in Path(outcome.manifest.report_uri).read_text()
    assert not [name for name in outcome.scalars() if name.startswith("drift")]


def test_a_version_that_was_published_without_a_profile_is_no_reference(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"m")
    parts = {"model.bin": str(tmp_path / "model.bin")}
    version = publish_version(published_folder(str(tmp_path / "w")), parts, fingerprint="f" * 20, train="t", champion="").version
    outcome = run(tmp_path / "in", log(), tmp_path / "w")
    assert f"version {version} was published without a profile of its data" in Path(outcome.manifest.report_uri).read_text()


def test_the_newest_version_is_the_reference_and_publishing_changes_no_result(tmp_path):
    first = run(tmp_path / "a", log(), tmp_path / "w")
    publish(tmp_path / "w", first)
    other = {**log(), "user_id": log()["user_id"] + 1_000_000}
    accepted = run(tmp_path / "b", other, tmp_path / "w", {"enabled": False})
    publish(tmp_path / "w", accepted)
    assert run(tmp_path / "c", other, tmp_path / "w").scalars()["drift_min_user_overlap"] == 1.0
    # The same data as at first are found although another version is published by now, and what they are found by is the same.
    again = validate(str(tmp_path / "a"), tmp_path / "w", drift=THRESHOLDS)
    assert again.reused
    assert again.manifest.fingerprint == first.manifest.fingerprint


def test_what_was_compared_is_no_part_of_what_later_steps_are_found_by(tmp_path):
    unpublished = run(tmp_path / "a", log(), tmp_path / "u")
    publish(tmp_path / "w", unpublished)
    compared = run(tmp_path / "b", log(), tmp_path / "w")
    assert compared.scalars()["drift_max_action_shift"] == 0.0
    assert compared.manifest.fingerprint == unpublished.manifest.fingerprint


def profile(counts: list[int], first: datetime.date = datetime.date(2025, 1, 6), **more: Any) -> Profile:
    """Whole days from a Monday on, so many clicks each, and nothing else of interest."""
    days = {(first + number * A_DAY).isoformat(): {"click": count} for number, count in enumerate(counts) if count}
    start = datetime.datetime.combine(first, datetime.time(), datetime.UTC)
    microsecond = datetime.timedelta(microseconds=1)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    known: dict[str, Any] = {
        "first_event_us": (start - epoch) // microsecond, "last_event_us": (start + len(counts) * A_DAY - epoch) // microsecond - 1,
        "events_by_day": days, "conditions": {"": sum(counts)}, "num_users": 500, "num_items": 500, "users": ["a"], "items": ["a"],
        "embedding_dim": 2, "norms": [1.0] * len(PERCENTILES),
    }  # fmt: skip
    return Profile(**{**known, **more})


def moved(then: Profile, now: Profile, **settings: Any) -> list[Check]:
    return [check for check in compare(then, now, DriftSettings(**settings)) if check.moved]


WEEK = [5000, 5000, 5000, 5000, 5000, 1500, 1500]


class TestVolume:
    def test_of_a_weekend_is_held_against_weekends(self):
        next_week = datetime.date(2025, 1, 13)
        assert moved(profile(WEEK), profile(WEEK, next_week)) == []
        (check,) = moved(profile(WEEK), profile([5000, 5000, 5000, 5000, 5000, 1500, 750], next_week))
        assert (check.then, check.now, check.distance) == ("1,500", "750", 0.5)

    def test_after_one_odd_day_is_not_held_against_it(self):
        # A Friday with three times as many events; the next one is as the other days are.
        odd = [5000, 5000, 5000, 5000, 15000, 5000, 5000]
        assert moved(profile(odd), profile([5000] * 7, datetime.date(2025, 1, 13))) == []

    def test_of_small_days_is_not_judged(self):
        assert moved(profile([900] * 7), profile([100] * 7, datetime.date(2025, 1, 13))) == []

    def test_that_came_in_twice_is_seen(self):
        (check,) = moved(profile([5000] * 7), profile([5000] * 6 + [15001], datetime.date(2025, 1, 13)))
        assert (check.name, check.setting) == ("events of the day with relatively most, Sun 2025-01-19", "max_day_rise")

    def test_names_how_many_days_moved(self):
        (check,) = moved(profile([5000] * 7), profile([5000, 1, 5000, 2, 5000, 5000, 5000], datetime.date(2025, 1, 13)))
        assert check.now == "1 (2 days moved so far)"


def test_few_events_are_not_judged_by_their_shares():
    few, other = profile([300]), profile([300], events_by_day={"2025-01-06": {"save": 300}}, conditions={"item": 300})
    assert moved(few, other) == []
    assert {check.verdict for check in compare(few, other, DriftSettings())} == {"too few to judge", "within"}
    assert [check.name for check in moved(few, other, min_events=300)] == [
        "the mix of actions", "the share of action click", "the share of engagements with a logged condition",
    ]  # fmt: skip


def sketch(ids: range) -> list[str]:
    return sorted(hashlib.md5(str(one).encode(), usedforsecurity=False).hexdigest()[:16] for one in ids)[:SKETCH_SIZE]


@pytest.mark.parametrize(
    ("then", "now", "share"),
    [
        (range(20_000), range(20_000), 1.0),
        (range(20_000), range(10_000, 200_000), 0.5),  # grown tenfold
        (range(200_000), range(20_000), 0.1),
        (range(20_000), range(20_000, 40_000), 0.0),
        (range(100), range(50, 100_000), 0.5),  # one is so small that all its ids are kept
        (range(100), range(50, 150), 0.5),
    ],
)  # fmt: skip
def test_sketches_estimate_which_share_of_the_ids_is_still_there(then, now, share):
    # Of a small sketch against a large one some 2 % remain to be compared: a dozen ids and more error, so only the rest is held to 4 points.
    assert overlap(sketch(then), sketch(now)) == pytest.approx(share, abs=0.2 if len(then) == 100 and len(now) > 10_000 else 0.04)


def test_the_sketch_of_a_table_is_made_of_plain_md5(tmp_path):
    uri = tables(tmp_path / "in", log())
    with checked(settings_of(uri)) as result:
        found = profile_of(result.con, ["click", "save"], result.embedding_dim)
    assert found.users == sketch(range(1, 121))
    assert (found.num_users, found.num_items, found.num_events) == (120, 150, 1440)
    assert found.whole_days() == {datetime.date(2025, 1, 1) + number * A_DAY: 240 for number in range(6)}
    assert found.norms == pytest.approx([5**0.5] * 21)
    assert Profile.from_json(found.as_json()) == found
    assert Profile.from_json({**found.as_json(), "version": 0}) is None
    # Of 72 blocks of 20 events 15 are logged, each with 14 engagements, of which 8 have even numbers.
    assert found.conditions == {"": 798, "interest": 90, "item": 120}


def test_norms_of_large_floats_do_not_overflow(tmp_path):
    uri = tables(tmp_path / "in", log(), vectors=[[3e30, 4e30]] * 150)
    with checked(settings_of(uri)) as result:
        found = profile_of(result.con, ["click"], result.embedding_dim)
    assert found.norms == pytest.approx([5e30] * 21)
    storage.write_json(str(tmp_path / "profile.json"), found.as_json())
