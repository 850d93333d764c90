"""Run the ingest service: ``python -m ingest_svc [SETTINGS.toml]``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from ingest_svc.app import serve
from ingest_svc.settings import IngestSettings
from service_kit.logs import configure, get_logger
from service_kit.serving import BindError
from service_kit.settings import SettingsError
from service_kit.tokens import TokenFileError

_EPILOG = """\
settings, from the environment or the [ingest] table of the file (the environment wins):
  DSEARCH_INGEST_BIND                   address to listen on (127.0.0.1:7104)
  DSEARCH_INGEST_LEDGER_ADDRESS         the ledger (127.0.0.1:7101)
  DSEARCH_INGEST_INDEX_ADDRESS          the index (127.0.0.1:7102)
  DSEARCH_INGEST_TOKENS_FILE            digests of the tokens that callers may use (data/tokens.json)
  DSEARCH_INGEST_EXTRACTOR              structured, or openai to read free text as well (structured)
  DSEARCH_INGEST_OPENAI_BASE_URL        where the chat API is
  DSEARCH_INGEST_OPENAI_API_KEY         its key
  DSEARCH_INGEST_OPENAI_MODEL           its model (gpt-4o-mini)

example:
  DSEARCH_INGEST_EXTRACTOR=openai DSEARCH_INGEST_OPENAI_BASE_URL=http://127.0.0.1:8000/v1 python -m ingest_svc
"""


def main() -> int:
    """Read the settings, serve, and return the exit code: 2 for settings or files that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m ingest_svc",
        description="Serve ingest: sanitise observations, read candidates, judge them, propose them to the ledger.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("settings", nargs="?", type=Path, help="a TOML file; its [ingest] table is read")
    arguments = parser.parse_args()
    try:
        section = "ingest" if arguments.settings else ""
        settings = IngestSettings.load(toml_file=arguments.settings, section=section)
    except SettingsError as error:
        sys.stderr.write(f"ingest: {error}\n")
        return 2
    configure(settings.log_level, settings.log_format)
    get_logger("ingest").info("settings", **settings.describe())
    try:
        asyncio.run(serve(settings))
    except (BindError, TokenFileError, OSError) as error:
        sys.stderr.write(f"ingest: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
