"""Settings of the index service: the environment (``DSEARCH_INDEX_...``) or a TOML file, read only at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from service_kit.settings import ServiceSettings


class IndexSettings(ServiceSettings):
    """What an operator may set. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="DSEARCH_INDEX_")

    bind: str = "127.0.0.1:7102"
    """Address to listen on."""
    data_dir: Path = Path("data/index")
    """Collections and state; one process at a time holds it."""
    tokens_file: Path = Path("data/tokens.json")
    """Digests of the tokens that callers may use."""
    ledger_address: str = "127.0.0.1:7101"
    """The ledger."""
    ledger_token_file: Path = Path("data/service.token")
    """The service's own token, for the outbox and the projections."""

    embedder: Literal["offline", "openai"] = "offline"
    """``offline`` needs no key and no network; ``openai`` is any API of that shape."""
    openai_base_url: str = "https://api.openai.com/v1"
    """Where the embeddings API is."""
    openai_api_key: SecretStr = SecretStr("")
    """Its key; may be empty for a local server."""
    openai_model: str = "text-embedding-3-small"
    """Its model."""
    openai_dimensions: int = Field(default=512, ge=8, le=4096)
    """Dimensions of its vectors."""

    rebuild: bool = False
    """Rebuild at the start: the remedy when model, dimensions or recipe changed."""
    worker: str = "index"
    """Name of the follower in the outbox."""
    batch_size: int = Field(default=48, ge=1, le=500)
    """Events that the follower claims at once: a batch of new, long texts takes some seconds to embed."""
    lease_seconds: float = Field(default=30.0, ge=1.0, le=600.0)
    """How long it holds them before it has to renew."""
    claim_wait_seconds: float = Field(default=10.0, ge=0.0, le=30.0)
    """How long one claim waits for an event."""
    calibration_quiet_seconds: float = Field(default=2.0, ge=0.0)
    """How long a corpus must stay unchanged before the off-topic bank is asked of it."""
    grace_seconds: float = Field(default=10.0, ge=0.0)
    """How long a shutdown waits for calls in progress."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["json", "console"] = "json"
    """One JSON object a line, or text for a person."""
