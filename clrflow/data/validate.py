"""Step validate_data: holds the input tables against the data contract and writes clean ones, or says all that is wrong at once.

The way of a table: every file's schema is looked at (intake.py), its rows are staged in a DuckDB file on disk, the rules (rules.py, apply_rules.py)
charge each bad row to one rule, what is left is held against the data of the published version (profile.py, drift.py) and written sorted
(clean.py, ordering.py). Memory is bounded by `data.memory_limit`; larger sorts spill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import rich.console
import rich.table

from clrflow import storage
from clrflow.data import intake as intake_module
from clrflow.data.apply_rules import Finding, apply
from clrflow.data.clean import used_events, write_clean
from clrflow.data.drift import published_reference, watch
from clrflow.data.intake import Intake, batch_schema, look
from clrflow.data.profile import Profile, profile_of
from clrflow.data.rules import rules_of
from clrflow.data.schema import EVENTS, TABLES
from clrflow.data.settings import DataSettings
from clrflow.errors import ConfigError, DataError
from clrflow.manifest import Output
from clrflow.progress import Progress
from clrflow.steps import Run, StepContext, StepResult

CLEANING_ORDER = ("interests", "items", "boards", "user_interests", "events")
"""A table's rules may ask for the clean rows of those before it."""
COUNTS = ("num_users", "num_items", "num_events", "num_interests", "num_boards")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """Tables that were staged and passed: what was found, and the open database that holds the clean rows as views `clean_NAME`.

    The view `used_events` has the clean events inside the window.
    """

    con: duckdb.DuckDBPyConnection
    intakes: dict[str, Intake]
    findings: list[Finding]
    embedding_dim: int
    num_outside_window: int

    @property
    def dropped(self) -> dict[str, int]:
        """Rows lost by `table.rule`, only those that lost some."""
        return self._by_rule(lost=True)

    @property
    def cleared(self) -> dict[str, int]:
        """Rows that were kept without what was wrong in them, by `table.rule`."""
        return self._by_rule(lost=False)

    def _by_rule(self, lost: bool) -> dict[str, int]:
        found: dict[str, int] = {}
        for finding in self.findings:
            if finding.count and (finding.num_lost > 0) == lost:
                name = f"{finding.rule.table}.{finding.rule.name}"
                found[name] = found.get(name, 0) + finding.count
        return found


def run(context: StepContext) -> StepResult:
    """Check the tables at `data.tables` and write clean ones; DataError lists every problem, and then every distribution that moved."""
    from clrflow.data.report import Shown, render

    settings = context.config.data
    with checked(settings) as result:
        now = profile_of(result.con, [action.name for action in settings.actions if action.positive], result.embedding_dim)
        reference = published_reference(context.workspace)
        checks = watch(reference, now, settings.drift)
        written = write_clean(result, context.place("tables"))
        place = context.place("profile.json")
        storage.write_json(place, now.as_json())
        outputs = {**written.outputs, "profile": Output.of(place)}
        facts = facts_of(result, outputs, now)
        report = render(
            Shown(result=result, settings=settings, facts=facts, now=now, days=written.days, reference=reference, checks=checks)
        )
    # What the comparison said is no fact: facts are part of what later steps are found by, and the reference changes with each publishing.
    drift = {f"drift_{check.setting}": check.distance for check in checks if check.distance is not None and math.isfinite(check.distance)}
    lost = {f"dropped_{name.replace('.', '_')}": float(count) for name, count in facts["dropped"].items()}
    cleared = {f"cleared_{name.replace('.', '_')}": float(count) for name, count in facts["cleared"].items()}
    counts = {name: float(facts[name]) for name in COUNTS}
    return StepResult(outputs=outputs, report=report, metrics={**counts, **lost, **cleared, **drift}, facts=facts)


