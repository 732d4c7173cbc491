"""Settings of the evaluation and of the gate."""

from __future__ import annotations

import pydantic

from clrflow.settings import Settings


class EvaluationSettings(Settings):
    """Full-corpus ranking on held-out requests."""

    cutoffs: tuple[int, ...] = (10, 50, 100)
    """k of recall@k, hit rate@k and NDCG@k."""
    mask_seen: bool = True
    """Items of the user's whole earlier history are left out of every ranking, the baselines' too."""
    list_length: int = pydantic.Field(default=20, ge=1)
    """Items that each known condition brings to the union that is compared with one unconditioned list of equal length."""
    max_requests: int = pydantic.Field(default=100_000, ge=1)
    """Held-out requests that are ranked; more are sampled with the seed and the report says so."""
    seed: int = 0


class GateSettings(Settings):
    """When a new model may replace the published one."""

    metric: str = "recall@50"
    """Of the unconditional query on the test split."""
    max_loss: float = pydantic.Field(default=0.01, ge=0)
    """The new model passes when the confidence interval of (new - champion) isn't wholly below minus this."""
    confidence: float = pydantic.Field(default=0.95, gt=0, lt=1)
    """Level of the bootstrap interval over requests."""
    min_value: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Without a champion: the least value of the metric that may be published."""
    beat_popularity: bool = True
    """A model that doesn't beat popularity is held."""
