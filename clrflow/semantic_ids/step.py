"""The step semantic_ids: reads the items, trains the tokenizer, judges it, writes codes and tokenizer.

Next: report.py (what people see of it).
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import torch

from clrflow.contracts import codes_schema
from clrflow.data.tables import write_table
from clrflow.errors import GateError
from clrflow.manifest import Output
from clrflow.progress import say
from clrflow.semantic_ids import quality
from clrflow.semantic_ids.assign import Assigned, check_capacity
from clrflow.semantic_ids.catalogue import Catalogue, read_catalogue, read_interest_names
from clrflow.semantic_ids.report import make_report
from clrflow.semantic_ids.settings import SemanticIdGate, SemanticIdSettings
from clrflow.semantic_ids.tokenizer import Tokenizer
from clrflow.semantic_ids.training import Trained, train
from clrflow.steps import StepContext, StepResult


def run(context: StepContext) -> StepResult:
    """Give each item of the catalogue a unique tuple of codes; GateError where the codes are of no use."""
    settings, validated = context.config.semantic_ids, context.inputs["validate_data"]
    catalogue = read_catalogue(validated.output("items"))
    trained, tokenizer, assigned, train_s = build(catalogue, settings)
    figures = judge(catalogue, tokenizer, assigned, settings)
    _explain(figures, settings)
    check_gate(figures, settings.gate)

    codes = pa.FixedSizeListArray.from_arrays(pa.array(tokenizer.codes.reshape(-1)), settings.num_levels)
    schema = codes_schema(settings.num_levels)
    table = pa.Table.from_arrays([pa.array(tokenizer.item_ids), codes], schema=schema)
    tokenizer.save(context.place("tokenizer"))
    return StepResult(
        outputs={
            "codes": write_table(context.place("codes"), table, schema),
            "tokenizer": Output.of(context.place("tokenizer"), num_rows=len(catalogue)),
        },
        report=make_report(catalogue, read_interest_names(validated.output("interests")), trained, tokenizer, assigned, figures),
        metrics=metrics_of(figures) | {"epochs": float(len(trained.epochs)), "best_epoch": float(trained.best_epoch), "train_s": train_s},
        facts={
            "tokenizer_hash": tokenizer.hash,
            "num_levels": settings.num_levels,
            "num_codes": settings.num_codes,
            "num_items": len(catalogue),
        },
    )


def build(catalogue: Catalogue, settings: SemanticIdSettings, device: str = "cpu") -> tuple[Trained, Tokenizer, Assigned, float]:
    """Train on a catalogue and give its items their ids; the last value is the seconds that training took."""
    check_capacity(len(catalogue), settings.num_levels, settings.num_codes)  # known before an hour of training
    if len(catalogue) < settings.num_codes:
        say(
            f"semantic_ids: {len(catalogue):,} items share semantic_ids.num_codes={settings.num_codes} codes a level, so the first level may "
            f"tell every item apart and prefixes group nothing; about {max(2, len(catalogue) // 8)} codes would."
        )
    started = time.monotonic()
    trained = train(torch.from_numpy(catalogue.embeddings), settings, device)
    train_s = time.monotonic() - started
    tokenizer, assigned = Tokenizer.found(trained.model, catalogue.item_ids, catalogue.embeddings)
    return trained, tokenizer, assigned, train_s


def judge(catalogue: Catalogue, tokenizer: Tokenizer, assigned: Assigned, settings: SemanticIdSettings) -> quality.Quality:
    """All figures of a tokenizer on the catalogue that it was founded with."""
    latents = torch.from_numpy(tokenizer.latents(catalogue.item_ids, catalogue.embeddings))
    usable = tokenizer.model.quantiser.num_usable(latents, torch.from_numpy(assigned.nearest.astype(np.int64)))
    return quality.Quality(
        num_items=len(catalogue),
        num_zero=int((np.square(catalogue.embeddings).sum(1) == 0).sum()),
        levels=quality.levels_of(assigned.nearest, usable, settings.num_codes),
        collision=quality.collision(assigned.nearest),
        collision_floor=quality.collision(catalogue.embeddings),
        collision_after=quality.collision(assigned.codes),
        moved=assigned.moved,
        reconstruction_cosine=quality.mean_cosine(catalogue.embeddings, tokenizer.decode(assigned.nearest)),
        reconstruction_cosine_unique=quality.mean_cosine(catalogue.embeddings, tokenizer.decode(assigned.codes)),
        agreement=quality.neighbour_agreement(assigned.codes, catalogue.num_interests, catalogue.interests, settings.seed),
    )


def metrics_of(figures: quality.Quality) -> dict[str, float]:
    """The figures as flat scalars for the UI; what could not be measured is left out."""
    metrics = {
        "collision": figures.collision,
        "collision_floor": figures.collision_floor,
        "collision_after": figures.collision_after,
        "moved": float(sum(figures.moved)),
        "reconstruction_cosine": figures.reconstruction_cosine,
        "reconstruction_cosine_unique": figures.reconstruction_cosine_unique,
    }
    for number, level in enumerate(figures.levels, 1):
        metrics |= {f"usage_level_{number}": level.usage, f"perplexity_level_{number}": level.evenness}
    agreements = {"neighbour_agreement": figures.agreement.by_prefix[0], "neighbour_agreement_random": figures.agreement.random}
    agreements |= {f"neighbour_agreement_prefix_{depth}": value for depth, value in enumerate(figures.agreement.by_prefix[1:], 2)}
    return metrics | {name: value for name, value in agreements.items() if value is not None}


def check_gate(figures: quality.Quality, gate: SemanticIdGate) -> None:
    """GateError naming each figure that misses its threshold, and the setting that holds it."""
    missed = [
        f"usage of level {number} is {level.usage:.3f} ({level.used:,} of {level.usable:,} usable codes), below "
        f"semantic_ids.gate.min_usage={gate.min_usage}"
        for number, level in enumerate(figures.levels, 1)
        if level.usage < gate.min_usage
    ]
    excess = figures.collision - figures.collision_floor
    if excess > gate.max_collision:
        missed.append(
            f"collision is {figures.collision:.4f}, {excess:.4f} above the floor of identical embeddings, more than "
            f"semantic_ids.gate.max_collision={gate.max_collision}"
        )
    if figures.reconstruction_cosine < gate.min_reconstruction_cosine:
        missed.append(
            f"reconstruction cosine is {figures.reconstruction_cosine:.4f}, below "
            f"semantic_ids.gate.min_reconstruction_cosine={gate.min_reconstruction_cosine}"
        )
    if missed:
        raise GateError(
            f"semantic_ids: {'; '.join(missed)}. Such ids would group items badly: raise semantic_ids.balance (usage), num_codes or num_levels "
            "(collision) or latent_dim (reconstruction), or lower the threshold if the catalogue is like that."
        )


def _explain(figures: quality.Quality, settings: SemanticIdSettings) -> None:
    first = figures.levels[0]
    say(
        f"semantic_ids: {figures.num_items:,} items, level 1 uses {first.used:,} of {settings.num_codes:,} codes (perplexity {first.perplexity:.0f}), "
        f"collision {figures.collision:.4f} (floor {figures.collision_floor:.4f}), reconstruction cosine {figures.reconstruction_cosine:.4f}"
    )
    if sum(figures.moved):
        by_level = ", ".join(f"{count:,} from level {level} on" for level, count in enumerate(figures.moved, 1) if count)
        say(f"semantic_ids: {sum(figures.moved):,} items moved off their nearest codes to be unique: {by_level}")
    if figures.num_zero:
        say(f"semantic_ids: {figures.num_zero:,} items have an embedding of zeros; they share their prefixes and get ids by their item id")
