"""The command line, put together."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dsearch.cli import demo, evaluate, ingest, moving, operate, propose, read, review, search, serve
from dsearch.cli.frame import EXIT_CODES_HELP, Exit


class _Root(TyperGroup):
    """The program; with --json it says what is wrong with its options as JSON as well."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run it."""
        given = list(sys.argv[1:] if args is None else args)
        as_json = standalone_mode and "--json" in given
        run = partial(super().main, given, prog_name, complete_var, windows_expand_args=windows_expand_args, **extra)
        if not as_json:
            return run(standalone_mode=standalone_mode)
        try:
            code = run(standalone_mode=False)
        except Exception as error:
            # The framework's own error class is in a private module; this is what tells it from a bug.
            explain = getattr(error, "format_message", None)
            if explain is None:
                raise
            problem = {"reason": "USAGE", "message": explain(), "remedy": "see --help", "exit_code": int(Exit.USAGE)}
            sys.stderr.write(json.dumps({"error": problem}, ensure_ascii=False, indent=2) + "\n")
            sys.exit(Exit.USAGE)
        sys.exit(code if isinstance(code, int) else 0)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("decisionssearch"))
        raise typer.Exit


def build() -> typer.Typer:
    """Return the application."""
    app = typer.Typer(
        name="dsearch",
        cls=_Root,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Governed memory: what is in force, what it replaced, on what evidence. "
        "Start with `dsearch demo`, or `dsearch serve` and `dsearch init PROJECT`.",
        epilog=EXIT_CODES_HELP,
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
        ] = False,
    ) -> None:
        del version

    for part in (serve, operate, moving, ingest, search, read, propose, review, evaluate, demo):
        part.add(app)
    return app
