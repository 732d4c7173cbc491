"""The page that validate_data leaves: what came in, what was lost and why, what moved, and what the log looks like."""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from clrflow.data.clean import TIME_OF, Day
from clrflow.data.drift import Check, Reference
from clrflow.data.profile import PERCENTILES, Profile
from clrflow.data.settings import DataSettings
from clrflow.reporting import Report, new_figure

if TYPE_CHECKING:
    from clrflow.data.validate import Checked

MAX_BARS = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page is made of, besides the open database."""

    result: Checked
    settings: DataSettings
    facts: dict[str, Any]
    now: Profile
    days: list[Day]
    reference: Reference
    checks: list[Check]


def render(shown: Shown) -> str:
    """The whole page; reads the clean rows of `shown.result`, so its database must still be open."""
    facts = shown.facts
    report = Report("Input tables", f"{shown.settings.tables}, events from {facts['first_event'][:10]} to {facts['last_event'][:10]}")
    names = ("num_events", "num_users", "num_items", "num_interests", "num_boards", "embedding_dim")
    tiles = {name.removeprefix("num_").replace("_", " "): facts[name] for name in names}
    tiles["rows dropped"] = sum(facts["dropped"].values())
    if shown.checks:
        tiles["distributions moved"] = sum(check.moved for check in shown.checks)
    report.tiles(tiles)
    _intake(report, shown)
    _rules(report, shown)
    _drift(report, shown)
    _volume(report, shown)
    _comings(report, shown)
    _tails(report, shown)
    _embeddings(report, shown)
    _interests(report, shown)
    return report.html()


def _intake(report: Report, shown: Shown) -> None:
    result = shown.result
    window = (
        "all events are used" if result.num_outside_window == 0 else f"{result.num_outside_window:,} older events lie outside the window"
    )
    report.section("What came in", f"Tables as they were read; {window}.")
    rows = []
    for name, taken in result.intakes.items():
        dropped = sum(finding.num_lost for finding in result.findings if finding.rule.table == name)
        derived = name == "interests" and not taken.files
        ignored = "derived from items" if derived else ", ".join(taken.extra_columns) or "none"
        partial = ", ".join(f"{column} ({count})" for column, count in taken.partial_columns.items()) or "none"
        rows.append([name, len(taken.files), taken.num_rows, dropped, ignored, partial])
    report.table(["table", "files", "rows read", "rows dropped", "columns ignored", "columns that some files lack"], rows)


def _rules(report: Report, shown: Shown) -> None:
    report.section(
        "Rules",
        "A row is charged to the first rule that it breaks. reject would have stopped the run, drop leaves the row out, clear keeps it without what is wrong.",
    )
    merged: dict[tuple[str, str, str], tuple[list[str], int]] = {}
    for finding in shown.result.findings:
        columns, count = merged.get((finding.rule.table, finding.rule.name, finding.policy), ([], 0))
        merged[finding.rule.table, finding.rule.name, finding.policy] = ([*columns, finding.rule.column], count + finding.count)
    listed = sorted(merged.items(), key=lambda row: -row[1][1])  # stable: the rules' own order among equals
    broken = [(f"{table}.{rule}, {policy}", count) for (table, rule, policy), (_, count) in listed if count]
    if broken:
        figure, (ax,) = new_figure(height=1.0 + 0.22 * len(broken))
        ax.barh([name for name, _ in broken], [count for _, count in broken])
        ax.invert_yaxis()
        ax.set(xscale="log", xlabel="rows", xlim=(0.8, None))
        ax.grid(axis="y", visible=False)
        ax.xaxis.set_major_formatter("{x:,.0f}")
        report.figure(figure, f"Rows by the rule that they break: {sum(count for _, count in broken):,} in all.")
    report.table(
        ["table", "rule", "columns", "policy", "rows"],
        [[table, rule, ", ".join(columns), policy, count] for (table, rule, policy), (columns, count) in listed],
    )


def _drift(report: Report, shown: Shown) -> None:
    """The comparison with the published version's data, as a table."""
    reference, settings = shown.reference, shown.settings.drift
    if not shown.checks:
        why = "data.drift.enabled=false" if not settings.enabled else reference.why_none
        report.section("Against the published data", f"Nothing was compared: {why}.")
        return
    report.section(
        "Against the published data",
        f"What the data of version {reference.version} were like, and how far these are from them. Thresholds: data.drift.",
    )
    rows = [
        [
            check.name, check.then, check.now, "" if check.distance is None else check.distance, check.setting,
            "none" if check.limit is None else check.limit, check.verdict,
        ]
        for check in shown.checks
    ]  # fmt: skip
    hot = next((place for place, check in enumerate(shown.checks) if check.moved), None)
    report.table(["what", "then", "now", "measured", "setting", "threshold", "verdict"], rows, highlight=hot)


def _volume(report: Report, shown: Shown) -> None:
    report.section("Day by day (UTC)", "A hole or a step here is usually an export that went wrong.")
    counts = shown.now.events_by_day
    days = np.array(sorted(counts), dtype="datetime64[D]")
    listed = [str(day) for day in days]
    totals = np.array([sum(counts[day].values()) for day in listed])
    figure, (ax,) = new_figure()
    below = np.zeros(len(days))
    actions = shown.now.actions
    for name in sorted(actions, key=lambda name: -actions[name]):
        height = np.array([counts[day].get(name, 0) for day in listed])
        ax.bar(days, height, width=1.0, bottom=below, label=name)
        below += height
    then = shown.reference.profile
    if then is not None and shown.checks:
        earlier = sorted(then.events_by_day)
        heights = [sum(then.events_by_day[day].values()) for day in earlier]
        ax.plot(
            np.array(earlier, dtype="datetime64[D]"), heights, color="black", linewidth=1, marker=".", markersize=4, label="published data"
        )
    ax.set_axisbelow(True)
    ax.set(ylabel="events a day", ylim=(0, None))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    figure.legend(fontsize=8, frameon=False, ncols=6, loc="outside upper left")
    ax.tick_params(axis="x", rotation=20)
    report.figure(figure, f"Events by day and action: {len(days):,} days with events, at most {totals.max():,.0f} on one.")
    total = shown.now.num_events
    report.table(
        ["action", "events", "share"], [[name, actions[name], actions[name] / total] for name in sorted(actions, key=lambda a: -actions[a])]
    )


