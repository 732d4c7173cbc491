"""`python -m clrflow.serving --index URI`: what the serving image starts. A flag a setting; `clrflow serve` is the same for people."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any

from clrflow.errors import ClrflowError
from clrflow.serving.settings import ServeSettings, serve_settings


def main(arguments: list[str] | None = None) -> int:
    """Serve; returns the exit code."""
    # As process 1 of a container the default is to ignore SIGTERM, and importing torch takes seconds.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        settings = serve_settings(**_parse(arguments))
        from clrflow.serving.server import serve

        serve(settings)
    except ClrflowError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _parse(arguments: list[str] | None) -> dict[str, Any]:
    """Only what was given, as texts; the settings check and convert them."""
    parser = argparse.ArgumentParser(
        prog="python -m clrflow.serving", description="Serve a retrieval index over HTTP.", argument_default=argparse.SUPPRESS
    )
    for name, field in ServeSettings.model_fields.items():
        default = "" if field.is_required() else f" Default: {field.default}."
        help_text = f"{field.description}{default}".replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, required=field.is_required(), help=help_text, metavar="VALUE")
    return vars(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
