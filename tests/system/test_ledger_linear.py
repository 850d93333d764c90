"""Races between real clients of real ledger processes; the recorded history is checked for one order that explains it.

``DECISIONSSEARCH_TEST_FULL=1`` runs 2,000 races on each store instead of a few hundred.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from decisionssearch.ledger.v1 import admin_service_pb2, ledger_pb2, ledger_service_pb2, proposal_pb2
from decisionssearch.ledger.v1 import proposal_service_pb2 as pb

from service_kit.clients import connect
from service_kit.errors import from_rpc_error
from service_kit.ids import new_id
from tests import neo4j_fixture
from tests.ledger_stack import Client
from tests.linear import Call, head_problems, order_problems, position_problems, race_problems
from tests.system.test_ledger_process import PROJECT, Folder

FULL = os.environ.get("DECISIONSSEARCH_TEST_FULL") == "1"
RACES = 2_000 if FULL else 240
WRITERS = 8
HEADS = 7
"""Families that are raced for at the same time; besides, each round races for one new identity key."""
POLICY = admin_service_pb2.Policy(
    categories=[admin_service_pb2.CategoryPolicy(category=ledger_pb2.CATEGORY_DESIGN_RULE)]
)
LOST = frozenset({"HEAD_MOVED", "ALREADY_EXISTS"})


@dataclass(slots=True)
class Server:
    """A ledger process, with a way to make clients of it."""

    folder: Folder
    process: subprocess.Popen[bytes]
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def client(self, who: str) -> Client:
        """A client with a connection of its own."""
        token = self.folder.tokens[who]
        client = Client(connect(self.folder.address, token=lambda: token, timeout_seconds=60.0))
        self.channels.append(client.channel)
        return client

    async def close(self) -> None:
        """Stop it, and see that it stops as it should."""
        for channel in self.channels:
            await channel.close()
        self.process.terminate()
        assert await asyncio.to_thread(self.process.wait, 60) == 0


def _sqlite(path: Path) -> list[Folder]:
    return [Folder(path / "one")]


def _neo4j(path: Path) -> list[Folder]:
    neo4j_fixture.wipe()
    return [_on_neo4j(path / "one")]


def _two_on_neo4j(path: Path) -> list[Folder]:
    return [*_neo4j(path), _on_neo4j(path / "two")]


def _on_neo4j(path: Path) -> Folder:
    folder, server = Folder(path), neo4j_fixture.server()
    password = path / "password"
    password.write_text(server.password)
    folder.environment |= {
        "DSEARCH_LEDGER_STORE": "neo4j",
        "DSEARCH_LEDGER_NEO4J_URI": server.uri,
        "DSEARCH_LEDGER_NEO4J_USER": server.user,
        "DSEARCH_LEDGER_NEO4J_PASSWORD_FILE": str(password),
    }
    return folder


@asynccontextmanager
async def _serving(folders: list[Folder]) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        servers = []
        for folder in folders:
            server = Server(folder, folder.start())
            stack.push_async_callback(server.close)
            servers.append(server)
        for server in servers:
            await asyncio.wait_for(server.client("ana").channel.channel_ready(), 60)
        yield servers


def _content(title: str) -> ledger_pb2.Content:
    return ledger_pb2.Content(title=title, summary="as decided")


def _create(title: str, key: str) -> proposal_pb2.Mutation:
    return proposal_pb2.Mutation(
        create=proposal_pb2.CreateMutation(
            identity_key=key, category=ledger_pb2.CATEGORY_DESIGN_RULE, content=_content(title)
        )
    )


def _supersede(title: str, family: str) -> proposal_pb2.Mutation:
    return proposal_pb2.Mutation(supersede=proposal_pb2.SupersedeMutation(family=family, content=_content(title)))


async def _approved(ana: Client, rui: Client, mutations: list[proposal_pb2.Mutation]) -> list[proposal_pb2.Proposal]:
    """Propose and approve, all on the heads as they are now."""
    create = [pb.CreateProposalRequest(request_id=new_id(), mutation=one, reason="because") for one in mutations]
    made = await ana.proposals.BatchCreateProposals(pb.BatchCreateProposalsRequest(project=PROJECT, requests=create))
    proposals = [result.proposal for result in made.results]
    assert all(one.name for one in proposals), made
    approve = [
        pb.ApproveProposalRequest(proposal=one.name, request_id=new_id(), preview_hash=one.preview_hash)
        for one in proposals
    ]
    said = await rui.proposals.BatchApproveProposals(pb.BatchApproveProposalsRequest(project=PROJECT, requests=approve))
    assert all(result.HasField("approved") for result in said.results), said
    return proposals


async def _apply(client: Client, request: pb.ApplyProposalRequest) -> tuple[int, str, str]:
    """Apply: position and revision, or the reason of the refusal."""
    try:
        applied = await client.proposals.ApplyProposal(request)
    except grpc.aio.AioRpcError as error:
        return 0, "", from_rpc_error(error).reason
    return applied.position, applied.proposal.applied_revision, ""


async def _run_writer(
    client: Client, other: Client, chance: random.Random, asked: list[tuple[int, proposal_pb2.Proposal]]
) -> list[Call]:
    """Apply one proposal of every race of a round, in an order of its own; now and then send a request again."""
    chance.shuffle(asked)
    calls = []
    for race, proposal in asked:
        request = pb.ApplyProposalRequest(proposal=proposal.name, request_id=new_id())
        began = time.perf_counter()
        if chance.random() < 0.05:
            # A duplicate that arrives at the same time, at the other process where there is one.
            answer, again = await asyncio.gather(_apply(client, request), _apply(other, request))
            assert again == answer
        else:
            answer = await _apply(client, request)
        answered = time.perf_counter()
        expected = proposal.expected_heads[0] if proposal.expected_heads else None
        family = expected.family if expected else f"key of race {race}"
        calls.append(Call(race, began, answered, (family, "main"), expected.revision if expected else "", *answer))
    return calls


async def _watch(client: Client, seen: list[int], until: int) -> None:
    async for message in client.ledger.WatchChanges(ledger_service_pb2.WatchChangesRequest(project=PROJECT)):
        if message.HasField("change"):
            seen.append(message.change.position)
        if len(seen) >= until:
            return


async def _race(servers: list[Server], races: int) -> list[Call]:
    """Run the races; return what every client saw."""
    ana, rui = servers[0].client("ana"), servers[-1].client("rui")
    make = admin_service_pb2.CreateProjectRequest(name=PROJECT, request_id=new_id(), policy=POLICY)
    await ana.admin.CreateProject(make)
    heads: dict[tuple[str, str], str] = {}
    for one in await _approved(ana, rui, [_create(f"rule {n}", f"rule/{n}") for n in range(HEADS)]):
        request = pb.ApplyProposalRequest(proposal=one.name, request_id=new_id())
        applied = await ana.proposals.ApplyProposal(request)
        heads[applied.proposal.family, "main"] = applied.proposal.applied_revision
    families = [family for family, _ in heads]
    clients = [servers[n % len(servers)].client("ana") for n in range(WRITERS)]
    others = [servers[(n + 1) % len(servers)].client("ana") for n in range(WRITERS)]
    chances = [random.Random(n) for n in range(WRITERS)]
    rounds = races // (HEADS + 1)
    seen: list[list[int]] = [[] for _ in servers]
    commits = HEADS + rounds * (HEADS + 1)
    watching = [
        asyncio.ensure_future(_watch(server.client("ana"), own, commits))
        for server, own in zip(servers, seen, strict=True)
    ]
    calls: list[Call] = []
    for number in range(rounds):
        first = number * (HEADS + 1)
        mutations = [
            _supersede(f"round {number} by {writer}", family) for family in families for writer in range(WRITERS)
        ]
        mutations += [_create(f"round {number} by {writer}", f"round/{number}") for writer in range(WRITERS)]
        proposals = await _approved(ana, rui, mutations)
        asked = [
            [(first + race, proposals[race * WRITERS + writer]) for race in range(HEADS + 1)]
            for writer in range(WRITERS)
        ]
        for done in await asyncio.gather(*map(_run_writer, clients, others, chances, asked)):
            calls += done
    await asyncio.wait_for(asyncio.gather(*watching), 60)
    assert all(own == list(range(1, commits + 1)) for own in seen), "a watcher missed or repeated a commit"
    await _check(ana, calls, heads)
    return calls


async def _check(ana: Client, calls: list[Call], heads: dict[tuple[str, str], str]) -> None:
    assert race_problems(calls, LOST) == []
    assert position_problems(calls, HEADS + 1) == []
    assert head_problems(calls, heads) == []
    assert order_problems(calls) == []
    won = {call.position: call.revision for call in calls if call.won}
    stored: dict[int, str] = {}
    while True:
        listing = ledger_service_pb2.ListChangesRequest(project=PROJECT, after_position=len(stored), page_size=500)
        page = await ana.ledger.ListChanges(listing)
        stored |= {change.position: change.revision for change in page.changes}
        if not page.changes:
            break
    assert {position: revision for position, revision in stored.items() if position > HEADS} == won
    verified = await ana.admin.VerifyAudit(admin_service_pb2.VerifyAuditRequest(project=PROJECT), timeout=300)
    assert verified.valid, verified


@pytest.mark.slow
@pytest.mark.timeout(3_600 if FULL else 600)
@pytest.mark.parametrize("where", [_sqlite, _neo4j, _two_on_neo4j], ids=["sqlite", "neo4j", "two-on-neo4j"])
async def test_races_have_one_winner_each_and_one_order_explains_all_answers(
    where: Callable[[Path], list[Folder]], tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    """L2, L7, L14: 8 writers race for heads and identity keys: one winner each, and the recorded history is linear."""
    async with _serving(where(tmp_path)) as servers:
        began = time.perf_counter()
        calls = await _race(servers, RACES)
        record_property("races", f"{RACES} with {len(calls)} applies in {time.perf_counter() - began:.1f} s")
    assert len(calls) == RACES // (HEADS + 1) * (HEADS + 1) * WRITERS
