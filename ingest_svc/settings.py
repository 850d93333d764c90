"""Settings of the ingest service: the environment (``DSEARCH_INGEST_...``) or a TOML file, read only at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from service_kit.settings import ServiceSettings


class IngestSettings(ServiceSettings):
    """What an operator may set. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="DSEARCH_INGEST_")

    bind: str = "127.0.0.1:7104"
    """Address to listen on."""
    tokens_file: Path = Path("data/tokens.json")
    """Digests of the tokens that callers may use."""
    ledger_address: str = "127.0.0.1:7101"
    """The ledger."""
    index_address: str = "127.0.0.1:7102"
    """The index."""

    extractor: Literal["structured", "openai"] = "structured"
    """``structured`` needs no model and reads what has structure; ``openai`` also reads free text, by any API of that
    shape."""
    openai_base_url: str = "https://api.openai.com/v1"
    """Where the chat API is."""
    openai_api_key: SecretStr = SecretStr("")
    """Its key; may be empty for a local server."""
    openai_model: str = "gpt-4o-mini"
    """Its model; it must support structured outputs."""
    openai_timeout_seconds: float = Field(default=60.0, gt=0.0, le=600.0)
    """For one request."""
    openai_retry_seconds: float = Field(default=120.0, gt=0.0, le=1_800.0)
    """For all attempts of one observation together."""
    openai_concurrency: int = Field(default=4, ge=1, le=64)
    """Requests at once."""

    index_timeout_seconds: float = Field(default=10.0, gt=0.0, le=60.0)
    """How long a comparison may take; without it a candidate is judged all the same, and says so."""
    max_concurrent_calls: int = Field(default=200, ge=1)
    """More calls at once are refused."""
    grace_seconds: float = Field(default=10.0, ge=0.0)
    """How long a shutdown waits for calls in progress."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["json", "console"] = "json"
    """One JSON object a line, or text for a person."""
