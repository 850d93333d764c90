"""serve: the four services in one process."""

from __future__ import annotations

import asyncio
import importlib
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.text import Text

from all_in_one.folder import FIRST_PRINCIPALS, DataFolder, FolderInUseError, FolderUnusableError
from all_in_one.settings import AllInOneSettings
from dsearch.cli.frame import CommandError, Exit, Frame, command
from dsearch.connection import default_data_folder
from service_kit import logs
from service_kit.serving import BackgroundTaskDied, BindError

if TYPE_CHECKING:
    from all_in_one.app import Running

_BIND: Final = re.compile(r"unix:.+|(\[[0-9A-Fa-f:.]+\]|[^:\s]+):(\d{1,5})")
_LAST_PORT: Final = 65_535


class _Settings(AllInOneSettings):
    """A line a call is for who asks for it; what went wrong is for everybody."""

    log_level: Literal["debug", "info", "warning", "error"] = "warning"


def add(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "serve", acts_as="owner", project=False, example="dsearch serve --data ./memory")
    async def serve(
        frame: Frame,
        bind: Annotated[str, typer.Option("--bind", help="Address; port 0 lets the system choose.")] = "",
        settings_file: Annotated[
            Path | None, typer.Option("--settings", help="TOML file with settings.", show_default=False)
        ] = None,
        log_level: Annotated[
            str, typer.Option("--log-level", help="debug, info, warning or error; default: warning.")
        ] = "",
    ) -> int:
        """Run ledger, index, retrieval and ingest in this process, on one data folder. Ctrl-C or SIGTERM stops it."""
        _check_bind(bind)
        settings: AllInOneSettings = _Settings.load(
            toml_file=settings_file,
            section="all_in_one" if settings_file else "",
            data_dir=(frame.data or default_data_folder()).expanduser(),
            bind=bind or None,
            log_level=log_level or None,
            log_format="console" if frame.err.is_terminal else None,
        )
        logs.configure(settings.log_level, settings.log_format)
        folder = DataFolder(settings.data_dir)
        frame.note(f"starting on {folder.root} ...")
        try:
            with folder.exclusive():
                await _run(frame, settings, settings_file, folder)
        except FolderUnusableError as error:
            raise CommandError(str(error), "name another folder with --data") from None
        except FolderInUseError as error:
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


def _check_bind(bind: str) -> None:
    """Refuse what is no address; whether it can be listened on, the system says."""
    match = _BIND.fullmatch(bind)
    if bind and (match is None or int(match[2] or 0) > _LAST_PORT):
        raise CommandError(f"--bind: {bind!r} is no address", "write host:port, e.g. 127.0.0.1:7600; port 0 is any")


async def _run(frame: Frame, settings: AllInOneSettings, settings_file: Path | None, folder: DataFolder) -> None:
    """Serve until a signal. One that comes earlier ends the start, in order and without a traceback."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    served: Running | None = None

    def stop() -> None:
        if served is not None:
            served.host.stop()
        elif task is not None:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    # Not above: it pulls in the models, and no other command needs them. In a thread, so that signals are heard.
    all_in_one_app = await asyncio.to_thread(importlib.import_module, "all_in_one.app")
    store = importlib.import_module("ledger_svc.store")
    try:
        async with all_in_one_app.open_host(settings, settings_file, held=True) as running:
            await running.start()
            served = running
            frame.print(Text().append("serving ", style="bold green").append(f"{running.address} on {folder.root}"))
            names = ", ".join(FIRST_PRINCIPALS)
            frame.print(Text(f"tokens in {folder.tokens_folder}: {names}", style="dim"))
            frame.print(Text().append("next, in another terminal: ", style="dim").append("dsearch init PROJECT"))
            frame.result({"address": running.address, "data": str(folder.root)})
            frame.out.file.flush()
            await running.serve()
    except store.StoreUnusableError as error:
        raise CommandError(str(error), "", Exit.REFUSED) from None
