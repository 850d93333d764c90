"""A process: its servers, its background tasks, and the order in which they start and stop.

One ``Host`` per process, in ``app.py`` or in ``all_in_one``::

    async with Host() as host:                       # binds nothing yet
        server = host.serve(boundary, "127.0.0.1:0") # bound now: server.port is known
        host.on_stop("store", store.close)
        host.background("committer", committer.run)
        server.add(add_LedgerServiceServicer_to_server, LedgerServicer(service))
        await host.run()                             # starts, waits for SIGTERM or SIGINT, stops

What was added last stops first, each within what is left of the grace period: a service is added after what it
calls, and a server after the store and the tasks that its handlers need. Shutdown, in order:

1. health says NOT_SERVING everywhere, and ``host.stopping`` is set: handlers of long streams end them
   (:func:`until_stopping`);
2. in reverse order of addition: servers refuse new calls and let those in progress finish; background tasks see
   their own stop event, are awaited, then cancelled; resources are closed.

A background task that ends by itself stops the whole process with an error, rather than dying silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service_kit.boundary import Boundary
from service_kit.errors import shutting_down
from service_kit.limits import TRANSPORT_FACTOR
from service_kit.logs import get_logger

T = TypeVar("T")
Servicer = TypeVar("Servicer")

DEFAULT_BIND: Final = "127.0.0.1:0"
DEFAULT_GRACE_SECONDS: Final = 10.0
_LEAST_GRACE_SECONDS: Final = 0.1


class BackgroundTaskDied(Exception):  # noqa: N818 - it states the fact that the log line shows
    """A background task ended though nobody had asked it to."""


class BindError(Exception):
    """The address cannot be bound; the message says which."""


class Health(health_pb2_grpc.HealthServicer):
    """The standard health service: ``""`` says that the process lives, a service's full name that it can serve.

    Of our own because its watches end when the server stops; those of the ready-made one hold the server open.
    """

    def __init__(self, stopping: asyncio.Event) -> None:
        self._serving: dict[str, bool] = {"": True}
        self._changed = asyncio.Condition()
        self._stopping = stopping

    async def set(self, service: str, *, serving: bool) -> None:
        """Set the readiness of a service; a stopping process cannot become ready again."""
        async with self._changed:
            self._serving[service] = serving and not self._stopping.is_set()
            self._changed.notify_all()

    async def stop(self) -> None:
        """Say NOT_SERVING for every service; the process itself lives until it ends."""
        async with self._changed:
            self._serving = {name: name == "" for name in self._serving}
            self._changed.notify_all()

    def _status(self, service: str) -> int:
        serving = self._serving.get(service)
        if serving is None:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        return health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING

    async def Check(  # noqa: N802 - gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        """Return the state of a service; NOT_FOUND for one that is not here, as the protocol asks."""
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 - gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Stream the state of a service until the server stops."""
        del context
        last: int | None = None
        while True:
            async with self._changed:
                while (status := self._status(request.service)) == last and not self._stopping.is_set():
                    await self._changed.wait()
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)
            if self._stopping.is_set():
                return


class _NamesOfServices:
    """Stands in for the server while a servicer is added, to learn the full names of its services."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self.names += [h.service_name() for h in handlers if hasattr(h, "service_name")]
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        self._server.add_registered_method_handlers(service, handlers)


class Server:
    """One gRPC server on one port: servicers behind the boundary, health and reflection. Made by ``Host.serve``."""

    def __init__(self, boundary: Boundary, bind: str, stopping: asyncio.Event) -> None:
        self.boundary = boundary
        self.health = Health(stopping)
        self._services: list[str] = []
        self._server = grpc.aio.server(
            interceptors=(boundary,),
            options=(
                # Without this, two processes share one port and each gets some of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", boundary.limits.max_message_bytes * TRANSPORT_FACTOR),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 16 * 1024),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
        )
        try:
            self.port = self._server.add_insecure_port(bind)
        except RuntimeError:
            raise BindError(f"cannot listen on {bind}; is another process using it?") from None
        host = bind.rpartition(":")[0]
        self.address = bind if bind.startswith("unix:") else f"{host}:{self.port}"
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)

    @property
    def services(self) -> tuple[str, ...]:
        """Full names of the services that were added."""
        return tuple(self._services)

    def add(self, register: Callable[[Servicer, Any], None], servicer: Servicer) -> None:
        """Add a servicer with its generated ``add_XServicer_to_server`` function, before the start."""
        names = _NamesOfServices(self._server)
        register(servicer, names)
        self._services += names.names

    async def start(self, *, serving: bool = True) -> None:
        """Begin to answer. ``serving=False`` leaves the services NOT_SERVING until :meth:`set_serving`."""
        public = ("grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection((*self._services, *public), self._server)
        await self.set_serving(serving)
        await self._server.start()

    async def set_serving(self, serving: bool, service: str | None = None) -> None:
        """Set the readiness of one service, or of all of this server."""
        for name in self._services if service is None else (service,):
            await self.health.set(name, serving=serving)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, let those in progress finish within the grace, then cancel them."""
        await self._server.stop(grace_seconds)


@dataclass(slots=True)
class _Background:
    name: str
    run: Callable[[asyncio.Event], Awaitable[None]]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Resource:
    name: str
    close: Callable[[], Awaitable[None]]


