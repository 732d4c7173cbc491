"""`clrflow query`: ask a published index what a user would like under one or several conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines import console

if TYPE_CHECKING:
    from collections.abc import Sequence


def command(
    index: Annotated[str, typer.Argument(help="A workspace, its published folder, a version or a bundle.")],
    user: Annotated[int, typer.Option("--user", "-u", help="User id.")],
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--condition", "-c", help="interest:ID, item:ID or board:ID; may be given again. None of them: the unconditional query."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Items a condition.", min=1)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Ask an index: the best items of a user under each condition.

    Example: clrflow query demo/workspace --user 42 --condition interest:5 --condition item:50 -k 10
    """
    from clrflow.serving.query import Retriever, parse_condition

    conditions = [parse_condition(text) for text in condition or ()]
    retriever = Retriever.load(index)
    answers = retriever.query(user, conditions, k)
    if not retriever.knows(user):
        console.note(f"the index knows no user {user}; these are answers for someone without a history.")
    if as_json:
        console.print_json({"user": user, "known": retriever.knows(user), "answers": [as_plain(answer) for answer in answers]})
    else:
        print_answers(answers)


def as_plain(answer: Any) -> dict[str, Any]:
    """An answer as JSON-able values."""
    items = [
        {"item_id": int(item_id), "score": float(score), "title": title, "interests": list(interests)}
        for item_id, score, title, interests in answer.items
    ]
    return {"condition": answer.condition, "items": items}


def print_answers(answers: Sequence[Any]) -> None:
    """One table a condition."""
    for answer in answers:
        rows = [
            [str(item_id), f"{float(score):.4f}", title or "", ", ".join(interests)] for item_id, score, title, interests in answer.items
        ]
        console.print_table(["item", "score", "title", "interests"], rows, title=answer.condition)
        console.line()
