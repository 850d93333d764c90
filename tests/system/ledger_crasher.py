"""Forks ledger writers that somebody kills; a program of its own, driven by lines on its standard input.

``go N`` forks a child that opens the ledger and writes as fast as it can. Lines on standard output: ``pid N``,
``ready``, ``ask PROPOSAL REQUEST`` before each apply, ``ack PROPOSAL POSITION`` after an acknowledged commit, ``lost
PROPOSAL`` after a refusal, ``dead`` when the child is gone. Forking makes two hundred lives cheap; nothing that threads
or sockets depend on exists before the fork.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import traceback
from datetime import timedelta
from pathlib import Path

from ledger_svc.domain.model import Category, Content, Create, Draft, Supersede
from ledger_svc.outbox import MOST_ATTEMPTS, EventRef
from ledger_svc.service.commands import Request
from ledger_svc.service.context import Ledger
from ledger_svc.service.proposals import Applied, ProposalService, Proposing
from ledger_svc.store import LedgerStore
from ledger_svc.store_sqlite import SqliteLedgerStore
from service_kit.clock import SystemClock
from service_kit.ids import IdFactory
from service_kit.principals import Kind, Principal, Role, grant

PROJECT = "crash"
ANA = Principal("local", "ana", Kind.HUMAN, "", (grant("*", [Role.PROPOSER, Role.ADMIN]),))
RUI = Principal("local", "rui", Kind.HUMAN, "", (grant("*", [Role.REVIEWER]),))
APPLY = "ApplyProposal"
WRITERS = 3
BATCH = 2
LOST = ("HEAD_MOVED", "PROPOSAL_STATUS")
"""What a loser is told: at the apply, or after its approval was refused and it became STALE."""


def say(text: str) -> None:
    """Write a line in one piece: a killed process leaves no half of one."""
    os.write(1, f"{text}\n".encode())


async def open_store(where: str) -> LedgerStore:
    """Open a file, or a database of a Neo4j server: ``bolt://host:port user password``."""
    if not where.startswith("bolt://"):
        return await SqliteLedgerStore.open(Path(where))
    from ledger_svc.store_neo4j import Neo4jConnection, Neo4jLedgerStore

    return await Neo4jLedgerStore.open(Neo4jConnection(*where.split(" ")))


async def work(where: str, seed: int) -> None:
    """Propose, approve and apply in batches until killed."""
    store = await open_store(where)
    chance = random.Random(seed)
    new_id = IdFactory().new_id
    service = ProposalService(Ledger(store, SystemClock(), new_id))
    families = [f.family_id for f in await store.families(PROJECT, "", "", (0, ""), 20)]

    def request(caller: Principal, rpc: str) -> Request:
        return Request(caller, PROJECT, rpc, new_id(), b"", Role.READER)

    async def write() -> None:
        while True:
            drafts = []
            for _ in range(BATCH):
                content = Content(f"decision {chance.random()}", summary="x" * chance.randrange(2_000))
                if families and chance.random() < 0.5:
                    change = Supersede(chance.choice(families), content)
                else:
                    change = Create(Category.EPISODE, content)
                drafts.append(Proposing(Draft(PROJECT, "main", change, "because")))
            made = await service.create(ANA, PROJECT, [(request(ANA, "CreateProposal"), d) for d in drafts])
            views = [view.proposal for view in made if not isinstance(view, Exception)]
            if not views:
                continue
            await service.approve(
                RUI, PROJECT, [(request(RUI, "Approve"), p.proposal_id, p.preview_hash, "") for p in views]
            )
            items = [(request(ANA, APPLY), p.proposal_id, "") for p in views]
            for call, proposal_id, _ in items:
                say(f"ask {proposal_id} {call.request_id}")
            for applied, proposal in zip(await service.apply(ANA, PROJECT, items, brief=True), views, strict=True):
                if isinstance(applied, Applied):
                    say(f"ack {proposal.proposal_id} {applied.position}")
                elif getattr(applied, "reason", "") in LOST:
                    say(f"lost {proposal.proposal_id}")
                else:
                    raise applied

    async def consume() -> None:
        clock = SystemClock()
        while True:
            now = clock.now()
            events = await store.claim_events("w", 50, now, now + timedelta(milliseconds=50), MOST_ATTEMPTS)
            await store.ack_events([EventRef(e.id, e.fencing_token) for e in events[::2]], clock.now())
            await asyncio.sleep(0.002)

    say("ready")
    await asyncio.gather(consume(), *(write() for _ in range(WRITERS)))


def main() -> None:
    """Fork as told."""
    where = sys.argv[1]
    for line in sys.stdin:
        seed = int(line.split()[1])
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(work(where, seed))
            except Exception:  # noqa: BLE001 - said before the process ends
                traceback.print_exc()
            finally:
                os._exit(1)
        say(f"pid {child}")
        os.waitpid(child, 0)
        say("dead")


if __name__ == "__main__":
    main()
