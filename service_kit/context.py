"""What a running call knows about itself: who called, with which credential, until when.

The boundary sets it at the start of every call; it follows into the tasks that the call starts. Outside of a call
(background work, tests of a service) nothing is set, and :func:`acting_as` sets it for a block.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from service_kit.errors import unauthenticated
from service_kit.principals import Principal


@dataclass(slots=True)
class Call:
    """One call in progress."""

    method: str
    request_id: str
    principal: Principal | None = None
    # The credential must not reach a log through a repr.
    token: str = field(default="", repr=False)
    deadline: float | None = None
    """On the clock of ``time.monotonic``."""
    project: str = ""


_CURRENT: ContextVar[Call | None] = ContextVar("decisionssearch_call", default=None)


def current_call() -> Call | None:
    """Return the call in progress, None outside of one."""
    return _CURRENT.get()


def enter_call(call: Call) -> None:
    """Make this the call in progress, for the rest of the task. Every call has a task of its own."""
    _CURRENT.set(call)


def current_principal() -> Principal:
    """Return who calls.

    Raises:
        DomainError: UNAUTHENTICATED, when nobody was authenticated.
    """
    call = _CURRENT.get()
    if call is None or call.principal is None:
        raise unauthenticated()
    return call.principal


def current_token() -> str | None:
    """Return the bearer token of the call in progress, None when it has none."""
    call = _CURRENT.get()
    return call.token or None if call is not None else None


def current_request_id() -> str | None:
    """Return the id that ties the log lines of one request together over all services."""
    call = _CURRENT.get()
    return call.request_id if call is not None else None


def remaining_seconds() -> float | None:
    """Return the time left to the caller's deadline (negative when it passed), None without one."""
    call = _CURRENT.get()
    return None if call is None or call.deadline is None else call.deadline - time.monotonic()


@contextmanager
def acting_as(
    principal: Principal | None, *, token: str = "", request_id: str = "", method: str = ""
) -> Iterator[Call]:
    """Act as a principal for a block; for background work and tests."""
    call = Call(method, request_id, principal, token)
    reset = _CURRENT.set(call)
    try:
        yield call
    finally:
        _CURRENT.reset(reset)
