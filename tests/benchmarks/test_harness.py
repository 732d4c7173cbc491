"""Benchmarks promise figures: what doesn't hold fails, what wasn't measured is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import FULL, Claim, Result, main, not_measured

ROWS = [{"model": "ours", "recall@50": 0.4}, {"model": "popularity", "recall@50": 0.2}]


def claim(holds: bool) -> Claim:
    return Claim(name="ours over popularity", goal="> 1", value=2.0, holds=holds)


def test_a_claim_that_does_not_hold_ends_with_exit_code_1() -> None:
    assert main("x", lambda size: Result(rows=ROWS, claims=[claim(True)]), []) == 0
    assert main("x", lambda size: Result(rows=ROWS, claims=[claim(True), claim(False)]), []) == 1


def test_a_claim_that_needs_the_full_size_is_shown_and_fails_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main("x", lambda size: Result(rows=ROWS, claims=[not_measured("speed", "≥ 2")]), ["--json", str(file)]) == 0
    assert "needs full  speed: –" in capsys.readouterr().out
    (written,) = json.loads(file.read_text())["claims"]
    assert (written["holds"], written["needs"]) == (None, FULL)


def test_the_json_says_what_was_measured_on_what(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    main("x", lambda size: Result(rows=[{"size": size}], claims=[]), ["--size", "full", "--json", str(file)])
    written = json.loads(file.read_text())
    assert written.keys() == {"benchmark", "revision", "machine", "size", "rows", "claims"}
    assert written["rows"] == [{"size": "full"}]
    assert written["machine"]["cores"] >= 1
