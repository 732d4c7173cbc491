"""Which epochs train the tables: schedules for many epochs over embedding tables that overfit in a few (Pinterest, "Multi-epoch
embedding training", 2026: frozen first and co-trained last gains, co-trained from the first epoch loses).
"""

from __future__ import annotations

import dataclasses

from clrflow.training.settings import TrainingSettings

RANDOM, PUBLISHED, PUBLISHED_OR_AUTO = "random", "published", "published_or_auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """One course of training, epoch by epoch."""

    name: str
    frozen: tuple[bool, ...]
    """One entry an epoch: are the tables frozen in it?"""
    tables_from: str = ""
    """Where the tables start: "" fresh, a URI of a train result, `published`, `random`, or the name of an earlier schedule of this job."""

    @property
    def num_epochs(self) -> int:
        return len(self.frozen)


def planned(settings: TrainingSettings) -> list[Schedule]:
    """The schedules that a job goes through; validation picks among them.

    `single` is the first epoch of `co_train` (same seed, same order, same rates), so `auto` takes it from there instead of training it
    again, and `delayed` starts from the tables that it left.
    """
    epochs, last = settings.epochs, settings.co_trained_epochs
    co_train = Schedule(name="co_train", frozen=(False,) * epochs)

    def delayed(tables_from: str) -> Schedule:
        return Schedule(name="delayed", frozen=(True,) * (epochs - last) + (False,) * last, tables_from=tables_from)

    match settings.schedule:
        case "single":
            return [Schedule(name="single", frozen=(False,))]
        case "co_train":
            return [co_train]
        case "frozen":
            return [Schedule(name="frozen", frozen=(True,) * epochs, tables_from=settings.frozen_table_from)]
        case "delayed":
            return [delayed(settings.frozen_table_from)]
        case "auto":
            return [co_train, delayed("single")] if epochs > last else [co_train]
