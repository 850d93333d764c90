"""Run the four services in one process: ``python -m all_in_one [SETTINGS.toml]``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from all_in_one.app import open_host
from all_in_one.folder import FolderInUseError, FolderUnusableError
from all_in_one.settings import AllInOneSettings
from ledger_svc.store import StoreUnusableError
from service_kit.errors import DomainError
from service_kit.logs import configure, get_logger
from service_kit.serving import BackgroundTaskDied, BindError
from service_kit.settings import SettingsError
from service_kit.tokens import TokenFileError

_TO_MEND = (
    SettingsError,
    FolderInUseError,
    FolderUnusableError,
    BindError,
    StoreUnusableError,
    TokenFileError,
)


async def _serve(settings: AllInOneSettings, file: Path | None) -> None:
    async with open_host(settings, file) as running:
        await running.run()


def main() -> int:
    """Read the settings, serve, and return the exit code: 2 for what has to be mended first, 1 for what broke."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        settings = AllInOneSettings.load(toml_file=file, section="all_in_one" if file else "")
        configure(settings.log_level, settings.log_format)
        get_logger("all_in_one").info("settings", **settings.describe())
        asyncio.run(_serve(settings, file))
    except _TO_MEND as error:
        sys.stderr.write(f"all_in_one: {error}\n")
        return 2
    except DomainError as error:
        sys.stderr.write(f"all_in_one: {error.message}\n")
        return 2
    except BackgroundTaskDied as error:
        sys.stderr.write(f"all_in_one: {error}\n")
        return 1
    except KeyboardInterrupt:
        # While it started; once it serves, the signal stops it in order.
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
