"""`clrflow`: one command a module in commands/, all with the same habits.

Exit code 0: done; 1: the work failed; 2: the input was wrong. A message says what and which value, why, and what to do. Modules of commands
import what is heavy inside their functions, so `clrflow --help` is quick and `clrflow query` needs no Kubeflow.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clrflow import __version__
from clrflow.errors import ClrflowError
from pipelines import console
from pipelines.commands import compile as compile_command
from pipelines.commands import data, doctor, gc, query, report, run, schedule, serve, submit


class Commands(TyperGroup):
    """Prints a known error as one message and leaves with its exit code; an unknown one keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ClrflowError as error:
            console.error(str(error))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            console.error("interrupted. Run the same command again: finished steps are kept.")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    help="Conditional learned retrieval: from a user-event log to a served retrieval index.",
    epilog="A first look: clrflow data movielens demo/tables, then clrflow run --preset demo --workspace demo/workspace",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.line(f"clrflow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")] = False,
) -> None:
    pass


app.command("run")(run.command)
app.command("compile")(compile_command.command)
app.command("submit")(submit.command)
app.command("schedule")(schedule.command)
app.command("gc")(gc.command)
app.command("query")(query.command)
app.command("serve")(serve.command)
app.command("report")(report.command)
app.command("doctor")(doctor.command)
app.add_typer(data.app, name="data")

if __name__ == "__main__":
    app()
