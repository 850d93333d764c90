"""Bearer tokens: the port that turns one into a principal, and the adapter that keeps them in a file.

``tokens.json`` holds digests only. A token is shown once, when it is issued; those made on first start are written to
text files beside it. All of these files have mode 0600, and a token file that others may read is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from service_kit.clock import Clock, SystemClock, canonical_text, parse_text
from service_kit.errors import DomainError, unauthenticated
from service_kit.ids import new_id
from service_kit.principals import Grant, Kind, Principal, grant

_PREFIX: Final = "dst_"
_SECRET_BYTES: Final = 32
_MAX_TOKEN_CHARS: Final = 512
_FORMAT: Final = 1
_OPEN_TO_OTHERS: Final = 0o077


class Authenticator(Protocol):
    """Turns a credential into a principal."""

    async def authenticate(self, token: str) -> Principal:
        """Return whose token it is.

        Raises:
            DomainError: UNAUTHENTICATED, when the token is unknown, expired or malformed; it never says which.
        """


class TokenFileError(Exception):
    """The token file cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token as the file knows it."""

    id: str
    digest: str
    principal: Principal
    issued_at: datetime
    expires_at: datetime | None = None

    def valid_at(self, now: datetime) -> bool:
        """Return whether the token has not expired."""
        return self.expires_at is None or now < self.expires_at


class TokenFile:
    """Tokens in one JSON file. Several processes may read it and issue into it; a change is seen at the next call."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._stamp: tuple[int, int, int] | None = None
        self._entries: dict[str, TokenEntry] = {}

    @property
    def path(self) -> Path:
        """Where the digests are."""
        return self._path

    async def authenticate(self, token: str) -> Principal:
        """Return whose token it is; UNAUTHENTICATED when unknown or expired."""
        principal = self.find(token)
        if principal is None:
            raise unauthenticated()
        return principal

    def find(self, token: str) -> Principal | None:
        """Return whose token it is, None when it is unknown or expired."""
        if not token or len(token) > _MAX_TOKEN_CHARS or not token.isascii():
            return None
        self._refresh()
        digest = _digest(token)
        # Found by the digest of a random secret, so the time it takes tells nothing about the tokens that exist.
        entry = self._entries.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest):
            return None
        return entry.principal if entry.valid_at(self._clock.now()) else None

    def entries(self) -> Sequence[TokenEntry]:
        """Return every token, expired ones included, in order of issue."""
        self._refresh()
        return tuple(sorted(self._entries.values(), key=lambda e: (e.issued_at, e.id)))

    def issue(self, principal: Principal, *, expires_at: datetime | None = None) -> str:
        """Add a token for a principal and return it. It cannot be shown again."""
        token = f"{_PREFIX}{secrets.token_urlsafe(_SECRET_BYTES)}"
        with self._locked() as entries:
            entry = TokenEntry(new_id(), _digest(token), principal, self._clock.now(), expires_at)
            self._write([*entries, entry])
        return token

    def revoke(self, token_id: str) -> bool:
        """Remove a token by its id; return whether there was one. It is refused from the next call on."""
        with self._locked() as entries:
            kept = [e for e in entries if e.id != token_id]
            if len(kept) == len(entries):
                return False
            self._write(kept)
        return True

    def ensure(self, text_file: Path, principal: Principal) -> str:
        """Return the token kept in a text file, issuing it when there is none that works.

        Made for the first start: the same identity gets the same file again, and a lost or revoked token is replaced.
        """
        if text_file.exists():
            _refuse_open_file(text_file)
            token = text_file.read_text(encoding="ascii").strip()
            if self.find(token) == principal:
                return token
        token = self.issue(principal)
        _write_private(text_file, f"{token}\n")
        return token

    def _refresh(self) -> None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._entries = None, {}
            return
        # A replaced file has another inode, even when written within the clock's resolution.
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            _refuse_open_file(self._path)
            self._entries = {e.digest: e for e in _load(self._path)}
            self._stamp = stamp

    @contextmanager
    def _locked(self) -> Iterator[list[TokenEntry]]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield list(self.entries())
        finally:
            os.close(lock)

    def _write(self, entries: Sequence[TokenEntry]) -> None:
        body = {"format": _FORMAT, "tokens": [_to_json(e) for e in entries]}
        _write_private(self._path, json.dumps(body, indent=2, ensure_ascii=False) + "\n")
        self._refresh()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _refuse_open_file(path: Path) -> None:
    if path.stat().st_mode & _OPEN_TO_OTHERS:
        raise TokenFileError(f"{path} may be read by others; run: chmod 600 {path}")


def _write_private(path: Path, text: str) -> None:
    """Replace a file as a whole; it has mode 0600 from its first byte on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _load(path: Path) -> list[TokenEntry]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != _FORMAT:
            raise TokenFileError(f"{path} has format {body['format']}; this version knows {_FORMAT}")
        return [_from_json(item) for item in body["tokens"]]
    except (ValueError, KeyError, TypeError, AttributeError, DomainError) as error:
        # Fail closed: nobody gets in by a damaged file. The values stay out of the message.
        raise TokenFileError(f"{path} is damaged ({type(error).__name__}); restore it or issue new tokens") from None


def _to_json(entry: TokenEntry) -> dict[str, Any]:
    who = entry.principal
    return {
        "id": entry.id,
        "sha256": entry.digest,
        "issuer": who.issuer,
        "subject": who.subject,
        "kind": who.kind.value,
        "on_behalf_of": who.on_behalf_of,
        "grants": [{"project": g.project, "roles": sorted(r.value for r in g.roles)} for g in who.grants],
        "issued_at": canonical_text(entry.issued_at),
        "expires_at": canonical_text(entry.expires_at) if entry.expires_at else None,
    }


def _from_json(item: dict[str, Any]) -> TokenEntry:
    grants: tuple[Grant, ...] = tuple(grant(g["project"], g["roles"]) for g in item["grants"])
    principal = Principal(item["issuer"], item["subject"], Kind(item["kind"]), item["on_behalf_of"], grants)
    if not principal.issuer or not principal.subject:
        raise ValueError("a principal has an issuer and a subject")
    expires = item["expires_at"]
    return TokenEntry(
        id=item["id"],
        digest=item["sha256"],
        principal=principal,
        issued_at=_instant(item["issued_at"]),
        expires_at=_instant(expires) if expires else None,
    )


def _instant(text: str) -> datetime:
    if not isinstance(text, str):
        raise TypeError("an instant is a text")
    return parse_text(text)
