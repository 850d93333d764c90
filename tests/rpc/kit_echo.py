"""A tiny service over a real aio server, for the tests of the kit: each method does what the test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from decisionssearch.common.v1 import common_pb2, errors_pb2

from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.errors import unauthenticated
from service_kit.limits import DEFAULT_LIMITS, Limits
from service_kit.principals import Grant, Kind, Principal, Role
from service_kit.serving import Host, Server

SERVICE = "decisionssearch.test.v1.EchoService"
TOKEN = "dst_test-token"
ANA = Principal("local", "ana", Kind.HUMAN, grants=(Grant("billing", frozenset({Role.PROPOSER})),))

Request = errors_pb2.ItemError
Response = errors_pb2.ItemError


class OneToken:
    """Knows one token."""

    async def authenticate(self, token: str) -> Principal:
        """Return its owner."""
        if token != TOKEN:
            raise unauthenticated()
        return ANA


Behaviour = Callable[[Any, Any], Any]


async def _echo(request: Request, context: Any) -> Response:
    return request


async def _repeat(request: Request, context: Any) -> AsyncIterator[Response]:
    for _ in range(3):
        yield request


async def _count(requests: AsyncIterator[Request], context: Any) -> Response:
    return Response(code=len([r async for r in requests]))


async def _each(requests: AsyncIterator[Request], context: Any) -> AsyncIterator[Response]:
    async for request in requests:
        yield request


@dataclass
class Echo:
    """The behaviour of each method; a test replaces what it needs before the server starts."""

    unary: Behaviour = _echo
    out: Behaviour = _repeat
    gather: Behaviour = _count
    both: Behaviour = _each
    calls: list[str] = field(default_factory=list)


def add_echo_to_server(echo: Echo, server: Any) -> None:
    """What a generated ``add_XServicer_to_server`` does."""
    codec: dict[str, Any] = {
        "request_deserializer": Request.FromString,
        "response_serializer": Response.SerializeToString,
    }
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(echo.unary, **codec),
        "Out": grpc.unary_stream_rpc_method_handler(echo.out, **codec),
        "Gather": grpc.stream_unary_rpc_method_handler(echo.gather, **codec),
        "Both": grpc.stream_stream_rpc_method_handler(echo.both, **codec),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)


class EchoStub:
    """What a generated stub does."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        codec: dict[str, Any] = {
            "request_serializer": Request.SerializeToString,
            "response_deserializer": Response.FromString,
        }
        self.unary: Any = channel.unary_unary(f"/{SERVICE}/Unary", **codec)
        self.out: Any = channel.unary_stream(f"/{SERVICE}/Out", **codec)
        self.gather: Any = channel.stream_unary(f"/{SERVICE}/Gather", **codec)
        self.both: Any = channel.stream_stream(f"/{SERVICE}/Both", **codec)


@dataclass
class Running:
    """A server with the echo service, and a client that has the token."""

    host: Host
    server: Server
    stub: EchoStub
    channel: grpc.aio.Channel


@asynccontextmanager
async def running(
    echo: Echo,
    *,
    limits: Limits = DEFAULT_LIMITS,
    token: str = TOKEN,
    grace_seconds: float = 5.0,
    max_concurrent_calls: int = 1_000,
) -> AsyncIterator[Running]:
    """Serve the echo service until the block ends."""
    async with Host(grace_seconds=grace_seconds) as host:
        boundary = Boundary(OneToken(), limits=limits, max_concurrent_calls=max_concurrent_calls)
        server = host.serve(boundary)
        server.add(add_echo_to_server, echo)
        await host.start()
        async with connect(server.address, token=lambda: token) as channel:
            yield Running(host, server, EchoStub(channel), channel)


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """Return the error that a call, unary or a stream of responses, ends with."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call succeeded")


async def wait_for(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.001)


PRINCIPAL_KIND = common_pb2.PrincipalKind
