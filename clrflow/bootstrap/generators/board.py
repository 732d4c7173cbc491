"""The user's active boards → random walks on the board-item graph.

From the board's newest items a walk goes to other boards that hold them and to the items there. Visit probabilities are computed instead of
sampled: of an item's boards and a board's items the newest few are followed, each with equal probability. Popular items are reached from
everywhere, so their visits are divided by the root of their number of boards. The graph is as of the closed period; the board's own items are
exact to the request and leave its candidates.
"""

from __future__ import annotations

import ibis

from clrflow.bootstrap.expressions import Table, best, newest, place_in, seconds_of
from clrflow.bootstrap.generators.base import View, register
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.bootstrap.statistics import as_of, growth
from clrflow.contracts import BOARD

BOARDS_AN_ITEM = 10
"""Newest boards of an item that a walk follows."""
ITEMS_A_BOARD = 5
"""Newest items of a board that a walk follows."""
UNIT = 2**40
"""Probability 1. Whole numbers below 2^53 add up to the same float64 in any order, so ranks don't depend on threads or engines; int64 sums
would do as well, but DuckDB widens them to 128 bits and takes several times as long."""


@register
class BoardGenerator:
    name = "board"
    condition_type = BOARD

    def enabled(self, settings: BootstrapSettings) -> bool:
        return settings.board.enabled

    def conditions(self, view: View) -> Table:
        growing = _growing(view)
        joined = view.queries.select("query_id", "user_id", "requested_at").join(growing, "user_id")
        active = joined.filter((joined.added_at < joined.requested_at) & (joined.until.isnull() | (joined.requested_at <= joined.until)))
        days = (seconds_of(active.requested_at) - seconds_of(active.added_at)) / 86_400
        active = active.select("query_id", "added_at", condition_id="board_id", state="entry", score=1 / (1 + days))
        order = [ibis.desc("added_at"), "condition_id"]
        chosen = best(active, view.settings.board.max_conditions, group_by=["query_id"], order_by=order)
        return chosen.select("query_id", "condition_id", "state", "score")

    def candidates(self, view: View, wanted: Table) -> Table:
        engine, settings = view.engine, view.settings.board
        starts, origins = self._starts(view, wanted)
        visits = starts.join(engine.keep("walk_steps", self._steps(view, origins)), "origin_id")
        visits = visits.group_by(["list_id", "other_id"]).aggregate(visits=visits.damped.sum())
        mine = wanted.select("list_id", "condition_id", "state").join(_own(view), "condition_id")
        mine = engine.keep("walk_boards", mine.filter(mine.entry <= mine.state).select("list_id", other_id="item_id"))
        visits = visits.anti_join(mine, ["list_id", "other_id"])
        visits = visits.join(starts.group_by("list_id").aggregate(num_starts=starts.count()), "list_id")
        score = visits.visits / (visits.num_starts * float(UNIT))
        scored = visits.select("list_id", item_id="other_id", score=score)
        return best(scored, settings.num_candidates, group_by=["list_id"], order_by=[ibis.desc("score"), "item_id"])

    def holding(self, view: View, wanted: Table, engaged: Table) -> Table:
        """Lists from whose board a walk leads to one of the engaged items, however seldom."""
        starts, origins = self._starts(view, wanted)
        first, second = self._walks(view, origins)
        sought = starts.join(engaged, "list_id").select("list_id", "origin_id", other_id="item_id")
        paths = sought.join(first, "origin_id").semi_join(second, ["stop_id", "other_id"])
        found = view.engine.keep("walk_holding", paths.select("list_id").distinct())
        view.engine.drop("walk_from_items", "walk_first", "walk_to_stops", "walk_from_boards", "walk_second")  # of all lists: large
        return found

    def _starts(self, view: View, wanted: Table) -> tuple[Table, Table]:
        """Where walks start: list_id, origin_id; and the origins, each an item in a period: origin_id, item_id, period."""
        asked = wanted.select("list_id", "condition_id", "state", "period")
        starts = newest(asked, "state", view.settings.board.recent_items, "entry").join(_own(view), ["condition_id", "entry"])
        starts = view.engine.keep("walk_starts", starts.select("list_id", "period", "item_id"))
        origins = view.engine.keep("walk_origins", _with_id(starts.select("item_id", "period").distinct()))
        return view.engine.keep("walk_starts", starts.join(origins, ["item_id", "period"]).select("list_id", "origin_id")), origins

    def _walks(self, view: View, origins: Table) -> tuple[Table, Table]:
        """Both steps of all walks: origin_id, stop_id (a board in a period), fan (of how many boards one is taken); and stop_id, other_id,
        board_fan."""
        edges = _graph(view)
        by_item = origins.join(_degrees(view, "item_id"), ["period", "item_id"])
        # Entries are numbered by age, so those before the period are the first `total` ones and the newest of them the last.
        by_item = view.engine.keep("walk_from_items", newest(by_item, "total", BOARDS_AN_ITEM, "in_item"))
        by_item = by_item.join(edges.select("item_id", "board_id", "in_item"), ["item_id", "in_item"])
        first = by_item.select("origin_id", "board_id", "period", fan=ibis.least(by_item.total, BOARDS_AN_ITEM))
        first = view.engine.keep("walk_first", first)
        stops = view.engine.keep("walk_stops", _with_id(first.select("board_id", "period").distinct(), "stop_id"))
        by_board = stops.join(_degrees(view, "board_id"), ["period", "board_id"])
        by_board = view.engine.keep("walk_from_boards", newest(by_board, "total", ITEMS_A_BOARD, "in_board"))
        by_board = by_board.join(edges.select("board_id", "in_board", other_id="item_id"), ["board_id", "in_board"])
        second = by_board.select("stop_id", "other_id", board_fan=ibis.least(by_board.total, ITEMS_A_BOARD))
        first = view.engine.keep("walk_to_stops", first.join(stops, ["board_id", "period"]).select("origin_id", "stop_id", "fan"))
        return first, view.engine.keep("walk_second", second)

    def _steps(self, view: View, origins: Table) -> Table:
        """What walks lead to: origin_id, other_id, damped.

        damped is the probability to end at the other item, in parts of UNIT, over the root of that item's number of boards.
        """
        first, second = self._walks(view, origins)
        paths = first.join(second, "stop_id")
        share = (ibis.literal(float(UNIT)) / (paths.fan * paths.board_fan)).floor().cast("float64")
        ends = paths.group_by(["origin_id", "other_id"]).aggregate(probability=share.sum())
        ends = view.engine.keep("walk_ends", ends.join(origins.select("origin_id", "period"), "origin_id"))
        ends = ends.join(_degrees(view, "item_id").select("period", "total", other_id="item_id"), ["period", "other_id"])
        return ends.select("origin_id", "other_id", damped=(ends.probability / ends.total.cast("float64").sqrt()).floor().cast("float64"))

    def shown_items(self, view: View, wanted: Table) -> Table:
        joined = newest(wanted, "state", view.settings.board.recent_items, "entry").join(_own(view), ["condition_id", "entry"])
        return joined.select("condition_id", "state", "item_id", place="entry")


