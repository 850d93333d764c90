"""The embedded deployment in a process of its own, for benchmarks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc.aio
import psutil

from all_in_one.folder import DataFolder
from service_kit.clients import connect

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that answers."""

    channels: Mapping[str, grpc.aio.Channel]
    """By name of the principal whose token it carries."""
    process: int

    def megabytes(self) -> int:
        """Return the resident memory of the deployment, its embedding worker included."""
        serving = psutil.Process(self.process)
        return int(sum(p.memory_info().rss for p in (serving, *serving.children(recursive=True))) // 2**20)


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Running]:
    """Run the four services in one process on a data folder."""
    data = DataFolder(folder)
    settings = {"DSEARCH_ALL_DATA_DIR": str(folder), "DSEARCH_ALL_LOG_LEVEL": "error"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DSEARCH_")}
    process = subprocess.Popen([sys.executable, "-m", "all_in_one"], env={**kept, **settings})
    try:
        address = await _address(data, process)
        async with AsyncExitStack() as closing:
            channels = {}
            for name in ("importer", "reviewer", "owner", "reader"):
                token = data.token_file(name).read_text("ascii").strip()
                channels[name] = connect(address, token=partial(str, token), timeout_seconds=60.0)
                closing.push_async_callback(channels[name].close)
            yield Running(channels, process.pid)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 30)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)


async def _address(data: DataFolder, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        running = data.read_endpoint()
        if running is not None:
            return running["ledger"]
        await asyncio.sleep(0.05)
    raise RuntimeError("the deployment did not start")
