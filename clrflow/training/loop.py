"""The training loop: one schedule from its first epoch to its last, going on from the newest complete checkpoint.

Randomness (order of requests, negatives, dropout) is a function of (seed, epoch, step, process), so a resumed run trains what an
uninterrupted one would have trained.
"""

from __future__ import annotations

import dataclasses
import enum
import signal
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.launch.torchrun import ABANDONED, PREEMPTED
from clrflow.progress import duration, say
from clrflow.training.batches import Collator, EpochPlan
from clrflow.training.catalogue import Catalogue
from clrflow.training.checkpoints import Checkpoints, Position
from clrflow.training.requests import RequestTable
from clrflow.training.schedules import Schedule
from clrflow.training.settings import TrainingSettings
from clrflow.training.sharding import ShardedModel
from clrflow.training.validation import Validation, validate

BEST, FIRST = "best", "first"
"""Named checkpoints of a schedule: the epoch that validation liked best, and the first (which is what `single` is)."""
REPORT_EVERY_S = 5.0


class StopReason(enum.IntEnum):
    """Why a job saves and ends before its work is done; of several, the greatest counts."""

    NONE = 0
    TERMINATED = 1
    """SIGTERM: the machine is wanted for something else."""
    ABANDONED = 2
    """No launcher follows the job any more."""


class Preempted(ClrflowError):
    """The job stopped before its end; a checkpoint was saved and the same command goes on from it."""

    def __init__(self, reason: StopReason, where: str, *, told_to_stop: bool):
        told = "told to stop" if reason == StopReason.TERMINATED else "no launcher renewed the job's lease: stopped"
        super().__init__(f"{told} {where}; saved. Run again to go on.")
        self.worker_code = PREEMPTED if reason == StopReason.TERMINATED else ABANDONED
        self.told_to_stop = told_to_stop
        """Whether this very process got SIGTERM; the others of the job only agreed to save with it."""


class StopSignal:
    """Remembers SIGTERM, and that rank 0 found the job abandoned, so that all processes can agree to save the same step."""

    def __init__(self) -> None:
        self.received = StopReason.NONE
        signal.signal(signal.SIGTERM, lambda *_: self.receive(StopReason.TERMINATED))

    def receive(self, reason: StopReason) -> None:
        self.received = max(self.received, reason)

    def agreed(self) -> StopReason:
        """What any process received. Collective."""
        if dist.get_world_size() == 1:
            return self.received
        flag = torch.tensor([float(self.received)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return StopReason(int(flag.item()))


@dataclasses.dataclass(kw_only=True)
class Loop:
    """Everything that one schedule needs; `run` is the loop."""

    schedule: Schedule
    settings: TrainingSettings
    model: ShardedModel
    requests: RequestTable
    catalogue: Catalogue
    collator: Collator
    plan: EpochPlan
    checkpoints: Checkpoints
    stop: StopSignal

    def run(self) -> tuple[dict[str, Any], ...]:
        """Train to the last epoch or until validation stops improving; returns the figures of each epoch.

        Leaves the named checkpoints `best` and `first`. Raises Preempted when told to stop.
        """
        position = self._resume()
        while position.epoch < self.schedule.num_epochs and not self._is_exhausted(position.history):
            position = self._epoch(position)
        self.checkpoints.remove_steps()
        return position.history

    def _epoch(self, position: Position) -> Position:
        epoch, frozen = position.epoch, self.schedule.frozen[position.epoch]
        self.model.module.frozen_tables = frozen
        self.model.wrapped.train()
        meter = Meter(self.schedule, self.plan, epoch, position.step)
        for step, rows in self.plan.batches(epoch, dist.get_rank(), first_step=position.step):
            self._learn(epoch, step, rows, meter, frozen)
            position = dataclasses.replace(position, step=step + 1, global_step=position.global_step + 1)
            if reason := self.stop.agreed():
                self.checkpoints.save(self.model, position)
                where = f"in epoch {epoch + 1} after step {position.global_step}"
                raise Preempted(reason, where, told_to_stop=self.stop.received == StopReason.TERMINATED)
            if position.global_step % self.settings.checkpoint_every_steps == 0 and position.step < self.plan.num_steps:
                self.checkpoints.save(self.model, position)
        trained_s = meter.elapsed()
        validation = validate(self.model, self.collator, self.requests, self.catalogue)
        figures = {"epoch": epoch + 1, "frozen": frozen, "seconds": trained_s, **meter.means(), **dataclasses.asdict(validation)}
        figures["score"] = validation.score
        is_best = validation.score > max((past["score"] for past in position.history), default=-1.0)
        position = dataclasses.replace(position, epoch=epoch + 1, step=0, history=(*position.history, figures))
        if is_best:
            self.checkpoints.save(self.model, position, name=BEST)
        if epoch == 0:
            self.checkpoints.save(self.model, position, name=FIRST)
        self.checkpoints.save(self.model, position)
        self._say_epoch(figures, validation, trained_s, is_best)
        return position

    def _learn(self, epoch: int, step: int, rows: np.ndarray, meter: Meter, frozen: bool) -> None:
        seeds = [self.settings.seed, epoch, step, dist.get_rank()]
        torch.manual_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))
        batch = self.collator.training(rows, np.random.default_rng(seeds)).to(self.model.device)
        self.model.set_dense_learning_rate(self.dense_rate(epoch, step))
        loss, parts = self.model.wrapped(batch)
        loss.backward()
        if frozen:
            self.model.dense.step()  # the tables' optimizer isn't even asked, so its state can't move
        else:
            self.model.optimizer.step()
        self.model.optimizer.zero_grad(set_to_none=True)
        meter.add(loss, parts, len(rows))

    def dense_rate(self, epoch: int, step: int) -> float:
        """Linear warm-up over the first part of the first epoch, then constant, so that the first epoch is what `single` is."""
        warm_up = max(1, min(self.settings.warm_up_steps, self.plan.num_steps))
        done = epoch * self.plan.num_steps + step + 1
        return self.settings.dense_learning_rate * min(1.0, done / warm_up)

    def _resume(self) -> Position:
        latest = self.checkpoints.latest()
        if latest is None:
            return Position()
        position = self.checkpoints.load(self.model, latest)
        if dist.get_rank() == 0:
            say(f"{self.schedule.name}: going on from {storage.name_of(latest)}, epoch {position.epoch + 1}, step {position.step}")
        return position

    def _is_exhausted(self, history: tuple[dict[str, Any], ...]) -> bool:
        """Has validation stopped improving? Never before the epochs whose kind (frozen or not) is still to come."""
        scores = [figures["score"] for figures in history]
        if not scores or self.schedule.frozen[len(history) - 1] != self.schedule.frozen[-1]:
            return False
        return len(scores) - 1 - int(np.argmax(scores)) >= self.settings.patience

    def _say_epoch(self, figures: dict[str, Any], validation: Validation, trained_s: float, is_best: bool) -> None:
        if dist.get_rank() == 0:
            tables = "frozen" if figures["frozen"] else "co-trained"
            say(
                f"{self.schedule.name} epoch {figures['epoch']}/{self.schedule.num_epochs} (tables {tables}): loss {figures['loss']:.4f} · "
                f"validation recall@50 {validation.recall:.4f} ndcg@10 {validation.ndcg:.4f}{' (best)' if is_best else ''} · "
                f"{duration(trained_s)}"
            )


