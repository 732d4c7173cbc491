"""Holds a profile of new data against that of the data from which the published version was trained, and says what moved too far.

Rules find rows that are wrong; here every row may be right and the whole still isn't: two actions swapped, an id space replaced, half a day
not exported, embeddings of another scale. Thresholds: data.drift (settings.py).
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping

from clrflow import storage
from clrflow.data.profile import NOT_LOGGED, PERCENTILES, Profile, overlap
from clrflow.data.settings import DriftSettings
from clrflow.errors import DataError
from clrflow.index.published import PROFILE, published_folder, read_published
from clrflow.progress import say

NORM_PERCENTILES = (5, 50, 95)
MIN_IDS = 100
"""The overlap of fewer ids isn't judged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """The data of the published version."""

    version: str
    profile: Profile | None
    why_none: str = ""
    """Why there is nothing to compare with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison: what, from which value to which, how far that is, and how far it may be."""

    name: str
    then: str
    now: str
    distance: float | None
    """None where the data are too few to judge."""
    setting: str
    limit: float | None
    moved: bool
    look_at: str
    """What is often behind it."""
    limit_as: str = ""
    """How the setting is written where it isn't the limit."""

    @property
    def verdict(self) -> str:
        if self.distance is None:
            return "too few to judge"
        if self.limit is None:
            return "switched off"
        return "moved" if self.moved else "within"

    def sentence(self) -> str:
        limit = self.limit_as or f"{self.limit:g}"
        return f"{self.name} went from {self.then} to {self.now}: {self.distance:.3g} against data.drift.{self.setting}={limit}; {self.look_at}"


def published_reference(workspace: str) -> Reference:
    """The profile that was published with the current version of a workspace."""
    current = read_published(published_folder(workspace))
    if current is None:
        return Reference(version="", profile=None, why_none="nothing is published yet")
    uri = storage.join(current.uri, PROFILE)
    if not storage.exists(uri):
        return Reference(
            version=current.version, profile=None, why_none=f"version {current.version} was published without a profile of its data"
        )
    profile = Profile.from_json(storage.read_json(uri))
    why_none = "" if profile else f"the profile of version {current.version} has another format"
    return Reference(version=current.version, profile=profile, why_none=why_none)


def watch(reference: Reference, now: Profile, settings: DriftSettings) -> list[Check]:
    """All checks that could be made; DataError, or a warning where `policy` says so, when something moved too far."""
    if not settings.enabled or reference.profile is None:
        return []
    checks = compare(reference.profile, now, settings)
    moved = [check for check in checks if check.moved]
    if moved:
        told = "\n".join(
            [
                f"{len(moved)} distribution(s) moved against the data of published version {reference.version}:",
                *(f"  {check.sentence()}." for check in moved),
                "  Correct the export; or if this is meant, widen the threshold, or set data.drift.enabled=false for one run: once its version is "
                "published, it is what the next data are compared with.",
            ]
        )
        if settings.policy == "reject":
            raise DataError(told)
        say(f"validate_data: {told}")
    return checks


def compare(then: Profile, now: Profile, settings: DriftSettings) -> list[Check]:
    """Every check, moved or not."""
    return [
        *_actions(then, now, settings),
        *_conditions(then, now, settings),
        _overlap("users", then.users, now.users, (then.num_users, now.num_users), "min_user_overlap", settings),
        _overlap("items", then.items, now.items, (then.num_items, now.num_items), "min_item_overlap", settings),
        *_volume(then, now, settings),
        *_embeddings(then, now, settings),
    ]


def _enough(then: Profile, now: Profile, settings: DriftSettings) -> bool:
    return min(then.num_events, now.num_events) >= settings.min_events


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def _shift(then: Mapping[str, float], now: Mapping[str, float]) -> tuple[float, list[str]]:
    """Total variation distance of two mixes, and their parts, those that moved most first."""
    change = {name: abs(now.get(name, 0.0) - then.get(name, 0.0)) for name in {*then, *now}}
    return sum(change.values()) / 2, sorted(change, key=lambda name: (-round(change[name], 9), name))


