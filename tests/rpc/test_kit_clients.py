"""Channels between services: what they pass on, and what they send again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from kit_echo import ANA, TOKEN, Echo, EchoStub, OneToken, Request, add_echo_to_server, failure, running

from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.context import acting_as, current_principal, current_request_id, current_token, remaining_seconds
from service_kit.errors import DomainError, Reason, from_rpc_error
from service_kit.serving import Host


async def test_identity_request_id_and_deadline_travel_with_the_call() -> None:
    """S1: a service that calls another acts as its caller, under the same request id, within the same deadline."""
    seen: list[tuple[Any, ...]] = []

    async def deepest(request: Request, context: Any) -> Request:
        seen.append((current_principal(), current_token(), current_request_id(), remaining_seconds()))
        return request

    async with running(Echo(unary=deepest)) as inner, connect(inner.server.address) as channel:

        async def relay(request: Request, context: Any) -> Request:
            answer: Request = await EchoStub(channel).unary(request, timeout=60)
            return answer

        async with running(Echo(unary=relay)) as outer:
            await outer.stub.unary(Request(), timeout=3, metadata=(("x-request-id", "one-id"),))
    ((who, token, request_id, left),) = seen
    assert (who, token, request_id) == (ANA, TOKEN, "one-id")
    assert 0 < left < 4


async def test_every_call_has_a_deadline() -> None:
    """A caller that names no deadline gets one, on every kind of call."""
    left: list[float | None] = []

    async def unary(request: Request, context: Any) -> Request:
        left.append(context.time_remaining())
        return request

    async def out(request: Request, context: Any) -> AsyncIterator[Request]:
        left.append(context.time_remaining())
        yield request

    async def gather(requests: AsyncIterator[Request], context: Any) -> Request:
        left.append(context.time_remaining())
        return Request(code=len([r async for r in requests]))

    async with (
        running(Echo(unary=unary, out=out, gather=gather)) as echo,
        connect(echo.server.address, token=lambda: TOKEN, timeout_seconds=7, stream_timeout_seconds=70) as channel,
    ):
        stub = EchoStub(channel)
        await stub.unary(Request())
        assert [r async for r in stub.out(Request())] == [Request()]
        assert (await stub.gather(iter([Request(), Request()]))).code == 2
    assert [round(seconds or 0, -1) for seconds in left] == [10, 70, 70]


async def test_no_call_starts_without_time_left() -> None:
    """S3: work for a caller whose deadline has passed is not passed on."""
    async with running(Echo()) as echo, connect(echo.server.address) as channel:
        with acting_as(ANA, token=TOKEN) as call:
            await EchoStub(channel).unary(Request())
            call.deadline = 0.0
            with pytest.raises(DomainError) as refused:
                await EchoStub(channel).unary(Request())
    assert refused.value.reason is Reason.DEADLINE


async def test_only_unavailable_is_sent_again() -> None:
    """The transport repeats UNAVAILABLE and nothing else: ABORTED needs a new decision."""
    counts: dict[str, int] = {}

    async def unary(request: Request, context: Any) -> Request:
        counts[request.message] = counts.get(request.message, 0) + 1
        if counts[request.message] < 3:
            raise DomainError(Reason(request.message), "not now")
        return request

    async with running(Echo(unary=unary)) as echo:
        await echo.stub.unary(Request(message="DEPENDENCY_UNAVAILABLE"))
        for reason in ("HEAD_MOVED", "WRITE_CONTENTION", "OVERLOADED"):
            error = await failure(echo.stub.unary(Request(message=reason)))
            assert from_rpc_error(error).reason == reason
    assert counts == {"DEPENDENCY_UNAVAILABLE": 3, "HEAD_MOVED": 1, "WRITE_CONTENTION": 1, "OVERLOADED": 1}


async def test_a_client_may_start_before_its_server() -> None:
    """The order in which services start does not matter: a call waits, within its deadline, for its server."""
    async with Host() as host:
        server = host.serve(Boundary(OneToken()))
        server.add(add_echo_to_server, Echo())
        async with connect(server.address, token=lambda: TOKEN) as channel:
            call = EchoStub(channel).unary(Request(message="early"), timeout=10)
            await host.start()
            assert (await call).message == "early"


async def test_a_client_that_must_not_wait_fails_at_once() -> None:
    """R7: a caller that can do without a dependency learns at once that it is gone."""
    async with connect("127.0.0.1:1", wait_for_ready=False) as channel:
        error = await failure(EchoStub(channel).unary(Request(), timeout=5))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_services_own_token_wins_over_the_callers() -> None:
    """Background clients act as themselves: a channel with a token of its own never sends the caller's."""
    async with running(Echo()) as echo, connect(echo.server.address, token=lambda: "wrong") as channel:
        with acting_as(ANA, token=TOKEN):
            error = await failure(EchoStub(channel).unary(Request()))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_both_directions_of_a_stream_work_through_the_decorator() -> None:
    """A bidirectional stream can be read and written step by step."""
    async with running(Echo()) as echo:
        stream = echo.stub.both()
        for text in ("um", "dois"):
            await stream.write(Request(message=text))
            assert (await stream.read()).message == text
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def write_until_refused(stream: Any) -> None:
    """Write for as long as the server lets us."""
    while True:
        await stream.write(Request(message="x"))


async def test_a_refused_stream_of_requests_keeps_its_reason() -> None:
    """S3: a server that ends a call while requests are still written is heard; it does not look broken."""
    async with running(Echo(), token="wrong") as echo:
        for _ in range(60):
            requests = [Request(message="x")] * 5
            error = await failure(echo.stub.gather(iter(requests)))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            error = await failure(echo.stub.both(iter(requests)))
            assert from_rpc_error(error).reason is Reason.UNAUTHENTICATED
            stream = echo.stub.both()
            error = await failure(write_until_refused(stream))
            assert from_rpc_error(error).reason is Reason.UNAUTHENTICATED
            assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_that_ends_early_and_well_just_ends() -> None:
    """A server may answer before it has read every request: the reader sees the end, not an error."""

    async def first_only(requests: AsyncIterator[Request], context: Any) -> AsyncIterator[Request]:
        yield await anext(requests)

    async with running(Echo(both=first_only)) as echo:
        for _ in range(60):
            answers = [r.message async for r in echo.stub.both(iter([Request(message="um")] * 20))]
            assert answers == ["um"]
