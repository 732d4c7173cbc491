"""The page that validate_data leaves: what came in, what was lost and why, and what the log looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clrflow.data.settings import DataSettings
from clrflow.reporting import Report, new_figure

if TYPE_CHECKING:
    from clrflow.data.validate import Checked


def render(result: Checked, settings: DataSettings, facts: dict[str, Any]) -> str:
    """The whole page; reads the clean rows of `result`, so its database must still be open."""
    report = Report("Input tables", f"{settings.tables}, events from {facts['first_event'][:10]} to {facts['last_event'][:10]}")
    names = ("num_events", "num_users", "num_items", "num_interests", "num_boards", "embedding_dim")
    lost = sum(facts["dropped"].values())
    report.tiles({**{name.removeprefix("num_").replace("_", " "): facts[name] for name in names}, "rows dropped": lost})
    _rules(report, result, facts)
    _pictures(report, result)
    return report.html()


def _rules(report: Report, result: Checked, facts: dict[str, Any]) -> None:
    window = (
        "all events are used" if result.num_outside_window == 0 else f"{result.num_outside_window:,} older events lie outside the window"
    )
    report.section("What came in", f"Tables as they were read; {window}.")
    rows = []
    for name, taken in result.intakes.items():
        dropped = sum(finding.count for finding in result.findings if finding.rule.table == name)
        ignored = ", ".join(taken.extra_columns) or "none"
        rows.append([name, len(taken.files), taken.num_rows, dropped, "derived from items" if _derived(name, result) else ignored])
    report.table(["table", "files", "rows read", "rows dropped", "columns ignored"], rows)
    report.section("Rules", "A row is charged to the first rule that it breaks. A rule that rejects would have stopped the run.")
    merged: dict[tuple[str, str, str], tuple[list[str], int]] = {}
    for finding in result.findings:
        columns, count = merged.get((finding.rule.table, finding.rule.name, finding.policy), ([], 0))
        merged[finding.rule.table, finding.rule.name, finding.policy] = ([*columns, finding.rule.column], count + finding.count)
    shown = sorted(merged.items(), key=lambda row: -row[1][1])  # stable: the rules' own order among equals
    report.table(
        ["table", "rule", "columns", "policy", "rows"],
        [[table, rule, ", ".join(columns), policy, count] for (table, rule, policy), (columns, count) in shown],
    )


def _derived(name: str, result: Checked) -> bool:
    return name == "interests" and not result.intakes[name].files


def _pictures(report: Report, result: Checked) -> None:
    con, used = result.con, f"(SELECT * FROM clean_events WHERE epoch_us(timestamp) >= {result.window_start_us})"

    def columns(query: str) -> list[np.ndarray]:
        found = con.execute(query).fetchnumpy()
        return [np.asarray(values) for values in found.values()]

    report.section("Events over time", "A hole or a step here is usually an export that went wrong.")
    day, action, num = columns(
        f"SELECT epoch_us(timestamp) // 86400000000 AS day, action, count(*) AS num FROM {used} GROUP BY 1, 2 ORDER BY 1, 2"
    )
    days, at = np.unique(day, return_inverse=True)
    totals = np.bincount(at, weights=num)
    figure, (ax,) = new_figure()
    below = np.zeros(len(days))
    for name in sorted({str(name) for name in action}, key=lambda name: -num[action == name].sum()):
        chosen = action == name
        height = np.bincount(at[chosen], weights=num[chosen], minlength=len(days))
        ax.bar(days.astype("datetime64[D]"), height, width=1.0, bottom=below, label=name)
        below += height
    ax.set_axisbelow(True)
    ax.set(ylabel="events a day", ylim=(0, None))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    figure.legend(fontsize=8, frameon=False, ncols=6, loc="outside upper left")
    ax.tick_params(axis="x", rotation=20)
    report.figure(figure, f"Events by day and action: {len(days):,} days with events, at most {totals.max():,.0f} on one.")

    action, action_count = columns(f"SELECT action, count(*) AS num FROM {used} GROUP BY 1 ORDER BY 2 DESC, 1")
    report.table(
        ["action", "events", "share"], [[str(name), int(num), num / action_count.sum()] for name, num in zip(action, action_count)]
    )

    report.section("Users and items", "Long tails are what semantic ids and conditions are for.")
    figure, (left, right) = new_figure(columns=2)
    (popularity,) = columns(f"SELECT count(*) AS num FROM {used} GROUP BY item_id ORDER BY 1 DESC")
    left.loglog(np.arange(1, len(popularity) + 1), popularity)
    left.set(xlabel="rank of the item", ylabel="events of the item")
    left.set_title("Item popularity", fontsize=10)
    (lengths,) = columns(f"SELECT count(*) AS num FROM {used} GROUP BY user_id")
    edges = np.unique(np.geomspace(1, max(lengths.max() + 1, 2), 30).round())
    right.hist(lengths, bins=edges.tolist())
    right.set(xscale="log", xlabel="events of the user", ylabel="users")
    right.set_title("History length", fontsize=10)
    top = popularity[: max(1, len(popularity) // 100)].sum() / popularity.sum()
    report.figure(figure, f"The top 1 % of items with events have {top:.0%} of them; the median user has {np.median(lengths):,.0f}.")

    names, num = columns(
        "SELECT coalesce(name, 'interest ' || interest_id) AS name, num FROM clean_interests JOIN (SELECT id, count(*) AS num FROM "
        "(SELECT unnest(interests) AS id FROM clean_items) GROUP BY id) ON id = interest_id ORDER BY num DESC, interest_id"
    )
    if len(names):
        shown = slice(0, 30)
        figure, (ax,) = new_figure(height=1.0 + 0.19 * min(len(names), 30))
        ax.barh(np.arange(len(names[shown])), num[shown])
        ax.set_yticks(np.arange(len(names[shown])), [str(text)[:32] for text in names[shown]])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set(xlabel="items")
        rest = f", the 30 largest of {len(names):,}" if len(names) > 30 else ""
        report.figure(figure, f"Items by interest{rest}; an item may have several.")
