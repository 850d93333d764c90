"""The boundary over a real aio server: identity, typed errors, masked bugs, limits, deadlines, log lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from kit_echo import ANA, SERVICE, TOKEN, Echo, EchoStub, Request, failure, running, wait_for

from service_kit.clients import connect
from service_kit.context import current_call, current_principal, current_request_id, current_token, remaining_seconds
from service_kit.errors import DomainError, FieldProblem, Reason, from_rpc_error, invalid, not_found
from service_kit.limits import Limits

SECRET = "row 7 of s3cret.db is broken"


class OtherError(Exception):
    """An error of a pure domain that may not import the kit."""

    def __init__(self) -> None:
        super().__init__("moved")
        self.reason = "HEAD_MOVED"
        self.message = "the head has moved"
        self.metadata = {"actual": "projects/b/families/1/revisions/3"}
        self.fields = ()


def raising(error: BaseException) -> dict[str, Any]:
    """Return every kind of method, each raising the error in its middle."""

    async def unary(request: Any, context: Any) -> Any:
        raise error

    async def out(request: Any, context: Any) -> AsyncIterator[Any]:
        yield request
        raise error

    async def gather(requests: Any, context: Any) -> Any:
        await anext(requests)
        raise error

    async def both(requests: Any, context: Any) -> AsyncIterator[Any]:
        yield await anext(requests)
        raise error

    return {"unary": unary, "out": out, "gather": gather, "both": both}


def call(stub: EchoStub, kind: str, request: Request | None = None) -> Any:
    """Start a call of a kind of method."""
    message = request or Request(message="x")
    method = getattr(stub, kind)
    return method(iter([message])) if kind in {"gather", "both"} else method(message)


KINDS = ("unary", "out", "gather", "both")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_bug_is_masked_on_every_kind_of_call(kind: str) -> None:
    """S3: a bug is INTERNAL with an incident id; its text reaches the log, never the client."""
    with structlog.testing.capture_logs() as logs:
        async with running(Echo(**raising(RuntimeError(SECRET)))) as echo:
            error = await failure(call(echo.stub, kind))
    assert error.code() is grpc.StatusCode.INTERNAL
    typed = from_rpc_error(error)
    assert typed.reason is Reason.BUG
    everything = f"{error.details()} {error.debug_error_string()} {error.trailing_metadata()}"
    assert SECRET not in everything
    assert "Traceback" not in everything
    bugs = [line for line in logs if line["event"] == "bug"]
    assert [line["incident"] for line in bugs] == [typed.metadata["incident"]]
    assert SECRET in str(bugs[0]["exc_info"])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_typed_error_arrives_whole_on_every_kind_of_call(kind: str) -> None:
    """S3: code, reason, metadata and fields of a domain error are what the client gets back."""
    sent = DomainError(
        Reason.STATE_CONFLICT,
        "nada está em vigor",
        metadata={"rule": "nothing_in_force"},
        fields=[FieldProblem("family", "não está em vigor")],
    )
    async with running(Echo(**raising(sent))) as echo:
        error = await failure(call(echo.stub, kind))
    got = from_rpc_error(error)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert (got.reason, got.message, got.metadata, got.fields) == (
        sent.reason,
        sent.message,
        sent.metadata,
        sent.fields,
    )


async def test_standard_details_are_readable_without_our_code() -> None:
    """S3: any client library finds ErrorInfo, BadRequest and PreconditionFailure in the status."""
    typed = DomainError(
        Reason.LEASE_LOST, "lease lost", metadata={"event": "42"}, fields=[FieldProblem("lease", "ran out")]
    )
    async with running(Echo(**raising(typed))) as echo:
        status = await rpc_status_of(await failure(call(echo.stub, "unary")))
    kinds = {d.type_url.rpartition(".")[2]: d for d in status.details}
    assert set(kinds) == {"ErrorInfo", "BadRequest", "PreconditionFailure"}
    info = error_details_pb2.ErrorInfo()
    kinds["ErrorInfo"].Unpack(info)
    assert (info.domain, info.reason, dict(info.metadata)) == ("decisionssearch", "LEASE_LOST", {"event": "42"})
    precondition = error_details_pb2.PreconditionFailure()
    kinds["PreconditionFailure"].Unpack(precondition)
    assert precondition.violations[0].type == "LEASE_LOST"


async def rpc_status_of(error: grpc.aio.AioRpcError) -> Any:
    """Return the google.rpc.Status that the standard helper reads from an error."""
    from google.rpc import status_pb2

    pairs = dict(tuple(error.trailing_metadata()))
    status = status_pb2.Status.FromString(pairs[rpc_status.GRPC_DETAILS_METADATA_KEY])
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    return status


async def test_an_error_of_the_same_shape_is_mapped_by_the_same_table() -> None:
    """S3: a pure domain's own error, which cannot import the kit, gets the same status and reason."""
    async with running(Echo(**raising(OtherError()))) as echo:
        error = await failure(call(echo.stub, "unary"))
    assert error.code() is grpc.StatusCode.ABORTED
    assert from_rpc_error(error).metadata == {"actual": "projects/b/families/1/revisions/3"}


