"""A process from start to stop: ports, readiness, draining, streams, background tasks, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit_echo import SERVICE, TOKEN, Echo, EchoStub, OneToken, Request, add_echo_to_server, failure, running, wait_for

from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.errors import Reason, from_rpc_error
from service_kit.serving import BackgroundTaskDied, BindError, Host, until_stopping

BEARER = (("authorization", f"Bearer {TOKEN}"),)


async def test_shutdown_drains_calls_in_progress_and_refuses_new_ones() -> None:
    """S5: a call in progress finishes and is answered; one that arrives after the stop began is refused."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(request: Request, context: Any) -> Request:
        entered.set()
        await release.wait()
        return request

    async with running(Echo(unary=slow)) as echo, grpc.aio.insecure_channel(echo.server.address) as second:
        in_progress = asyncio.ensure_future(echo.stub.unary(Request(message="kept")))
        await asyncio.wait_for(entered.wait(), 5)
        closing = asyncio.ensure_future(echo.host.close())
        await asyncio.wait_for(echo.host.stopping.wait(), 5)

        async def refused() -> None:
            # The transport needs a moment to close its door; no call gets through once it has.
            while True:
                call = EchoStub(second).unary(Request(), metadata=BEARER, timeout=0.3)
                if (await failure(call)).code() is grpc.StatusCode.UNAVAILABLE:
                    return

        await asyncio.wait_for(refused(), 5)
        assert not closing.done()
        release.set()
        assert (await in_progress).message == "kept"
        await asyncio.wait_for(closing, 5)


async def test_the_grace_period_ends() -> None:
    """S5: a call that does not finish within the grace is cancelled; the process stops all the same."""
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def stuck(request: Request, context: Any) -> Request:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return request

    server = running(Echo(unary=stuck), grace_seconds=0.1)
    async with server as echo, grpc.aio.insecure_channel(echo.server.address) as channel:
        call = asyncio.ensure_future(failure(EchoStub(channel).unary(Request(), metadata=BEARER)))
        await asyncio.wait_for(entered.wait(), 5)
        await asyncio.wait_for(echo.host.close(), 5)
        assert (await call).code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        await asyncio.wait_for(cancelled.wait(), 5)


async def test_long_streams_end_first() -> None:
    """S5: a watcher ends with SHUTTING_DOWN when the stop begins, and does not use up the grace period."""
    hosts: list[Host] = []

    async def changes() -> AsyncIterator[Request]:
        yield Request(message="first")
        await asyncio.Event().wait()

    async def watch(request: Request, context: Any) -> AsyncIterator[Request]:
        async for change in until_stopping(hosts[0].stopping, changes()):
            yield change

    async with running(Echo(out=watch), grace_seconds=60) as echo:
        hosts.append(echo.host)
        stream = echo.stub.out(Request())
        assert (await stream.read()).message == "first"
        await asyncio.wait_for(echo.host.close(), 5)
        error = await failure(stream.read())
    assert from_rpc_error(error).reason is Reason.SHUTTING_DOWN


async def test_until_stopping_passes_everything_on_and_closes_its_source() -> None:
    """A source that ends is passed on whole, and is closed whatever happens to its reader."""
    closed = []

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
        finally:
            closed.append(True)

    assert [n async for n in until_stopping(asyncio.Event(), source())] == [0, 1, 2]
    reader = until_stopping(asyncio.Event(), source())
    assert await anext(reader) == 0
    await reader.aclose()  # type: ignore[attr-defined]
    assert closed == [True, True]


