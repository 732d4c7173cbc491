"""What may be wrong with rows, and what follows: one declaration a rule, counted in SQL over staged tables.

A row is charged to the first rule that it breaks. A rule rejects the run or drops the row; where a setting decides, the setting is named in
the message. Next: validate.py (staging, counts, clean tables).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import duckdb

from clrflow.data.intake import Intake
from clrflow.data.settings import DataSettings

NUM_EXAMPLES = 4

UNKNOWN_INTERESTS = (
    "(SELECT list(DISTINCT id ORDER BY id) FROM (SELECT unnest(raw_items.interests) AS id)"
    " WHERE id NOT IN (SELECT interest_id FROM clean_interests))"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One way in which a row of a table breaks the contract."""

    table: str
    name: str
    broken: str
    """SQL that is true for a row that breaks it; may use the clean tables that were made before."""
    shows: tuple[str, ...]
    """Columns, or SQL `EXPRESSION AS column`, that the message shows; the first one is the culprit."""
    why: str
    remedy: str
    setting: str = ""
    """Field of DataSettings that holds the policy; "": `policy` always applies."""
    policy: str = "reject"

    @property
    def column(self) -> str:
        return self.shows[0].rpartition(" AS ")[2]

    def policy_of(self, settings: DataSettings) -> str:
        return str(getattr(settings, self.setting)) if self.setting else self.policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """How often a rule was broken, and what happened to the rows."""

    rule: Rule
    policy: str
    count: int
    message: str = ""
    """Examples and remedy, for a rule that rejects; "" otherwise."""


def _duplicate(table: str, keys: str) -> str:
    return f"row_number NOT IN (SELECT min(row_number) FROM raw_{table} GROUP BY {keys})"


def rules_of(settings: DataSettings, now_us: int, embedding_width: int) -> list[Rule]:
    """All rules, in the order in which tables are cleaned and rows are charged. `now_us`: microseconds since 1970."""
    actions = [action.name for action in settings.actions]
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in actions)
    nulls = "export a value, or set data.null_id=drop"
    drop = "take them out of the export, or set data.{}=drop"
    future = {
        "why": "it lies after now (data.now, or the clock)",
        "remedy": "check units and timezone of the export, or set data.future_event=drop",
        "setting": "future_event",
    }

    def null(table: str, *columns: str) -> list[Rule]:
        return [
            Rule(
                table=table, name="null_id", broken=f"{column} IS NULL", shows=(column, *(other for other in columns if other != column)),
                why="ids and times can't be null", remedy=nulls, setting="null_id",
            )
            for column in columns
        ]  # fmt: skip

    return [
        *null("interests", "interest_id"),
        Rule(
            table="interests", name="duplicate", broken=_duplicate("interests", "interest_id"), shows=("interest_id", "name"),
            why="an interest has one row", remedy="keep one row an interest",
        ),
        *null("items", "item_id", "created_at"),
        Rule(
            table="items", name="duplicate", broken=_duplicate("items", "item_id"), shows=("item_id",),
            why="an item has one row", remedy="keep one row an item, e.g. the newest",
        ),
        Rule(
            table="items", name="embedding_width", broken=f"embedding_state <> 'null' AND embedding_width <> {embedding_width}",
            shows=("embedding_width", "item_id"), why=f"most items have width {embedding_width}, and all must have one",
            remedy="encode all items with one model",
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
            why="these ids are not in the table interests", remedy="add them to interests, or leave the table out to take the ids as they are",
        ),
        *null("boards", "board_id", "user_id", "item_id", "added_at"),
        Rule(
            table="boards", name="shared_board", shows=("board_id", "user_id"), why="a board belongs to one user",
            broken="board_id IN (SELECT board_id FROM raw_boards GROUP BY board_id HAVING count(DISTINCT user_id) > 1)",
            remedy="give each owner's part a board_id of its own",
        ),
        Rule(table="boards", name="future_event", broken=f"epoch_us(added_at) > {now_us}", shows=("added_at", "board_id"), **future),
        Rule(
            table="boards", name="unknown_item", broken="item_id NOT IN (SELECT item_id FROM clean_items)", shows=("item_id", "board_id"),
            why="the item is not in the clean items", remedy=drop.format("unknown_item"), setting="unknown_item",
        ),
        Rule(
            table="boards", name="duplicate", broken=_duplicate("boards", "board_id, item_id"), shows=("board_id", "item_id"),
            why="an item is on a board once", remedy="", policy="drop",
        ),
        *null("user_interests", "user_id", "interest_id", "followed_at"),
        Rule(
            table="user_interests", name="unknown_interest", broken="interest_id NOT IN (SELECT interest_id FROM clean_interests)",
            shows=("interest_id", "user_id"), why="the id is not in the table interests", remedy="add it to interests",
        ),
        Rule(table="user_interests", name="future_event", broken=f"epoch_us(followed_at) > {now_us}", shows=("followed_at", "user_id"), **future),
        Rule(
            table="user_interests", name="duplicate", broken=_duplicate("user_interests", "user_id, interest_id"), shows=("user_id", "interest_id"),
            why="an interest is followed once", remedy="", policy="drop",
        ),
        *null("events", "user_id", "item_id", "timestamp"),
        Rule(
            table="events", name="unknown_action", broken=f"action IS NULL OR action NOT IN ({quoted})", shows=("action",),
            why=f"data.actions are {', '.join(actions)}", setting="unknown_action",
            remedy="add it to data.actions, map it in the export, or set data.unknown_action=drop",
        ),
        Rule(
            table="events", name="bad_condition", shows=("condition_type", "condition_id"),
            broken="(condition_type IS NOT NULL AND condition_type NOT IN ('none', 'interest', 'item', 'board'))"
            " OR (condition_type IN ('interest', 'item', 'board') AND condition_id IS NULL)"
            " OR (condition_type IS NULL AND condition_id IS NOT NULL)",
            why="a logged condition is none, interest, item or board, with its id", remedy="map it in the export, or leave both columns null",
        ),
        Rule(table="events", name="future_event", broken=f"epoch_us(timestamp) > {now_us}", shows=("timestamp", "user_id"), **future),
        Rule(
            table="events", name="unknown_item", broken="item_id NOT IN (SELECT item_id FROM clean_items)", shows=("item_id",),
            why="the item is not in the clean items", remedy=drop.format("unknown_item"), setting="unknown_item",
        ),
        Rule(
            table="events", name="duplicate", broken=_duplicate("events", "user_id, item_id, timestamp, action"),
            shows=("user_id", "item_id", "timestamp", "action"), why="one action happens once at a time", remedy="", policy="drop",
        ),
    ]  # fmt: skip