class Meter:
    """Sums of the losses of an epoch and a progress line now and then; losses stay tensors until they are shown."""

    def __init__(self, schedule: Schedule, plan: EpochPlan, epoch: int, first_step: int):
        self.schedule, self.plan, self.epoch = schedule, plan, epoch
        self.steps_before = epoch * plan.num_steps + first_step
        self.num_steps, self.num_requests = 0, 0
        self.sums: dict[str, torch.Tensor] = {}
        self.started = self.shown = time.monotonic()

    def add(self, loss: torch.Tensor, parts: dict[str, torch.Tensor], num_requests: int) -> None:
        for name, value in (("loss", loss.detach()), *parts.items()):
            self.sums[name] = self.sums.get(name, torch.zeros(())) + value
        self.num_steps += 1
        self.num_requests += num_requests
        now = time.monotonic()
        if now - self.shown >= REPORT_EVERY_S and dist.get_rank() == 0:
            self.shown = now
            done, total = self.steps_before + self.num_steps, self.schedule.num_epochs * self.plan.num_steps
            rate = self.num_steps / (now - self.started)
            say(
                f"{self.schedule.name} epoch {self.epoch + 1}/{self.schedule.num_epochs}: step {done:,}/{total:,} ({done / total:.0%}) · "
                f"{self.num_requests * dist.get_world_size() / (now - self.started):,.0f} requests/s · at most {duration((total - done) / rate)} "
                f"left · loss {self.sums['loss'].item() / self.num_steps:.4f}"
            )

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def means(self) -> dict[str, float]:
        """Mean over this process's steps (since the last resume), by part of the loss; averaged over processes."""
        names = ["loss", "unconditional", "conditioned", "history"]
        values = torch.stack([self.sums.get(name, torch.zeros(())).cpu() for name in names]) / max(self.num_steps, 1)
        dist.all_reduce(values)
        return dict(zip(names, (values / dist.get_world_size()).tolist(), strict=True))
