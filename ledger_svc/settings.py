"""Settings of the ledger: the environment (``DSEARCH_LEDGER_...``) or a TOML file, read only at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from service_kit.settings import ServiceSettings


class LedgerSettings(ServiceSettings):
    """What an operator may set. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="DSEARCH_LEDGER_")

    bind: str = "127.0.0.1:7101"
    """Address to listen on."""
    database: Path = Path("data/ledger.sqlite")
    """The ledger's file; one process at a time holds it. Its folder is made when it is not there."""
    tokens_file: Path = Path("data/tokens.json")
    """Digests of the tokens that callers may use."""
    readers: int = Field(default=4, ge=1, le=64)
    """Connections, and threads, for reading."""
    max_waiting_writes: int = Field(default=4_096, ge=1)
    """More waiting decisions than that are refused as OVERLOADED."""
    heartbeat_seconds: float = Field(default=15.0, gt=0.0)
    """How often a watch without news says that it is alive."""
    grace_seconds: float = Field(default=10.0, ge=0.0)
    """How long a shutdown waits for calls in progress."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["json", "console"] = "json"
    """One JSON object a line, or text for a person."""
