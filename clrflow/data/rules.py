"""What may be wrong with rows, and what follows: one declaration a rule, counted in SQL over staged tables.

A row is charged to the first rule that it breaks; duplicates come last, so that of two equal rows the one without another fault stays. A rule
rejects the run, drops the row, or clears what is wrong in it; the setting that decides is named in the message.
Next: apply_rules.py (counts, clean views), validate.py (the step).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from clrflow.data.settings import DataSettings

_INTERESTS = "SELECT unnest(raw_items.interests) AS id, generate_subscripts(raw_items.interests, 1) AS place"
KNOWN_INTERESTS = f"(SELECT list(id ORDER BY place) FROM ({_INTERESTS}) WHERE id IN (SELECT interest_id FROM clean_interests))"
UNKNOWN_INTERESTS = f"(SELECT list(DISTINCT id ORDER BY id) FROM ({_INTERESTS}) WHERE id NOT IN (SELECT interest_id FROM clean_interests))"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One way in which a row of a table breaks the contract."""

    table: str
    name: str
    broken: str = ""
    """SQL that is true for a row that breaks it; may use the clean tables that were made before. "" for duplicates."""
    keys: tuple[str, ...] = ()
    """Of duplicates: the columns that at most one row may have alike."""
    stays: str = ""
    """Of duplicates: SQL ORDER BY whose first row stays. It names all other columns, so the order of rows in the files decides nothing."""
    shows: tuple[str, ...]
    """Columns, or SQL `EXPRESSION AS column`, that the message shows; the first one is the culprit."""
    why: str
    remedy: str
    setting: str
    """Field of DataSettings that holds the policy."""
    cleared: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What the policy clear makes of columns, as SQL; a rule without any drops the row then."""

    @property
    def column(self) -> str:
        return self.shows[0].rpartition(" AS ")[2]

    def policy_of(self, settings: DataSettings) -> str:
        """reject, drop or clear."""
        policy = str(getattr(settings, self.setting))
        return "drop" if policy == "clear" and not self.cleared else policy


def _interest_rules() -> list[Rule]:
    return [
        *_null("interests", "interest_id"),
        Rule(
            table="interests", name="duplicate", keys=("interest_id",), stays="name", shows=("interest_id", "name"),
            why="an interest has one row", remedy="keep one row an interest, or set data.duplicate_id=drop", setting="duplicate_id",
        ),
    ]  # fmt: skip


def _item_rules(embedding_width: int) -> list[Rule]:
    return [
        *_null("items", "item_id", "created_at"),
        Rule(
            table="items", name="embedding_width", broken=f"embedding_state <> 'null' AND embedding_width <> {embedding_width}",
            shows=("embedding_width", "item_id"), why=f"most items have width {embedding_width}, and all must have one",
            remedy="encode all items with one model, or set data.embedding_width=drop", setting="embedding_width",
        ),
        Rule(
            table="items", name="bad_embedding", broken="embedding_state <> 'ok'", shows=("embedding_state", "item_id"),
            why="content_embedding must be finite and not all zero", remedy="encode these items again, or set data.bad_embedding=drop",
            setting="bad_embedding",
        ),
        Rule(
            table="items", name="unknown_interest", shows=(f"{UNKNOWN_INTERESTS} AS interests", "item_id"),
            broken="row_number IN (SELECT row_number FROM (SELECT row_number, unnest(interests) AS interest_id FROM raw_items)"
            " WHERE interest_id IS NOT NULL AND interest_id NOT IN (SELECT interest_id FROM clean_interests))",
            why="these ids are not in the table interests", setting="unknown_interest", cleared={"interests": KNOWN_INTERESTS},
            remedy="add them to interests, leave that table out to take the ids as they are, or set data.unknown_interest=clear",
        ),
        Rule(
            table="items", name="duplicate", keys=("item_id",), stays="created_at DESC, title, interests, content_embedding",
            shows=("item_id",), why="an item has one row", remedy="keep one row an item, or set data.duplicate_id=drop to keep the newest",
            setting="duplicate_id",
        ),
    ]  # fmt: skip


def _board_rules(now_us: int) -> list[Rule]:
    return [
        *_null("boards", "board_id", "user_id", "item_id", "added_at"),
        Rule(
            table="boards", name="shared_board", shows=("board_id", "user_id"), why="a board belongs to one user", setting="shared_board",
            broken="board_id IN (SELECT board_id FROM raw_boards GROUP BY board_id HAVING count(DISTINCT user_id) > 1)",
            remedy="give each owner's part a board_id of its own, or set data.shared_board=drop",
        ),
        _future("boards", "added_at", "board_id", now_us),
        _unknown_item("boards", "item_id", "board_id"),
        Rule(
            table="boards", name="duplicate", keys=("board_id", "item_id"), stays="added_at, user_id, name",
            shows=("board_id", "item_id"), why="an item is on a board once", remedy="keep one of them, or set data.duplicate_row=drop",
            setting="duplicate_row",
        ),
    ]  # fmt: skip


def _followed_rules(now_us: int) -> list[Rule]:
    return [
        *_null("user_interests", "user_id", "interest_id", "followed_at"),
        Rule(
            table="user_interests", name="unknown_interest", broken="interest_id NOT IN (SELECT interest_id FROM clean_interests)",
            shows=("interest_id", "user_id"), why="the id is not in the table interests", setting="unknown_interest",
            remedy="add it to interests, or set data.unknown_interest=drop",
        ),
        _future("user_interests", "followed_at", "user_id", now_us),
        Rule(
            table="user_interests", name="duplicate", keys=("user_id", "interest_id"), stays="followed_at",
            shows=("user_id", "interest_id"), why="an interest is followed once", remedy="keep one of them, or set data.duplicate_row=drop",
            setting="duplicate_row",
        ),
    ]  # fmt: skip


def _event_rules(settings: DataSettings, now_us: int) -> list[Rule]:
    actions = [action.name for action in settings.actions]
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in actions)
    unlogged = {"condition_type": "NULL", "condition_id": "NULL"}
    return [
        *_null("events", "user_id", "item_id", "timestamp"),
        Rule(
            table="events", name="unknown_action", broken=f"action IS NULL OR action NOT IN ({quoted})", shows=("action",),
            why=f"data.actions are {', '.join(actions)}", setting="unknown_action",
            remedy="add it to data.actions, map it in the export, or set data.unknown_action=drop",
        ),
        Rule(
            table="events", name="bad_condition", shows=("condition_type", "condition_id"), setting="bad_condition", cleared=unlogged,
            broken="(condition_type IS NOT NULL AND condition_type NOT IN ('none', 'interest', 'item', 'board'))"
            " OR (condition_type IN ('interest', 'item', 'board') AND condition_id IS NULL)"
            " OR (condition_type IS NULL AND condition_id IS NOT NULL)",
            why="a logged condition is none, interest, item or board, with its id",
            remedy="map it in the export, leave both columns null, or set data.bad_condition=clear",
        ),
        Rule(
            table="events", name="unknown_condition", shows=("condition_type", "condition_id"), setting="unknown_condition", cleared=unlogged,
            broken="(condition_type = 'interest' AND condition_id NOT IN (SELECT interest_id FROM clean_interests))"
            " OR (condition_type = 'item' AND condition_id NOT IN (SELECT item_id FROM clean_items))",
            why="the clean tables lack the item or interest", remedy="add it to its table, or set data.unknown_condition=clear",
        ),
        _future("events", "timestamp", "user_id", now_us),
        _unknown_item("events", "item_id"),
        Rule(
            table="events", name="duplicate", keys=("user_id", "item_id", "timestamp", "action"),
            stays="event_order, board_id, generator, condition_type, condition_id, position",
            shows=("user_id", "item_id", "timestamp", "action"), why="one action happens once at a time",
            remedy="keep one of them, or set data.duplicate_row=drop", setting="duplicate_row",
        ),
    ]  # fmt: skip


def _null(table: str, *columns: str) -> list[Rule]:
    return [
        Rule(
            table=table, name="null_id", broken=f"{column} IS NULL", shows=(column, *(other for other in columns if other != column)),
            why="ids and times can't be null", remedy="export a value, or set data.null_id=drop", setting="null_id",
        )
        for column in columns
    ]  # fmt: skip


def _future(table: str, column: str, other: str, now_us: int) -> Rule:
    return Rule(
        table=table, name="future_event", broken=f"epoch_us({column}) > {now_us}", shows=(column, other),
        why="it lies after now (data.now, or the clock)",
        remedy="check units and timezone of the export, or set data.future_event=drop", setting="future_event",
    )  # fmt: skip


def _unknown_item(table: str, *shows: str) -> Rule:
    return Rule(
        table=table, name="unknown_item", broken="item_id NOT IN (SELECT item_id FROM clean_items)", shows=shows,
        why="the item is not in the clean items", remedy="take them out of the export, or set data.unknown_item=drop", setting="unknown_item",
    )  # fmt: skip


def rules_of(settings: DataSettings, now_us: int, embedding_width: int) -> list[Rule]:
    """All rules, in the order in which tables are cleaned and rows are charged. `now_us`: microseconds since 1970."""
    return [
        *_interest_rules(),
        *_item_rules(embedding_width),
        *_board_rules(now_us),
        *_followed_rules(now_us),
        *_event_rules(settings, now_us),
    ]
