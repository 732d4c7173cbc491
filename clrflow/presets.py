"""Whole configurations by name: a run is a function that says what it is for."""

from __future__ import annotations

from collections.abc import Callable

from clrflow.bootstrap.settings import BootstrapSettings, InterestGeneratorSettings, RequestSettings, SplitSettings
from clrflow.config import PipelineConfig
from clrflow.data.settings import Action, DataSettings
from clrflow.model.settings import ModelSettings
from clrflow.semantic_ids.settings import SemanticIdSettings
from clrflow.training.settings import TrainingSettings


def demo() -> PipelineConfig:
    """MovieLens-100k on a laptop in a few minutes: blocks of ten events, each user's last block held out."""
    return PipelineConfig(
        data=DataSettings(tables="demo/tables", actions=(Action(name="watch"),), window_days=None),
        bootstrap=BootstrapSettings(
            request=RequestSettings(max_targets=10, session_gap_minutes=None, max_history=200),
            split=SplitSettings(by="last_requests"),
            # Nobody follows a genre here: they are inferred from the history that the model reads anyway. Beyond the two strongest of
            # 18, their lists took away from the unconditioned one on validation.
            interest=InterestGeneratorSettings(max_conditions=2),
            granularity_days=7,
        ),
        semantic_ids=SemanticIdSettings(num_codes=256, latent_dim=64, max_epochs=20, patience=10),
        model=ModelSettings(max_history=64, semantic_rows=4096, board_rows=4096),
        training=TrainingSettings(epochs=3, num_processes=2),
    )


def small() -> PipelineConfig:
    """A synthetic or real log that fits one machine: a global time cut, three epochs."""
    return PipelineConfig(
        data=DataSettings(tables="tables"),
        semantic_ids=SemanticIdSettings(num_codes=256, latent_dim=64, patience=10),
        training=TrainingSettings(epochs=3),
    )


def production() -> PipelineConfig:
    """20 days of examples of a large site, each with 10 days before it; five levels of 2048 codes, ids and tables of the published model, these frozen
    until the last epoch."""
    return PipelineConfig(
        data=DataSettings(tables="tables", window_days=30),
        bootstrap=BootstrapSettings(lookback_days=10),
        semantic_ids=SemanticIdSettings(num_codes=2048, max_epochs=5, tokenizer="published_or_new"),
        model=ModelSettings(dim=128, num_layers=4, num_heads=4, max_history=200, semantic_rows=10_000_000, board_rows=10_000_000),
        training=TrainingSettings(
            schedule="delayed",
            frozen_table_from="published_or_auto",
            epochs=3,
            batch_size=1024,
            num_negatives=8192,
            dense_learning_rate=1e-3,
        ),
    )


PRESETS: dict[str, Callable[[], PipelineConfig]] = {"demo": demo, "small": small, "production": production}
