"""Draws the DAG from the table of steps, so that the picture in the README can't differ from what runs: docs/pictures/dag.svg."""

from __future__ import annotations

import html
import sys
from pathlib import Path

from clrflow.steps import STEPS

TARGET = Path(__file__).parents[1] / "docs" / "pictures" / "dag.svg"
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 132, 46, 44, 26, 18

NOTES = {
    "configure": "settings checked",
    "validate_data": "five tables",
    "bootstrap": "requests, conditions",
    "semantic_ids": "codes of items",
    "train": "two towers",
    "evaluate": "whole catalogue",
    "gate": "publish or hold",
    "export_index": "index and tables",
    "publish": "a new version",
    "clean_up": "however it ended",
}
"""What a step adds, in words that fit into its box."""

BEGIN, END = "configure", "clean_up"


def edges() -> list[tuple[str, str]]:
    """What each step waits for, without edges that others imply; order between gate and export_index is the pipeline's own."""
    waits: dict[str, set[str]] = {BEGIN: set()} | {name: set(step.inputs) or {BEGIN} for name, step in STEPS.items()}
    waits["export_index"] = waits["export_index"] | {"gate"}
    waits[END] = set(waits)

    def above(name: str) -> set[str]:
        return waits[name].union(*(above(earlier) for earlier in waits[name]))

    return [
        (earlier, name)
        for name, needed in waits.items()
        for earlier in sorted(needed)
        if not any(earlier in above(other) for other in needed if other != earlier)
    ]


def columns() -> dict[str, int]:
    """The column of each step: one past the last of those that it waits for."""
    column: dict[str, int] = {}
    for name in (BEGIN, *STEPS, END):
        column[name] = max((column[earlier] + 1 for earlier, later in edges() if later == name), default=0)
    return column


def places() -> dict[str, tuple[float, float]]:
    """Upper left corner of each box; the row of columns is folded in two, the second from left to right again."""
    column = columns()
    half = (max(column.values()) + 2) // 2
    found: dict[str, tuple[float, float]] = {}
    for index in range(max(column.values()) + 1):
        names = [name for name, at in column.items() if at == index]
        row, place = divmod(index, half)
        for offset, name in enumerate(names):
            shift = (offset - (len(names) - 1) / 2) * (BOX_HEIGHT + GAP_Y)
            middle = MARGIN + (BOX_HEIGHT + GAP_Y) / 2 + row * (2 * BOX_HEIGHT + 2.6 * GAP_Y)
            found[name] = (MARGIN + place * (BOX_WIDTH + GAP_X), middle + shift)
    return found


def svg() -> str:
    """The picture as text."""
    at = places()
    width = max(x for x, _ in at.values()) + BOX_WIDTH + MARGIN
    height = max(y for _, y in at.values()) + BOX_HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        'font-family="system-ui, DejaVu Sans, sans-serif" role="img" aria-label="The steps of the pipeline">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#5f6b7a"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    for earlier, later in edges():
        parts.append(f'<path d="{_line(at[earlier], at[later])}" fill="none" stroke="#5f6b7a" stroke-width="1.4" marker-end="url(#tip)"/>')
    for name, (x, y) in at.items():
        fill, ink = ("#f5f7fa", "#1d232b") if name in (BEGIN, END) else ("#eaf1fb", "#2457a6")
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="#2457a6" stroke-width="1"/>'
            f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 20:.0f}" text-anchor="middle" font-size="13.5" font-weight="600" fill="{ink}">'
            f"{html.escape(name)}</text>"
            f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 36:.0f}" text-anchor="middle" font-size="11" fill="#5f6b7a">'
            f"{html.escape(NOTES[name])}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    """A curve between neighbours; from the first row's end to the second row's start, a way round between the rows."""
    x1, y1 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT / 2
    x2, y2 = end[0], end[1] + BOX_HEIGHT / 2
    if x2 > start[0]:
        middle = (x1 + x2) / 2
        return f"M{x1:.0f} {y1:.0f} C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    x1, y1, x2, y2 = start[0] + BOX_WIDTH / 2, start[1] + BOX_HEIGHT, end[0] + BOX_WIDTH / 2, end[1]
    turn, bend = y2 - GAP_Y, 10
    return (
        f"M{x1:.0f} {y1:.0f} V{turn - bend:.0f} Q{x1:.0f} {turn:.0f} {x1 - bend:.0f} {turn:.0f} "
        f"H{x2 + bend:.0f} Q{x2:.0f} {turn:.0f} {x2:.0f} {turn + bend:.0f} V{y2:.0f}"
    )


def main(arguments: list[str]) -> int:
    drawn = svg()
    if "--check" in arguments:
        return 0 if TARGET.is_file() and TARGET.read_text() == drawn else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(drawn)
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
