"""Keeps the server's status of a call that streams requests.

When a server ends such a call early, ``grpc.aio`` clients often report INTERNAL "Internal error from Core" in place of
the status that the server sent: a write that fails afterwards overwrites it (grpc issue 36066). A refusal of an
import, say for lack of a role, would look like a broken server. The status is there for a moment, when the call's
done callbacks run; this decorator around the call notes it then and puts it into whatever is raised later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any, Final

import grpc
import grpc.aio

_OVERWRITTEN: Final = "Internal error from Core"
# Rarely the failed write comes first and the status a moment later.
_LATE_STATUS_POLLS: Final = 40
_LATE_STATUS_POLL_SECONDS: Final = 0.005


class _RequestStream:
    """What both kinds of call share: writing requests, and knowing the status."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._noted: grpc.aio.AioRpcError | None = None
        inner.add_done_callback(self._note)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, request: Any) -> None:
        """Write one request; raises the server's status when it has ended the call."""
        try:
            await self._inner.write(request)
        except grpc.aio.AioRpcError as error:
            raise await self._true(error) from None
        except asyncio.InvalidStateError:
            if self._noted is None or self._noted.code() is grpc.StatusCode.OK:
                raise
            raise self._noted from None

    async def code(self) -> grpc.StatusCode:
        """Return the status code."""
        code: grpc.StatusCode = await self._inner.code()
        return self._noted.code() if self._noted is not None and code is grpc.StatusCode.INTERNAL else code

    async def _true(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        if error.details() != _OVERWRITTEN:
            return error
        if self._noted is not None and self._noted.details() != _OVERWRITTEN:
            return self._noted
        for _ in range(_LATE_STATUS_POLLS):
            if await self._inner.details() != _OVERWRITTEN:
                self._note(self._inner)
                return self._noted or error
            await asyncio.sleep(_LATE_STATUS_POLL_SECONDS)
        return error

    def _note(self, call: Any) -> None:
        # The three are known at once when the call is done; were they not, nothing is noted.
        found = [_at_once(part) for part in (call.code(), call.trailing_metadata(), call.details())]
        if isinstance(found[0], grpc.StatusCode):
            trailing = found[1] if found[1] is not None else grpc.aio.Metadata()
            self._noted = grpc.aio.AioRpcError(found[0], grpc.aio.Metadata(), trailing, found[2])


class StreamUnary(_RequestStream):
    """A call with a stream of requests and one answer."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        try:
            return await self._inner
        except grpc.aio.AioRpcError as error:
            true = await self._true(error)
            # The answer of a call that succeeded early is lost with its status.
            raise (error if true.code() is grpc.StatusCode.OK else true) from None


class StreamStream(_RequestStream):
    """A call with a stream in each direction."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    async def read(self) -> Any:
        """Read one response."""
        try:
            return await self._inner.read()
        except grpc.aio.AioRpcError as error:
            true = await self._true(error)
            if true.code() is grpc.StatusCode.OK:
                return grpc.aio.EOF
            raise true from None

    async def _responses(self) -> AsyncIterator[Any]:
        try:
            async for response in self._inner:
                yield response
        except grpc.aio.AioRpcError as error:
            true = await self._true(error)
            if true.code() is not grpc.StatusCode.OK:
                raise true from None


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that has nothing to wait for; None when it would wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    return None
