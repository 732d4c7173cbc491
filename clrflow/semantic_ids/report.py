"""The report of the step semantic_ids: are the codes used, do they tell items apart, do they mean something?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clrflow.reporting import Report, new_figure
from clrflow.reporting.report import COLOURS
from clrflow.semantic_ids.assign import Assigned
from clrflow.semantic_ids.build import Built
from clrflow.semantic_ids.catalogue import Catalogue
from clrflow.semantic_ids.quality import Change, Quality
from clrflow.semantic_ids.tokenizer import Tokenizer
from clrflow.semantic_ids.training import Trained

POINTS = 4000
"""Items drawn in the map at most."""
TREE_CODES, TREE_CHILDREN, TREE_TITLES = 24, 6, 8
"""First codes, second codes of each, and titles of each in the tree."""
TABLE_CODES = 24


def make_report(catalogue: Catalogue, names: Mapping[int, str], built: Built, figures: Quality) -> str:
    """The whole page as HTML."""
    tokenizer, codes = built.tokenizer, built.assigned.codes
    report = Report(
        "Semantic ids", f"{figures.num_items:,} items, {tokenizer.num_levels} codes each, {tokenizer.num_codes:,} codes a level"
    )
    evenness = [level.evenness for level in figures.levels]
    report.tiles(
        {
            "items": figures.num_items,
            "least used level": min(level.usage for level in figures.levels),
            "least even level": min(evenness),
            "collision": figures.collision,
            "collision floor": figures.collision_floor,
            "collision in the final ids": figures.collision_after,
            "reconstruction cosine": figures.reconstruction_cosine,
            "interests shared within a first code": figures.agreement.by_prefix[0],
        }
    )
    if built.change is not None:
        _change(report, built.change)
    _usage(report, tokenizer, built.assigned, figures)
    _uniqueness(report, figures)
    _meaning(report, catalogue, names, codes, figures)
    _tree(report, catalogue, codes)
    if built.trained is not None:
        _training(report, built.trained)
    report.text(f"Tokenizer {tokenizer.hash}. Models and indexes made with these ids carry this hash and refuse another.")
    return report.html()


def _change(report: Report, change: Change) -> None:
    report.section(
        "Compared with the previous tokenizer",
        f"Tokenizer {change.previous} had ids for {change.num_known:,} of these items; {change.num_new:,} are new, and {change.num_gone:,} that had "
        f"one are no longer in the catalogue. {change.still_nearest:.1%} of the known items are still nearest to the first code that they had: where "
        "this falls, embeddings have drifted, and new items land beside other items than they would have.",
    )
    rows = [[f"first {depth} codes" if depth > 1 else "first code", share] for depth, share in enumerate(change.kept, 1)]
    report.table(["known items keep their", "share"], rows)


def _usage(report: Report, tokenizer: Tokenizer, assigned: Assigned, figures: Quality) -> None:
    report.section(
        "Use of the codes",
        "Items a code, most used first, by the nearest codes before ids are made unique. A flat line is good; a line that "
        "falls to zero early is a level that collapsed.",
    )
    report.figure(_usage_figure(assigned.nearest, tokenizer.num_codes), "items a code by level, codes sorted by use")
    report.table(
        ["level", "codes used", "usable codes", "usage", "perplexity", "perplexity / used"],
        [
            [number, level.used, level.usable, level.usage, level.perplexity, level.evenness]
            for number, level in enumerate(figures.levels, 1)
        ],
    )


def _uniqueness(report: Report, figures: Quality) -> None:
    report.section(
        "Telling items apart",
        "Share of items whose prefix another item has already: high for short prefixes, as that is how items share what is learnt, and for "
        "the whole tuple no higher than what identical embeddings force. Items that still collide moved to a free code near by.",
    )
    figure, (ax,) = new_figure(6, 2.8)
    depths = np.arange(1, len(figures.levels) + 1)
    ax.bar(depths, [level.prefix_collision for level in figures.levels], width=0.6)
    ax.axhline(figures.collision_floor, color=COLOURS[1], linestyle="--", label="identical embeddings")
    ax.set(xlabel="codes of the prefix", ylabel="(items − prefixes) / items", xticks=depths, ylim=(0, 1))
    ax.legend(frameon=False, fontsize=8)
    report.figure(figure, "collision at each prefix length, before ids are made unique")
    rows = [[f"first changed at level {number}", count] for number, count in enumerate(figures.moved, 1)]
    report.table(["moved to be unique", "items"], rows)
    report.text(
        f"Reconstruction cosine {figures.reconstruction_cosine:.4f} with the nearest codes, "
        f"{figures.reconstruction_cosine_unique:.4f} with the final ids. {figures.num_zero:,} items have an embedding of zeros."
    )


def _meaning(report: Report, catalogue: Catalogue, names: Mapping[int, str], codes: NDArray[np.int32], figures: Quality) -> None:
    report.section(
        "What prefixes mean",
        "Interests that two items of a common prefix share (mean Jaccard index: an item at random, and another at random among those with "
        "its prefix), beside two items at random.",
    )
    values = [(f"first {depth} codes" if depth > 1 else "first code", value) for depth, value in enumerate(figures.agreement.by_prefix, 1)]
    report.table(["items that share", "interests in common"], [*values, ("nothing (random pairs)", figures.agreement.random)])
    report.figure(_map_figure(catalogue.embeddings, codes[:, 0]), "items in their two main directions, coloured by first code")
    first, counts = np.unique(codes[:, 0], return_counts=True)
    largest = first[np.argsort(-counts, kind="stable")][:TABLE_CODES]
    owners = np.repeat(np.arange(len(catalogue)), catalogue.num_interests)
    rows = []
    for code in largest:
        items = np.flatnonzero(codes[:, 0] == code)
        found, times = np.unique(catalogue.interests[np.isin(owners, items)], return_counts=True)
        top = np.argsort(-times, kind="stable")[:3]
        shown = ", ".join(f"{names.get(int(found[i]), str(found[i]))} {times[i] / len(items):.0%}" for i in top)
        rows.append([int(code), len(items), shown or "–", "; ".join(catalogue.titles[i] for i in items[:3])])
    report.table(["first code", "items", "interests of its items", "for example"], rows)


def _tree(report: Report, catalogue: Catalogue, codes: NDArray[np.int32]) -> None:
    report.section("A look into the tree", f"{TREE_CODES} first codes, evenly drawn from large to small; open one to see what it groups.")
    report.tree("prefix → titles", title_tree(codes, catalogue.titles))


def title_tree(codes: NDArray[np.int32], titles: list[str]) -> dict[str, dict[str, list[str]]]:
    """An excerpt: first code → first two codes → titles with their whole ids."""
    first, counts = np.unique(codes[:, 0], return_counts=True)
    by_size = first[np.argsort(-counts, kind="stable")]
    tree: dict[str, dict[str, list[str]]] = {}
    for code in by_size[np.unique(np.linspace(0, len(by_size) - 1, TREE_CODES).astype(int))]:
        items = np.flatnonzero(codes[:, 0] == code)
        second, sizes = np.unique(codes[items, 1 % codes.shape[1]], return_counts=True)
        branch: dict[str, list[str]] = {}
        for child in second[np.argsort(-sizes, kind="stable")][:TREE_CHILDREN]:
            below = items[codes[items, 1 % codes.shape[1]] == child]
            lines = [f"{titles[i]} [{' '.join(str(part) for part in codes[i])}]" for i in below[:TREE_TITLES]]
            more = len(below) - TREE_TITLES
            branch[f"{code} · {child} ({len(below):,} items)"] = lines + ([f"and {more:,} more"] if more > 0 else [])
        if len(second) > TREE_CHILDREN:
            branch[f"{len(second) - TREE_CHILDREN:,} more second codes"] = []
        tree[f"{code} ({len(items):,} items): {titles[items[0]]}, ..."] = branch
    return tree


def _training(report: Report, trained: Trained) -> None:
    report.section(
        "Training",
        f"{len(trained.epochs)} epochs; the towers of epoch {trained.best_epoch} were kept, as they reconstruct held-out items best"
        f"{' (epoch 0 is where training started from)' if trained.best_epoch == 0 else ''}.",
    )
    if not trained.epochs:
        return
    figure, (left, right) = new_figure(8.5, 2.8, columns=2)
    numbers = np.arange(1, len(trained.epochs) + 1)
    left.plot(numbers, [epoch.validation_cosine for epoch in trained.epochs])
    if trained.best_epoch:
        left.axvline(trained.best_epoch, color=COLOURS[5], linestyle=":", linewidth=1)
    left.set(xlabel="epoch", ylabel="cosine", title="reconstruction of held-out items")
    for level in range(len(trained.epochs[0].perplexity)):
        right.plot(numbers, [epoch.perplexity[level] for epoch in trained.epochs], color=COLOURS[level], label=f"level {level + 1}")
    right.set(xlabel="epoch", ylabel="perplexity / used", title="evenness of the codes", ylim=(0, 1.02))
    right.legend(frameon=False, fontsize=7, ncols=2)
    report.figure(figure, "held-out reconstruction and evenness by epoch")


def _usage_figure(codes: NDArray[np.int32], num_codes: int) -> Figure:
    figure, axes = new_figure(9, 2.6, columns=codes.shape[1])
    counts = [np.sort(np.bincount(level, minlength=num_codes))[::-1] for level in codes.T]
    for number, (ax, values) in enumerate(zip(axes, counts), 1):
        ax.fill_between(np.arange(num_codes), values, step="mid", color=COLOURS[0], linewidth=0)
        ax.axhline(len(codes) / num_codes, color=COLOURS[1], linestyle="--", linewidth=1)
        ax.set(title=f"level {number}", xlabel="codes", ylim=(0, max(int(v.max()) for v in counts) * 1.05))
        if number > 1:
            ax.tick_params(labelleft=False)
    axes[0].set_ylabel("items (dashed: equal use)")
    return figure


def _map_figure(embeddings: NDArray[np.float32], first_codes: NDArray[np.int32]) -> Figure:
    rows = np.unique(np.linspace(0, len(embeddings) - 1, POINTS).astype(int))
    centred = embeddings[rows] - embeddings[rows].mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    points = centred @ directions[:2].T
    figure, (ax,) = new_figure(6.5, 5)
    if points.shape[1] == 1:
        points = np.pad(points, ((0, 0), (0, 1)))
    # Codes are in no order, so a code's colour says only "the same" or "another"; the largest eight get colours of their own.
    _, group, sizes = np.unique(first_codes[rows], return_inverse=True, return_counts=True)
    rank = np.empty(len(sizes), dtype=int)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    place = rank[group]
    others = place >= len(COLOURS)
    ax.scatter(points[others, 0], points[others, 1], s=9, c=place[others], cmap="Pastel1", linewidths=0)
    for number, colour in enumerate(COLOURS):
        mine = place == number
        if mine.any():
            ax.scatter(points[mine, 0], points[mine, 1], s=26, color=colour, linewidths=0, label=f"code {first_codes[rows][mine][0]}")
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    ax.legend(frameon=False, fontsize=7, ncols=2, title="largest first codes", title_fontsize=8)
    return figure
