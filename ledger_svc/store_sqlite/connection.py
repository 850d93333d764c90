"""Connections to one file, and the lock that keeps a second process out."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Final

from ledger_svc.store import StoreUnusableError

MEMORY: Final = ":memory:"
_BUSY_MS: Final = 5_000
_CACHE_KIB: Final = 32_768
_STATEMENTS: Final = 512


class AlreadyOpenError(StoreUnusableError):
    """Another process has the ledger open; the message says what to do."""


class FileLock:
    """An exclusive lock beside the database. The kernel lets it go when the process dies."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}.lock")
        self._handle = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            AlreadyOpenError: Another process holds it.
        """
        handle = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            os.close(handle)
            who = f" (process {holder})" if holder else ""
            raise AlreadyOpenError(
                f"the ledger in {self._path.parent} is in use by another process{who}; stop it, or take another folder"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._handle = handle

    def release(self) -> None:
        """Let the lock go."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def connect(database: str, *, read_only: bool = False) -> sqlite3.Connection:
    """Return a connection that keeps its promises: synchronous=FULL, foreign keys, triggers also on REPLACE."""
    connection = sqlite3.connect(
        database, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENTS, timeout=_BUSY_MS / 1_000
    )
    run = connection.execute
    if database != MEMORY:
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
    run("PRAGMA foreign_keys = ON")
    # Without it, REPLACE deletes rows behind the back of the delete triggers.
    run("PRAGMA recursive_triggers = ON")
    run("PRAGMA trusted_schema = OFF")
    run(f"PRAGMA cache_size = -{_CACHE_KIB}")
    run("PRAGMA temp_store = MEMORY")
    if read_only and database != MEMORY:
        run("PRAGMA query_only = ON")
    return connection