def _listed(names: list[str], shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {shares.get(name, 0.0):.1%}" for name in names[:4])


def _mix(name: str, then: Mapping[str, int], now: Mapping[str, int], setting: str, settings: DriftSettings, look_at: str) -> Check:
    was, are = _shares(then), _shares(now)
    distance, movers = _shift(was, are)
    limit = getattr(settings, setting)
    enough = min(sum(then.values()), sum(now.values())) >= settings.min_events
    return Check(
        name=name, then=_listed(movers, was) or "none", now=_listed(movers, are) or "none", distance=distance if enough else None,
        setting=setting, limit=limit, moved=enough and limit is not None and distance > limit, look_at=look_at,
    )  # fmt: skip


def _actions(then: Profile, now: Profile, settings: DriftSettings) -> Iterator[Check]:
    look_at = "look at how the export maps what happened to events.action"
    yield _mix("the mix of actions", then.actions, now.actions, "max_action_shift", settings, look_at)
    was, are = _shares(then.actions), _shares(now.actions)
    factors = {
        action: max(are.get(action, 0.0) / was[action], was[action] / are[action] if are.get(action) else float("inf"))
        for action, count in then.actions.items()
        if count >= settings.min_events
    }
    if not factors:
        return
    worst = max(factors, key=lambda action: factors[action])
    enough, limit = _enough(then, now, settings), settings.max_action_ratio
    yield Check(
        name=f"the share of action {worst}", then=f"{was[worst]:.2%}", now=f"{are.get(worst, 0.0):.2%}",
        distance=factors[worst] if enough else None, setting="max_action_ratio", limit=limit,
        moved=enough and limit is not None and factors[worst] > limit, look_at=look_at,
    )  # fmt: skip


def _conditions(then: Profile, now: Profile, settings: DriftSettings) -> Iterator[Check]:
    look_at = "look at whether candidate generators, or the logging of what they served, changed"
    kinds = []
    for profile in (then, now):
        logged = sum(count for kind, count in profile.conditions.items() if kind != NOT_LOGGED)
        kinds.append({"logged": logged, "not logged": profile.conditions.get(NOT_LOGGED, 0)})
    yield _mix("the share of engagements with a logged condition", kinds[0], kinds[1], "max_logged_shift", settings, look_at)
    types = [{kind: count for kind, count in profile.conditions.items() if kind != NOT_LOGGED} for profile in (then, now)]
    if all(types):
        yield _mix("the mix of logged condition types", types[0], types[1], "max_condition_shift", settings, look_at)


def _overlap(what: str, then: list[str], now: list[str], numbers: tuple[int, int], setting: str, settings: DriftSettings) -> Check:
    found, limit, enough = overlap(then, now), getattr(settings, setting), numbers[0] >= MIN_IDS
    return Check(
        name=f"the overlap of {what}", then=f"{numbers[0]:,} {what}", now=f"{numbers[1]:,}, which hold about {found:.1%} of those then",
        distance=found if enough else None, setting=setting, limit=limit, moved=enough and limit is not None and found < limit,
        look_at=f"look at whether ids of {what} are made as before and all {what} are exported",
    )  # fmt: skip


def _volume(then: Profile, now: Profile, settings: DriftSettings) -> Iterator[Check]:
    """The whole days that fell and rose most. A day is held against itself where it was whole then; a new one against days of its weekday and
    against all, and judged by the milder, so that neither weekends nor one odd week look like a broken export."""
    known = then.whole_days()
    if not known:
        return
    by_weekday: dict[int, list[int]] = {}
    for day, count in known.items():
        by_weekday.setdefault(day.weekday(), []).append(count)
    everyday = statistics.median(known.values())
    usual: list[float]
    falls, rises = [], []
    for day, count in now.whole_days().items():
        usual = [known[day]] if day in known else [everyday, statistics.median(by_weekday.get(day.weekday(), [everyday]))]
        if min(usual) >= settings.min_events:
            falls.append((1 - count / min(usual), day, min(usual), count))
            rises.append((count / max(usual) - 1, day, max(usual), count))
    for kind, moves, setting in (("fewest", falls, "max_day_drop"), ("most", rises, "max_day_rise")):
        if not moves:
            continue
        limit = getattr(settings, setting)
        beyond = [move for move in moves if limit is not None and move[0] > limit]
        distance, day, usual_count, count = max(moves)
        others = f" ({len(beyond)} days moved so far)" if len(beyond) > 1 else ""
        yield Check(
            name=f"events of the day with relatively {kind}, {day:%a} {day}", then=f"{usual_count:,.0f}", now=f"{count:,}{others}",
            distance=max(distance, 0.0), setting=setting, limit=limit, moved=bool(beyond),
            look_at="look at whether the day was exported whole and once",
        )  # fmt: skip


def _embeddings(then: Profile, now: Profile, settings: DriftSettings) -> Iterator[Check]:
    moved = settings.same_embedding_dim and then.embedding_dim != now.embedding_dim
    yield Check(
        name="the width of content embeddings", then=str(then.embedding_dim), now=str(now.embedding_dim),
        distance=float(abs(now.embedding_dim - then.embedding_dim)), setting="same_embedding_dim", limit=0.0 if settings.same_embedding_dim else None,
        moved=moved, look_at="look at which model made them", limit_as="true",
    )  # fmt: skip
    changes = []
    for percent in NORM_PERCENTILES:
        place = PERCENTILES.index(percent)
        changes.append((abs(now.norms[place] / then.norms[place] - 1), percent, then.norms[place], now.norms[place]))
    distance, percent, before, after = max(changes)
    limit = settings.max_norm_change
    yield Check(
        name=f"the {percent} % quantile of embedding norms", then=f"{before:.4g}", now=f"{after:.4g}", distance=distance,
        setting="max_norm_change", limit=limit, moved=limit is not None and distance > limit,
        look_at="look at whether embeddings are normalised as before and come from the same model",
    )  # fmt: skip