def apply(con: duckdb.DuckDBPyConnection, rules: list[Rule], intake: Intake, settings: DataSettings) -> list[Finding]:
    """Count what breaks each rule of one table (`raw_NAME`) and make the view `clean_NAME` of the rows that break none."""
    table = intake.table.name
    cases = " ".join(f"WHEN {rule.broken} THEN {index}" for index, rule in enumerate(rules))
    charged = f"SELECT row_number, CASE {cases} END AS rule FROM raw_{table}"
    con.execute(f"CREATE TABLE broken_{table} AS SELECT * FROM ({charged}) WHERE rule IS NOT NULL")
    con.execute(f"CREATE VIEW clean_{table} AS SELECT * FROM raw_{table} ANTI JOIN broken_{table} USING (row_number)")
    counts: dict[int, int] = dict(con.execute(f"SELECT rule, count(*) FROM broken_{table} GROUP BY rule").fetchall())
    findings = []
    for index, rule in enumerate(rules):
        policy, count = rule.policy_of(settings), counts.get(index, 0)
        message = _message(con, rule, index, count, intake) if count and policy == "reject" else ""
        findings.append(Finding(rule=rule, policy=policy, count=count, message=message))
    return findings


def _message(con: duckdb.DuckDBPyConnection, rule: Rule, index: int, count: int, intake: Intake) -> str:
    """Table, column, values with their counts, the first one's file, why, and the way out."""
    names = [column.rpartition(" AS ")[2] for column in rule.shows]
    shown = ", ".join(f"CAST({column.rpartition(' AS ')[0] or column} AS VARCHAR)" for column in rule.shows)
    examples: list[tuple[Any, ...]] = con.execute(
        f"SELECT {shown}, count(*) AS times, min(row_number) AS first FROM raw_{rule.table} SEMI JOIN "
        f"(SELECT row_number FROM broken_{rule.table} WHERE rule = {index}) USING (row_number) "
        f"GROUP BY ALL ORDER BY times DESC, first LIMIT {NUM_EXAMPLES}"
    ).fetchall()
    values = []
    for *cells, times, _ in examples:
        pairs = ", ".join(f"{column}={'null' if cell is None else cell[:60]}" for column, cell in zip(names, cells))
        values.append(f"{pairs} ({times} rows)" if times > 1 else pairs)
    more = ", ..." if sum(example[-2] for example in examples) < count else ""
    first = con.execute(f"SELECT min(row_number) FROM broken_{rule.table} WHERE rule = {index}").fetchone()
    assert first is not None
    place = intake.place_of(first[0]) if intake.files else "derived"
    return (
        f"{rule.table}.{rule.column}: {count:,} row(s) break the rule {rule.name}: {'; '.join(values)}{more} (first: {place}); "
        f"{rule.why}: {rule.remedy}."
    )
