"""The boundary between gRPC and a service: one interceptor that every call passes, unary or stream.

It gives the call a request id, authenticates the caller, checks the limits of every request message, turns errors
into statuses with details, masks bugs, and writes one log line. Handlers below it know none of that: they read
:func:`service_kit.context.current_principal` and raise ``DomainError``.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from inspect import isasyncgenfunction
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from service_kit.context import Call, enter_call
from service_kit.errors import (
    DETAILS_KEY,
    DomainError,
    Reason,
    as_domain_error,
    deadline_exceeded,
    from_rpc_error,
    overloaded,
    to_status,
    unauthenticated,
)
from service_kit.ids import new_id
from service_kit.limits import DEFAULT_LIMITS, Limits, check_message_limits
from service_kit.logs import get_logger
from service_kit.names import PROJECT_ID
from service_kit.sanitising.sanitise import clean
from service_kit.tokens import Authenticator

REQUEST_ID_KEY: Final = "x-request-id"
AUTHORIZATION_KEY: Final = "authorization"

PUBLIC_SERVICES: Final = frozenset(
    {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"}
)
"""Served without a credential: probes have none, and the contracts are public."""

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_BEARER: Final = re.compile(r"bearer +([\x21-\x7e]+) *", re.ASCII | re.IGNORECASE)
# A deadline that has this little left when the work times out is the caller's own.
_DEADLINE_SLACK_SECONDS: Final = 0.05
_MAX_STATUS_TEXT_CHARS: Final = 500
_NO_RETRY: Final = ("grpc-retry-pushback-ms", "-1")

# Quoted: generic in the stubs only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context = grpc.aio.ServicerContext[Any, Any]


class Boundary(grpc.aio.ServerInterceptor):
    """The interceptor.

    Args:
        authenticator: Turns a bearer token into a principal.
        limits: How large requests may be.
        max_concurrent_calls: More calls than that at once are refused as OVERLOADED; public services do not count.
        public_services: Full names of the services that need no credential.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        limits: Limits = DEFAULT_LIMITS,
        max_concurrent_calls: int = 1_000,
        public_services: frozenset[str] = PUBLIC_SERVICES,
    ) -> None:
        self.limits = limits
        self._authenticator = authenticator
        self._max_calls = max_concurrent_calls
        self._public = public_services
        self._log = get_logger("boundary")
        self._active = 0
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    @property
    def active_calls(self) -> int:
        """How many calls are in progress, without those of public services."""
        return self._active

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the handler of the method, wrapped."""
        handler = await continuation(handler_call_details)
        if handler is None:  # Unknown method: gRPC answers UNIMPLEMENTED.
            return None
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(method, handler))
        return known[1]

    def _wrap(self, method: str, wrapped: Handler) -> Handler:
        # Any: the handler's types are those of the synchronous API, its functions are asynchronous.
        handler: Any = wrapped
        guard = _Guard
        public = method.strip("/").rpartition("/")[0] in self._public

        # Responses of a stream are written here rather than yielded: the generator of a cancelled call is then
        # closed before the call ends, not whenever the garbage collector finds it.
        async def answer_one(request: Any, context: Context) -> Any:
            async with guard(self, method, context, public=public) as call:
                call.check(request)
                return await handler.unary_unary(request, context)

        async def answer_many(request: Any, context: Context) -> None:
            async with guard(self, method, context, public=public) as call:
                call.check(request)
                await _write_all(handler.unary_stream, request, context)

        async def gather_one(requests: AsyncIterator[Any], context: Context) -> Any:
            async with guard(self, method, context, public=public) as call:
                return await handler.stream_unary(call.checked(requests), context)

        async def gather_many(requests: AsyncIterator[Any], context: Context) -> None:
            async with guard(self, method, context, public=public) as call:
                await _write_all(handler.stream_stream, call.checked(requests), context)

        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(gather_many, **codec)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(gather_one, **codec)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(answer_many, **codec)
        return grpc.unary_unary_rpc_method_handler(answer_one, **codec)

    async def admit(self, call: Call, authorization: str | None) -> None:
        """Count the call in and find out who calls."""
        if self._active > self._max_calls:
            raise overloaded("max_concurrent_calls", self._max_calls)
        match = _BEARER.fullmatch(authorization or "")
        if match is None:
            raise unauthenticated()
        call.token = match[1]
        call.principal = await self._authenticator.authenticate(call.token)

    def count(self, change: int) -> None:
        """Count a call in or out."""
        self._active += change

    def record(self, call: Call, code: grpc.StatusCode, seconds: float, *, public: bool, reason: str) -> None:
        """Write the one log line of a call. Never content: names, codes and times."""
        write = self._log.debug if public else self._log.info
        values: dict[str, Any] = {"method": call.method, "code": code.name, "ms": round(seconds * 1_000, 2)}
        if reason:
            values["reason"] = reason
        if call.principal is not None:
            values["principal"] = call.principal.id
        if call.project:
            values["project"] = call.project
        write("rpc", request_id=call.request_id, **values)

    def report_bug(self, call: Call, incident: str, error: BaseException) -> None:
        """Log a masked failure with its stack."""
        self._log.error("bug", method=call.method, request_id=call.request_id, incident=incident, exc_info=error)


class _Guard:
    """One call: enters it, and turns whatever leaves the handler into a status."""

    def __init__(self, boundary: Boundary, method: str, context: Context, *, public: bool) -> None:
        self._boundary = boundary
        self._context = context
        self._public = public
        self._started = time.monotonic()
        self._looked_for_project = False
        self.call = Call(method, "")

    async def __aenter__(self) -> Self:
        metadata = {str(k): v for k, v in self._context.invocation_metadata() or ()}
        given = metadata.get(REQUEST_ID_KEY)
        valid = isinstance(given, str) and _REQUEST_ID.fullmatch(given)
        self.call.request_id = cast("str", given) if valid else new_id()
        left = self._context.time_remaining()
        self.call.deadline = None if left is None else self._started + left
        enter_call(self.call)
        self._context.set_trailing_metadata(((REQUEST_ID_KEY, self.call.request_id),))
        if self._public:
            return self
        self._boundary.count(+1)
        try:
            if left is not None and left <= 0:
                raise deadline_exceeded()  # noqa: TRY301 - one way out for every refusal
            authorization = metadata.get(AUTHORIZATION_KEY)
            await self._boundary.admit(self.call, authorization if isinstance(authorization, str) else None)
        except BaseException as error:
            await self._leave(error)
            raise
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self._leave(error)

    def check(self, request: Any) -> None:
        """Check the limits of a request message, and note which project the call is about."""
        if self._public or not isinstance(request, Message):
            return
        check_message_limits(request, self._boundary.limits)
        if not self._looked_for_project:
            self._looked_for_project = True
            self.call.project = _project_of(request)

    async def checked(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield the request messages of a stream, each checked."""
        async for request in requests:
            self.check(request)
            yield request

    async def _leave(self, error: BaseException | None) -> None:
        """Log the end of the call; raise what ends it for gRPC when it failed."""
        if not self._public:
            self._boundary.count(-1)
        if error is None:
            self._record(grpc.StatusCode.OK)
            return
        if isinstance(error, grpc.aio.AbortError):
            code = self._context.code()
            self._record(code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN)
            return
        if isinstance(error, asyncio.CancelledError) and self._is_being_cancelled():
            # The caller left, its deadline passed, or the server closes: nobody reads an answer.
            passed = self._deadline_passed()
            self._record(grpc.StatusCode.DEADLINE_EXCEEDED if passed else grpc.StatusCode.CANCELLED)
            return
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            return
        await self._refuse(self._translate(error))

    def _translate(self, error: BaseException) -> DomainError:
        typed = _typed(error)
        if typed is not None and (typed.reason is not Reason.BUG or "incident" in typed.metadata):
            return typed
        if isinstance(error, TimeoutError) and self._deadline_passed():
            return deadline_exceeded()
        incident = new_id()
        self._boundary.report_bug(self.call, incident, error)
        return DomainError(
            Reason.BUG, f"internal error; the server's log has it as {incident}", metadata={"incident": incident}
        )

    async def _refuse(self, error: DomainError) -> NoReturn:
        status = to_status(error)
        self._record(error.status, error.reason.value)
        trailer: tuple[tuple[str, str | bytes], ...] = (
            (DETAILS_KEY, status.SerializeToString()),
            (REQUEST_ID_KEY, self.call.request_id),
        )
        if error.reason is Reason.NOT_FRESH_ENOUGH:
            # The server has waited for as long as the caller could: a transport that sends the call again would only
            # turn the reason into a passed deadline.
            trailer = (*trailer, _NO_RETRY)
        await self._context.abort(error.status, status.message[:_MAX_STATUS_TEXT_CHARS], trailing_metadata=trailer)

    def _record(self, code: grpc.StatusCode, reason: str = "") -> None:
        seconds = time.monotonic() - self._started
        self._boundary.record(self.call, code, seconds, public=self._public, reason=reason)

    def _deadline_passed(self) -> bool:
        deadline = self.call.deadline
        return deadline is not None and time.monotonic() >= deadline - _DEADLINE_SLACK_SECONDS

    @staticmethod
    def _is_being_cancelled() -> bool:
        # A CancelledError that merely leaked out of something awaited is a bug, not the end of the call.
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0


