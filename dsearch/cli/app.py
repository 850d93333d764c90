"""The command line, put together."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Annotated

import typer

from dsearch.cli import demo, ingest, operate, propose, read, review, search, serve
from dsearch.cli.frame import EXIT_CODES_HELP

_EVALUATION = "dsearch.evaluation.cli"


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

    for part in (serve, operate, ingest, search, read, propose, review, demo):
        part.add(app)
    evaluation = _optional(_EVALUATION)
    if evaluation is not None:
        evaluation.add(app)
    return app


def _optional(module: str) -> ModuleType | None:
    """Return a part that an installation may lack: `dsearch eval` needs no server and comes with its own package."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            return None
        raise