def check(tables_uri: str, settings: DataSettings) -> list[tuple[str, str, str, int]]:
    """The same checks without writing anything: prints and returns rows of (table, rule, policy, count). DataError as in `run`."""
    with checked(settings.model_copy(update={"tables": tables_uri})) as result:
        rows = [(name, "rows read", "", result.intakes[name].num_rows) for name in CLEANING_ORDER]
        rows += [
            (finding.rule.table, f"{finding.rule.name} ({finding.rule.column})", finding.policy, finding.count)
            for finding in result.findings
        ]
    rows.append(("events", "outside the window", "not used", result.num_outside_window))
    _print(rows)
    return rows


def _print(rows: list[tuple[str, str, str, int]]) -> None:
    table = rich.table.Table("table", "rule (column)", "policy", rich.table.Column("rows", justify="right"))
    for name, rule, policy, count in rows:
        table.add_row(name, rule, policy, f"{count:,}", style="bold" if count and policy else None)
    rich.console.Console().print(table)


def source_fingerprint(run: Run) -> str:
    """A hash of the raw tables' contents. The clock isn't part of it, so an empty `data.now` doesn't make every run a new one."""
    tables = _tables_uri(run.config.data)
    found = {table.name: intake_module.locate(tables, table) for table in TABLES}
    return storage.fingerprint_of({name: storage.fingerprint(uri) if uri else "" for name, uri in found.items()})


def _tables_uri(settings: DataSettings) -> str:
    if not settings.tables:
        raise ConfigError("data.tables='' names no folder, so there is nothing to read; set it to the URI of the folder with your tables.")
    if not storage.exists(settings.tables):
        raise DataError(
            f"data.tables={settings.tables!r} does not exist; correct the URI, or make one: `clrflow data movielens DIR`, `clrflow data synthetic DIR`."
        )
    return settings.tables


