"""What a tokenizer must reach, so that a collapsed one stops the run."""

from __future__ import annotations

from clrflow.errors import GateError
from clrflow.semantic_ids.quality import Change, Quality
from clrflow.semantic_ids.settings import SemanticIdGate

_NEW = (
    "Such ids would group items badly: raise semantic_ids.balance (usage, perplexity), num_codes or num_levels (collision) or latent_dim "
    "(reconstruction), or lower the threshold if the catalogue is like that."
)
_KEPT = (
    "The catalogue has outgrown the ids that it keeps: let training go on from them (semantic_ids.start_from in place of tokenizer) or make ids anew "
    "(both empty); either way tables are trained anew too."
)


def check_gate(figures: Quality, gate: SemanticIdGate, kept: Change | None = None) -> None:
    """GateError naming each figure that misses its threshold, and the setting that holds it; `kept` where an old tokenizer's ids stay."""
    missed = [
        f"usage of level {number} is {level.usage:.3f} ({level.used:,} of {level.usable:,} usable codes), below "
        f"semantic_ids.gate.min_usage={gate.min_usage}"
        for number, level in enumerate(figures.levels, 1)
        if level.usage < gate.min_usage
    ]
    missed += [
        f"perplexity of level {number} is {level.evenness:.3f} of the codes used, below semantic_ids.gate.min_perplexity={gate.min_perplexity}"
        for number, level in enumerate(figures.levels, 1)
        if level.evenness < gate.min_perplexity
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
    if kept is not None and kept.still_nearest < gate.min_still_nearest:
        missed.append(
            f"only {kept.still_nearest:.3f} of the {kept.num_known:,} known items are still nearest to the first code that they have, below "
            f"semantic_ids.gate.min_still_nearest={gate.min_still_nearest}: their embeddings are no longer those that the ids were made from"
        )
    if missed:
        raise GateError(f"semantic_ids: {'; '.join(missed)}. {_NEW if kept is None else _KEPT}")
