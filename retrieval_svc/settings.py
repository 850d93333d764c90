"""Settings of the retrieval service: the environment (``DSEARCH_RETRIEVAL_...``) or a TOML file, read at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from service_kit.settings import ServiceSettings


class RetrievalSettings(ServiceSettings):
    """What an operator may set. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="DSEARCH_RETRIEVAL_")

    bind: str = "127.0.0.1:7103"
    """Address to listen on."""
    tokens_file: Path = Path("data/tokens.json")
    """Digests of the tokens that callers may use."""
    ledger_address: str = "127.0.0.1:7101"
    """The ledger."""
    index_address: str = "127.0.0.1:7102"
    """The index."""

    default_deadline_seconds: float = Field(default=10.0, gt=0.0, le=600.0)
    """Time for a search whose caller names no deadline."""
    index_timeout_seconds: float = Field(default=5.0, gt=0.0, le=60.0)
    """How long the index may take before the ledger stands in; never more than half of the caller's time."""
    scan_seconds: float = Field(default=3.0, gt=0.0, le=60.0)
    """How long the ledger's texts are read in the index's place."""
    scan_heads: int = Field(default=5_000, ge=1, le=100_000)
    """How many of them."""
    tail_commits: int = Field(default=2_000, ge=1, le=50_000)
    """Commits that the index has not seen that a search reads from the ledger; beyond that it says INDEX_LAGGING."""

    max_concurrent_calls: int = Field(default=1_000, ge=1)
    """More calls at once are refused."""
    grace_seconds: float = Field(default=10.0, ge=0.0)
    """How long a shutdown waits for calls in progress."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["json", "console"] = "json"
    """One JSON object a line, or text for a person."""
