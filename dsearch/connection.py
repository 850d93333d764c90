"""How the command line finds a server, a token, and its own last writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from all_in_one.folder import DataFolder
from dsearch.client import DecisionsClient, Endpoints

_OPEN_TO_OTHERS: Final = 0o077


class ConnectionProblem(Exception):  # noqa: N818 - reads as what it is
    """No server or no token to use; the message says what to do."""


class TokenProblem(ConnectionProblem):
    """There is a server but no token to use: the options name the wrong one."""


def default_data_folder() -> Path:
    """Return where an embedded deployment of this user keeps its data unless told otherwise."""
    return Path.home() / ".local" / "share" / "decisionssearch"


@dataclass(frozen=True, slots=True)
class Connection:
    """Where to call, as whom, and what this user has written there."""

    endpoints: Endpoints
    token: str
    folder: DataFolder | None

    def client(self, *, timeout_seconds: float, wait_for_ready: bool = False) -> DecisionsClient:
        """Return a client; call it in the loop that will use it."""
        return DecisionsClient(
            self.endpoints,
            self.token,
            timeout_seconds=timeout_seconds,
            wait_for_ready=wait_for_ready,
            seen=self._read_session(),
        )

    def remember(self, seen: Mapping[str, str]) -> None:
        """Keep the LedgerTokens of this user's writes for the next command."""
        if self.folder is None or not seen or seen == self._read_session():
            return
        merged = {**self._read_session(), **seen}
        part = self.folder.session_file.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")
            part.replace(self.folder.session_file)
        except OSError:
            # A read-only folder only costs the guarantee between two commands.
            part.unlink(missing_ok=True)

    def _read_session(self) -> dict[str, str]:
        if self.folder is None:
            return {}
        try:
            body = json.loads(self.folder.session_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {k: v for k, v in body.items() if isinstance(v, str)} if isinstance(body, dict) else {}


def find(*, endpoint: str, token_file: Path | None, data: Path | None, acts_as: str) -> Connection:
    """Return how to reach the server.

    Args:
        endpoint: ``host:port`` or the four of them; empty means the server that runs on the data folder.
        token_file: File with the token; None means the one of ``acts_as`` in the data folder.
        data: The data folder; None means the user's default one.
        acts_as: Name of the principal whose token is used.

    Raises:
        ConnectionProblem: There is no server to be found.
        TokenProblem: There is no such token, or it is not to be used.
        InvalidRequest: The endpoint is malformed.
    """
    folder = DataFolder((data or default_data_folder()).expanduser())
    if endpoint:
        endpoints = Endpoints.parse(endpoint)
    else:
        running = folder.read_endpoint()
        if running is None:
            raise ConnectionProblem(
                f"no server runs on {folder.root}; start one with `dsearch serve`, "
                "or name a server with --endpoint host:port and a token with --token-file"
            )
        endpoints = Endpoints(running["ledger"], running["index"], running["retrieval"], running["ingest"])
    token = _read_token(token_file.expanduser() if token_file else folder.token_file(acts_as), folder)
    # LedgerTokens belong to the folder's own ledger.
    return Connection(endpoints, token, None if endpoint else folder)


def _read_token(path: Path, folder: DataFolder) -> str:
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        known = sorted(p.stem for p in folder.tokens_folder.glob("*.token")) if folder.tokens_folder.is_dir() else []
        hint = f"; there are tokens for {', '.join(known)} (--as NAME)" if known else ""
        raise TokenProblem(f"there is no token in {path}{hint}; make one with `dsearch token issue`") from None
    except (OSError, ValueError) as error:
        raise TokenProblem(f"{path} cannot be read as a token ({type(error).__name__})") from None
    if mode & _OPEN_TO_OTHERS:
        raise TokenProblem(f"{path} may be read by others; run: chmod 600 {path}")
    if not token:
        raise TokenProblem(f"{path} is empty; make a token with `dsearch token issue`")
    return token
