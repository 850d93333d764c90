"""serve: the four services in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from all_in_one.folder import FIRST_PRINCIPALS, DataFolder, FolderInUseError
from all_in_one.settings import AllInOneSettings
from dsearch.cli.frame import Exit, Frame, command
from dsearch.connection import default_data_folder
from service_kit import logs
from service_kit.serving import BackgroundTaskDied, BindError


def add(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "serve", acts_as="owner", project=False, example="dsearch serve --data ./memory")
    async def serve(
        frame: Frame,
        bind: Annotated[str, typer.Option("--bind", help="Address; port 0 lets the system choose.")] = "",
        settings_file: Annotated[
            Path | None, typer.Option("--settings", help="TOML file with settings.", show_default=False)
        ] = None,
        log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "",
    ) -> int:
        """Run ledger, index, retrieval and ingest in this process, on one data folder. Ctrl-C or SIGTERM stops it."""
        # Not above: it pulls in the models, and no other command needs them.
        from all_in_one.app import open_host
        from ledger_svc.store import StoreUnusableError

        settings = AllInOneSettings.load(
            toml_file=settings_file,
            section="all_in_one" if settings_file else "",
            data_dir=(frame.data or default_data_folder()).expanduser(),
            bind=bind or None,
            log_level=log_level or ("warning" if frame.err.is_terminal else None),
            log_format="console" if frame.err.is_terminal else None,
        )
        logs.configure(settings.log_level, settings.log_format)
        folder = DataFolder(settings.data_dir)
        try:
            async with open_host(settings, settings_file) as running:
                frame.print(Text().append("serving ", style="bold green").append(f"{running.address} on {folder.root}"))
                names = ", ".join(FIRST_PRINCIPALS)
                frame.print(Text(f"tokens in {folder.tokens_folder}: {names}", style="dim"))
                frame.print(Text().append("next, in another terminal: ", style="dim").append("dsearch init PROJECT"))
                frame.result({"address": running.address, "data": str(folder.root)})
                frame.out.file.flush()
                await running.run()
        except (FolderInUseError, StoreUnusableError) as error:
            frame.err.print(Text().append("✗ ", style="bold red").append(str(error)))
            return Exit.REFUSED
        except BindError as error:
            frame.err.print(Text().append("✗ ", style="bold red").append(str(error)))
            return Exit.UNAVAILABLE
        except BackgroundTaskDied as error:
            frame.err.print(Text().append("✗ ", style="bold red").append(f"{error}; the log above says why"))
            return Exit.BUG
        frame.print(Text("stopped", style="dim"))
        return Exit.OK
