"""One user, many conditions, ranked items: the history is encoded once and every condition reads it (block mask), so a second
condition costs one token.

    retriever = Retriever.load("workspace/published")
    answers = retriever.query(user_id=7, conditions=[parse_condition("interest:5"), parse_condition("board:17")], k=10)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from clrflow.contracts import BOARD, CONDITION_TYPES, INTEREST, ITEM, NONE
from clrflow.errors import BadInput
from clrflow.index.bundle import NO_ITEM, Bundle, load
from clrflow.model.tables import hashed_rows, vocabulary_rows
from clrflow.serving.tables import Ids, KeyedTable, ServingModel, load_model

MAX_CONDITIONS = 64
MAX_K = 1000


@dataclasses.dataclass(frozen=True)
class Condition:
    """What the user is to be asked about: a type of CONDITION_TYPES and an id (0 for `none`)."""

    type: str
    id: int = 0

    def __str__(self) -> str:
        """As parse_condition reads it."""
        return NONE if self.type == NONE else f"{self.type}:{self.id}"


@dataclasses.dataclass(frozen=True)
class Ranked:
    """The items of one condition, best first."""

    condition: Condition
    item_ids: Ids
    """int64 [n], n ≤ k."""
    scores: np.ndarray[Any, np.dtype[np.float32]]
    """float32 [n], inner product of unit vectors."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The ranked items of one condition, for people: with names."""

    condition: str
    """`interest:5 Comedy`, `item:50 Star Wars (1977)`, `none`."""
    items: list[tuple[int, float, str, list[str]]]
    """(item_id, score, title, names of its interests), best first."""


def parse_condition(text: str) -> Condition:
    """`interest:5`, `item:50`, `board:17` or `none`; raises BadInput for anything else."""
    kind, colon, number = text.partition(":")
    if text == NONE:
        return Condition(NONE)
    if kind not in CONDITION_TYPES or kind == NONE or not colon:
        raise BadInput(f"condition {text!r}: write none, {INTEREST}:ID, {ITEM}:ID or {BOARD}:ID, e.g. interest:5.")
    try:
        value = int(number)
    except ValueError:
        raise BadInput(f"condition {text!r}: the id {number!r} is no whole number; write e.g. {kind}:5.") from None
    if not -(2**63) <= value < 2**63:
        raise BadInput(f"condition {text!r}: the id does not fit 64 bits, so no table holds it.")
    return Condition(kind, value)


