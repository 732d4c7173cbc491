"""Draws what balance costs in reconstruction, beside the peers, from the benchmark's figures: docs/pictures/semantic-ids-frontier.svg.

`python -m benchmarks.semantic_ids.picture benchmarks/results/semantic-ids-full.json`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from clrflow.reporting import new_figure
from clrflow.reporting.report import COLOURS

TARGET = Path(__file__).parents[2] / "docs" / "pictures" / "semantic-ids-frontier.svg"
WIDEST = "latent 256"
LEAST_COSINE = 0.7
"""Peers below it are named beneath the picture instead: they would squeeze the others together."""


def least_even(row: Mapping[str, Any]) -> float:
    """Perplexity over codes used of the level where it is least; the column has used codes and that share in turn."""
    return min(float(share) for share in row["codes used, perplexity / used"].split()[1::2])


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Cosine over evenness: ours by balance as a line, each peer as a point."""
    figure, (ax,) = new_figure(7.0, 3.6)
    ours = [row for row in rows if row["part"].startswith("frontier on beauty") and row["who"].endswith(WIDEST)]
    ours.sort(key=lambda row: float(row["who"].split()[1].rstrip(",")))
    ax.plot([least_even(row) for row in ours], [row["cosine"] for row in ours], "o-", color=COLOURS[0], label="clrflow, by balance")
    for row in ours:
        at = (least_even(row), row["cosine"])
        ax.annotate(row["who"].split()[1].rstrip(","), at, xytext=(5, 5), textcoords="offset points", fontsize=8)
    beside = [row for row in rows if row["part"].startswith("beauty") and "cosine" in row and not row["who"].startswith("clrflow")]
    for place, row in enumerate((row for row in beside if row["cosine"] >= LEAST_COSINE), 1):
        ax.plot(least_even(row), row["cosine"], "s", color=COLOURS[place], label=row["who"])
    below = [f"{row['who']}: {row['cosine']:.3f} at {least_even(row):.2f}" for row in beside if row["cosine"] < LEAST_COSINE]
    ax.set_xlabel("perplexity / codes used, the least even level" + "".join(f"\nbelow the picture: {one}" for one in below))
    ax.set_ylabel("reconstruction cosine")
    ax.legend(fontsize=8, frameon=False)
    return figure


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "clrflow"  # equal figures, equal file
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    draw(json.loads(Path(sys.argv[1]).read_text())["rows"]).savefig(TARGET, metadata={"Date": None})
