"""What every benchmark shares: rows, claims with their goals, a table for people and JSON for programs.

A claim is defined once, with the size it needs. One that a small run can't measure is shown with `holds: null, needs: full`, never
dropped or weakened; one that doesn't hold makes the benchmark exit with 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.console
import rich.table

SMALL, FULL = "small", "full"
Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A figure that is promised."""

    name: str
    goal: str
    """In words: what the value must be."""
    value: float | None
    """None where this size can't measure it."""
    holds: bool | None
    needs: str = SMALL
    """The size that measures it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What a benchmark measured."""

    rows: Sequence[Row]
    claims: Sequence[Claim]


def not_measured(name: str, goal: str) -> Claim:
    """A claim that needs the full size."""
    return Claim(name=name, goal=goal, value=None, holds=None, needs=FULL)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": os.cpu_count(), "memory_gib": round(memory / 2**30, 1), "python": platform.python_version(), "cpu": _cpu()}


def main(name: str, measure: Callable[[str], Result], argv: Sequence[str] | None = None) -> int:
    """Run a benchmark from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--size", choices=(SMALL, FULL), default=SMALL)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    arguments = parser.parse_args(argv)
    result = measure(arguments.size)
    show(name, result)
    if arguments.json:
        report = {
            "benchmark": name, "revision": _revision(), "machine": machine(), "size": arguments.size, "rows": [dict(row) for row in result.rows],
            "claims": [dataclasses.asdict(claim) for claim in result.claims],
        }  # fmt: skip
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")
    return int(any(claim.holds is False for claim in result.claims))


def show(name: str, result: Result) -> None:
    """Print rows, a table for each `part` where rows name one, and claims."""
    console = rich.console.Console(width=None if sys.stdout.isatty() else 160)
    for part, group in itertools.groupby(result.rows, key=lambda row: row.get("part", "")):
        rows = [{key: value for key, value in row.items() if key != "part"} for row in group]
        console.print(_table(f"{name}: {part}" if part else name, rows))
    for claim in result.claims:
        state = "needs " + claim.needs if claim.holds is None else "holds" if claim.holds else "DOESN'T HOLD"
        console.print(f"{state:>12}  {claim.name}: {_text(claim.value)} (goal: {claim.goal})", highlight=False)


def _table(title: str, rows: Sequence[Row]) -> rich.table.Table:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = rich.table.Table(title=title, title_justify="left")
    for column in columns:
        numbers = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    return table


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _revision() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
