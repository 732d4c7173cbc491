"""A made-up log of any size with the structure that this project is about, the same for the same arguments, without a download.

What a user engages with next depends on favourite interests that drift, on the theme of the item before, on the user's boards and on
popularity; items are born while the log runs. catalogue.py makes the items; here users act. Users are made in chunks, so memory is that of
the catalogue and one chunk, however many users there are.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from clrflow import storage
from clrflow.contracts import TIME
from clrflow.data import sources
from clrflow.data.catalogue import DIM, Catalogue
from clrflow.data.ordering import Places
from clrflow.data.schema import BOARDS, EVENT_ORDER, EVENTS, INTERESTS, ITEMS, USER_INTERESTS, with_width
from clrflow.data.tables import TableWriter, group_rows, write_table
from clrflow.errors import BadInput
from clrflow.manifest import Output
from clrflow.progress import Progress

VERSION = 2
"""Raised when the same arguments would give other tables."""

USERS_PER_CHUNK = 8_192
MICROSECONDS = 1_000_000
END = int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()) * MICROSECONDS
"""The log ends here, whenever it is made; microseconds since 1970, as all times in this file."""

THEME, BOARD, INTEREST, POPULAR = range(4)
"""Why a user engages: goes on with the theme of the item before, comes back to a board, follows a favourite interest, takes what is popular."""
GENERATORS = ("item", "board", "interest", "popular")
REASON_SHARES = np.cumsum([0.35, 0.15, 0.40, 0.10])
FAVOURITE_SHARES = np.cumsum([0.6, 0.3, 0.1])
EVENTS_PER_SESSION = 5
SAVE_ON_BOARD, SAVE_OWN_THEME, SAVE_OTHER = 0.6, 0.25, 0.03
"""How often an engagement is a save: onto a board that the user filled lately, of a theme to the user's taste, of another."""
REMEMBERED_BOARDS = 4


def generate(
    folder: str,
    users: int,
    items: int,
    days: int,
    seed: int,
    events_per_user: int = 40,
    impressions_per_event: int = 2,
    logged_share: float = 0.2,
) -> dict[str, Any]:
    """Write the five tables into `folder`, complete or not at all; a second call with equal arguments returns at once.

    `events_per_user`: mean number of engagements (clicks and saves), geometric and at most four times as many. `impressions_per_event`: items
    shown beside each and ignored. `logged_share`: part of the engagements whose generator and condition the log names. Returns what
    `source.json` holds (sources.publish). BadInput for a size that makes no log.
    """
    sizes = {"users": (users, 1), "items": (items, 24), "days": (days, 1), "events-per-user": (events_per_user, 1)}
    for name, (value, least) in sizes.items():
        if value < least:
            raise BadInput(f"synthetic: --{name} {value} makes no usable log; give at least {least}.")
    if seed < 0 or impressions_per_event < 0 or not 0 <= logged_share <= 1:
        raise BadInput(
            f"synthetic: seed={seed}, impressions_per_event={impressions_per_event}, logged_share={logged_share} can't be drawn from; "
            "give a seed and impressions of 0 or more, and a share between 0 and 1."
        )
    source = {
        "name": "synthetic", "version": VERSION, "users": users, "items": items, "days": days, "seed": seed, "events_per_user": events_per_user,
        "impressions_per_event": impressions_per_event, "logged_share": logged_share,
    }  # fmt: skip

    def build(draft: str) -> dict[str, Output]:
        catalogue = Catalogue.make(items, days, END, seed)
        log = _Log(catalogue, days, seed, events_per_user, impressions_per_event, logged_share)
        schemas = {"events": EVENTS.columns, "boards": BOARDS.columns, "user_interests": USER_INTERESTS.columns}
        writers = {name: TableWriter(storage.join(draft, name), schema) for name, schema in schemas.items()}
        try:
            with Progress("synthetic users", users, "users") as progress:
                for chunk, first in enumerate(range(0, users, USERS_PER_CHUNK)):
                    count = min(USERS_PER_CHUNK, users - first)
                    for name, table in log.chunk(chunk, first, count).items():
                        writers[name].write(table)
                    progress.advance(count)
            outputs = {name: writer.close() for name, writer in writers.items()}
        finally:
            for writer in writers.values():
                writer.abandon()
        schema = with_width(ITEMS.columns, DIM)
        outputs["items"] = write_table(storage.join(draft, "items"), catalogue.batches(), schema, rows_per_group=group_rows(4 * DIM))
        outputs["interests"] = write_table(storage.join(draft, "interests"), catalogue.interests(), INTERESTS.columns)
        return outputs

    return sources.publish(folder, source, build)