def _own(view: View) -> Table:
    """Entries of boards as those of a condition: condition_id, entry, item_id."""
    return view.entries.select("item_id", "entry", condition_id="board_id")


def _with_id(pairs: Table, name: str = "origin_id") -> Table:
    """One number for a pair: joins and sums over many paths then carry one key instead of two."""
    return pairs.mutate(**{name: place_in(list(pairs.columns))})


def states_at(view: View, asked: Table) -> Table:
    """Number of items on boards at a time, where there are any: `asked` has query_id, requested_at and board_id; adds state."""
    joined = asked.join(_growing(view).drop("user_id"), "board_id")
    found = joined.filter((joined.added_at < joined.requested_at) & (joined.until.isnull() | (joined.requested_at <= joined.until)))
    return found.select("query_id", "board_id", state="entry")


def _growing(view: View) -> Table:
    """Each size of each board with the span (added_at, until] of request times that find it so; until is null for the last."""
    later = ibis.window(group_by="board_id", order_by="entry")
    return view.entries.select("board_id", "user_id", "entry", "added_at", until=view.entries.added_at.lead().over(later))


def _graph(view: View) -> Table:
    """Entries that may be learnt from, numbered within their board and within their item by age; computed once."""
    learnt = view.entries.filter(view.entries.learnt)
    return view.engine.once(
        "board_graph",
        lambda: learnt.select(
            "board_id", "item_id", "period",
            in_board=place_in(["added_at", "item_id"], "board_id") + 1,
            in_item=place_in(["added_at", "board_id"], "item_id") + 1,
        ),
    )  # fmt: skip


def _degrees(view: View, key: str) -> Table:
    """Entries of each item or board before each of the view's periods: period, key, total."""
    edges = _graph(view)
    grown = view.engine.once(f"{key}_growth", lambda: growth(edges.group_by([key, "period"]).aggregate(n=edges.count()), key))
    return view.once(f"{key}_degrees", lambda: as_of(grown, view.queries, key))