async def test_health_says_not_serving_while_calls_are_drained() -> None:
    """S5: readiness falls before anything else stops, and a health watch does not hold the server open."""
    async with running(Echo(), grace_seconds=60) as echo, grpc.aio.insecure_channel(echo.server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        closing = asyncio.ensure_future(echo.host.close())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        await asyncio.wait_for(closing, 5)


async def test_parts_stop_in_reverse_order_even_when_one_fails() -> None:
    """S5: a store outlives the tasks and servers added after it; a part that fails to stop does not keep the rest."""
    stopped: list[str] = []

    async def fail() -> None:
        stopped.append("broken")
        raise RuntimeError("cannot close")

    async def close_store() -> None:
        stopped.append("store")

    async def committer(stop: asyncio.Event) -> None:
        await stop.wait()
        stopped.append("committer")

    with structlog.testing.capture_logs() as logs:
        async with Host() as host:
            host.on_stop("store", close_store)
            host.background("committer", committer)
            host.on_stop("broken", fail)
            await host.start()
    assert stopped == ["broken", "committer", "store"]
    assert [line["part"] for line in logs if line["event"] == "stop_failed"] == ["broken"]


@pytest.mark.parametrize("way", ["raises", "returns"])
async def test_a_dead_background_task_takes_the_process_down(way: str) -> None:
    """A follower that ends by itself stops everything in order, with an error that names it."""
    stopped = []

    async def dies(stop: asyncio.Event) -> None:
        if way == "raises":
            raise ValueError("broken")

    async def works(stop: asyncio.Event) -> None:
        await stop.wait()
        stopped.append("works")

    with structlog.testing.capture_logs() as logs:
        async with Host() as host:
            host.background("works", works)
            host.background("follower", dies)
            with pytest.raises(BackgroundTaskDied, match="follower"):
                await asyncio.wait_for(host.run(), 5)
    assert stopped == ["works"]
    assert [line["task"] for line in logs if line["event"] == "background_task_died"] == ["follower"]


async def test_a_background_task_that_ignores_its_stop_is_cancelled() -> None:
    """S5: a task that does not look at its stop event ends with the grace period."""

    async def deaf(stop: asyncio.Event) -> None:
        await asyncio.Event().wait()

    async with Host(grace_seconds=0.05) as host:
        host.background("deaf", deaf)
        await host.start()
        await asyncio.wait_for(host.close(), 5)


async def test_an_address_in_use_is_refused() -> None:
    """Two processes never share a port: the second one says so instead of taking half of the calls."""
    async with running(Echo()) as echo, Host() as host:
        with pytest.raises(BindError, match=str(echo.server.port)):
            host.serve(Boundary(OneToken()), echo.server.address)


async def test_the_default_is_loopback_and_a_free_port() -> None:
    """A server that was told nothing listens on loopback only, on a port that is known before the start."""
    async with Host() as host:
        server = host.serve(Boundary(OneToken()))
        assert server.address == f"127.0.0.1:{server.port}"
        assert server.port > 0


async def test_several_servers_of_one_process_stop_callers_first() -> None:
    """S5: a call that needs another server of the same process still finishes while the process stops."""
    entered, release = asyncio.Event(), asyncio.Event()
    async with Host(grace_seconds=10) as host:
        ledger = host.serve(Boundary(OneToken()))
        ledger.add(add_echo_to_server, Echo())
        channel = connect(ledger.address)
        host.on_stop("channel", channel.close)

        async def search(request: Request, context: Any) -> Request:
            entered.set()
            await release.wait()
            answer: Request = await EchoStub(channel).unary(request)
            return answer

        retrieval = host.serve(Boundary(OneToken()))
        retrieval.add(add_echo_to_server, Echo(unary=search))
        await host.start()
        async with connect(retrieval.address, token=lambda: TOKEN) as client:
            call = asyncio.ensure_future(EchoStub(client).unary(Request(message="through")))
            await asyncio.wait_for(entered.wait(), 5)
            closing = asyncio.ensure_future(host.close())
            await asyncio.wait_for(host.stopping.wait(), 5)
            release.set()
            assert (await call).message == "through"
            await asyncio.wait_for(closing, 5)


PROGRAM = """
import asyncio, sys
from service_kit import logs
from service_kit.serving import Host

async def main():
    logs.configure()
    async with Host(grace_seconds=30) as host:
        async def loop(stop):
            print("ready", flush=True)
            await (asyncio.Event() if sys.argv[1] == "deaf" else stop).wait()
        async def close():
            print("closed", flush=True)
        host.on_stop("store", close)
        host.background("loop", loop)
        await host.run()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_process_in_order(number: signal.Signals) -> None:
    """S5: SIGTERM and SIGINT end the process with code 0, after everything was closed."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "polite"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "closed\n"), err


def test_a_second_signal_cuts_the_grace_short() -> None:
    """S5: who asks twice does not wait for the grace period; what must be closed is closed all the same."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "deaf"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGTERM)
        while '"stopping"' not in process.stderr.readline():
            pass
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "closed\n"), err


async def test_nothing_listens_after_the_stop() -> None:
    """S5: the port is free again when close() returns."""
    async with running(Echo()) as echo:
        await echo.host.close()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", echo.server.port)) != 0
        await wait_for(lambda: echo.server.boundary.active_calls == 0)
