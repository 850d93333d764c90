"""A relay in front of a Neo4j server that can lose a commit, or its acknowledgement, as a network does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_COMMIT = b"\xb0\x12"
"""The Bolt message COMMIT: a structure without fields, tag 0x12."""


@dataclass(slots=True)
class BoltProxy:
    """Where clients connect, and what is to happen to the next commits."""

    port: int = 0
    lose_acknowledgements: int = 0
    """How many commits reach the server without the client hearing of it: the connection dies first."""
    lose_commits: int = 0
    """How many commits never reach the server: the connection dies first."""
    commits: int = 0
    lost: int = 0
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def uri(self) -> str:
        """The address for a client."""
        return f"bolt://127.0.0.1:{self.port}"


@asynccontextmanager
async def relaying(uri: str) -> AsyncIterator[BoltProxy]:
    """Relay to a server while the block runs."""
    host, _, port = uri.rpartition("/")[2].partition(":")
    proxy = BoltProxy()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        proxy._connections.add(task)
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        cut = asyncio.Event()
        pumps = [
            asyncio.create_task(_up(proxy, reader, upstream_writer, cut)),
            asyncio.create_task(_down(proxy, upstream_reader, writer, cut)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for one in (writer, upstream_writer):
                one.close()
                with suppress(OSError):
                    await one.wait_closed()
            proxy._connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in list(proxy._connections):
            task.cancel()
        await asyncio.gather(*proxy._connections, return_exceptions=True)


async def _up(proxy: BoltProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event) -> None:
    while data := await reader.read(65_536):
        if _COMMIT in data[-8:]:
            proxy.commits += 1
            if proxy.lose_commits:
                proxy.lose_commits -= 1
                proxy.lost += 1
                return
            if proxy.lose_acknowledgements:
                proxy.lose_acknowledgements -= 1
                proxy.lost += 1
                cut.set()
        writer.write(data)
        await writer.drain()


async def _down(
    proxy: BoltProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event
) -> None:
    while data := await reader.read(65_536):
        if cut.is_set():
            # The server has answered: it is done, and nobody hears of it.
            return
        writer.write(data)
        await writer.drain()