def _comings(report: Report, shown: Shown) -> None:
    """Users, and what came to the other tables, day by day."""
    figure, (left, right) = new_figure(columns=2)
    events = [day for day in shown.days if day.table == "events"]
    dates = _dates(events)
    left.plot(dates, [day.num_users for day in events], marker=".", markersize=4)
    left.set(ylabel="users with events", ylim=(0, None))
    left.set_title("Users a day", fontsize=10)
    first = events[0].day - datetime.timedelta(days=1)
    for name in TIME_OF:
        inside = [day for day in shown.days if day.table == name and day.day > first]
        if name != "events" and inside:
            right.plot(_dates(inside), [day.num_rows for day in inside], marker=".", markersize=4, label=name.replace("_", " "))
    right.set(ylabel="new rows", ylim=(0, None))
    right.set_title("New rows of other tables", fontsize=10)
    if right.lines:
        right.legend(fontsize=8, frameon=False)
    for ax in (left, right):
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set_xticks(dates[:: -(-len(dates) // 5)])
        ax.tick_params(axis="x", rotation=20)
    least, most = min(events, key=lambda day: day.num_users), max(events, key=lambda day: day.num_users)
    report.figure(
        figure,
        f"From {least.num_users:,} users on {least.day} to {most.num_users:,} on {most.day}; rows from before the events are left out.",
    )


def _dates(days: list[Day]) -> np.ndarray:
    return np.array([day.day for day in days], dtype="datetime64[D]")


def _columns(shown: Shown, query: str) -> list[np.ndarray]:
    return [np.asarray(values) for values in shown.result.con.execute(query).fetchnumpy().values()]


def _tails(report: Report, shown: Shown) -> None:
    report.section("Users and items", "Long tails are what semantic ids and conditions are for.")
    figure, (left, right) = new_figure(columns=2)
    (popularity,) = _columns(shown, "SELECT count(*) AS num FROM used_events GROUP BY item_id ORDER BY 1 DESC")
    left.loglog(np.arange(1, len(popularity) + 1), popularity)
    left.set(xlabel="rank of the item", ylabel="events of the item")
    left.set_title("Item popularity", fontsize=10)
    lengths, users = _columns(
        shown, "SELECT num, count(*) AS users FROM (SELECT count(*) AS num FROM used_events GROUP BY user_id) GROUP BY num ORDER BY num"
    )
    edges = np.unique(np.geomspace(1, max(lengths.max() + 1, 2), 30).round())
    right.hist(lengths, bins=edges.tolist(), weights=users)
    right.set(xscale="log", xlabel="events of the user", ylabel="users")
    right.set_title("History length", fontsize=10)
    top = popularity[: max(1, len(popularity) // 100)].sum() / popularity.sum()
    median = lengths[np.searchsorted(users.cumsum(), users.sum() / 2)]
    report.figure(figure, f"The top 1 % of items with events have {top:.0%} of them; the median user has {median:,.0f}.")


def _embeddings(report: Report, shown: Shown) -> None:
    norms, then = shown.now.norms, shown.reference.profile
    report.section(
        "Content embeddings",
        "Norms that aren't all alike carry weight into semantic ids; a step in them often means that two models made the table.",
    )
    figure, (ax,) = new_figure(height=2.4)
    ax.plot(PERCENTILES, norms, marker=".", label="these data")
    if then is not None and shown.checks:
        ax.plot(PERCENTILES, then.norms, marker=".", linestyle="--", label="published data")
        ax.legend(fontsize=8, frameon=False)
    ax.set(xlabel="percentile of the items", ylabel="Euclidean norm", ylim=(0, max(norms) * 1.1))
    report.figure(
        figure, f"Norms of {shown.now.num_items:,} embeddings of width {shown.now.embedding_dim}: {min(norms):.3g} to {max(norms):.3g}."
    )


def _interests(report: Report, shown: Shown) -> None:
    names, num = _columns(
        shown,
        "SELECT coalesce(name, 'interest ' || interest_id) AS name, num FROM clean_interests JOIN (SELECT id, count(*) AS num FROM "
        "(SELECT unnest(interests) AS id FROM clean_items) GROUP BY id) ON id = interest_id ORDER BY num DESC, interest_id",
    )
    if not len(names):
        return
    report.section("Interests", "Conditions of type interest are drawn from these.")
    few = slice(0, MAX_BARS)
    figure, (ax,) = new_figure(height=1.0 + 0.19 * min(len(names), MAX_BARS))
    ax.barh(np.arange(len(names[few])), num[few])
    ax.set_yticks(np.arange(len(names[few])), [str(text)[:32] for text in names[few]])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="items")
    rest = f", the {MAX_BARS} largest of {len(names):,}" if len(names) > MAX_BARS else ""
    report.figure(figure, f"Items by interest{rest}; an item may have several.")
