"""Settings of the exported index and of publishing."""

from __future__ import annotations

from typing import Literal

import pydantic

from clrflow.settings import Settings


class IndexSettings(Settings):
    """The ANN index over item vectors."""

    kind: Literal["auto", "flat", "hnsw", "ivf"] = "auto"
    """`auto`: flat below `flat_below` items, HNSW above. Under 1,000 items every kind is flat: exact search over so few is the fastest."""
    flat_below: int = pydantic.Field(default=20_000, ge=0)
    """Catalogues smaller than this are searched exactly; no effect unless kind=auto."""
    min_recall: float = pydantic.Field(default=0.95, ge=0, le=1)
    """Recall@k against exact search below which the export fails."""
    recall_k: int = pydantic.Field(default=50, ge=1)
    """k of that recall."""
    recall_queries: int = pydantic.Field(default=1000, ge=1)
    """Query vectors of held-out requests, drawn with the seed, by which it is measured."""
    hnsw_links: int = pydantic.Field(default=32, ge=4)
    """Links a node (M); no effect unless HNSW."""
    hnsw_ef_construction: int = pydantic.Field(default=200, ge=1)
    """Candidates kept while building; no effect unless HNSW."""
    hnsw_ef_search: int = pydantic.Field(default=128, ge=1)
    """Candidates kept during a search; no effect unless HNSW."""
    ivf_probes: int = pydantic.Field(default=32, ge=1)
    """Cells visited by a search; no effect unless IVF."""
    board_items: int = pydantic.Field(default=10, ge=1)
    """Newest items of each board that are kept for queries under a board."""
    seed: int = 0
    """Seed of the draw of queries."""


class PublishSettings(Settings):
    """Versions under `<workspace>/published/`."""

    keep: int = pydantic.Field(default=3, ge=1)
    """Newest versions kept; the current one is always kept."""
