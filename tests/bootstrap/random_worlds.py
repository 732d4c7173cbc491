"""A world of random events, impressions, boards and follows: what holds for it holds for more than an example."""

from __future__ import annotations

import random

from tests.bootstrap.worlds import World

BY_TIME = {"by": "time", "validation_days": 1.0, "test_days": 1.0}
NEWEST = 10
"""Number of days; the newest event is at the end of the last one."""


def fill(world: World, *, until: float, seed: int, users: int = 8, after: float = 0.0) -> None:
    """Random events, impressions and boards on days [after, until), each day's in its first hours, many at one second."""
    draw = random.Random(seed)
    days = [day for day in range(NEWEST) if after <= day < until]
    for day in days:
        for user in range(users):
            for _ in range(draw.randrange(4)):
                item, hour = draw.randrange(1, 25), draw.randrange(0, 3)
                action = draw.choice(("click", "click", "save", "impression"))
                world.event(user, item, day, hour * 3600, action=action, order=len(world.events))
                if action == "save":
                    world.add_to_board(user * 10 + item % 2, user, item, day + hour / 24)


def catalogue(world: World) -> World:
    for item in range(1, 25):
        world.item(item, 1 + item % 4, 5 + item % 3, day=-1 if item < 18 else 5, vector=((item % 5 + 1) / 6, (item % 3 + 1) / 6))
    for user in range(4):
        world.follow(user, 1 + user, user)
    return world


def fill_outcome(world: World) -> None:
    catalogue(world)
    fill(world, until=NEWEST, seed=1)
    world.event(7, 24, NEWEST - 1, 80_000)
