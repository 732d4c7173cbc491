"""Counts in SQL what breaks the rules of a staged table, and makes the view of its clean rows. Rules: rules.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import duckdb

from clrflow.data.intake import Intake
from clrflow.data.rules import Rule
from clrflow.data.settings import DataSettings

NUM_EXAMPLES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """How often a rule was broken, and what happened to the rows."""

    rule: Rule
    policy: str
    count: int
    message: str = ""
    """Examples and remedy, for a rule that rejects; "" otherwise."""

    @property
    def num_lost(self) -> int:
        """Rows that aren't among the clean ones."""
        return 0 if self.policy == "clear" else self.count


def apply(con: duckdb.DuckDBPyConnection, rules: list[Rule], intake: Intake, settings: DataSettings) -> list[Finding]:
    """Count what breaks each rule of one table (`raw_NAME`) and make the view `clean_NAME` of the rows that break none.

    Leaves `broken_NAME` and `cleared_NAME` (row_number, rule): the rows that are not in the view, and those that are with less in them.
    """
    table = intake.table.name
    numbered = list(enumerate(rules))
    clearing = [(index, rule) for index, rule in numbered if rule.policy_of(settings) == "clear"]
    removing = [(index, rule) for index, rule in numbered if rule.broken and (index, rule) not in clearing]
    con.execute(f"CREATE TABLE broken_{table} AS {_charged(table, removing)}")
    sound = f"(SELECT * FROM raw_{table} ANTI JOIN broken_{table} USING (row_number))"
    for index, rule in numbered:
        if rule.keys:
            con.execute(f"INSERT INTO broken_{table} {_duplicates(rule, index, sound)}")
    con.execute(f"CREATE TABLE cleared_{table} AS SELECT * FROM ({_charged(table, clearing)}) ANTI JOIN broken_{table} USING (row_number)")
    counts = _counts(con, f"broken_{table}") | _counts(con, f"cleared_{table}")
    con.execute(f"CREATE VIEW clean_{table} AS {_clean(table, [pair for pair in clearing if pair[0] in counts])}")
    findings = []
    for index, rule in numbered:
        policy, count = rule.policy_of(settings), counts.get(index, 0)
        message = _message(con, rule, index, count, intake) if count and policy == "reject" else ""
        findings.append(Finding(rule=rule, policy=policy, count=count, message=message))
    return findings


def _charged(table: str, rules: list[tuple[int, Rule]]) -> str:
    cases = " ".join(f"WHEN {rule.broken} THEN {index}" for index, rule in rules)
    value = f"CASE {cases} END" if cases else "NULL"
    return f"SELECT * FROM (SELECT row_number, {value}::INTEGER AS rule FROM raw_{table}) WHERE rule IS NOT NULL"


def _duplicates(rule: Rule, index: int, sound: str) -> str:
    """All but the first row of each group. The groups are found by counting, so that only they are sorted, however many rows there are."""
    keys = ", ".join(rule.keys)
    order = ", ".join(f"{column} NULLS LAST" for column in rule.stays.split(", "))
    return (
        f"SELECT row_number, {index} FROM (SELECT row_number, row_number() OVER (PARTITION BY {keys} ORDER BY {order}, row_number) AS place "
        f"FROM {sound} AS sound SEMI JOIN (SELECT {keys} FROM {sound} AS rows GROUP BY {keys} HAVING count(*) > 1) AS several USING ({keys})) "
        "WHERE place > 1"
    )


def _clean(table: str, clearing: list[tuple[int, Rule]]) -> str:
    """The sound rows, with what some rules clear in them."""
    columns: dict[str, str] = {}
    for index, rule in clearing:
        for column, value in rule.cleared.items():
            of_rule = f"row_number IN (SELECT row_number FROM cleared_{table} WHERE rule = {index})"
            columns[column] = f"CASE WHEN {of_rule} THEN {value} ELSE {columns.get(column, column)} END"
    replaced = ", ".join(f"{value} AS {column}" for column, value in columns.items())
    return f"SELECT *{f' REPLACE ({replaced})' if replaced else ''} FROM raw_{table} ANTI JOIN broken_{table} USING (row_number)"


def _counts(con: duckdb.DuckDBPyConnection, charged: str) -> dict[int, int]:
    return dict(con.execute(f"SELECT rule, count(*) FROM {charged} GROUP BY rule").fetchall())


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
