"""Followed and inferred interests → popular and fresh items of the interest.

An interest is inferred when at least two of the user's recent items carry it; its strength is share · sqrt(lift), so that an interest beats
a broader one of equal share. Popular is a plain count of train engagements before the period; fresh is the newest by creation.
"""

from __future__ import annotations

import ibis

from clrflow.bootstrap.expressions import Table, best, newest, period_of, period_seconds, place_in, total
from clrflow.bootstrap.generators.base import View, register
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.bootstrap.statistics import as_of, growth
from clrflow.contracts import INTEREST

RECENT_ITEMS = 50
"""Newest engagements from which interests are inferred."""
LEAST_ITEMS = 2
"""Recent items that must carry an interest before it is inferred."""


@register
class InterestGenerator:
    name = "interest"
    condition_type = INTEREST

    def enabled(self, settings: BootstrapSettings) -> bool:
        return settings.interest.enabled

    def conditions(self, view: View) -> Table:
        followed = self._followed(view)
        inferred = self._inferred(view)
        both = inferred.outer_join(followed, ["query_id", "interest_id"])
        strength = both.strength.fill_null(0.0)
        both = both.select(
            query_id=ibis.coalesce(both.query_id, both.query_id_right),
            condition_id=ibis.coalesce(both.interest_id, both.interest_id_right),
            # strength / (1 + strength) stays below 1, so followed ones come first and keep their order by what the user does.
            score=strength / (1 + strength) + both.interest_id_right.notnull().cast("float64"),
        )
        chosen = best(both, view.settings.interest.max_conditions, group_by=["query_id"], order_by=[ibis.desc("score"), "condition_id"])
        return chosen.select("query_id", "condition_id", "score", state=ibis.literal(0, "int64"))

    def _followed(self, view: View) -> Table:
        period_s = period_seconds(view.settings.granularity_days)
        follows = view.followed.mutate(since=period_of(view.followed.followed_at, period_s))
        joined = view.queries.join(follows, "user_id")
        joined = joined.filter(joined.since < joined["period"])
        return joined.select("query_id", "interest_id").distinct()

    def _inferred(self, view: View) -> Table:
        recent = view.recent.filter(view.recent.age <= RECENT_ITEMS)
        sizes = recent.group_by("query_id").aggregate(num_recent=recent.count())
        items = recent.group_by(["query_id", "period", "item_id"]).aggregate(times=recent.count())
        carried = items.join(view.item_interests.select("item_id", "interest_id"), "item_id")
        carried = carried.group_by(["query_id", "period", "interest_id"]).aggregate(n=total(carried.times), num_items=carried.count())
        carried = carried.filter(carried.num_items >= LEAST_ITEMS).join(sizes, "query_id")
        base = view.popularity.join(view.item_interests.select("item_id", "interest_id"), "item_id")
        base = base.group_by(["period", "interest_id"]).aggregate(interest_total=total(base.total))
        totals = view.popularity.group_by("period").aggregate(all_total=total(view.popularity.total))
        base = base.join(totals, "period")
        joined = carried.left_join(base, ["period", "interest_id"])
        share = joined.n / joined.num_recent
        # One is added to both counts: before the first closed period the lift is 1, and an interest that is new to the site isn't infinite.
        rate = (joined.interest_total.fill_null(0) + 1) / (joined.all_total.fill_null(0) + 1)
        return joined.select("query_id", "interest_id", strength=share * (share / rate).sqrt())

    def candidates(self, view: View, wanted: Table) -> Table:
        settings = view.settings.interest
        num_fresh = round(settings.num_candidates * settings.fresh_share)
        num_popular = settings.num_candidates - num_fresh
        asked = wanted.select("list_id", "condition_id", "period")
        carried = view.item_interests.select("item_id", condition_id="interest_id")
        keys = ["condition_id", "period"]

        popular = asked.join(carried.join(view.popularity, "item_id"), keys)
        sums = popular.group_by("list_id").aggregate(all_total=total(popular.total))
        popular = best(popular, num_popular, group_by=["list_id"], order_by=[ibis.desc("total"), "item_id"]).join(sums, "list_id")
        popular = popular.select("list_id", "item_id", "rank", score=popular.total / popular.all_total)
        if num_fresh == 0:
            return popular

        # The newest items before a period are the last ones of the interest's items in order of creation, so a count says where they are.
        born = view.engine.once("interest_births", lambda: self._births(view))
        grown = view.engine.once(
            "interest_growth", lambda: growth(born.group_by(["condition_id", "period"]).aggregate(n=born.count()), "condition_id")
        )
        known = as_of(grown, asked, "condition_id")
        fresh = newest(asked.join(known, keys), "total", settings.num_candidates, "number")
        fresh = fresh.join(born.select("condition_id", "item_id", "number"), ["condition_id", "number"])
        fresh = fresh.anti_join(popular, ["list_id", "item_id"])
        fresh = best(fresh, num_fresh, group_by=["list_id"], order_by=[ibis.desc("number")])
        counts = popular.group_by("list_id").aggregate(num_popular=popular.count())
        fresh = fresh.left_join(counts, "list_id")
        fresh = fresh.select("list_id", "item_id", rank=fresh["rank"] + fresh.num_popular.fill_null(0), score=ibis.literal(0.0))
        return popular.union(fresh)

    def _births(self, view: View) -> Table:
        """condition_id, item_id, period (of the item's creation), number (1-based, the oldest first)."""
        period_s = period_seconds(view.settings.granularity_days)
        carried = view.item_interests.select("item_id", condition_id="interest_id")
        born = carried.join(view.items.select("item_id", "created_at"), "item_id")
        born = born.mutate(period=period_of(born.created_at, period_s), number=place_in(["created_at", "item_id"], "condition_id") + 1)
        return born.select("condition_id", "item_id", "period", "number")

    def holding(self, view: View, wanted: Table, engaged: Table) -> None:
        return None

    def shown_items(self, view: View, wanted: Table) -> None:
        return None
