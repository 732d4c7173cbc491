"""Every item of the catalogue as the model reads it: table rows, interests, content; in the order of ascending item_id.

Items with no engagement in the train span have no row of their own in the id table (row 0, out of vocabulary): a row that is never
trained would only add noise, and the semantic path is what must carry them.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from clrflow.data.tables import read_table
from clrflow.errors import DataError
from clrflow.manifest import Manifest
from clrflow.model.batch import ItemRows
from clrflow.model.settings import ModelSettings
from clrflow.model.tables import TableSizes, semantic_prefix_rows, vocabulary_rows
from clrflow.training.ragged import Index, Ragged

MAX_INTERESTS_PER_ITEM = 16
"""An item's further interests are not read, so that one odd row can't widen every batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalogue:
    """N items, ascending ids; L levels, M interests an item at most, E content width."""

    item_ids: Index
    rows: Index
    """[N]: row of the item table."""
    semantic: Index
    """[N, L]: rows of the prefix tables."""
    interests: Index
    """[N, M]: rows of the interest table."""
    has_interest: npt.NDArray[np.bool_]
    content: npt.NDArray[np.float32]
    """[N, E]: unit length."""
    target_share: npt.NDArray[np.float32]
    """[N]: share of the train span's engagements."""
    interest_ids: Index
    """Vocabulary of the interest table, ascending."""
    sizes: TableSizes
    tokenizer_hash: str

    def __len__(self) -> int:
        return len(self.item_ids)

    def index_of(self, item_ids: Index, where: str) -> Index:
        """Places of ids in the catalogue; an unknown one is a data error that names it."""
        place = np.minimum(np.searchsorted(self.item_ids, item_ids), len(self.item_ids) - 1)
        unknown = self.item_ids[place] != item_ids
        if unknown.any():
            examples = ", ".join(map(str, item_ids[unknown][:3]))
            raise DataError(
                f"{where}: {int(unknown.sum())} item ids are not in the items table, e.g. {examples}; run validate_data and bootstrap on the "
                "same tables."
            )
        return place

    def item_rows(self, places: Index) -> tuple[ItemRows, Index]:
        """Rows of the items at `places`, and the distinct rows of the interest table that they point at."""
        return self.item_rows_and(places, np.zeros(0, dtype=np.int64))[:2]

    def item_rows_and(self, places: Index, more_interests: Index) -> tuple[ItemRows, Index, Index]:
        """As item_rows, with further interest rows in the same lookup; the third value is where those are among the distinct ones."""
        has = self.has_interest[places]
        wanted, inverse = np.unique(np.concatenate([self.interests[places].ravel(), more_interests]), return_inverse=True)
        of_items, of_more = inverse[: has.size], inverse[has.size :]
        items = ItemRows(
            rows=torch.from_numpy(self.rows[places]),
            semantic=torch.from_numpy(self.semantic[places]),
            interests=torch.from_numpy(of_items.reshape(has.shape)),
            has_interest=torch.from_numpy(has),
            content=torch.from_numpy(self.content[places]),
        )
        return items, wanted, of_more


def load_catalogue(validated: Manifest, bootstrapped: Manifest, tokenized: Manifest, settings: ModelSettings) -> Catalogue:
    """Read items, statistics and semantic ids; refuses tables that don't belong together."""
    items = read_table(validated.output("items"), ["item_id", "interests", "content_embedding"])
    statistics = read_table(bootstrapped.output("item_statistics"), ["item_id", "num_engagements"])
    codes = read_table(tokenized.output("codes"), ["item_id", "codes"])
    item_ids = items["item_id"].to_numpy()
    order = np.argsort(item_ids, kind="stable")
    item_ids = item_ids[order]

    code_ids = codes["item_id"].to_numpy()
    if not np.array_equal(np.sort(code_ids), item_ids):
        raise DataError(
            f"{tokenized.uri}: has semantic ids of {len(code_ids)} items, the catalogue has {len(item_ids)}, and they differ; run semantic_ids "
            "on these items."
        )
    num_levels, num_codes = int(tokenized.facts["num_levels"]), int(tokenized.facts["num_codes"])
    flat_codes = codes["codes"].combine_chunks().flatten().to_numpy().reshape(-1, num_levels)[np.argsort(code_ids, kind="stable")]

    counts = np.zeros(len(item_ids), dtype=np.int64)
    statistic_ids = statistics["item_id"].to_numpy()
    counts[np.searchsorted(item_ids, statistic_ids)] = statistics["num_engagements"].to_numpy()
    vocabulary = item_ids[counts > 0]

    interest_ids = np.sort(read_table(validated.output("interests"), ["interest_id"])["interest_id"].to_numpy())
    interests = Ragged.of(items["interests"]).take(order)
    width = int(min(max(interests.lengths.max(initial=1), 1), MAX_INTERESTS_PER_ITEM))
    interests = interests.first(width)
    interest_rows, has_interest = Ragged(vocabulary_rows(interests.values, interest_ids), interests.offsets).padded(width)

    content = items["content_embedding"].combine_chunks().flatten().to_numpy().reshape(len(item_ids), -1)[order].astype(np.float32)
    norms = np.linalg.norm(content, axis=1, keepdims=True)
    return Catalogue(
        item_ids=item_ids,
        rows=vocabulary_rows(item_ids, vocabulary),
        semantic=semantic_prefix_rows(flat_codes.astype(np.int32), num_codes, settings.semantic_rows),
        interests=interest_rows,
        has_interest=has_interest,
        content=content / np.maximum(norms, 1e-12),
        target_share=(counts / max(counts.sum(), 1)).astype(np.float32),
        interest_ids=interest_ids,
        sizes=TableSizes(num_items=len(vocabulary), num_interests=len(interest_ids), num_levels=num_levels, num_codes=num_codes),
        tokenizer_hash=str(tokenized.facts["tokenizer_hash"]),
    )
