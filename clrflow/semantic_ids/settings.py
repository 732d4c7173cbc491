"""Settings of the RQ-VAE and of its quality gate."""

from __future__ import annotations

import pydantic

from clrflow.settings import Settings

PUBLISHED, PUBLISHED_OR_NEW = "published", "published_or_new"
"""Names of tokenizers that are found in the workspace."""


class SemanticIdGate(Settings):
    """What a tokenizer must reach; a run that misses one fails and names it. Figures are before ids are made unique."""

    min_usage: float = pydantic.Field(default=0.9, ge=0, le=1)
    """Share of the codes of a level that some item uses; each level (where there are fewer items than codes: of the items)."""
    min_perplexity: float = pydantic.Field(default=0.5, ge=0, le=1)
    """Perplexity of a level's codes over the number of codes used; each level. 1 is equal use."""
    max_collision: float = pydantic.Field(default=0.5, ge=0, le=1)
    """(items - unique tuples) / items, above the floor that identical embeddings set."""
    min_reconstruction_cosine: float = pydantic.Field(default=0.4, ge=-1, le=1)
    """Mean cosine of an embedding and its reconstruction."""
    min_still_nearest: float = pydantic.Field(default=0.5, ge=0, le=1)
    """Share of known items whose present embedding is nearest to the first code that they have; no effect unless `tokenizer` keeps ids."""


class SemanticIdSettings(Settings):
    """RQ-VAE over static content embeddings."""

    tokenizer: str = ""
    """A tokenizer whose ids stay as they are: a URI of one or of a semantic_ids step's result, `published` (the one that the published model
    was trained with) or `published_or_new` (where nothing is published yet, a new one). Items that it doesn't know get the free ids nearest to
    them; nothing is trained. "" trains."""
    start_from: str = ""
    """A tokenizer from whose weights and codebooks training starts, a URI or `published`; ids may change, and the report says how many items
    keep their first 1, 2, ... codes. No effect when `tokenizer` is given."""
    num_levels: int = pydantic.Field(default=5, ge=1, le=8)
    """Codes an item."""
    num_codes: int = pydantic.Field(default=2048, ge=2, le=65536)
    """Codes a level."""
    latent_dim: int = pydantic.Field(default=256, ge=2)
    """Width in which residuals are quantised; at most that of the embeddings. Narrower is faster and reconstructs worse, and suits small
    catalogues, whose codebooks would otherwise learn items by heart."""
    hidden_dims: tuple[int, ...] = (128,)
    """Hidden widths of the encoder; the decoder mirrors them."""
    max_epochs: int = pydantic.Field(default=30, ge=0)
    """Passes over the items, over which the learning rate falls to zero; early stopping may end sooner. 0 leaves it at principal components and
    balanced k-means, which passes seldom improve on where latents are as wide as the embeddings."""
    patience: int = pydantic.Field(default=3, ge=1)
    """Epochs without a better validation reconstruction before training stops."""
    batch_size: int = pydantic.Field(default=1024, ge=1)
    """Items a step at most; small catalogues take fewer (64 at least), so that an epoch has 16 steps."""
    learning_rate: float = pydantic.Field(default=1e-3, gt=0)
    """Of Adam, for encoder and decoder, at the start."""
    commitment: float = pydantic.Field(default=0.25, ge=0)
    """Weight of the latents' unexplained share beside the embeddings' in the loss."""
    balance: float = pydantic.Field(default=1.0, ge=0)
    """How much equal use of codes counts against nearness: 0 is plain residual k-means, 1 gives perplexities of about 0.9 of the codes."""
    validation_share: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Share of the items (10,000 at most) held out of training to pick the best epoch; no effect below 50 items."""
    num_processes: int = pydantic.Field(default=1, ge=1)
    """Processes of this machine that train together, each with its share of the cores, or with a GPU of its own where there are GPUs; the ids
    don't depend on it."""
    seed: int = 0
    """Same seed, same ids."""
    gate: SemanticIdGate = SemanticIdGate()

    @pydantic.field_validator("start_from")
    @classmethod
    def _names_a_tokenizer(cls, value: str) -> str:
        if value == PUBLISHED_OR_NEW:
            raise ValueError(
                f"semantic_ids.start_from={value}: training can start from a URI or from `{PUBLISHED}`; leave it empty to start afresh"
            )
        return value