def _now_us(settings: DataSettings) -> int:
    if not settings.now:
        now = datetime.datetime.now(datetime.UTC)
    else:
        try:
            now = datetime.datetime.fromisoformat(settings.now)
        except ValueError:
            raise ConfigError(
                f"data.now={settings.now!r} is not an ISO time; write it like 2026-03-01T00:00:00+00:00, or leave it empty."
            ) from None
        now = now.replace(tzinfo=now.tzinfo or datetime.UTC)
    return (now - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


@contextlib.contextmanager
def checked(settings: DataSettings) -> Iterator[Checked]:
    """Stage the tables and apply the rules; the database lives as long as the context."""
    uri, now_us = _tables_uri(settings), _now_us(settings)
    intakes = {table.name: look(uri, table, settings) for table in TABLES}
    _raise_all(uri, [problem for taken in intakes.values() for problem in taken.problems])
    with tempfile.TemporaryDirectory(prefix="clrflow-data-") as folder, _database(Path(folder), settings) as con:
        for taken in intakes.values():
            _stage(con, taken)
        width = _scalar(
            con,
            "SELECT embedding_width FROM raw_items WHERE embedding_state <> 'null' GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1",
        )
        rules = rules_of(settings, now_us, int(width or 0))
        findings: list[Finding] = []
        for name in CLEANING_ORDER:
            if name == "interests" and not intakes[name].files:
                _derive_interests(con)
            findings += apply(con, [rule for rule in rules if rule.table == name], intakes[name], settings)
        _raise_all(uri, [finding.message for finding in findings if finding.message])
        _raise_all(uri, _losses(con, intakes, findings, settings))
        newest, day_us = _scalar(con, "SELECT epoch_us(max(timestamp)) FROM clean_events"), 86_400_000_000
        start = (newest // day_us + 1 - settings.window_days) * day_us if settings.window_days is not None else None
        con.execute(f"CREATE VIEW used_events AS {used_events(start)}")
        outside = _scalar(con, "SELECT (SELECT count(*) FROM clean_events) - (SELECT count(*) FROM used_events)")
        yield Checked(con=con, intakes=intakes, findings=findings, embedding_dim=int(width), num_outside_window=int(outside))


@contextlib.contextmanager
def _database(folder: Path, settings: DataSettings) -> Iterator[duckdb.DuckDBPyConnection]:
    try:
        con = duckdb.connect(
            str(folder / "stage.duckdb"), config={"memory_limit": settings.memory_limit, "temp_directory": str(folder / "spill")}
        )
    except duckdb.Error as error:
        raise ConfigError(f"data.memory_limit={settings.memory_limit!r} is refused by DuckDB ({error}); write it like 2GB.") from None
    try:
        con.execute("SET TimeZone = 'UTC'")
        con.execute("SET preserve_insertion_order = false")  # rows carry their number; keeping order twice costs memory
        con.execute("SET enable_progress_bar = false")
        yield con
    finally:
        con.close()


def _scalar(con: duckdb.DuckDBPyConnection, query: str) -> Any:
    row = con.execute(query).fetchone()
    return row[0] if row else None


def _stage(con: duckdb.DuckDBPyConnection, taken: Intake) -> None:
    name = f"raw_{taken.table.name}"
    con.begin()  # one transaction, or every batch would be written twice and waited for
    con.from_arrow(batch_schema(taken.table).empty_table()).create(name)
    with Progress(f"reading {taken.table.name}", taken.num_rows) if taken.num_rows else contextlib.nullcontext() as progress:
        for batch in intake_module.batches(taken):
            # A log that is sorted by user has every day in every block; this way a day's events lie in few of them, and are found without the others.
            rows = batch.sort_by("timestamp") if taken.table is EVENTS else batch
            con.from_arrow(rows).insert_into(name)
            if progress is not None:
                progress.advance(len(batch))
    con.commit()


def _derive_interests(con: duckdb.DuckDBPyConnection) -> None:
    """Without a table of interests, the ids that items carry and users follow are the interests."""
    con.execute(
        "INSERT INTO raw_interests SELECT id, 'interest ' || id, row_number() OVER (ORDER BY id) - 1 FROM ("
        "SELECT DISTINCT unnest(interests) AS id FROM raw_items UNION SELECT interest_id FROM raw_user_interests) WHERE id IS NOT NULL"
    )


def _losses(con: duckdb.DuckDBPyConnection, intakes: dict[str, Intake], findings: list[Finding], settings: DataSettings) -> list[str]:
    problems = []
    for name in CLEANING_ORDER:
        total = intakes[name].num_rows
        parts = [(finding.rule, finding.num_lost) for finding in findings if finding.rule.table == name and finding.num_lost]
        lost = sum(count for _, count in parts)
        by_rule = ", ".join(f"{rule.name} ({rule.column}) {count:,}" for rule, count in parts)
        if total and lost / total > settings.max_dropped_share:
            problems.append(
                f"{name}: {lost:,} of {total:,} rows ({lost / total:.1%}) would be dropped by {by_rule}, more than "
                f"data.max_dropped_share={settings.max_dropped_share}; correct the export, or raise data.max_dropped_share."
            )
        elif lost == total and not intakes[name].table.may_be_empty:
            problems.append(f"{name}: all {total:,} rows were dropped by {by_rule}, so nothing is left to learn from; correct the export.")
    return problems


def _raise_all(uri: str, problems: list[str]) -> None:
    if problems:
        raise DataError("\n".join([f"{len(problems)} problem(s) in the tables at {uri}:", *(f"  {problem}" for problem in problems)]))


def facts_of(result: Checked, outputs: dict[str, Output], profile: Profile) -> dict[str, Any]:
    """What later steps want to know without opening a table."""
    num_boards = _scalar(result.con, "SELECT count(DISTINCT board_id) FROM clean_boards")

    def iso(microseconds: int) -> str:
        return (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=microseconds)).isoformat()

    return {
        "first_event": iso(profile.first_event_us),
        "last_event": iso(profile.last_event_us),
        "num_users": profile.num_users,
        "num_items": outputs["items"].num_rows,
        "num_events": outputs["events"].num_rows,
        "num_interests": outputs["interests"].num_rows,
        "num_boards": int(num_boards),
        "embedding_dim": result.embedding_dim,
        "dropped": result.dropped,
        "cleared": result.cleared,
        "outside_window": result.num_outside_window,
        "ignored_columns": {name: list(taken.extra_columns) for name, taken in result.intakes.items() if taken.extra_columns},
        "partial_columns": {name: list(taken.partial_columns) for name, taken in result.intakes.items() if taken.partial_columns},
    }