class _Log:
    """Draws what chunks of users do. Arrays over a chunk have one entry a user; the loop is over the users' n-th engagements."""

    def __init__(self, catalogue: Catalogue, days: int, seed: int, events_per_user: int, impressions_per_event: int, logged_share: float):
        self.catalogue, self.seed = catalogue, seed
        self.start, self.span = END - days * 86_400 * MICROSECONDS, days * 86_400 * MICROSECONDS
        self.events_per_user, self.impressions_per_event, self.logged_share = events_per_user, impressions_per_event, logged_share

    def chunk(self, number: int, first_user: int, count: int) -> dict[str, pa.Table]:
        """Events, boards and followed interests of users first_user + 1, ..., first_user + count."""
        rng = np.random.default_rng([self.seed, 2, number])
        early, late, switch = self._favourites(rng, count)
        times, lengths = self._times(rng, count)
        engaged = self._engage(rng, early, late, switch, times, lengths)
        user_ids = first_user + 1 + engaged["user"]
        boards = np.where(engaged["saved"], user_ids * self.catalogue.num_themes + self.catalogue.theme[engaged["item"]], -1)
        return {
            "events": self._events(rng, engaged, user_ids, boards),
            "boards": self._boards(engaged, user_ids, boards),
            "user_interests": self._followed(rng, early, late, switch, first_user),
        }

    def _favourites(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Leaf interests [count, 3] before and after the drift, and the time [count, 3] at which each of them drifts."""
        early = self.catalogue.draw_leaves(rng, (count, 3))
        # Half of the drifts stay in the family: a gardener takes up small gardens rather than chess.
        sibling = self.catalogue.draw_siblings(rng, early)
        late = np.where(rng.random((count, 3)) < 0.5, sibling, self.catalogue.draw_leaves(rng, (count, 3)))
        return early, late, self.start + (rng.random((count, 3)) * self.span).astype(np.int64)

    def _times(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Sorted times of engagements [count, longest] in sessions of a few minutes, and how many of them each user has [count]."""
        lengths = np.minimum(rng.geometric(1 / self.events_per_user, count), 4 * self.events_per_user)
        longest = int(lengths.max())
        starts = rng.random((count, -(-longest // EVENTS_PER_SESSION)))
        gaps = rng.exponential(40, (count, longest)) + 1
        step = np.arange(longest)
        inside = gaps.cumsum(axis=1)
        session_begin = inside[:, step - step % EVENTS_PER_SESSION]
        offsets = starts[:, step // EVENTS_PER_SESSION] * self.span + (inside - session_begin) * MICROSECONDS
        times = self.start + np.minimum(offsets.astype(np.int64), self.span - 1)
        return np.sort(np.where(step < lengths[:, None], times, END), axis=1), lengths

    def _engage(
        self, rng: np.random.Generator, early: np.ndarray, late: np.ndarray, switch: np.ndarray, times: np.ndarray, lengths: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The engagements of all users, flat, sorted by user and time: user (place in the chunk), item (index), time, reason, condition, saved."""
        catalogue, (count, longest) = self.catalogue, times.shape
        seen = np.full((count, longest), -1, dtype=np.int64)
        last = np.full(count, -1, dtype=np.int64)
        saved_themes = np.full((count, REMEMBERED_BOARDS), -1, dtype=np.int64)
        num_saved = np.zeros(count, dtype=np.int64)
        taste = rng.integers(0, 1 << 20, (count,))
        kept: list[dict[str, np.ndarray]] = []
        for step in range(longest):
            user = np.flatnonzero(lengths > step)
            now = times[user, step]
            reason = np.searchsorted(REASON_SHARES, rng.random(len(user)), side="right").clip(max=POPULAR)
            reason = np.where((reason == THEME) & (last[user] < 0), INTEREST, reason)
            reason = np.where((reason == BOARD) & (num_saved[user] == 0), INTEREST, reason)

            slot = np.searchsorted(FAVOURITE_SHARES, rng.random(len(user)), side="right").clip(max=2)
            leaf = np.where(now < switch[user, slot], early[user, slot], late[user, slot])
            board = (rng.random(len(user)) * np.minimum(num_saved[user], REMEMBERED_BOARDS)).astype(np.int64)
            theme = np.select(
                [reason == THEME, reason == BOARD],
                [catalogue.theme[last[user]], saved_themes[user, board]],
                catalogue.draw_themes(rng, leaf, taste[user]),
            )
            item = np.full(len(user), -1, dtype=np.int64)
            for attempt in range(4):  # people rarely come back to an item: who knows it looks around the interest, then anywhere
                again = np.flatnonzero(item < 0)
                if attempt == 2:
                    around = again[reason[again] != POPULAR]
                    theme[around] = catalogue.draw_sibling_themes(rng, theme[around])
                    leaf[around] = theme[around] // catalogue.themes_per_leaf
                    reason[around] = INTEREST
                elif attempt == 3:
                    reason[again] = POPULAR
                drawn = catalogue.draw_items(rng, np.where(reason == POPULAR, -1, theme)[again], now[again])
                known = (seen[user[again], :step] == drawn[:, None]).any(axis=1)
                item[again] = np.where(known, -1, drawn)
            found = item >= 0
            user, now, reason, item, leaf, theme = user[found], now[found], reason[found], item[found], leaf[found], theme[found]
            on_board = (saved_themes[user] == catalogue.theme[item][:, None]).any(axis=1)
            own = catalogue.is_own_theme(catalogue.theme[item], taste[user])
            saved = rng.random(len(user)) < np.select([on_board, own], [SAVE_ON_BOARD, SAVE_OWN_THEME], SAVE_OTHER)
            condition = np.select(
                [reason == THEME, reason == BOARD, reason == INTEREST], [last[user], theme, catalogue.interest_of_leaf(leaf)], -1
            )
            kept.append({"user": user, "item": item, "time": now, "reason": reason, "condition": condition, "saved": saved})
            seen[user, step] = item
            last[user] = item
            saver = user[saved]
            saved_themes[saver, num_saved[saver] % REMEMBERED_BOARDS] = catalogue.theme[item[saved]]
            num_saved[saver] += 1
        flat = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
        order = np.argsort(flat["user"], kind="stable")
        return {name: values[order] for name, values in flat.items()}

    def _events(self, rng: np.random.Generator, engaged: dict[str, np.ndarray], user_ids: np.ndarray, boards: np.ndarray) -> pa.Table:
        """Engagements and, a moment before each, what was shown beside it and ignored."""
        catalogue, total, shown = self.catalogue, len(user_ids), self.impressions_per_event
        logged = rng.random(total) < self.logged_share
        reason = engaged["reason"]
        has_condition = logged & (reason != POPULAR)
        condition = np.select(
            [reason == THEME, reason == BOARD],
            [engaged["condition"] + 1, user_ids * catalogue.num_themes + engaged["condition"]],
            engaged["condition"],
        )
        kinds = pa.array(["item", "board", "interest", "none"])
        engagements = pa.table(
            {
                "user_id": user_ids,
                "item_id": engaged["item"] + 1,
                "timestamp": pa.array(engaged["time"]).cast(TIME),
                "action": pa.array(["click", "save"]).take(pa.array(engaged["saved"].astype(np.int64))),
                "board_id": pa.array(boards, mask=boards < 0),
                "generator": pa.array(GENERATORS).take(pa.array(reason, mask=~logged)),
                "condition_type": kinds.take(pa.array(reason, mask=~logged)),
                "condition_id": pa.array(condition, mask=~has_condition),
                "position": pa.array(rng.integers(0, shown + 1, total).astype(np.int32), mask=~logged),
                EVENT_ORDER: pa.nulls(total, pa.int64()),
            },
            schema=EVENTS.columns,
        )
        beside = np.repeat(np.arange(total), shown)
        moment = engaged["time"][beside] - MICROSECONDS * (1 + np.tile(np.arange(shown), total))
        # Half of what is ignored has the engaged item's theme: shown for a good reason, and still not taken.
        theme = np.where(rng.random(len(beside)) < 0.5, catalogue.theme[engaged["item"][beside]], -1)
        ignored = catalogue.draw_items(rng, theme, moment)
        real = (ignored != engaged["item"][beside]) & (moment >= self.start)
        impressions = pa.table(
            {
                "user_id": user_ids[beside][real],
                "item_id": ignored[real] + 1,
                "timestamp": pa.array(moment[real]).cast(TIME),
                "action": pa.array(["impression"]).take(pa.array(np.zeros(int(real.sum()), dtype=np.int64))),
                **{name: pa.nulls(int(real.sum()), EVENTS.columns.field(name).type) for name in EVENTS.optional.names},
            },
            schema=EVENTS.columns,
        )
        times, users = np.concatenate([engaged["time"], moment[real]]), np.concatenate([user_ids, user_ids[beside][real]])
        order = np.lexsort((times, users))  # stable: of events of one time the engagements come first, in their order
        log = pa.concat_tables([engagements, impressions]).combine_chunks().take(pa.array(order))
        places = pa.array(Places().of(users[order], times[order]))
        return log.set_column(log.column_names.index(EVENT_ORDER), EVENT_ORDER, places)

    def _boards(self, engaged: dict[str, np.ndarray], user_ids: np.ndarray, boards: np.ndarray) -> pa.Table:
        saved = engaged["saved"]
        return pa.table(
            {
                "board_id": boards[saved],
                "user_id": user_ids[saved],
                "item_id": engaged["item"][saved] + 1,
                "added_at": pa.array(engaged["time"][saved]).cast(TIME),
                "name": self.catalogue.theme_names().take(pa.array(self.catalogue.theme[engaged["item"][saved]])),
            },
            schema=BOARDS.columns,
        )

    def _followed(self, rng: np.random.Generator, early: np.ndarray, late: np.ndarray, switch: np.ndarray, first_user: int) -> pa.Table:
        """Half of the favourites are followed: early ones since before the window, late ones since the drift."""
        count = len(early)
        user = np.tile(np.repeat(first_user + 1 + np.arange(count), 3), 2)
        leaf = np.concatenate([early.ravel(), late.ravel()])
        before = self.start - (rng.random(3 * count) * 90 * 86_400 * MICROSECONDS).astype(np.int64)
        since = np.concatenate([before, switch.ravel()])
        follows = np.flatnonzero(rng.random(len(user)) < 0.5)
        # One row a user and interest, the earliest.
        order = follows[np.lexsort((since[follows], leaf[follows], user[follows]))]
        fresh = np.ones(len(order), dtype=bool)
        fresh[1:] = (user[order][1:] != user[order][:-1]) | (leaf[order][1:] != leaf[order][:-1])
        chosen = order[fresh]
        return pa.table(
            {
                "user_id": user[chosen],
                "interest_id": self.catalogue.interest_of_leaf(leaf[chosen]),
                "followed_at": pa.array(since[chosen]).cast(TIME),
            },
            schema=USER_INTERESTS.columns,
        )
