"""Three questions to a published index that show how the condition steers the answer; the last thing that `make demo` prints.

`python -m pipelines.demo_queries WORKSPACE` picks a user by the data alone: one with two interests that few items share, an item and a
board. One retriever answers all three; each is printed with the `clrflow query` command that asks the same.
"""

from __future__ import annotations

import dataclasses
import sys

import duckdb

from clrflow import storage
from clrflow.errors import ClrflowError
from pipelines import console
from pipelines.commands.query import print_answers
from pipelines.run_report import FILE_NAME, find_run

MIN_ITEMS = 50
"""An interest with fewer items (in a small catalogue: with less than a fifteenth of all) is too narrow for a list of ten to say much."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A user and the conditions that the demo asks about."""

    user_id: int
    interests: tuple[int, int]
    item_id: int
    board_id: int
    last_titles: tuple[str, ...]

    @property
    def questions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each with what a reader should look for."""
        first, second = self.interests
        return (
            ("One user, two interests: the same history, two different lists", (f"interest:{first}", f"interest:{second}")),
            ("The same user, more like one item", (f"item:{self.item_id}",)),
            ("The same user, for one of their boards", (f"board:{self.board_id}",)),
        )


def pick(bundle: str) -> Example:
    """The example that a bundle's own tables suggest; equal bundles give equal examples.

    Of the users who have two interests, an item and a board as conditions: the pair of interests that the fewest items share, then the
    user in whose history both are strongest. Raises ClrflowError where no user has them all.
    """
    with duckdb.connect() as connection:
        for name in ("items", "user_states", "boards"):
            connection.read_parquet(storage.join(bundle, f"{name}.parquet")).create_view(name)
        found = connection.execute(_PICK, {"min_items": MIN_ITEMS}).fetchone()
        if found is None:
            raise ClrflowError(f"{bundle}: no user has two interests, an item and a board at once; ask with `clrflow query` instead.")
        user_id, first, second, item_id, board_id = found
        titles = connection.execute(_LAST_TITLES, {"user": user_id}).fetchall()
    return Example(
        user_id=user_id, interests=(first, second), item_id=item_id, board_id=board_id, last_titles=tuple(title for (title,) in titles)
    )


_PICK = """
with carried as (select item_id, unnest(interests) as interest from items),
large as (
    select interest, count(*) as n from carried group by all having n >= least($min_items, (select count(*) from items) / 15)
),
shared as (
    select a.interest as first, b.interest as second, count(*) as both
    from carried a join carried b on a.item_id = b.item_id and a.interest < b.interest group by all
),
wanted as (select user_id, unnest(conditions) as c from user_states),
liked as (select user_id, c.id as interest, c.score as score from wanted where c.type = 'interest'),
pairs as (
    select a.user_id, a.interest as first, b.interest as second, least(a.score, b.score) as strength,
        coalesce(s.both, 0) / (x.n + y.n - coalesce(s.both, 0)) as overlap
    from liked a join liked b on a.user_id = b.user_id and a.interest < b.interest
    join large x on x.interest = a.interest join large y on y.interest = b.interest
    left join shared s on s.first = a.interest and s.second = b.interest
),
item as (select user_id, arg_max(c.id, (c.score, -c.id)) as item_id from wanted where c.type = 'item' group by all),
board as (
    select user_id, arg_max(c.id, (len(c.items), -c.id)) as board_id from wanted
    where c.type = 'board' and c.id in (select board_id from boards) group by all
)
select user_id, first, second, item_id, board_id from pairs join item using (user_id) join board using (user_id)
order by overlap, strength desc, user_id, first, second limit 1
"""
_LAST_TITLES = """
select coalesce(title, item_id::text) from (
    select unnest(history_items[-5:]) as item_id, generate_subscripts(history_items[-5:], 1) as place from user_states where user_id = $user
) join items using (item_id) order by place desc
"""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        console.error("usage: python -m pipelines.demo_queries WORKSPACE")
        return 2
    workspace = arguments[0]
    from clrflow.serving.query import Retriever, parse_condition

    try:
        current = storage.read_json(storage.join(workspace, "published", "current.json"))
        example = pick(current["uri"])
        retriever = Retriever.load(workspace)
        console.line(f"\nUser {example.user_id}, who last chose {'; '.join(example.last_titles)}")
        for title, conditions in example.questions:
            flags = " ".join(f"--condition {condition}" for condition in conditions)
            console.line(f"\n{title}\n$ clrflow query {workspace} --user {example.user_id} {flags} -k 10\n")
            print_answers(retriever.query(example.user_id, [parse_condition(condition) for condition in conditions], 10))
        console.line(f"report {storage.join(find_run(workspace=workspace).uri, FILE_NAME)}")
    except FileNotFoundError:
        console.error(f"{workspace} has nothing published: see the gate's reason in `clrflow report --workspace {workspace}`.")
        return 1
    except ClrflowError as error:
        console.error(str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
