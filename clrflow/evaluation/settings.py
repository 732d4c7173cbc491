"""Settings of the evaluation and of the gate."""

from __future__ import annotations

from typing import Literal

import pydantic

from clrflow.settings import Settings


class EvaluationSettings(Settings):
    """Full-corpus ranking on held-out requests."""

    cutoffs: tuple[int, ...] = pydantic.Field(default=(10, 50, 100), min_length=1)
    """k of recall@k, hit rate@k and NDCG@k; 10 and 50 are always measured beside them."""
    mask_seen: bool = True
    """Items of the user's whole earlier history are left out of every ranking, the baselines' too."""
    list_length: int = pydantic.Field(default=20, ge=1)
    """Items that each known condition brings to the union that is compared with one unconditioned list of equal length."""
    max_requests: int = pydantic.Field(default=100_000, ge=1)
    """Held-out requests that are ranked; more are sampled with the seed and the report says so."""
    max_condition_requests: int = pydantic.Field(default=10_000, ge=1)
    """Of these, requests whose conditions are ranked too (each costs as many rankings as it has conditions); more are sampled."""
    baselines: tuple[Literal["itemknn", "als"], ...] = ("itemknn", "als")
    """Baselines that are fitted on the training span; popularity and the heuristic generators cost nothing and are always there."""
    baseline_grid_events: int = pydantic.Field(default=1_000_000, ge=0)
    """With more training pairs than this, baselines use one setting each instead of a grid picked on validation."""
    baseline_max_events: int = pydantic.Field(default=20_000_000, ge=1)
    """Newest training pairs (user, item) that baselines are fitted on."""
    memory_limit: str = "2GB"
    """Memory that DuckDB may use before it spills to disk."""
    seed: int = 0
    """Seed of the samples, the baselines and the bootstrap."""

    @pydantic.field_validator("cutoffs")
    @classmethod
    def _cutoffs_are_depths(cls, cutoffs: tuple[int, ...]) -> tuple[int, ...]:
        if min(cutoffs) < 1:
            raise ValueError(f"evaluation.cutoffs={list(cutoffs)} holds a list length below 1; use whole numbers from 1 on")
        return cutoffs


class GateSettings(Settings):
    """When a new model may replace the published one."""

    metric: str = "recall@50"
    """Of the unconditional query on the test split: recall@k, hit@k, ndcg@k with a k of evaluation.cutoffs, or mrr."""
    max_loss: float = pydantic.Field(default=0.01, ge=0)
    """The new model passes when the confidence interval of (new - champion) isn't wholly below minus this."""
    confidence: float = pydantic.Field(default=0.95, gt=0, lt=1)
    """Level of the bootstrap interval; users are drawn with all their requests."""
    min_shared_requests: int = pydantic.Field(default=30, ge=1)
    """With fewer test requests in common, the two are compared on all of their own requests, which needs a larger difference to show."""
    min_value: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Without a champion: the least value of the metric that may be published."""
    beat_popularity: bool = True
    """A model that doesn't beat popularity is held."""
    seed: int = 0
    """Seed of the bootstrap."""
