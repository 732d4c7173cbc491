"""What the commands print: tables and lines for people, JSON for programs; plain text wherever stdout is no terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from clrflow.formatting import show


def line(text: str = "") -> None:
    print(text, flush=True)


def to_stderr(text: str) -> None:
    """A line that is not the result, for commands whose stdout holds JSON alone."""
    print(text, file=sys.stderr, flush=True)


def error(text: str) -> None:
    """A message on stderr; only its first word is coloured, so that what a user copies stays plain."""
    mark = "\x1b[31merror\x1b[0m" if sys.stderr.isatty() else "error"
    to_stderr(f"{mark}: {text}")


def note(text: str) -> None:
    """Something that a person should know of a result that is right all the same; on stderr, so that stdout stays what was asked for."""
    to_stderr(f"note: {text}")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str, allow_nan=False), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], highlight: int | None = None, title: str = "") -> None:
    """Columns as wide as their widest cell; numbers to the right; `highlight` is the row that matters."""
    cells = [[show(cell) for cell in row] for row in rows]
    numeric = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(columns))]
    widths = [max(len(column), *(len(row[index]) for row in cells), 0) for index, column in enumerate(columns)]
    terminal = sys.stdout.isatty()

    def padded(row: Sequence[str]) -> str:
        parts = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric))
        return "  ".join(parts).rstrip()

    if title:
        line(f"\x1b[1m{title}\x1b[0m" if terminal else title)
    line(f"\x1b[2m{padded(columns)}\x1b[0m" if terminal else padded(columns))
    for index, row in enumerate(cells):
        text = padded(row)
        line(f"\x1b[1m{text}\x1b[0m" if terminal and index == highlight else text)


def _is_number(value: Any) -> bool:
    """Also what the caller has formatted as a number, and a gap among numbers."""
    if isinstance(value, str):
        return value.replace(",", "").replace(".", "", 1).removeprefix("-").isdigit()
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
