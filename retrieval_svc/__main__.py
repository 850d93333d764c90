"""Run the retrieval service: ``python -m retrieval_svc [SETTINGS.toml]``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from retrieval_svc.app import serve
from retrieval_svc.settings import RetrievalSettings
from service_kit.logs import configure, get_logger
from service_kit.settings import SettingsError


def main() -> int:
    """Read the settings, serve, and return the exit code."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        settings = RetrievalSettings.load(toml_file=file, section="retrieval")
    except SettingsError as error:
        sys.stderr.write(f"retrieval: {error}\n")
        return 2
    configure(settings.log_level, settings.log_format)
    get_logger("retrieval").info("settings", **settings.describe())
    asyncio.run(serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
