"""`clrflow serve`: answer queries of a published index over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    index: Annotated[str, typer.Argument(help="A workspace, its published folder, a version or a bundle; the first two are followed.")],
    port: Annotated[int, typer.Option("--port", "-p", help="Port to listen on; 0 takes a free one and prints it.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all. There is no authentication.")] = "127.0.0.1",
    threads: Annotated[int, typer.Option(help="Requests computed at once, one core each.")] = 2,
    poll_s: Annotated[float, typer.Option("--poll-s", help="Seconds between two looks at what is published.")] = 5.0,
    model_name: Annotated[str, typer.Option(help="Name in the URLs, /v1/models/NAME:predict.")] = "clrflow",
) -> None:
    """Serve an index over HTTP (KServe v1) and swap to newer versions as they are published; Ctrl-C ends it.

    Example: clrflow serve demo/workspace --port 8080
    """
    from clrflow.serving.settings import serve_settings

    settings = serve_settings(index=index, port=port, host=host, threads=threads, poll_s=poll_s, model_name=model_name)
    from clrflow.serving.server import serve

    serve(settings)
