"""From a catalogue to a tokenizer with an id for each item: trained anew, trained on from a previous one, or added to one.

Next: step.py.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clrflow.errors import ConfigError
from clrflow.progress import say
from clrflow.semantic_ids import quality
from clrflow.semantic_ids.assign import Assigned, check_capacity
from clrflow.semantic_ids.catalogue import Catalogue
from clrflow.semantic_ids.previous import Source
from clrflow.semantic_ids.processes import train_by_processes
from clrflow.semantic_ids.settings import SemanticIdSettings
from clrflow.semantic_ids.tokenizer import Tokenizer
from clrflow.semantic_ids.training import Trained, train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """What the step has when every item has its id."""

    tokenizer: Tokenizer
    assigned: Assigned
    """Of the catalogue's items."""
    trained: Trained | None
    """None where a tokenizer was taken as it was."""
    train_s: float
    is_new: NDArray[np.bool_]
    """[items]: those that got their id now; all of them where ids were made anew."""
    change: quality.Change | None
    """None where there was no tokenizer before."""


def build(catalogue: Catalogue, settings: SemanticIdSettings, start: Tokenizer | None = None) -> Built:
    """Train on a catalogue, going on from `start` where it is given, and give its items their ids."""
    check_capacity(len(catalogue), settings.num_levels, settings.num_codes)  # known before an hour of training
    if len(catalogue) < settings.num_codes:
        say(
            f"semantic_ids: {len(catalogue):,} items share semantic_ids.num_codes={settings.num_codes} codes a level, so the first level may "
            f"tell every item apart and prefixes group nothing; about {max(2, len(catalogue) // 8)} codes would."
        )
    if start is not None:
        start.refuse_width(catalogue.embeddings)
    started = time.monotonic()
    model = copy.deepcopy(start.model).float() if start is not None else None
    if settings.num_processes > 1:
        trained = train_by_processes(catalogue.embeddings, settings, model)
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        trained = train(torch.from_numpy(catalogue.embeddings), settings, device, model)
    train_s = time.monotonic() - started
    tokenizer, assigned = Tokenizer.found(trained.model, catalogue.item_ids, catalogue.embeddings)
    change = None
    if start is not None:
        change = _change(catalogue, start, assigned.codes, start.nearest_codes(catalogue.item_ids, catalogue.embeddings))
    is_new = np.ones(len(catalogue), dtype=bool)
    return Built(tokenizer=tokenizer, assigned=assigned, trained=trained, train_s=train_s, is_new=is_new, change=change)


def add(catalogue: Catalogue, tokenizer: Tokenizer) -> Built:
    """Give ids to the items that `tokenizer` doesn't know; all others keep theirs."""
    grown = tokenizer.with_items(catalogue.item_ids, catalogue.embeddings)
    assigned = Assigned(codes=grown.codes_of(catalogue.item_ids), nearest=grown.nearest_codes(catalogue.item_ids, catalogue.embeddings))
    return Built(
        tokenizer=grown,
        assigned=assigned,
        trained=None,
        train_s=0.0,
        is_new=~np.isin(catalogue.item_ids, tokenizer.item_ids),
        change=_change(catalogue, tokenizer, assigned.codes, assigned.nearest),
    )


def load_previous(source: Source, settings: SemanticIdSettings) -> Tokenizer | None:
    """The tokenizer to go on from, None for none; ConfigError where its sizes aren't those of the settings."""
    if not source.uri:
        return None
    tokenizer = Tokenizer.load(source.uri)
    sizes: dict[str, Any] = {"num_levels": tokenizer.num_levels, "num_codes": tokenizer.num_codes}
    if source.setting == "start_from":  # of one that is kept as it is, the towers may be anything
        sizes |= {"latent_dim": tokenizer.model.latent_dim, "hidden_dims": tokenizer.model.hidden_dims}
    wanted = settings.model_copy(update={"latent_dim": min(settings.latent_dim, tokenizer.model.dim)})
    unlike = [
        f"{size} {found} (semantic_ids.{size}={getattr(settings, size)})" for size, found in sizes.items() if getattr(wanted, size) != found
    ]
    if unlike:
        raise ConfigError(
            f"semantic_ids.{source.setting}: the tokenizer {source.uri} has {', '.join(unlike)}; set these as they are there, or leave "
            f"{source.setting} empty to make ids anew."
        )
    return tokenizer


def _change(catalogue: Catalogue, before: Tokenizer, codes: NDArray[np.int32], nearest: NDArray[np.int32]) -> quality.Change:
    """`nearest` is what `before` says of the catalogue's present embeddings."""
    known = np.isin(catalogue.item_ids, before.item_ids)
    return quality.change_of(
        before.codes_of(catalogue.item_ids[known]),
        codes[known],
        nearest[known],
        previous=before.hash,
        num_new=int((~known).sum()),
        num_gone=len(before.item_ids) - int(known.sum()),
    )
