"""Trains the autoencoder and its codebooks: gradient steps for the towers, k-means for the codes, in turn.

Every epoch ends with one round of balanced k-means over the catalogue's latents and a look at items that were held out; the epoch that
reconstructs those best is kept. Afterwards the codebooks are found once more with all items. Equal seeds give equal weights, to the last
bit and on any number of processes (team.py).

What to expect is in docs/semantic-ids.md: how wide latents should be, what epochs bring, what balance costs.
Next: assign.py.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import io
import sys

import torch
from torch import Tensor

from clrflow.errors import ClrflowError
from clrflow.progress import Progress
from clrflow.semantic_ids import kmeans
from clrflow.semantic_ids.quality import code_shares
from clrflow.semantic_ids.rqvae import ROWS_FOR_COMPONENTS, RqVae, loss_sum
from clrflow.semantic_ids.settings import SemanticIdSettings
from clrflow.semantic_ids.team import ALONE, Team, one_thread_a_part

FIRST_ROUNDS, LAST_ROUNDS = 10, 10
"""Rounds of k-means before the first epoch and after the last."""
STEPS_PER_EPOCH = 16
"""At least so many steps an epoch where the catalogue has the rows for it."""
MIN_BATCH = 64
MIN_ITEMS_TO_HOLD_OUT = 50
"""Below this, what is held out says less than what is lost: training items are looked at instead."""
MAX_HELD_OUT = 10_000
ITEMS_A_PART = 256
"""Items of a batch whose gradient one thread finds."""
ENCODED_AT_ONCE = 4096
"""Items whose hidden layers are in memory at once, where no gradient is wanted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epoch:
    """What one pass over the items achieved."""

    loss: float
    validation_cosine: float
    usage: tuple[float, ...]
    """Share of codes used, by level."""
    perplexity: tuple[float, ...]
    """Perplexity over codes used, by level."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """The model with the best epoch's towers, and how training went."""

    model: RqVae
    epochs: tuple[Epoch, ...]
    best_epoch: int
    """0 is the start: principal components and k-means, or the model that training went on from."""


def train(
    embeddings: Tensor, settings: SemanticIdSettings, device: str | torch.device = "cpu", start: RqVae | None = None, team: Team = ALONE
) -> Trained:
    """Fit an RqVae to unit vectors float32 [items, dim] (zero rows allowed), going on from `start` where it is given; see Trained.

    Every process of the team gives the same arguments and gets the same model; ClrflowError where they don't.
    """
    with one_thread_a_part():
        trained = _Training(embeddings.to(device), settings, team).run(start)
    _check_agreement(trained.model, team)
    return trained


