"""Page tokens: opaque, bound to the arguments of the list and to the snapshot that the first page saw."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from service_kit.errors import DomainError, FieldProblem, Reason

_MAC_BYTES: Final = 16
_MAX_TOKEN_CHARS: Final = 4_096
_FREE_FIELDS: Final = ("page_token", "page_size")

PageState = Mapping[str, str | int]
"""Where the next page starts: snapshot position, the last key, the instant that ``now`` stood for."""


class PageTokens:
    """Makes and reads page tokens.

    The key comes from the composition root and is the same in every process that serves the list (for the ledger:
    derived from its id), so that any of them continues what another began. The page size may change between pages;
    every other argument must stay.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < _MAC_BYTES:
            raise ValueError(f"the key of page tokens needs {_MAC_BYTES} bytes or more")
        self._key = key

    def issue(self, request: Message, state: PageState) -> str:
        """Return the token for the page after this one."""
        body = json.dumps([_digest(request), dict(state)], separators=(",", ":"), sort_keys=True).encode()
        return base64.urlsafe_b64encode(self._mac(body) + body).rstrip(b"=").decode()

    def read(self, request: Message) -> PageState | None:
        """Return where the requested page starts; None for the first page.

        Raises:
            DomainError: PAGE_TOKEN_MISMATCH, when the token was altered or made for other arguments.
        """
        token: str = request.page_token  # type: ignore[attr-defined]  # every list request has one
        if not token:
            return None
        body = self._open(token)
        if body is None:
            raise _mismatch("was altered, or made by another server; start again from the first page")
        digest, state = json.loads(body)
        if digest != _digest(request):
            raise _mismatch("belongs to other arguments; repeat them unchanged, or start from the first page")
        return dict[str, Any](state)

    def _open(self, token: str) -> bytes | None:
        if len(token) > _MAX_TOKEN_CHARS:
            return None
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        return body if hmac.compare_digest(mac, self._mac(body)) else None

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, hashlib.sha256)[:_MAC_BYTES]


def _digest(request: Message) -> str:
    bound = type(request)()
    bound.CopyFrom(request)
    for field in _FREE_FIELDS:
        if field in bound.DESCRIPTOR.fields_by_name:
            bound.ClearField(field)
    name = bound.DESCRIPTOR.full_name.encode()
    return hashlib.sha256(name + b"\0" + bound.SerializeToString(deterministic=True)).hexdigest()[:32]


def _mismatch(description: str) -> DomainError:
    return DomainError(
        Reason.PAGE_TOKEN_MISMATCH,
        f"page_token: {description}",
        metadata={"field": "page_token"},
        fields=[FieldProblem("page_token", description)],
    )