async def _write_all(behaviour: Callable[[Any, Context], Any], argument: Any, context: Context) -> None:
    """Run the handler of a response stream, written as a generator or as a coroutine that writes by itself."""
    if not isasyncgenfunction(behaviour):
        await behaviour(argument, context)
        return
    async with aclosing(behaviour(argument, context)) as responses:
        async for response in responses:
            await context.write(response)


def _typed(error: BaseException) -> DomainError | None:
    """Return the typed error in an exception, in what a called service answered, or in a group of only such."""
    if isinstance(error, BaseExceptionGroup):
        found = [_typed(e) for e in error.exceptions]
        return found[0] if all(found) else None
    if isinstance(error, grpc.RpcError):
        return from_rpc_error(error)
    return as_domain_error(error)


def _project_of(request: Message) -> str:
    """Return the id of the project that a request is about, as far as its own text fields tell; else empty."""
    for field in request.DESCRIPTOR.fields:
        if field.type != FieldDescriptor.TYPE_STRING or field.is_repeated:
            continue
        value: str = getattr(request, field.name)
        head, _, rest = value.partition("/")
        found = rest.partition("/")[0] if head == "projects" else ""
        if found and PROJECT_ID.fullmatch(found):
            # It may be anything that looks like an id, a secret that was pasted into the wrong field as well.
            return clean(found)
    return ""