class _Training:
    """What all passes of one training have in common."""

    def __init__(self, embeddings: Tensor, settings: SemanticIdSettings, team: Team):
        self.embeddings, self.settings, self.team = embeddings, settings, team
        self.generator = torch.Generator().manual_seed(settings.seed)
        order = torch.randperm(len(embeddings), generator=self.generator)
        holds_out = settings.max_epochs > 0 and len(order) >= MIN_ITEMS_TO_HOLD_OUT
        held_out = min(MAX_HELD_OUT, int(len(order) * settings.validation_share)) if holds_out else 0
        self.training = order[held_out:]
        """Rows that are learnt from, in random order."""
        self.validation = order[:held_out] if held_out else order
        self.batch_size = min(settings.batch_size, max(MIN_BATCH, len(self.training) // STEPS_PER_EPOCH))

    def run(self, start: RqVae | None) -> Trained:
        model = self._start(start)
        if not self.settings.max_epochs:
            return Trained(model=model.eval(), epochs=(), best_epoch=0)
        best, best_epoch, best_cosine = copy.deepcopy(model.state_dict()), 0, self.validation_cosine(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.settings.max_epochs)
        epochs: list[Epoch] = []
        stream = sys.stdout if self.team.rank == 0 else io.StringIO()
        with Progress("semantic_ids: training", self.settings.max_epochs, "epochs", stream=stream) as progress:
            for number in range(1, self.settings.max_epochs + 1):
                loss = self._one_pass(model, optimizer)
                schedule.step()
                self.refit(model, self.training, rounds=1)
                epochs.append(self._look(model, loss))
                if epochs[-1].validation_cosine > best_cosine:
                    best, best_epoch, best_cosine = copy.deepcopy(model.state_dict()), number, epochs[-1].validation_cosine
                usage, perplexity = min(epochs[-1].usage), min(epochs[-1].perplexity)
                progress.advance(
                    1,
                    f"held-out cosine {epochs[-1].validation_cosine:.4f}, usage {usage:.0%}, perplexity {perplexity:.2f} of the codes used",
                )
                if number - best_epoch >= self.settings.patience:
                    break
        model.load_state_dict(best)
        self.refit(model, torch.arange(len(self.embeddings)), rounds=LAST_ROUNDS)
        return Trained(model=model.eval(), epochs=tuple(epochs), best_epoch=best_epoch)

    def _start(self, start: RqVae | None) -> RqVae:
        """Principal components and codebooks for them, or a copy of `start` with its codebooks moved to these items."""
        settings, width = self.settings, self.embeddings.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            model = RqVae(width, settings.latent_dim, settings.hidden_dims, settings.num_levels, settings.num_codes)
        model = model.to(self.embeddings.device)
        if start is None:
            model.start_from(self.embeddings[self.training[:ROWS_FOR_COMPONENTS]])
        else:
            model.load_state_dict(start.state_dict())
        # Without epochs all is in what comes after them, too.
        self.refit(
            model, self.training, rounds=FIRST_ROUNDS if self.settings.max_epochs else FIRST_ROUNDS + LAST_ROUNDS, fresh=start is None
        )
        return model

    def _one_pass(self, model: RqVae, optimizer: torch.optim.Optimizer) -> float:
        """Every training item once; returns the mean loss."""
        parameters: list[Tensor] = list(model.parameters())
        energies = self._energies(model)
        like = torch.zeros(sum(each.numel() for each in parameters) + 1, device=self.embeddings.device)
        total = like.new_zeros(())
        for picked in self.training[torch.randperm(len(self.training), generator=self.generator)].split(self.batch_size):
            parts = picked.split(ITEMS_A_PART)
            work = functools.partial(self._gradient, model, parameters, energies)
            summed = self.team.total(self.team.each(work, self.team.mine(parts)), len(parts), like) / len(picked)
            for parameter, gradient in zip(parameters, summed[:-1].split([each.numel() for each in parameters]), strict=True):
                parameter.grad = gradient.view_as(parameter)
            optimizer.step()
            total += summed[-1] * len(picked)
        return float(total) / len(self.training)

    def _gradient(self, model: RqVae, parameters: list[Tensor], energies: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
        """Of the summed loss of some items to all parameters, one after the other, and that loss: [parameters + 1]."""
        batch = self.embeddings[rows]
        latents, reconstructions, quantised = model(batch)
        loss = loss_sum(batch, latents, reconstructions, quantised.vectors, energies, self.settings.commitment)
        gradients = torch.autograd.grad(loss, parameters)
        return torch.cat([*(gradient.reshape(-1) for gradient in gradients), loss.detach().reshape(1)])

    @torch.no_grad()
    def _energies(self, model: RqVae) -> tuple[Tensor, Tensor]:
        """Mean squared distance of an item's embedding and of its latent to their means, on a sample."""
        rows = self.embeddings[self.training[:ENCODED_AT_ONCE]]
        embedding, latent = ((one - one.mean(0)).square().sum(1).mean().clamp(min=1e-12) for one in (rows, model.encoder(rows)))
        return embedding, latent

    @torch.no_grad()
    def refit(self, model: RqVae, rows: Tensor, *, rounds: int, fresh: bool = False) -> None:
        """Codebooks for the latents that the encoder gives these rows now; of many rows a sample is encoded."""
        picked = kmeans.sample(rows, kmeans.SAMPLE_PER_CENTRE * self.settings.num_codes, self.generator)
        latents = self.encoded(model, picked)
        model.quantiser.fit(latents, self.generator, balance=self.settings.balance, rounds=rounds, fresh=fresh, team=self.team)

    @torch.no_grad()
    def encoded(self, model: RqVae, rows: Tensor) -> Tensor:
        """Latents of these rows, found by each process for itself: that is less work than telling them."""
        return torch.cat(self.team.each(lambda part: model.encoder(self.embeddings[part]), rows.split(ENCODED_AT_ONCE)))

    @torch.no_grad()
    def _look(self, model: RqVae, loss: float) -> Epoch:
        looked_at = self.training[: kmeans.SAMPLE_PER_CENTRE * self.settings.num_codes]
        codes = model.quantiser.nearest_from(self.encoded(model, looked_at), 0, self.team).codes
        usage, perplexity = code_shares(codes, self.settings.num_codes)
        return Epoch(loss=loss, validation_cosine=self.validation_cosine(model), usage=usage, perplexity=perplexity)

    @torch.no_grad()
    def validation_cosine(self, model: RqVae) -> float:
        """Mean cosine of the non-zero items that were held out and their reconstructions; 0 where all are zero."""

        def cosines(rows: Tensor) -> Tensor:
            embeddings = self.embeddings[rows]
            real = embeddings.square().sum(1) > 0
            found = torch.cosine_similarity(embeddings, model(embeddings)[1])
            return torch.stack([found[real].double().sum(), real.double().sum()])

        parts = self.validation.split(ITEMS_A_PART)
        like = torch.zeros(2, dtype=torch.float64, device=self.embeddings.device)
        cosine, count = self.team.total(self.team.each(cosines, self.team.mine(parts)), len(parts), like)
        return float(cosine / count.clamp(min=1))


def _check_agreement(model: RqVae, team: Team) -> None:
    """ClrflowError where processes ended with different weights."""
    digest = hashlib.blake2b(digest_size=7)  # fits an int64
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    own = torch.tensor([int.from_bytes(digest.digest())], device=model.quantiser.centres.device)
    found = team.rows([own], [1] * team.size, own[0])
    if len(found.unique()) > 1:
        raise ClrflowError(
            f"semantic_ids: {team.size} processes ended with {len(found.unique())} different tokenizers; they must run on equal processors with "
            "equal libraries. Set semantic_ids.num_processes=1."
        )
