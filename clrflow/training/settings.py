"""Settings of training: epochs, schedule, optimizers, negatives, processes."""

from __future__ import annotations

from typing import Literal

import pydantic

from clrflow.settings import Settings

Schedule = Literal["single", "co_train", "frozen", "delayed", "auto"]


class ConditionSoftness(Settings):
    """Weight, under each condition of a request, of the request's targets that the condition doesn't explain, by the condition's type.

    0: the condition is learnt as a filter. Larger: as a tilt of the user's taste, so that the lists of several conditions add up to more and
    each matches its condition less. Somebody who asks for an interest wants that interest; an item or a board is context.
    """

    interest: float = pydantic.Field(default=0.15, ge=0, le=1)
    """Under an interest."""
    item: float = pydantic.Field(default=0.25, ge=0, le=1)
    """Under an item."""
    board: float = pydantic.Field(default=0.25, ge=0, le=1)
    """Under a board."""


class TrainingSettings(Settings):
    """The training job."""

    schedule: Schedule = "auto"
    """`single`: one epoch. `co_train`: tables and towers together in every epoch. `frozen`: tables never. `delayed`: tables frozen, then
    co-trained in the last `co_trained_epochs`. `auto`: tries single, co_train and delayed and keeps what validation picks."""
    epochs: int = pydantic.Field(default=4, ge=1)
    """Passes over the training requests; no effect when schedule=single."""
    co_trained_epochs: int = pydantic.Field(default=1, ge=1)
    """Last epochs in which the tables train too; no effect unless schedule is delayed or auto."""
    frozen_table_from: str = ""
    """Where frozen tables come from: the URI of a train step's result, `published` (the workspace's champion), `published_or_auto` (where
    nothing is published yet, the run gets schedule=auto instead; for schedules, whose first run has no champion) or `random` (asked for by
    name, as freezing random tables rarely makes sense); no effect unless the schedule freezes. auto uses the table that `single` made."""
    batch_size: int = pydantic.Field(default=64, ge=1)
    """Requests a step and a process."""
    num_negatives: int = pydantic.Field(default=512, ge=1)
    """Uniform negatives shared by a step's queries, beside the in-batch ones."""
    dense_learning_rate: float = pydantic.Field(default=2e-3, gt=0)
    """Of AdamW, for the towers."""
    warm_up_steps: int = pydantic.Field(default=50, ge=0)
    """Steps over which the towers' learning rate rises to its value; at most one epoch."""
    table_learning_rate: float = pydantic.Field(default=0.05, gt=0)
    """Of row-wise Adagrad, for the tables."""
    weight_decay: float = pydantic.Field(default=0.0, ge=0)
    """Of AdamW, for the towers."""
    temperature: float = pydantic.Field(default=0.07, gt=0)
    """First value of the softmax temperature; it is learnt."""
    history_loss_weight: float = pydantic.Field(default=1.0, ge=0)
    """Weight of the next-item loss along the history, beside the loss of the targets; 0 switches it off."""
    history_places: int = pydantic.Field(default=16, ge=1)
    """Places of each history, drawn anew each step, that predict their next item; no effect when history_loss_weight=0."""
    conditioned_loss_weight: float = pydantic.Field(default=3.0, ge=0)
    """Weight of the conditioned targets beside the unconditional ones."""
    condition_softness: ConditionSoftness = ConditionSoftness()
    """How much a condition tilts the user's taste instead of filtering it."""
    patience: int = pydantic.Field(default=3, ge=1)
    """Epochs without a better validation metric before a schedule ends; the best epoch's weights are kept."""
    num_processes: int = pydantic.Field(default=1, ge=1)
    """Processes of torchrun on this machine; each has its own shard of the tables."""
    max_dropped_share: float = pydantic.Field(default=0.5, ge=0, le=1)
    """All processes take equally many steps, so requests that don't fill a last step are left out of an epoch (others each time); a larger
    share than this fails the job."""
    checkpoint_every_steps: int = pydantic.Field(default=500, ge=1)
    """Steps between checkpoints, beside the one at each epoch's end."""
    serving_table_bits: Literal[8, 32] = 8
    """Bits a value of the serving tables that the job's last phase writes; their error is reported."""
    seed: int = 0

    @pydantic.model_validator(mode="after")
    def _schedule_fits(self) -> TrainingSettings:
        if self.schedule in ("delayed", "auto") and self.co_trained_epochs > self.epochs:
            raise ValueError(
                f"training.co_trained_epochs={self.co_trained_epochs} is more than training.epochs={self.epochs}, so no epoch would be frozen; "
                "lower the first or raise the second"
            )
        if self.schedule in ("frozen", "delayed") and not self.frozen_table_from:
            raise ValueError(
                f"training.schedule={self.schedule} freezes the tables, but training.frozen_table_from is empty, so they would stay random; "
                "give the URI of an earlier train result, `published`, `published_or_auto`, or ask for `random` by name"
            )
        return self
