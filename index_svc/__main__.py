"""Run the index service: ``python -m index_svc [--rebuild] [SETTINGS.toml]``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from index_svc.app import serve
from index_svc.settings import IndexSettings
from service_kit.errors import DomainError
from service_kit.logs import configure, get_logger
from service_kit.settings import SettingsError


def main() -> int:
    """Read the settings, serve, and return the exit code: 2 for wrong settings, 3 for an index that does not fit."""
    parser = argparse.ArgumentParser(prog="python -m index_svc", description="Serve the index of a ledger.")
    parser.add_argument("settings", nargs="?", type=Path, help="a TOML file; its [index] table is read")
    parser.add_argument("--rebuild", action="store_true", help="fill a new collection from the ledger, then use it")
    arguments = parser.parse_args()
    try:
        settings = IndexSettings.load(
            toml_file=arguments.settings, section="index", rebuild=True if arguments.rebuild else None
        )
    except SettingsError as error:
        sys.stderr.write(f"index: {error}\n")
        return 2
    configure(settings.log_level, settings.log_format)
    get_logger("index").info("settings", **settings.describe())
    try:
        asyncio.run(serve(settings))
    except DomainError as error:
        sys.stderr.write(f"index: {error.message} (start with --rebuild to fill it anew)\n")
        return 3
    except OSError as error:
        sys.stderr.write(f"index: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
