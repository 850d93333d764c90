"""Settings of the embedded deployment: the environment (``DSEARCH_ALL_...``) or a TOML file, read at the start.

What belongs to one service has that service's name: ``DSEARCH_INDEX_EMBEDDER=openai`` works here as in a process of its
own. Addresses and folders of the parts follow from the data folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from service_kit.settings import ServiceSettings


class AllInOneSettings(ServiceSettings):
    """What an operator may set. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="DSEARCH_ALL_")

    data_dir: Path = Path("data")
    """The data folder; one process at a time holds it."""
    bind: str = "127.0.0.1:0"
    """Address to listen on; port 0 lets the system choose one, and endpoint.json says which."""
    grace_seconds: float = Field(default=10.0, ge=0.0)
    """How long a shutdown waits for calls in progress."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["json", "console"] = "json"
    """One JSON object a line, or text for a person."""
