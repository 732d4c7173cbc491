"""The page that shows what bootstrapping made of the log."""

from __future__ import annotations

from clrflow.bootstrap.quality import Quality
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import ATTRIBUTED, FALLBACK, LOGGED, ORACLE, UNCONDITIONAL
from clrflow.reporting import Report, new_figure

SOURCES = (LOGGED, ATTRIBUTED, FALLBACK, ORACLE, UNCONDITIONAL)


def render(quality: Quality, settings: BootstrapSettings) -> str:
    """The HTML of the report."""
    report = Report(
        "Bootstrapping", "Requests, the conditions that heuristic generators give them, and whose candidates explain what was engaged."
    )
    num_requests = sum(split.requests for split in quality.splits.values())
    report.tiles(
        {
            "engagements": quality.num_engagements,
            "requests": num_requests,
            "users": quality.num_users,
            "explained by a generator": _share(quality.explained.get(ATTRIBUTED, 0) + quality.explained.get(LOGGED, 0), quality),
            "fallback": _share(quality.explained.get(FALLBACK, 0), quality),
            "smaller than pairs": f"{quality.compression:.1f} ×",
        }
    )
    _days(report, quality)
    _splits(report, quality, settings)
    _generators(report, quality)
    _targets(report, quality)
    _size(report, quality, num_requests)
    return report.html()


def _share(count: int, quality: Quality) -> str:
    return f"{count / max(quality.num_engagements, 1):.1%}"


def _days(report: Report, quality: Quality) -> None:
    taken = quality.days_taken_over
    report.text(
        f"{quality.num_days:,} days have requests. "
        + (
            f"{len(taken):,} of them, {taken[0]} to {taken[-1]}, were built by an earlier run from the same inputs."
            if taken
            else "All were built now."
        )
    )
    if quality.num_before_lookback:
        report.text(
            f"{quality.num_before_lookback:,} engagements lie on days whose lookback the window doesn't hold; they are part of histories and "
            "give no examples of their own."
        )


def _splits(report: Report, quality: Quality, settings: BootstrapSettings) -> None:
    report.section("Splits", "Each engagement is in exactly one request, checked in what was written.")
    rows = [
        [name, split.requests, split.users, split.engagements, _moment(split.first), _moment(split.last)]
        for name, split in quality.splits.items()
    ]
    report.table(["split", "requests", "users", "engagements", "first", "last"], rows)
    if settings.split.by == "last_requests":
        report.text(
            "Held out are each user's last two requests, so spans overlap in time; popularity and graphs are counted on the train span only. "
            f"A global cut before the newest tenth of the time would leave {quality.users_left_by_time_cut:,} of {quality.num_users:,} users "
            "with events on both sides."
        )
    else:
        report.text("Splits are global cuts in time: all of training lies before all of validation, and that before all of test.")


def _moment(moment: object) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _generators(report: Report, quality: Quality) -> None:
    if not quality.generators:
        report.section("Generators", "All are switched off: conditions come from the log and from fallbacks only.")
        return
    report.section(
        "Generators",
        "Recall@k: share of validation engagements that stood among the first k candidates of any of the request's conditions of the generator. "
        "Everything it knew was older than the request.",
    )
    cutoffs = sorted({k for one in quality.generators for k in one.recall})
    rows = [
        [
            one.name, one.conditions_per_request, one.requests_with_condition, one.num_lists, one.candidates_per_list,
            *(one.recall.get(k) for k in cutoffs if k in (10, 50, 100, 500)), one.attributed_share,
        ]
        for one in quality.generators
    ]  # fmt: skip
    columns = ["generator", "conditions a request", "requests that have one", "lists written", "candidates a list"]
    report.table([*columns, *(f"recall@{k}" for k in cutoffs if k in (10, 50, 100, 500)), "engagements explained"], rows)
    figure, (curves, bars) = new_figure(columns=2, width=9.0)
    for one in quality.generators:
        curves.plot(list(one.recall), list(one.recall.values()), marker="o", markersize=3, label=one.name)
    curves.set(xscale="log", xlabel="candidates looked at in each list", ylabel="validation engagements found", ylim=(0, None))
    curves.set_title("Depth of the next engagements in the lists")
    if cutoffs:
        curves.set_xticks(cutoffs, [str(k) for k in cutoffs])
        curves.minorticks_off()
        curves.legend(fontsize=8, frameon=False)
    bars.bar([one.name for one in quality.generators], [one.attributed_share for one in quality.generators])
    bars.set(ylabel="share of all engagements", ylim=(0, 1))
    bars.set_title("Engagements explained")
    report.figure(figure, "Left: recall of the next engagements by depth. Right: share of engagements explained, alone or with others.")


def _targets(report: Report, quality: Quality) -> None:
    report.section(
        "What names the condition",
        "The log wins; else every known condition whose candidates held the item shares the weight; else an interest of the item is drawn, with "
        "less weight. Every engagement also gives one unconditional row, and held-out ones an oracle row.",
    )
    rows = [[name, count, _share(count, quality)] for name, count in sorted(quality.explained.items(), key=lambda pair: -pair[1])]
    report.table(["named by", "engagements", "share"], rows)
    if quality.num_unusable_logged:
        report.text(
            f"{quality.num_unusable_logged:,} engagements carry a logged condition of an unknown type, without an id or of an unknown item; "
            "they were treated as if the log named none."
        )
    used = [source for source in SOURCES if any(source in split.sources for split in quality.splits.values())]
    table = [[name, *(split.sources.get(source, 0) for source in used)] for name, split in quality.splits.items()]
    report.text("Target rows by source:")
    report.table(["split", *used], table)


def _size(report: Report, quality: Quality, num_requests: int) -> None:
    report.section(
        "Requests instead of pairs",
        "A row holds a request's history once, with all its targets. As Arrow holds both forms in memory:",
    )
    rows = [
        ["requests", num_requests, quality.request_bytes / 2**20],
        ["pairs (a row for each target)", quality.num_pairs, quality.pair_bytes / 2**20],
    ]
    report.table(["form", "rows", "MiB"], rows)
    figure, (targets, history) = new_figure(columns=2, width=9.0)
    targets.bar(range(1, len(quality.targets_per_request) + 1), quality.targets_per_request)
    targets.set(xlabel="engagements", ylabel="requests")
    targets.set_title("Engagements of a request")
    labels = ["0", *(f"{2**power - 1}–{2 ** (power + 1) - 2}" for power in range(1, len(quality.history_lengths)))]
    history.bar(labels, quality.history_lengths)
    history.set(xlabel="engagements before the request", ylabel="requests")
    history.set_title("Length of histories")
    history.tick_params(axis="x", rotation=30)
    report.figure(figure, "Engagements of a request, and length of the history that it carries.")
    if quality.num_impressions:
        report.text(f"{quality.num_impressions:,} items were shown in a request and not engaged; they are its impressions.")
    report.text(f"Candidate lists of {quality.num_listed_requests:,} held-out requests were written for the evaluation.")
