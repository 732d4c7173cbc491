"""Settings of bootstrapping: requests, splits, the heuristic generators, the attribution."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from clrflow.settings import Settings


class RequestSettings(Settings):
    """How a user's events are cut into requests."""

    max_targets: int = pydantic.Field(default=10, ge=1)
    """A request is cut after so many engagements."""
    session_gap_minutes: float | None = pydantic.Field(default=30.0, gt=0)
    """A longer pause starts a new request; null: pauses don't matter, a request is a block of `max_targets` events."""
    max_history: int = pydantic.Field(default=200, ge=1)
    """Newest positive actions before the request that are kept with it."""


class SplitSettings(Settings):
    """What is held out. Nothing that is learnt sees the future of what it is tested on."""

    by: Literal["time", "last_requests"] = "time"
    """`time`: everything after one global cut. `last_requests`: each user's last request is test, the one before is validation."""
    validation_days: float = pydantic.Field(default=1.0, gt=0)
    """Days before the test days; no effect when by=last_requests."""
    test_days: float = pydantic.Field(default=1.0, gt=0)
    """The newest days; no effect when by=last_requests."""


class InterestGeneratorSettings(Settings):
    """Followed and inferred interests → popular and fresh items of the interest."""

    enabled: bool = True
    max_conditions: int = pydantic.Field(default=8, ge=1)
    """Interests a user has at a time, followed ones first, then inferred from the history."""
    num_candidates: int = pydantic.Field(default=100, ge=1)
    """Items an interest brings."""
    fresh_share: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Share of the candidates that is taken by age instead of by popularity."""


class ItemGeneratorSettings(Settings):
    """Medoids of the clusters of the user's recent items → co-engagement neighbours (item-item walks)."""

    enabled: bool = True
    max_conditions: int = pydantic.Field(default=3, ge=1)
    """Medoids a user has at a time."""
    recent_items: int = pydantic.Field(default=50, ge=1)
    """Newest history items that are clustered."""
    num_candidates: int = pydantic.Field(default=100, ge=1)
    """Neighbours of a medoid."""


class BoardGeneratorSettings(Settings):
    """The user's active boards → random walks on the board-item graph."""

    enabled: bool = True
    max_conditions: int = pydantic.Field(default=3, ge=1)
    """Boards of a user that count as active, those with the newest additions first."""
    num_candidates: int = pydantic.Field(default=100, ge=1)
    """Items a board brings."""
    recent_items: int = pydantic.Field(default=10, ge=1)
    """Newest items of the board that the condition token shows and from which the walks start."""


class SparkSettings(Settings):
    """The session that bootstrap.engine=spark starts; no effect with DuckDB. spark-submit and the Spark operator bring their own."""

    master: str = ""
    """Spark's master, e.g. `local[4]`; "" leaves it to the environment (spark-submit), or takes all cores of this machine."""
    scratch: str = ""
    """URI that driver and executors reach, below which intermediate tables lie while the step runs; "" is the step's own folder."""
    conf: dict[str, str] = pydantic.Field(default={})
    """Properties of the session, e.g. {"spark.executor.memory": "8g"}; stronger than the step's own."""


class BootstrapSettings(Settings):
    """From clean events to request-level training data."""

    request: RequestSettings = RequestSettings()
    split: SplitSettings = SplitSettings()
    interest: InterestGeneratorSettings = InterestGeneratorSettings()
    item: ItemGeneratorSettings = ItemGeneratorSettings()
    board: BoardGeneratorSettings = BoardGeneratorSettings()
    generator_modules: tuple[str, ...] = ()
    """Importable modules with further candidate generators (see generators/base.py), e.g. `our_team.trending`."""
    generator_options: dict[str, dict[str, Any]] = pydantic.Field(default={})
    """Options of further generators by name; each reads its own."""
    lookback_days: int | None = pydantic.Field(default=None, ge=1)
    """Days before a request that its history, popularity and co-engagement may come from; null: all of the window. With a lookback a day's
    examples stay the same when the window slides, so a daily run builds new days only; days whose lookback begins before the window give none.
    """
    granularity_days: float = pydantic.Field(default=1.0, gt=0)
    """Popularity, graph and medoids are as of the last closed period of this length before the request; histories are exact."""
    fallback_factor: float = pydantic.Field(default=0.5, ge=0, le=1)
    """Weight of an engagement that no generator explains, whose condition is drawn from the item's own interests; 0 leaves it out."""
    max_candidate_requests: int = pydantic.Field(default=100_000, ge=1)
    """Held-out requests whose candidate lists are written for the evaluation; of more, so many are taken, evenly spread over the users."""
    engine: Literal["duckdb", "spark"] = "duckdb"
    """`duckdb`: this machine, spilling to disk. `spark`: many machines. Both give equal rows."""
    memory_limit: str = "2GB"
    """Memory that DuckDB may use before it spills to disk; no effect with Spark."""
    spark: SparkSettings = SparkSettings()
    seed: int = 0
    """Seed of the draws (fallback and oracle conditions, walks)."""
