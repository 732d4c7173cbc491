"""The made-up items of synthetic.py: a tree of interests and themes, Zipf popularity, births before and during the log, vectors and titles.

family (garden) → leaf interest (small garden) → theme (plans for a small garden) → item. Families and leaves are the interests that the
tables know; themes are hidden, seen only in embeddings, boards and in what follows what.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clrflow.contracts import TIME

DIM = 64
"""Width of a content embedding."""
FAMILIES = (
    *("garden", "kitchen", "travel", "music", "cycling", "pottery", "knitting", "camping"),
    *("wedding", "fitness", "astronomy", "chess", "sailing", "painting", "woodwork", "baking"),
)
LEAVES = ("small", "modern", "classic", "budget", "family", "winter", "colourful", "quiet")
THEMES = ("plans", "tools", "stories", "patterns", "lessons", "repairs")
ADJECTIVES = ("bright", "simple", "clever", "old", "fresh", "gentle", "bold", "tiny", "warm", "patient", "lucky", "plain")
BORN_INSIDE = 0.3
"""Share of the items that are born while the log runs."""
NOISE = 0.5
"""Length of an embedding's random part; family, leaf and theme have parts of length 1, 0.8 and 0.6."""
ITEMS_PER_CHUNK = 65_536


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All items, by index; item_id = index + 1. Times are microseconds since 1970."""

    num_families: int
    num_leaves: int
    """Leaves of a family."""
    themes_per_leaf: int
    seed: int
    theme: np.ndarray
    """Theme of each item; theme // themes_per_leaf is its leaf, leaf // num_leaves its family."""
    born: np.ndarray
    by_theme: np.ndarray
    """Item indices sorted by theme, then birth: what a theme has at a time is a run of them."""
    by_birth: np.ndarray
    births: np.ndarray
    """Births in the order of `by_birth`."""
    theme_start: np.ndarray
    born_by_theme: np.ndarray
    """Births in the order of `by_theme`, each theme's shifted so that they rise over the whole array."""
    weight_by_theme: np.ndarray
    """Running sum of popularity in the order of `by_theme`, from 0."""
    weight_by_birth: np.ndarray

    @property
    def num_themes(self) -> int:
        return self.num_families * self.num_leaves * self.themes_per_leaf

    @classmethod
    def make(cls, items: int, days: int, end: int, seed: int) -> Catalogue:
        """As many themes as the catalogue fills with about forty items each, at most 16 x 8 x 6."""
        rng = np.random.default_rng([seed, 0])
        themes = min(max(items // 40, 12), len(FAMILIES) * len(LEAVES) * len(THEMES))
        themes_per_leaf = min(len(THEMES), max(2, round(themes ** (1 / 3))))
        num_leaves = min(len(LEAVES), max(2, round((themes / themes_per_leaf) ** 0.5)))
        num_families = min(len(FAMILIES), max(2, themes // (themes_per_leaf * num_leaves)))
        num_themes = num_families * num_leaves * themes_per_leaf
        # Every theme's first item is there before the log begins, so that whoever wants the theme finds something.
        share = 1 / np.sqrt(1 + rng.permutation(num_themes))
        theme = np.concatenate([np.arange(num_themes), rng.choice(num_themes, items - num_themes, p=share / share.sum())])
        day = 86_400_000_000
        start = end - days * day
        inside = rng.random(items) < BORN_INSIDE
        inside[:num_themes] = False
        born = np.where(
            inside, start + (rng.random(items) * days * day).astype(np.int64), start - 1 - (rng.random(items) * 365 * day).astype(np.int64)
        )
        shuffle = rng.permutation(items)  # so that ids tell nothing
        theme, born = theme[shuffle], born[shuffle]
        popularity = 1.0 / (1 + rng.permutation(items))
        by_theme, by_birth = np.lexsort((born, theme)), np.argsort(born, kind="stable")
        return cls(
            num_families=num_families,
            num_leaves=num_leaves,
            themes_per_leaf=themes_per_leaf,
            seed=seed,
            theme=theme,
            born=born,
            by_theme=by_theme,
            by_birth=by_birth,
            births=born[by_birth],
            theme_start=np.searchsorted(theme[by_theme], np.arange(num_themes)),
            born_by_theme=_shifted(theme[by_theme], born[by_theme]),
            weight_by_theme=np.concatenate([[0.0], np.cumsum(popularity[by_theme])]),
            weight_by_birth=np.concatenate([[0.0], np.cumsum(popularity[by_birth])]),
        )

    def draw_items(self, rng: np.random.Generator, theme: np.ndarray, now: np.ndarray) -> np.ndarray:
        """Items by popularity among those born before `now`, of the theme, or of all where theme is -1."""
        of_theme = theme >= 0
        safe = np.where(of_theme, theme, 0)
        begin = np.where(of_theme, self.theme_start[safe], 0)
        end_in_theme = np.searchsorted(self.born_by_theme, _shifted(safe, now), side="left")
        end_of_all = np.searchsorted(self.births, now, side="left")
        draw = rng.random(len(theme))
        return np.where(
            of_theme,
            _pick(self.weight_by_theme, self.by_theme, begin, end_in_theme, draw),
            _pick(self.weight_by_birth, self.by_birth, np.zeros_like(begin), end_of_all, draw),
        )

    def draw_leaves(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Leaf interests, a few of them liked by many."""
        count = self.num_families * self.num_leaves
        share = 1 / np.sqrt(1 + np.random.default_rng([self.seed, 1]).permutation(count))
        return rng.choice(count, shape, p=share / share.sum())

    def draw_siblings(self, rng: np.random.Generator, leaf: np.ndarray) -> np.ndarray:
        return leaf - leaf % self.num_leaves + rng.integers(0, self.num_leaves, leaf.shape)

    def draw_themes(self, rng: np.random.Generator, leaf: np.ndarray, taste: np.ndarray) -> np.ndarray:
        """Themes of leaves: mostly the one that a user's `taste`, any whole number, picks out of the leaf; otherwise any."""
        own = (leaf + taste) % self.themes_per_leaf
        return leaf * self.themes_per_leaf + np.where(rng.random(leaf.shape) < 0.6, own, rng.integers(0, self.themes_per_leaf, leaf.shape))

    def is_own_theme(self, theme: np.ndarray, taste: np.ndarray) -> np.ndarray:
        """Whether a theme is the one that the taste picks out of its leaf."""
        return theme % self.themes_per_leaf == (theme // self.themes_per_leaf + taste) % self.themes_per_leaf

    def draw_sibling_themes(self, rng: np.random.Generator, theme: np.ndarray) -> np.ndarray:
        return theme - theme % self.themes_per_leaf + rng.integers(0, self.themes_per_leaf, theme.shape)

    def interest_of_leaf(self, leaf: np.ndarray) -> np.ndarray:
        """Interest ids: families come first, from 1, then their leaves."""
        return leaf + 1 + self.num_families

    def interests(self) -> pa.Table:
        """interest_id, name of families and leaves."""
        families = list(FAMILIES[: self.num_families])
        names = families + [f"{LEAVES[leaf]} {family}" for family in families for leaf in range(self.num_leaves)]
        return pa.table({"interest_id": np.arange(1, len(names) + 1), "name": names})

    def theme_names(self) -> pa.Array:
        """Name of each theme, e.g. `small garden plans`."""
        leaves = self.interests()["name"].to_pylist()[self.num_families :]
        return pa.array([f"{leaf} {THEMES[theme]}" for leaf in leaves for theme in range(self.themes_per_leaf)])

    def batches(self) -> Iterator[pa.Table]:
        """The items table, in chunks."""
        rng = np.random.default_rng([self.seed, 3])
        leaf_count = self.num_families * self.num_leaves
        centres = (
            np.repeat(_directions(rng, self.num_families), self.num_leaves * self.themes_per_leaf, axis=0)
            + 0.8 * np.repeat(_directions(rng, leaf_count), self.themes_per_leaf, axis=0)
            + 0.6 * _directions(rng, self.num_themes)
        )
        names = self.theme_names()
        for first in range(0, len(self.theme), ITEMS_PER_CHUNK):
            theme = self.theme[first : first + ITEMS_PER_CHUNK]
            count = len(theme)
            vectors = centres[theme] + NOISE * _directions(rng, count)
            vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
            adjectives = pa.array(ADJECTIVES).take(pa.array(rng.integers(0, len(ADJECTIVES), count)))
            numbers = pa.array(np.arange(first + 1, first + count + 1)).cast(pa.string())
            titles = pc.binary_join_element_wise(adjectives, names.take(pa.array(theme)), numbers, " ")
            yield pa.table(
                {
                    "item_id": np.arange(first + 1, first + count + 1),
                    "created_at": pa.array(self.born[first : first + count]).cast(TIME),
                    "interests": self._interests_of(rng, theme),
                    "content_embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIM),
                    "title": titles,
                }
            )

    def _interests_of(self, rng: np.random.Generator, theme: np.ndarray) -> pa.ListArray:
        """One to three interests an item: its leaf, half of the time the family, at times a sibling leaf."""
        leaf = theme // self.themes_per_leaf
        sibling = self.draw_siblings(rng, leaf)
        columns = np.stack([self.interest_of_leaf(leaf), leaf // self.num_leaves + 1, self.interest_of_leaf(sibling)], axis=1)
        present = np.stack(
            [np.ones(len(leaf), dtype=bool), rng.random(len(leaf)) < 0.5, (rng.random(len(leaf)) < 0.3) & (sibling != leaf)], axis=1
        )
        offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(columns[present]))


def _shifted(theme: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Times that rise with the theme first: 2^52 microseconds are 142 years, and 768 themes of them fit int64."""
    return theme.astype(np.int64) * (1 << 52) + time


def _pick(weight: np.ndarray, order: np.ndarray, begin: np.ndarray, end: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """From each run order[begin:end] one entry by weight; `draw` in [0, 1)."""
    low, high = weight[begin], weight[end]
    place = np.searchsorted(weight, low + draw * (high - low), side="right") - 1
    return order[np.clip(place, begin, np.maximum(end - 1, begin))]


def _directions(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random unit vectors [count, DIM]."""
    vectors = rng.standard_normal((count, DIM))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
