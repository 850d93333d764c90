"""Settings of the ledger: the environment (``DSEARCH_LEDGER_...``) or a TOML file, read only at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from service_kit.settings import ServiceSettings


class LedgerSettings(ServiceSettings):
    """What an operator may set. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="DSEARCH_LEDGER_")

    bind: str = "127.0.0.1:7101"
    """Address to listen on."""
    database: Path = Path("data/ledger.sqlite")
    """The ledger's file; one process at a time holds it. Its folder is made when it is not there."""
    store: Literal["sqlite", "neo4j"] = "sqlite"
    """Where the ledger is kept: ``database`` here, or a server that several processes may share."""
    neo4j_uri: str = Field(default="", pattern=r"^$|^(bolt|neo4j)(\+s|\+ssc)?://")
    """Address of the Neo4j server: ``neo4j://`` (a cluster, or one server), ``bolt://``; ``+s`` for TLS."""
    neo4j_user: str = "neo4j"
    """Who to log in as."""
    neo4j_password_file: Path | None = None
    """File with the password, and nothing else."""
    neo4j_database: str = "neo4j"
    """Database on the server that this ledger has for itself."""
    neo4j_ca_file: Path | None = None
    """PEM file of a certificate authority of one's own; turns TLS on for ``bolt://`` and ``neo4j://``."""
    neo4j_pool_size: int = Field(default=32, ge=2, le=1_000)
    """Connections to the server."""
    neo4j_connect_seconds: float = Field(default=10.0, gt=0.0)
    """How long connecting may take."""
    neo4j_transaction_seconds: float = Field(default=30.0, gt=0.0)
    """After this the server ends a transaction."""
    neo4j_retry_seconds: float = Field(default=20.0, gt=0.0)
    """How long a call goes on trying while the server is away."""
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

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        """Refuse half of a choice: a ledger that starts empty in the wrong place is found too late."""
        if self.store == "neo4j" and not self.neo4j_uri:
            raise ValueError("store is neo4j: neo4j_uri must say where")
        if self.store == "sqlite" and self.neo4j_uri:
            raise ValueError("neo4j_uri is set, but store is sqlite: set store to neo4j, or take neo4j_uri away")
        return self
