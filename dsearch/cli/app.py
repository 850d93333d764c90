"""The command line, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from dsearch.cli import demo, evaluate, ingest, moving, operate, propose, read, review, search, serve
from dsearch.cli.frame import EXIT_CODES_HELP


def build() -> typer.Typer:
    """Return the application."""
    app = typer.Typer(
        name="dsearch",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Governed memory: what is in force, what it replaced, on what evidence. "
        "Start with `dsearch demo`, or `dsearch serve` and `dsearch init PROJECT`.",
        epilog=EXIT_CODES_HELP,
    )

    @app.callback()
    def root(
        version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    ) -> None:
        if version:
            from importlib.metadata import version as version_of

            typer.echo(version_of("decisionssearch"))
            raise typer.Exit

    for part in (serve, operate, moving, ingest, search, read, propose, review, evaluate, demo):
        part.add(app)
    return app
