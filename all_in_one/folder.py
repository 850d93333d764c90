"""The data folder of an embedded deployment: what lies where, who may open it, and the tokens of the first start.

ledger.sqlite   the ledger: the only file that cannot be made again
index/          the projection; `dsearch rebuild` makes it again
tokens/         tokens.json (digests) and one file a principal, all mode 0600
endpoint.json   where the running server listens; gone when it stops
lock            held by the running server
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from service_kit.principals import ALL_PROJECTS, Kind, Principal, Role, grant
from service_kit.tokens import TokenFile

LOCAL_ISSUER: Final = "local"
_PRIVATE: Final = 0o700
_PROBE_SECONDS: Final = 0.5
"""How long a server that finds the lock held waits for a command that only looks whether it is."""
_PROBE_PAUSE_SECONDS: Final = 0.02

FIRST_PRINCIPALS: Final[Mapping[str, Principal]] = MappingProxyType(
    {
        name: Principal(LOCAL_ISSUER, name, kind, on_behalf_of, (grant(ALL_PROJECTS, roles),))
        for name, kind, on_behalf_of, roles in (
            ("owner", Kind.HUMAN, "", (Role.ADMIN, Role.PROPOSER)),
            ("reviewer", Kind.HUMAN, "", (Role.REVIEWER,)),
            ("agent", Kind.AGENT, "owner", (Role.PROPOSER,)),
            ("importer", Kind.SERVICE, "", (Role.PROPOSER,)),
            ("indexer", Kind.SERVICE, "", (Role.ADMIN,)),
            ("reader", Kind.HUMAN, "", (Role.READER,)),
        )
    }
)
"""Who gets a token at the first start. The owner cannot review what the owner or the agent proposes: nobody can."""


class FolderUnusableError(Exception):
    """The data folder cannot be made or written; the message says why."""


class FolderInUseError(Exception):
    """Another server holds the data folder; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths of one data folder."""

    root: Path

    @property
    def ledger_file(self) -> Path:
        """The ledger's database."""
        return self.root / "ledger.sqlite"

    @property
    def index_folder(self) -> Path:
        """The index."""
        return self.root / "index"

    @property
    def tokens_folder(self) -> Path:
        """Where the tokens are."""
        return self.root / "tokens"

    @property
    def tokens_file(self) -> Path:
        """Digests of all tokens."""
        return self.tokens_folder / "tokens.json"

    @property
    def endpoint_file(self) -> Path:
        """Where the running server says how to reach it."""
        return self.root / "endpoint.json"

    @property
    def lock_file(self) -> Path:
        """Held by the running server."""
        return self.root / "lock"

    @property
    def session_file(self) -> Path:
        """LedgerTokens that the command line has seen, so that its next call reads its last write."""
        return self.root / "session.json"

    def token_file(self, name: str) -> Path:
        """The token of one principal, as text."""
        return self.tokens_folder / f"{name}.token"

    def create(self) -> None:
        """Make the folder, closed to others, unless it is there."""
        self.root.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)

    def issue_first_tokens(self) -> Mapping[str, str]:
        """Return the tokens of the first principals by name; made at the first start, read at the next ones."""
        tokens = TokenFile(self.tokens_file)
        return {name: tokens.ensure(self.token_file(name), who) for name, who in FIRST_PRINCIPALS.items()}

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the folder for a block.

        Raises:
            FolderInUseError: Another process holds it.
            FolderUnusableError: It is no folder, or may not be written.
        """
        try:
            self.create()
            handle = os.open(self.lock_file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FolderUnusableError(f"{self.root} cannot be the data folder: {error.strerror or error}") from None
        try:
            if not _locked(handle):
                raise FolderInUseError(self._in_use())
            # What a killed server left behind points nowhere.
            self.remove_endpoint()
            # The kernel drops the lock with the process, so a crash leaves nothing to clean up.
            yield
        finally:
            os.close(handle)

    def is_held(self) -> bool:
        """Return whether a server holds the folder, be it that it still starts."""
        try:
            handle = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(handle)
        return False

    def _in_use(self) -> str:
        running = self.read_endpoint()
        who = f"process {running['pid']} at {running['ledger']}" if running else "another process"
        return (
            f"the data folder {self.root} is in use by {who}; use that server, stop it, "
            "or name another folder with --data"
        )

    def write_endpoint(self, address: str) -> None:
        """Say where the server listens, in one step: a reader sees the whole file or none."""
        names = ("ledger", "index", "retrieval", "ingest")
        body = {**dict.fromkeys(names, address), "pid": str(os.getpid())}
        part = self.endpoint_file.with_suffix(".part")
        part.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        part.replace(self.endpoint_file)

    def remove_endpoint(self) -> None:
        """Say that nobody listens."""
        self.endpoint_file.unlink(missing_ok=True)

    def read_endpoint(self) -> Mapping[str, str] | None:
        """Return where the server listens; None when the file is not there or damaged."""
        try:
            body = json.loads(self.endpoint_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        wanted = ("ledger", "index", "retrieval", "ingest", "pid")
        if not isinstance(body, dict) or not all(isinstance(body.get(name), str) for name in wanted):
            return None
        return {name: body[name] for name in wanted}


def _locked(handle: int) -> bool:
    """Take the lock; whoever only looks whether it is held has it for a moment, which is waited for."""
    until = time.monotonic() + _PROBE_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_PROBE_PAUSE_SECONDS)
        else:
            return True
