"""Run the ledger: ``python -m ledger_svc [SETTINGS.toml]``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from ledger_svc.app import serve
from ledger_svc.settings import LedgerSettings
from ledger_svc.store import StoreUnusableError
from service_kit.logs import configure, get_logger
from service_kit.serving import BindError
from service_kit.settings import SettingsError
from service_kit.tokens import TokenFileError

_EPILOG = """\
settings, from the environment or the [ledger] table of the file (the environment wins):
  DSEARCH_LEDGER_BIND                address to listen on (127.0.0.1:7101)
  DSEARCH_LEDGER_DATABASE            the ledger's file (data/ledger.sqlite)
  DSEARCH_LEDGER_STORE               sqlite, or neo4j for a server that several processes may share (sqlite)
  DSEARCH_LEDGER_NEO4J_URI           neo4j://host:7687 or bolt://host:7687; with +s for TLS
  DSEARCH_LEDGER_NEO4J_USER          who to log in as (neo4j)
  DSEARCH_LEDGER_NEO4J_PASSWORD_FILE file with the password
  DSEARCH_LEDGER_NEO4J_DATABASE      database on the server (neo4j)
  DSEARCH_LEDGER_NEO4J_CA_FILE       PEM file of a certificate authority of one's own
  DSEARCH_LEDGER_NEO4J_POOL_SIZE     connections to the server (32)
  DSEARCH_LEDGER_NEO4J_CONNECT_SECONDS, _TRANSACTION_SECONDS, _RETRY_SECONDS  bounds in time (10, 30, 20)
  DSEARCH_LEDGER_TOKENS_FILE         digests of the tokens that callers may use (data/tokens.json)
  DSEARCH_LEDGER_READERS             threads for reading (4)
  DSEARCH_LEDGER_MAX_WAITING_WRITES  more waiting decisions are refused as OVERLOADED (4096)
  DSEARCH_LEDGER_HEARTBEAT_SECONDS   how often a watch without news says that it is alive (15)
  DSEARCH_LEDGER_GRACE_SECONDS       how long a shutdown waits for calls in progress (10)
  DSEARCH_LEDGER_LOG_LEVEL           debug, info, warning or error (info)
  DSEARCH_LEDGER_LOG_FORMAT          json or console (json)

example:
  DSEARCH_LEDGER_DATABASE=/var/lib/dsearch/ledger.sqlite python -m ledger_svc
"""


def main() -> int:
    """Read the settings, serve, and return the exit code: 2 for settings or a file that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m ledger_svc",
        description="Serve the ledger: projects, proposals, published knowledge and its history.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("settings", nargs="?", type=Path, help="a TOML file; its [ledger] table is read")
    arguments = parser.parse_args()
    try:
        section = "ledger" if arguments.settings else ""
        settings = LedgerSettings.load(toml_file=arguments.settings, section=section)
    except SettingsError as error:
        sys.stderr.write(f"ledger: {error}\n")
        return 2
    configure(settings.log_level, settings.log_format)
    get_logger("ledger").info("settings", **settings.describe())
    try:
        asyncio.run(serve(settings))
    except (StoreUnusableError, BindError, TokenFileError, OSError) as error:
        sys.stderr.write(f"ledger: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
