"""Days: what an earlier run built is taken over where nothing that it hangs on has changed, and the outcome is as if all were built now."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clrflow import storage
from tests.bootstrap.worlds import START, World, at, engaged

SETTINGS: dict[str, Any] = {"split": {"by": "time", "validation_days": 1.0, "test_days": 1.0}, "lookback_days": 3}
Make = Callable[[str], World]


def daily(world: World, days: range) -> World:
    """Five users who engage two of twelve items a day, in the morning, and put one on a board."""
    for item in range(1, 13):
        world.item(item, 1 + item % 3, vector=(item % 5, 1 + item % 3))
    for day in days:
        for user in range(5):
            for place in range(2):
                world.event(user, 1 + (user * 5 + day * 3 + place * 7) % 12, day, 3600 * (1 + user) + place, order=0)
            world.add_to_board(user, user, 1 + (user + day) % 12, day + 0.5)
    return world


def names(*days: int) -> list[str]:
    return [f"{START.date().replace(day=1 + day)}" for day in days]


@pytest.fixture
def yesterday(make_world: Make) -> str:
    """The tables that a run made when the log had days 0 to 9: examples of 3 to 9, of which 8 is validation and 9 test."""
    world = daily(make_world("yesterday"), range(10))
    assert world.run(**SETTINGS).quality.num_days == 7
    return str(world.folder / "out")


def test_a_daily_run_builds_the_new_day_and_those_that_left_test_and_validation(make_world: Make, yesterday: str) -> None:
    today = daily(make_world("today"), range(11))
    found = today.run(earlier=(yesterday,), **SETTINGS)
    assert list(found.quality.days_taken_over) == names(3, 4, 5, 6, 7)
    anew = daily(make_world("anew"), range(11)).run(**SETTINGS)
    assert found.fingerprints == anew.fingerprints
    assert found.quality.metrics() == anew.quality.metrics()


def test_a_window_that_slides_changes_no_day_that_stays(make_world: Make, yesterday: str) -> None:
    today = daily(make_world("today"), range(11))
    today.events = [row for row in today.events if row["timestamp"] >= at(1)]
    found = today.run(earlier=(yesterday,), **SETTINGS)
    assert list(found.quality.days_taken_over) == names(4, 5, 6, 7)


def test_an_event_that_came_late_has_its_day_and_those_that_look_back_at_it_built_again(make_world: Make, yesterday: str) -> None:
    today = daily(make_world("today"), range(11))
    today.event(1, 3, 1, 50)  # days 1 to 4 have it in their window
    found = today.run(earlier=(yesterday,), **SETTINGS)
    assert list(found.quality.days_taken_over) == names(5, 6, 7)


@pytest.mark.parametrize("change", ["an item of the first day", "a board of day 5", "a setting"])
def test_what_else_a_day_hangs_on_has_it_built_again(make_world: Make, yesterday: str, change: str) -> None:
    today, changes = daily(make_world("today"), range(11)), dict(SETTINGS)
    if change == "an item of the first day":
        today.item(1, 3)
    elif change == "a board of day 5":
        today.add_to_board(7, 1, 4, 5.1)
    else:
        changes["fallback_factor"] = 0.25
    found = today.run(earlier=(yesterday,), **changes)
    assert list(found.quality.days_taken_over) == (names(3, 4) if "board" in change else [])


def test_an_item_that_is_younger_than_its_first_event_counts_from_that_event_on(make_world: Make) -> None:
    # Item 12 is engaged from the first days on and, so the table says, created on day 20: its embedding decides medoids all the same.
    earlier, later = (daily(make_world(name), range(10)) for name in ("earlier", "later"))
    earlier.item(12, 1, day=20, vector=(0.0, 1.0))
    later.item(12, 1, day=20, vector=(1.0, 0.0))
    earlier.run(**SETTINGS)
    assert not later.run(earlier=(str(earlier.folder / "out"),), **SETTINGS).quality.days_taken_over


def test_without_a_lookback_a_window_that_slides_has_all_days_built_again(make_world: Make) -> None:
    settings = {**SETTINGS, "lookback_days": None}
    daily(make_world("yesterday"), range(10)).run(**settings)
    out = str(make_world("yesterday").folder / "out")
    assert list(daily(make_world("grown"), range(11)).run(earlier=(out,), **settings).quality.days_taken_over) == names(*range(8))
    slid = daily(make_world("slid"), range(11))
    slid.events = [row for row in slid.events if row["timestamp"] >= at(1)]
    assert not slid.run(earlier=(out,), **settings).quality.days_taken_over


def test_a_killed_attempt_keeps_its_finished_days_and_nothing_else(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clrflow.bootstrap.duckdb_engine.REQUESTS_AT_ONCE", 1)  # a chunk a day
    marks: list[str] = []

    def dies(day: Any, tables: str, figures: Any) -> None:
        if len(marks) == 3:
            raise KeyboardInterrupt
        marks.append(day.name)
        mark(day, tables, figures)

    from clrflow.bootstrap.days import mark

    killed = daily(make_world("killed"), range(10))
    with monkeypatch.context() as patched:
        patched.setattr("clrflow.bootstrap.step.mark", dies)
        with pytest.raises(KeyboardInterrupt):
            killed.run(**SETTINGS)
    built: list[str] = []
    monkeypatch.setattr("clrflow.bootstrap.step.mark", lambda day, *rest: built.append(day.name) or mark(day, *rest))
    found = killed.run(**SETTINGS)
    assert built == names(6, 7, 8, 9)
    assert found.fingerprints == daily(make_world("whole"), range(10)).run(**SETTINGS).fingerprints


def test_nothing_older_than_the_lookback_is_seen(make_world: Make) -> None:
    world = daily(make_world("world"), range(10))
    for row in world.run(**SETTINGS).requests():
        oldest = [time for time in row["history_times"] if (row["requested_at"].date() - time.date()).days > 3]
        assert not oldest
        assert len(row["history_items"]) == 6  # two a day


def test_a_lookback_longer_than_the_window_is_refused_with_both_settings(make_world: Make) -> None:
    from clrflow.errors import DataError

    with pytest.raises(DataError, match=r"lookback_days=10 leaves no day .* data\.window_days=20"):
        daily(make_world("short"), range(10)).run(**{**SETTINGS, "lookback_days": 10})


def test_each_day_has_a_folder_and_numbers_of_its_own(make_world: Make) -> None:
    world = daily(make_world("world"), range(10))
    rows = world.run(**SETTINGS).requests()
    folders = {Path(file).parent.name for file in storage.list_files(str(world.folder / "out" / "requests"))}
    assert sorted(folders) == [f"day={name}" for name in names(*range(3, 10))]
    for row in rows:
        day = (row["requested_at"].date() - datetime.date(1970, 1, 1)).days
        assert row["request_id"] >> 32 == day
    assert [row["request_id"] & (2**32 - 1) for row in rows] == [*range(5)] * 7
    assert all(len(engaged(row)) == 2 for row in rows)