class Retriever:
    """A loaded index with its model and what is known of users, items, boards and interests.

    Nothing in it changes after loading, so threads may share it.
    """

    def __init__(self, bundle: Bundle, model: ServingModel):
        self.bundle, self.model = bundle, model
        self._users = KeyedTable(bundle.table("user_states"), "user_id")
        self._items = KeyedTable(bundle.table("items"), "item_id")
        self._boards = KeyedTable(bundle.table("boards"), "board_id")
        interests = bundle.table("interests")
        self._interest_names = dict(zip(interests["interest_id"].to_pylist(), interests["name"].to_pylist(), strict=True))

    @classmethod
    def load(cls, uri: str) -> Retriever:
        """From a bundle, a published version or a published folder."""
        bundle = load(uri)
        return cls(bundle, load_model(bundle.model_uri, tokenizer_hash=bundle.info["tokenizer_hash"]))

    def query(self, user_id: int, conditions: Sequence[Condition], k: int = 10, hide_seen: bool = True) -> list[Answer]:
        """As search(), with names."""
        return [
            Answer(self.describe(found.condition), self._rows(found.item_ids, found.scores))
            for found in self.search(user_id, conditions, k, hide_seen)
        ]

    def search(self, user_id: int, conditions: Sequence[Condition], k: int = 10, hide_seen: bool = True) -> list[Ranked]:
        """The k best items under each condition, in the conditions' order; without conditions, under `none`.

        A user that the index doesn't know has an empty history; an item, board or interest that it doesn't know is refused.
        """
        if not -(2**63) <= user_id < 2**63:
            raise BadInput(f"user {user_id}: the id does not fit 64 bits, so no table holds it; ids are int64.")
        if not 1 <= k <= MAX_K:
            raise BadInput(f"k={k}: ask for 1 to {MAX_K} items.")
        if len(conditions) > MAX_CONDITIONS:
            raise BadInput(f"{len(conditions)} conditions in one query; at most {MAX_CONDITIONS} are answered at once.")
        conditions = list(conditions) or [Condition(NONE)]
        state = self._state(user_id)
        vectors = self.vectors(state, conditions)
        seen = np.asarray(state["history_items"], dtype=np.int64) if hide_seen else np.zeros(0, dtype=np.int64)
        asked = [np.append(seen, condition.id) if condition.type == ITEM else seen for condition in conditions]
        ids, scores = self.bundle.search(vectors, k, exclude=asked)
        kept = scores != NO_ITEM
        return [Ranked(condition, ids[at, kept[at]], scores[at, kept[at]]) for at, condition in enumerate(conditions)]

    def knows(self, user_id: int) -> bool:
        """Whether the index holds a history of this user; others are answered as someone who has done nothing yet."""
        return user_id in self._users

    @torch.no_grad()
    def vectors(self, state: dict[str, Any], conditions: Sequence[Condition]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Unit vectors [conditions, D] of a user's state (a row of user_states)."""
        model, length = self.model, self.model.settings.max_history
        items = np.asarray(state["history_items"][-length:], dtype=np.int64)
        tokens, known = model.item_tokens.find(items)
        keep = torch.from_numpy(known)
        codes = {name: place for place, name in enumerate(model.actions)}
        actions = torch.tensor([codes.get(name, 0) for name in state["history_actions"][-length:]], dtype=torch.int64)
        times = torch.tensor([int(time.timestamp()) for time in state["history_times"][-length:]], dtype=torch.int64)
        _, caches, present = model.tower.encode_history(
            tokens[keep].unsqueeze(0),
            actions[keep].unsqueeze(0),
            times[keep].unsqueeze(0),
            torch.ones(1, int(keep.sum()), dtype=torch.bool),
        )
        types = torch.tensor([[CONDITION_TYPES.index(condition.type) for condition in conditions]])
        shown = torch.stack([self._token(condition) for condition in conditions]).unsqueeze(0)
        found: np.ndarray[Any, np.dtype[np.float32]] = model.tower.encode_conditions(shown, types, caches, present)[0].numpy()
        return found

    def describe(self, condition: Condition) -> str:
        """The condition with its name."""
        match condition.type:
            case "interest":
                return f"interest:{condition.id} {self._interest_names[condition.id]}"
            case "item":
                return f"item:{condition.id} {self._title(condition.id)}"
            case "board":
                return f"board:{condition.id} {self._board(condition.id)['name'] or ''}".rstrip()
        return NONE

    def _token(self, condition: Condition) -> torch.Tensor:
        """What the transformer sees of a condition, as model.two_tower.condition_tokens has it [D]."""
        model = self.model
        one = np.asarray([condition.id], dtype=np.int64)
        match condition.type:
            case "interest":
                if condition.id not in self._interest_names:
                    raise BadInput(f"condition interest:{condition.id}: the index knows no such interest; known: {self._some_interests()}.")
                return model.interests.find(vocabulary_rows(one, model.interest_ids))[0][0]
            case "item":
                rows, found = model.item_tokens.find(one)
                if not found[0]:
                    raise BadInput(f"condition item:{condition.id}: the index knows no such item; take an id of its items table.")
                return rows[0]
            case "board":
                rows, found = model.item_tokens.find(np.asarray(self._board(condition.id)["items"], dtype=np.int64))
                pooled = rows.sum(0) / max(int(found.sum()), 1)
                return pooled + model.boards.find(hashed_rows(one, model.settings.board_rows))[0][0]
        return torch.zeros(model.settings.dim)

    def _state(self, user_id: int) -> dict[str, Any]:
        found = self._users.find(user_id)
        return found or {"user_id": user_id, "history_items": [], "history_actions": [], "history_times": [], "conditions": []}

    def _board(self, board_id: int) -> dict[str, Any]:
        found = self._boards.find(board_id)
        if found is None:
            raise BadInput(f"condition board:{board_id}: the index knows no such board; take an id of its boards table.")
        return found

    def _title(self, item_id: int) -> str:
        found = self._items.find(item_id)
        return str((found or {}).get("title") or "")

    def _rows(self, ids: Ids, scores: np.ndarray[Any, np.dtype[np.float32]]) -> list[tuple[int, float, str, list[str]]]:
        rows = []
        for item_id, score in zip(ids.tolist(), scores.tolist(), strict=True):
            found = self._items.find(item_id) or {}
            names = [self._interest_names.get(interest, str(interest)) for interest in found.get("interests") or []]
            rows.append((item_id, score, str(found.get("title") or ""), names))
        return rows

    def _some_interests(self) -> str:
        shown = [f"{key} {name}" for key, name in list(self._interest_names.items())[:5]]
        return ", ".join(shown) + (", …" if len(self._interest_names) > 5 else "")
