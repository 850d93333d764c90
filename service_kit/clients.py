"""Channels to other services: deadlines and credentials passed on, transport retries only where they are safe.

Every call gets a deadline, the caller's own remaining time when that is shorter. Only UNAVAILABLE is sent again by
the transport; a caller that wants to repeat an ABORTED one decides that itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio

from service_kit.boundary import AUTHORIZATION_KEY, REQUEST_ID_KEY
from service_kit.context import current_request_id, current_token, remaining_seconds
from service_kit.errors import deadline_exceeded
from service_kit.ids import new_id
from service_kit.limits import DEFAULT_MAX_MESSAGE_BYTES, TRANSPORT_FACTOR
from service_kit.stream_status import StreamStream, StreamUnary

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
DEFAULT_STREAM_TIMEOUT_SECONDS: Final = 3_600.0

_SERVICE_CONFIG: Final = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


def connect(
    target: str,
    *,
    token: Callable[[], str] | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    stream_timeout_seconds: float = DEFAULT_STREAM_TIMEOUT_SECONDS,
    wait_for_ready: bool = True,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """Return a channel; it connects at the first call, so the order in which services start does not matter.

    Args:
        target: ``host:port``.
        token: Gives the bearer token of this client (a service's own, for background work). Without it the token
            of the call in progress is passed on.
        timeout_seconds: Deadline of a call that names none.
        stream_timeout_seconds: The same for calls that stream.
        wait_for_ready: Wait, within the deadline, for a server that is not there yet, instead of failing at once.
        max_message_bytes: Largest request this client's servers accept.
    """
    options: Sequence[tuple[str, Any]] = (
        ("grpc.service_config", _SERVICE_CONFIG),
        ("grpc.enable_retries", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.max_send_message_length", max_message_bytes * TRANSPORT_FACTOR),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_metadata_size", 16 * 1024),
        # A proxy from the environment must not come between the services.
        ("grpc.enable_http_proxy", 0),
    )
    inner = grpc.aio.insecure_channel(target, options=options)
    return _ServiceChannel(inner, token, timeout_seconds, stream_timeout_seconds, wait_for_ready)


class _ServiceChannel(grpc.aio.Channel):
    """A decorator around a channel. Cheaper than client interceptors, which cost a task per call."""

    def __init__(
        self,
        inner: grpc.aio.Channel,
        token: Callable[[], str] | None,
        timeout: float,
        stream_timeout: float,
        wait_for_ready: bool,
    ) -> None:
        self._inner = inner
        self._token = token
        self._timeout = timeout
        self._stream_timeout = stream_timeout
        self._wait_for_ready = wait_for_ready

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, traceback)

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._inner.unary_unary(*args, **kwargs), self._timeout)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._inner.unary_stream(*args, **kwargs), self._stream_timeout)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._inner.stream_unary(*args, **kwargs), self._stream_timeout, StreamUnary)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._inner.stream_stream(*args, **kwargs), self._stream_timeout, StreamStream)

    def _call(
        self, inner: Any, default_timeout: float, decorate: Callable[[Any], Any] | None = None
    ) -> Callable[..., Any]:
        def call(
            *request: Any,
            timeout: float | None = None,
            metadata: Any = None,
            wait_for_ready: bool | None = None,
            **rest: Any,
        ) -> Any:
            made = inner(
                *request,
                timeout=effective_timeout(default_timeout if timeout is None else timeout),
                metadata=self._metadata(metadata),
                wait_for_ready=self._wait_for_ready if wait_for_ready is None else wait_for_ready,
                **rest,
            )
            return made if decorate is None else decorate(made)

        return call

    def _metadata(self, given: Any) -> tuple[tuple[str, str | bytes], ...]:
        metadata: list[tuple[str, str | bytes]] = list(given or ())
        keys = {key for key, _ in metadata}
        if AUTHORIZATION_KEY not in keys:
            token = self._token() if self._token is not None else current_token()
            if token:
                metadata.append((AUTHORIZATION_KEY, f"Bearer {token}"))
        if REQUEST_ID_KEY not in keys:
            metadata.append((REQUEST_ID_KEY, current_request_id() or new_id()))
        return tuple(metadata)


def effective_timeout(wanted: float) -> float:
    """Return the time that a call may take: the wanted one, or what is left to the call in progress.

    Raises:
        DomainError: DEADLINE, when nothing is left.
    """
    left = remaining_seconds()
    if left is None:
        return wanted
    if left <= 0:
        raise deadline_exceeded()
    return min(wanted, left)
