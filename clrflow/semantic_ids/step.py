"""The step semantic_ids: reads the items, trains the tokenizer, judges it, writes codes and tokenizer.

Next: report.py (what people see of it).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from clrflow.contracts import codes_schema
from clrflow.data.tables import write_table
from clrflow.manifest import Output
from clrflow.progress import say
from clrflow.semantic_ids import quality
from clrflow.semantic_ids.assign import Assigned
from clrflow.semantic_ids.build import Built, add, build, load_previous
from clrflow.semantic_ids.catalogue import Catalogue, read_catalogue, read_interest_names
from clrflow.semantic_ids.gate import check_gate
from clrflow.semantic_ids.previous import source_of
from clrflow.semantic_ids.report import make_report
from clrflow.semantic_ids.settings import SemanticIdSettings
from clrflow.semantic_ids.training import Trained
from clrflow.steps import StepContext, StepResult


def run(context: StepContext) -> StepResult:
    """Give each item of the catalogue a unique tuple of codes; GateError where the codes are of no use."""
    settings, validated = context.config.semantic_ids, context.inputs["validate_data"]
    source = source_of(settings, context.workspace)
    previous = load_previous(source, settings)
    catalogue = read_catalogue(validated.output("items"))
    keeps = previous is not None and source.setting == "tokenizer"
    built = add(catalogue, previous) if previous is not None and keeps else build(catalogue, settings, previous)
    tokenizer = built.tokenizer
    figures = judge(catalogue, built, settings)
    _explain(figures, settings, built.change)
    check_gate(figures, settings.gate, built.change if keeps else None)

    codes = pa.FixedSizeListArray.from_arrays(pa.array(built.assigned.codes.reshape(-1)), settings.num_levels)
    schema = codes_schema(settings.num_levels)
    table = pa.Table.from_arrays([pa.array(catalogue.item_ids), codes], schema=schema)
    tokenizer.save(context.place("tokenizer"))
    return StepResult(
        outputs={
            "codes": write_table(context.place("codes"), table, schema),
            "tokenizer": Output.of(context.place("tokenizer"), num_rows=len(tokenizer.item_ids)),
        },
        report=make_report(catalogue, read_interest_names(validated.output("interests")), built, figures),
        metrics=metrics_of(figures, built),
        facts={
            "tokenizer_hash": tokenizer.hash,
            "num_levels": settings.num_levels,
            "num_codes": settings.num_codes,
            "num_items": len(catalogue),
        },
    )


def judge(catalogue: Catalogue, built: Built, settings: SemanticIdSettings) -> quality.Quality:
    """All figures of a tokenizer and of the ids that the catalogue's items have."""
    tokenizer, assigned = built.tokenizer, built.assigned
    added = Assigned(codes=assigned.codes[built.is_new], nearest=assigned.nearest[built.is_new])
    latents = torch.from_numpy(tokenizer.latents(catalogue.item_ids, catalogue.embeddings))
    usable = tokenizer.model.quantiser.num_usable(latents, torch.from_numpy(assigned.nearest.astype(np.int64)))
    return quality.Quality(
        num_items=len(catalogue),
        num_zero=int((~catalogue.embeddings.any(1)).sum()),
        levels=quality.levels_of(assigned.nearest, usable, settings.num_codes),
        collision=quality.collision(assigned.nearest),
        collision_floor=quality.collision(catalogue.embeddings),
        collision_after=quality.collision(assigned.codes),
        moved=added.moved,
        reconstruction_cosine=quality.mean_cosine(catalogue.embeddings, tokenizer.decode(assigned.nearest)),
        reconstruction_cosine_unique=quality.mean_cosine(catalogue.embeddings, tokenizer.decode(assigned.codes)),
        agreement=quality.neighbour_agreement(assigned.codes, catalogue.num_interests, catalogue.interests, settings.seed),
    )


def metrics_of(figures: quality.Quality, built: Built) -> dict[str, float]:
    """The figures as flat scalars for the UI; what could not be measured is left out."""
    metrics = (
        _of_training(built.trained, built.train_s)
        | _of_change(built.change)
        | {
            "collision": figures.collision,
            "collision_floor": figures.collision_floor,
            "collision_after": figures.collision_after,
            "moved": float(sum(figures.moved)),
            "reconstruction_cosine": figures.reconstruction_cosine,
            "reconstruction_cosine_unique": figures.reconstruction_cosine_unique,
        }
    )
    for number, level in enumerate(figures.levels, 1):
        metrics |= {f"usage_level_{number}": level.usage, f"perplexity_level_{number}": level.evenness}
    agreements = {"neighbour_agreement": figures.agreement.by_prefix[0], "neighbour_agreement_random": figures.agreement.random}
    agreements |= {f"neighbour_agreement_prefix_{depth}": value for depth, value in enumerate(figures.agreement.by_prefix[1:], 2)}
    return metrics | {name: value for name, value in agreements.items() if value is not None}


def _of_training(trained: Trained | None, train_s: float) -> dict[str, float]:
    return {"epochs": float(len(trained.epochs)), "best_epoch": float(trained.best_epoch), "train_s": train_s} if trained else {}


def _of_change(change: quality.Change | None) -> dict[str, float]:
    if change is None:
        return {}
    counts = {"items_known": float(change.num_known), "items_new": float(change.num_new), "still_nearest": change.still_nearest}
    return counts | {f"kept_prefix_{depth}": share for depth, share in enumerate(change.kept, 1)}


def _explain(figures: quality.Quality, settings: SemanticIdSettings, change: quality.Change | None) -> None:
    first = figures.levels[0]
    say(
        f"semantic_ids: {figures.num_items:,} items, level 1 uses {first.used:,} of {settings.num_codes:,} codes (perplexity {first.perplexity:.0f}), "
        f"collision {figures.collision:.4f} (floor {figures.collision_floor:.4f}), reconstruction cosine {figures.reconstruction_cosine:.4f}"
    )
    if sum(figures.moved):
        by_level = ", ".join(f"{count:,} from level {level} on" for level, count in enumerate(figures.moved, 1) if count)
        say(f"semantic_ids: {sum(figures.moved):,} items got other than their nearest codes to be unique: {by_level}")
    if figures.num_zero:
        say(f"semantic_ids: {figures.num_zero:,} items have an embedding of zeros; they share their prefixes and get ids by their item id")
    if change is not None:
        kept = ", ".join(f"{share:.1%} their first {depth}" for depth, share in enumerate(change.kept, 1))
        say(
            f"semantic_ids: {change.num_new:,} new items; of {change.num_known:,} that tokenizer {change.previous} knew keep {kept} code(s)"
        )
