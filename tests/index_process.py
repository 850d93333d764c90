"""An index in a process of its own, to be killed: ``python -m tests.index_process FOLDER LEDGER_ADDRESS``.

Prints its address when it serves.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from index_svc.app import create_app
from index_svc.ledger_client import GrpcLedgerClient
from index_svc.servicer import LIMITS
from index_svc.settings import IndexSettings
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.logs import configure
from service_kit.serving import Host
from tests.index_world import FAST, SERVICE_TOKEN, Tokens, WordEmbedder


async def main(folder: str, ledger: str) -> None:
    """Serve until killed."""
    configure("error", "console")
    async with Host() as host:
        channel = connect(ledger, token=lambda: SERVICE_TOKEN)
        host.on_stop("ledger channel", channel.close)
        settings = IndexSettings.load(data_dir=Path(folder), batch_size=8, calibration_quiet_seconds=0.05)
        app = await create_app(settings, ledger=GrpcLedgerClient(channel), embedder=WordEmbedder(), timing=FAST)
        app.add_to(host)
        server = host.serve(Boundary(Tokens(), limits=LIMITS))
        for add in app.servicers:
            add(server)
        await host.start()
        print(server.address, flush=True)
        await host.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