async def test_a_group_of_typed_errors_is_its_first_one() -> None:
    """S3: errors of a task group are unwrapped; a group with a bug in it is a bug."""
    typed = ExceptionGroup("tasks", [not_found("projects/b"), invalid("x", "is wrong")])
    mixed = ExceptionGroup("tasks", [not_found("projects/b"), RuntimeError(SECRET)])
    async with running(Echo(**raising(typed))) as echo:
        assert (await failure(call(echo.stub, "unary"))).code() is grpc.StatusCode.NOT_FOUND
    async with running(Echo(**raising(mixed))) as echo:
        assert (await failure(call(echo.stub, "unary"))).code() is grpc.StatusCode.INTERNAL


async def test_an_error_of_a_called_service_is_passed_on() -> None:
    """S3: a service that calls another relays its typed error, and shows nothing of an untyped one."""
    async with running(Echo(**raising(not_found("projects/b/families/1")))) as inner:

        async def relay(request: Request, context: Any) -> Any:
            return await inner.stub.unary(request)

        async def lost(request: Request, context: Any) -> Any:
            async with connect("127.0.0.1:1", wait_for_ready=False) as nowhere:
                await EchoStub(nowhere).unary(request, timeout=2)

        async with running(Echo(unary=relay)) as outer:
            error = await failure(outer.stub.unary(Request()))
        assert from_rpc_error(error).metadata == {"resource": "projects/b/families/1"}
        async with running(Echo(unary=lost)) as outer:
            error = await failure(outer.stub.unary(Request(), timeout=5))
    assert from_rpc_error(error).reason in {Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE}
    assert "127.0.0.1" not in str(error.details())


async def test_many_wrong_fields_fit_into_a_status() -> None:
    """S3: a thousand problems, in any script, still arrive as a typed error that says how many are not listed."""
    fields = [FieldProblem(f"requests[{i}].título", "é obrigatório" * 5) for i in range(1_000)]
    error = DomainError(Reason.INVALID_FIELD, "é" * 5_000, metadata={"field": "x" * 5_000}, fields=fields)
    async with running(Echo(**raising(error))) as echo:
        got = from_rpc_error(await failure(call(echo.stub, "unary")))
    assert got.reason is Reason.INVALID_FIELD
    assert got.fields[0] == fields[0]
    listed = len(got.fields) - 1
    assert got.fields[-1].description.startswith(f"{1_000 - listed} more")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN} x"],
)
async def test_no_call_without_a_credential(kind: str, authorization: str | None) -> None:
    """S1: a missing, malformed or unknown token is UNAUTHENTICATED, and the handler never runs."""
    metadata = (("authorization", authorization),) if authorization is not None else ()
    async with running(Echo()) as served, connect(served.server.address) as channel:
        stub = EchoStub(channel)
        method = getattr(stub, kind)
        argument = iter([Request()]) if kind in {"gather", "both"} else Request()
        error = await failure(method(argument, metadata=metadata, timeout=5))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert from_rpc_error(error).reason is Reason.UNAUTHENTICATED


