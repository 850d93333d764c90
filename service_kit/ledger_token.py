"""The LedgerToken: a point in a project's history, opaque to clients.

It is not a credential: it says how fresh a read must be, and whoever may not read the project is refused before
it is looked at. The check sum finds accidents, not attackers; a made-up position only makes its maker wait.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Final

from decisionssearch.common.v1 import common_pb2

from service_kit.errors import invalid
from service_kit.names import PROJECT_ID

_VERSION: Final = "1"
_SUM_BYTES: Final = 4
_MAX_CHARS: Final = 512
_MAX_POSITION: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LedgerPoint:
    """What a token carries."""

    ledger_id: str
    project: str
    position: int

    def to_proto(self) -> common_pb2.LedgerToken:
        """Return the message."""
        if "\n" in self.ledger_id or not self.ledger_id:
            raise ValueError("a ledger id is one non-empty line")
        body = "\n".join((_VERSION, self.ledger_id, self.project, str(self.position))).encode()
        return common_pb2.LedgerToken(value=base64.urlsafe_b64encode(_sum(body) + body).rstrip(b"=").decode())


def encode(ledger_id: str, project: str, position: int) -> common_pb2.LedgerToken:
    """Return the token for a position of a project (its id)."""
    return LedgerPoint(ledger_id, project, position).to_proto()


def decode(
    token: common_pb2.LedgerToken, field: str, *, ledger_id: str | None = None, project: str | None = None
) -> LedgerPoint:
    """Return the point that a token names.

    Args:
        token: The message.
        field: Path of the field it came in, for the error.
        ledger_id: The ledger it must belong to, when the caller knows it.
        project: Id of the project it must belong to.

    Raises:
        InvalidRequest: The token is malformed, or of another ledger or project.
    """
    point = _parse(token.value)
    if point is None:
        raise invalid(field, "is not a token of a ledger; pass on the one that a write returned, unchanged")
    if ledger_id is not None and point.ledger_id != ledger_id:
        raise invalid(field, "belongs to another ledger (was this one restored or replaced?)")
    if project is not None and point.project != project:
        raise invalid(field, f"belongs to another project than projects/{project}")
    return point


def _parse(value: str) -> LedgerPoint | None:
    if len(value) > _MAX_CHARS:
        return None
    try:
        raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
        total, body = raw[:_SUM_BYTES], raw[_SUM_BYTES:]
        version, ledger_id, project, position = body.decode().split("\n")
    except (binascii.Error, ValueError):
        return None
    if total != _sum(body) or version != _VERSION or not ledger_id or not PROJECT_ID.fullmatch(project):
        return None
    if not (position.isascii() and position.isdigit() and int(position) <= _MAX_POSITION):
        return None
    return LedgerPoint(ledger_id, project, int(position))


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_SUM_BYTES]
