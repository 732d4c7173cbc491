"""Builds one HTML page out of tiles, texts, tables and matplotlib figures; no script, no outside file, safe in a sandboxed frame."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clrflow.formatting import show

COLOURS = ("#2457a6", "#d9772b", "#3a8f5c", "#a23b72", "#7a6bbf", "#8a8d91", "#c2a83e", "#4aa3b8")
"""One palette for all pictures: told apart in print and by colour-blind eyes."""


def new_figure(width: float = 7.0, height: float = 3.2, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure in the reports' look, in inches, with its axes in one row; needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, index + 1) for index in range(columns)]
    for ax in axes:
        ax.set_prop_cycle(color=COLOURS)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", alpha=0.25)
        ax.tick_params(labelsize=8)
        ax.title.set_fontsize(10)
        ax.xaxis.label.set_fontsize(9)
        ax.yaxis.label.set_fontsize(9)
    return figure, axes


class Report:
    """A page, filled from top to bottom."""

    def __init__(self, title: str, subtitle: str = ""):
        self.title, self.subtitle = title, subtitle
        self._blocks: list[dict[str, Any]] = []

    def tiles(self, values: Mapping[str, Any]) -> None:
        """The few numbers that a reader wants first."""
        self._blocks.append({"kind": "tiles", "tiles": [(name, show(value)) for name, value in values.items()]})

    def section(self, title: str, text: str = "") -> None:
        """A heading and what the reader should take from what follows."""
        self._blocks.append({"kind": "section", "title": title, "text": text})

    def text(self, text: str) -> None:
        """A paragraph; markup in it is shown, not obeyed."""
        self._blocks.append({"kind": "text", "text": text})

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], highlight: int | None = None) -> None:
        """A table; numbers are aligned right; `highlight` is the row that matters."""
        cells = [[(show(cell), isinstance(cell, int | float) and not isinstance(cell, bool)) for cell in row] for row in rows]
        self._blocks.append({"kind": "table", "columns": list(columns), "rows": cells, "highlight": highlight})

    def figure(self, figure: Figure, caption: str) -> None:
        """A picture; the caption is also its text for those who don't see it."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        data = base64.b64encode(buffer.getvalue()).decode()
        self._blocks.append({"kind": "figure", "data": data, "caption": caption})

    def tree(self, title: str, nested: Mapping[str, Any]) -> None:
        """A tree that opens by clicking; leaves are lists of lines."""
        self._blocks.append({"kind": "tree", "title": title, "nested": nested})

    def html(self) -> str:
        """The whole page."""
        source = files("clrflow.reporting").joinpath("report.html.j2").read_text()
        template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
        return template.render(title=self.title, subtitle=self.subtitle, blocks=self._blocks)