async def test_the_handler_knows_who_calls() -> None:
    """L6: principal and token come from the credential; the request id and the deadline from the call."""
    seen: dict[str, Any] = {}

    async def unary(request: Request, context: Any) -> Request:
        await asyncio.create_task(note())
        return request

    async def note() -> None:
        seen.update(who=current_principal(), token=current_token(), id=current_request_id(), left=remaining_seconds())

    async with running(Echo(unary=unary)) as echo:
        sent = echo.stub.unary(Request(), timeout=5, metadata=(("x-request-id", "req-1"),))
        await sent
        trailing = dict(tuple(await sent.trailing_metadata()))
    assert seen["who"] == ANA
    assert seen["token"] == TOKEN
    assert seen["id"] == trailing["x-request-id"] == "req-1"
    assert 4 < seen["left"] < 6
    assert current_call() is None


async def test_a_request_id_that_could_forge_a_log_line_is_replaced() -> None:
    """S2: only short plain request ids are taken over."""
    async with running(Echo()) as echo:
        for bad in ('a" b', "x" * 65, "-x"):
            sent = echo.stub.unary(Request(), metadata=(("x-request-id", bad),))
            await sent
            assert dict(tuple(await sent.trailing_metadata()))["x-request-id"] != bad


async def test_health_and_reflection_need_no_credential() -> None:
    """Probes have no token: health and reflection answer without one, and list what is served."""
    async with running(Echo()) as served, grpc.aio.insecure_channel(served.server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await served.server.set_serving(False)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        unknown = await failure(health.Check(health_pb2.HealthCheckRequest(service="x"), timeout=5))
        assert unknown.code() is grpc.StatusCode.NOT_FOUND
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        stream = reflect(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5)
        names = {s.name async for answer in stream for s in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("kind", KINDS)
async def test_every_request_message_is_held_to_the_limits(kind: str) -> None:
    """S4: a field over its limit is refused with its path, the limit and the actual size, in streams too."""
    limits = Limits(max_field_bytes=10, field_bytes={"decisionssearch.common.v1.FieldProblem.field": 4})
    big = Request(fields=[{"field": "ok"}, {"field": "large"}])
    async with running(Echo(), limits=limits) as echo:
        error = await failure(call(echo.stub, kind, big))
        got = from_rpc_error(error)
        await call(echo.stub, "unary", Request(message="ten bytes!"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert got.reason is Reason.LIMIT_EXCEEDED
    assert got.metadata == {"field": "fields[1].field", "limit": "4", "actual": "5"}


async def test_a_message_over_the_limit_is_refused_with_a_reason() -> None:
    """S4: a message over the limit of the server is a typed refusal, not a broken connection."""
    limits = Limits(max_message_bytes=1_000, max_field_bytes=10_000)
    async with running(Echo(), limits=limits) as echo:
        got = from_rpc_error(await failure(echo.stub.unary(Request(message="x" * 2_000))))
        assert got.reason is Reason.LIMIT_EXCEEDED
        assert got.metadata["limit"] == "1000"
        # Far beyond it the transport refuses before the message is read.
        far = await failure(echo.stub.unary(Request(message="x" * 9_000)))
        assert far.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await echo.stub.unary(Request())


async def test_a_passed_deadline_stops_the_work() -> None:
    """S3: the handler is cancelled when the caller's deadline passes, and the call is logged as such."""
    stopped = asyncio.Event()

    async def slow(request: Request, context: Any) -> Request:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return request

    with structlog.testing.capture_logs() as logs:
        async with running(Echo(unary=slow)) as echo:
            error = await failure(echo.stub.unary(Request(), timeout=0.1))
            await asyncio.wait_for(stopped.wait(), 5)
            await wait_for(lambda: any(line["event"] == "rpc" for line in logs))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert [line["code"] for line in logs if line["event"] == "rpc"] == ["DEADLINE_EXCEEDED"]


async def test_a_caller_that_leaves_stops_the_work() -> None:
    """S3: cancelling a stream closes the handler's generator at once and is no bug."""
    started, closed = asyncio.Event(), asyncio.Event()
    active_at_close: list[int] = []

    async def endless(request: Request, context: Any) -> AsyncIterator[Request]:
        try:
            while True:
                started.set()
                yield request
        finally:
            active_at_close.append(echo.server.boundary.active_calls)
            closed.set()

    with structlog.testing.capture_logs() as logs:
        async with running(Echo(out=endless)) as echo:
            stream = echo.stub.out(Request(message="x" * 1_000))
            await stream.read()
            await asyncio.wait_for(started.wait(), 5)
            stream.cancel()
            await asyncio.wait_for(closed.wait(), 5)
            await wait_for(lambda: echo.server.boundary.active_calls == 0)
    # The generator was closed within the call, not some time later by the garbage collector.
    assert active_at_close == [1]
    assert [line["code"] for line in logs if line["event"] == "rpc"] == ["CANCELLED"]
    assert not [line for line in logs if line["event"] == "bug"]


async def test_a_timeout_is_the_callers_deadline_only_when_that_has_passed() -> None:
    """S3: a timeout inside a handler with time left is a bug of ours, not the caller's deadline."""

    async def gives_up(request: Request, context: Any) -> Request:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
        return request

    async def leaks(request: Request, context: Any) -> Request:
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner
        return request

    for behaviour in (gives_up, leaks):
        with structlog.testing.capture_logs():
            async with running(Echo(unary=behaviour)) as echo:
                error = await failure(echo.stub.unary(Request(), timeout=5))
        assert error.code() is grpc.StatusCode.INTERNAL


async def test_too_many_calls_are_refused_with_a_reason() -> None:
    """RESOURCE_EXHAUSTED OVERLOADED: calls over the limit are refused at once, those in progress go on."""
    release = asyncio.Event()

    async def wait(request: Request, context: Any) -> Request:
        await release.wait()
        return request

    async with running(Echo(unary=wait), max_concurrent_calls=2) as echo:
        first = [asyncio.ensure_future(echo.stub.unary(Request())) for _ in range(2)]
        await wait_for(lambda: echo.server.boundary.active_calls == 2)
        error = await failure(echo.stub.unary(Request()))
        release.set()
        await asyncio.gather(*first)
    assert from_rpc_error(error).reason is Reason.OVERLOADED


async def test_the_log_line_names_the_call_and_never_its_content() -> None:
    """S2: one line a call, with method, principal, project, code, time and request id; no field of the request."""
    with structlog.testing.capture_logs() as logs:
        async with running(Echo()) as echo:
            await echo.stub.unary(Request(message="projects/billing/families/1", metadata={"k": SECRET}))
            await failure(echo.stub.unary(Request(message=f"projects/B {SECRET}/x\0")))
    lines = [line for line in logs if line["event"] == "rpc"]
    assert [line["code"] for line in lines] == ["OK", "INVALID_ARGUMENT"]
    first = lines[0]
    assert (first["principal"], first["project"]) == ("local:ana", "billing")
    assert first["method"] == f"/{SERVICE}/Unary"
    assert first["ms"] >= 0
    assert first["request_id"]
    assert SECRET not in str(logs)
    assert TOKEN not in str(logs)


async def test_an_unknown_method_is_unimplemented() -> None:
    """A method that is not served is UNIMPLEMENTED, with or without a credential."""
    async with running(Echo()) as echo:
        nothing = echo.channel.unary_unary(f"/{SERVICE}/Nothing")
        error = await failure(nothing(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