class Host:
    """One process. See the module's text for use and for the order of shutdown."""

    def __init__(self, *, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> None:
        self.stopping = asyncio.Event()
        """Set when the shutdown begins. Handlers of long streams end them then."""
        self._stop_asked = asyncio.Event()
        self._grace = grace_seconds
        self._parts: list[Server | _Background | _Resource] = []
        self._failure: BackgroundTaskDied | None = None
        self._started = False
        self._closed = False
        self._deadline = 0.0
        self._hurry = asyncio.Event()
        self._log = get_logger("host")

    def serve(self, boundary: Boundary, bind: str = DEFAULT_BIND) -> Server:
        """Bind a server and return it; add servicers to it before the start. Loopback unless told otherwise.

        Raises:
            BindError: The address cannot be bound.
        """
        self._refuse_when_started()
        server = Server(boundary, bind, self.stopping)
        self._parts.append(server)
        return server

    def background(self, name: str, run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        """Add a task that runs from start to stop. It gets its stop event and returns soon after that is set."""
        self._refuse_when_started()
        self._parts.append(_Background(name, run))

    def on_stop(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """Add something to close: a store, a channel, a worker process."""
        self._parts.append(_Resource(name, close))

    async def start(self) -> None:
        """Start everything in the order of addition."""
        self._refuse_when_started()
        self._started = True
        for part in self._parts:
            if isinstance(part, Server):
                await part.start()
                self._log.info("listening", address=part.address, services=list(part.services))
            elif isinstance(part, _Background):
                part.task = asyncio.create_task(self._watch(part), name=part.name)

    def stop(self) -> None:
        """Ask for the shutdown; a second time: without grace."""
        if self._stop_asked.is_set():
            self._grace = self._deadline = 0.0
            self._hurry.set()
        self._stop_asked.set()

    async def run(self) -> None:
        """Start unless started, wait for SIGTERM, SIGINT or :meth:`stop`, then shut down.

        Raises:
            BackgroundTaskDied: A background task ended by itself; the shutdown is complete by then.
        """
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            if not self._started:
                await self.start()
            await self._stop_asked.wait()
        finally:
            try:
                await self.close()
            finally:
                for number in signals:
                    loop.remove_signal_handler(number)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Shut down, in the order that the module's text describes. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        self._deadline = time.monotonic() + self._grace
        self._log.info("stopping", grace_seconds=self._grace)
        self.stopping.set()
        servers = [part for part in self._parts if isinstance(part, Server)]
        for server in servers:
            await server.health.stop()
        for part in reversed(self._parts):
            # One part that fails to stop must not keep the next from flushing what it holds.
            try:
                await self._stop_part(part)
            except Exception as error:  # noqa: BLE001 - logged, and the rest still stops
                self._log.error("stop_failed", part=_name_of(part), exc_info=error)
        self._log.info("stopped")

    async def _stop_part(self, part: Server | _Background | _Resource) -> None:
        if isinstance(part, _Resource):
            await part.close()
        elif isinstance(part, Server):
            ended = asyncio.create_task(part.stop(self._left()))
            if not await self._in_time(ended):
                # A server that already waits for its calls takes the shorter grace of a second stop.
                await part.stop(0.0)
                await ended
        elif part.task is not None:
            part.stop.set()
            if not await self._in_time(part.task):
                self._log.warning("task_cancelled", task=part.name)
                part.task.cancel()
                await asyncio.wait([part.task])

    async def _in_time(self, ended: asyncio.Task[None]) -> bool:
        """Wait for a task within what is left of the grace, or until somebody asks to hurry; say whether it ended."""
        hurry = asyncio.create_task(self._hurry.wait())
        # A little more than the grace: a server ends its calls itself when that is over.
        timeout = self._left() + _LEAST_GRACE_SECONDS
        await asyncio.wait((ended, hurry), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        return ended.done()

    async def _watch(self, part: _Background) -> None:
        try:
            await part.run(part.stop)
        except asyncio.CancelledError:
            if part.stop.is_set():
                raise
            self._died(part, None)
        except Exception as error:  # noqa: BLE001 - logged, and it ends the process
            self._died(part, error)
        else:
            if not part.stop.is_set():
                self._died(part, None)

    def _died(self, part: _Background, error: BaseException | None) -> None:
        self._log.error("background_task_died", task=part.name, exc_info=error)
        if self._failure is None:
            self._failure = BackgroundTaskDied(f"background task {part.name} ended by itself: {error!r}")
            self._failure.__cause__ = error
        self._stop_asked.set()

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _refuse_when_started(self) -> None:
        if self._started or self._closed:
            raise RuntimeError("the host has started; add its parts before")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close()


async def until_stopping(stopping: asyncio.Event, source: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield from a source until the process stops; then raise SHUTTING_DOWN, so that the reader resumes elsewhere."""
    stop = asyncio.ensure_future(stopping.wait())
    upcoming: asyncio.Task[T | _End] | None = None
    try:
        while True:
            upcoming = asyncio.ensure_future(_next(source))
            await asyncio.wait((stop, upcoming), return_when=asyncio.FIRST_COMPLETED)
            if not upcoming.done():
                raise shutting_down()
            item = upcoming.result()
            if isinstance(item, _End):
                return
            yield item
            if stop.done():
                raise shutting_down()
    finally:
        for task in (stop, upcoming):
            if task is not None and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


class _End:
    """Marks the end of a source: StopAsyncIteration does not pass through a task unharmed."""


async def _next(source: AsyncIterator[T]) -> T | _End:
    try:
        return await anext(source)
    except StopAsyncIteration:
        return _End()


def _name_of(part: Server | _Background | _Resource) -> str:
    return part.address if isinstance(part, Server) else part.name
