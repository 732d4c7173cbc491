"""`clrflow data`: get tables to try the pipeline on, or check one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from clrflow.formatting import show
from pipelines import console

app = typer.Typer(no_args_is_help=True, help="Check input tables, or make some to try the pipeline on.")


@app.command("check")
def check(
    uri: Annotated[str, typer.Argument(help="Folder that holds events, items, boards, user_interests and interests.")],
    preset: Annotated[str, typer.Option(help="Preset whose data settings (actions, rules) apply. Default: small.")] = "",
    config: Annotated[str, typer.Option(help="YAML file of settings, instead of a preset.", metavar="FILE")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting as data.field=value; may be given again.", metavar="K=V")
    ] = None,
) -> None:
    """Check tables against the data contract without writing anything.

    Example: clrflow data check my/tables --set data.window_days=30
    """
    from clrflow.config import load_config
    from clrflow.data.validate import check as check_tables

    settings = load_config(preset or ("" if config else "small"), config, [*(set_ or ()), f"data.tables={json.dumps(uri)}"]).data
    check_tables(uri, settings)


@app.command("movielens")
def movielens(
    folder: Annotated[str, typer.Argument(help="Where the tables go.")],
    wheel: Annotated[
        str, typer.Option(help="The recbole 1.2.1 wheel that holds the data, if pip can't fetch it here.", metavar="PATH")
    ] = "",
) -> None:
    """Fetch MovieLens-100k and write it as the five input tables; a folder that is whole is left as it is.

    Example: clrflow data movielens demo/tables
    """
    from clrflow.data.movielens import prepare

    console.line(f"MovieLens-100k in {folder}: {_counts(prepare(folder, wheel=wheel))}")


@app.command("synthetic")
def synthetic(
    folder: Annotated[str, typer.Argument(help="Where the tables go.")],
    users: Annotated[int, typer.Option(help="Number of users.", min=1)] = 1000,
    items: Annotated[int, typer.Option(help="Number of items.", min=1)] = 2000,
    days: Annotated[int, typer.Option(help="Days of events.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal tables.")] = 0,
    events_per_user: Annotated[int, typer.Option(help="Mean number of clicks and saves of a user.", min=1)] = 40,
) -> None:
    """Make up a log with Zipf popularity, interests, boards, drift and items born during the window.

    Example: clrflow data synthetic tables --users 1000 --items 2000 --days 20 --seed 0
    """
    from clrflow.data.synthetic import generate

    console.line(
        f"synthetic log in {folder}: {_counts(generate(folder, users=users, items=items, days=days, seed=seed, events_per_user=events_per_user))}"
    )


def _counts(source: Mapping[str, Any]) -> str:
    """`source.json` as a line: `events 100,000, items 1,682, …`."""
    return ", ".join(f"{name} {show(table['num_rows'])}" for name, table in source["tables"].items())
