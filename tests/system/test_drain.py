"""SIGTERM while everything is busy: whole deployments, as real processes."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from decisionssearch.ingest.v1 import ingest_service_pb2
from decisionssearch.ledger.v1 import ledger_pb2, ledger_service_pb2, proposal_pb2, proposal_service_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2
from stacks import Stack

from dsearch.cli.operate import import_rule
from dsearch.client import DecisionsClient
from service_kit.errors import Reason, from_rpc_error
from service_kit.ids import new_id
from tests.ledger_stack import evidence_input
from tests.whole_stack import AllStubs, until

PROJECT = "tidewater"
NAME = f"projects/{PROJECT}"
WRITERS = 6
ENOUGH = 25
"""Acknowledged writes of a life before it is told to stop."""


@pytest.fixture(params=["all_in_one", "serve", "four"])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """A deployment; it is gone at the end of the test, whatever happened."""
    made = Stack(request.param, tmp_path / "data")
    try:
        yield made
    finally:
        made.kill()


@dataclass(slots=True)
class Step:
    """A write with its request id, and whether it was acknowledged."""

    title: str
    create: Any
    apply_id: str = ""
    proposal: str = ""
    position: int = 0


@dataclass(slots=True)
class Load:
    """Clients that never pause, and what they were told."""

    steps: list[Step] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    observed: dict[int, str] = field(default_factory=dict)
    watched: list[int] = field(default_factory=list)

    @property
    def acknowledged(self) -> list[Step]:
        """Writes whose commit was answered."""
        return [step for step in self.steps if step.position]

    def refused(self, error: grpc.aio.AioRpcError) -> None:
        """Note how a call ended that did not work."""
        typed = from_rpc_error(error)
        end = f"{error.code().name} {typed.reason}"
        self.refusals[end if end in ALLOWED else f"{end}: {error.details()}"] += 1


def _raw(address: str, token: str) -> AllStubs:
    """Stubs that repeat nothing by themselves, so that every answer is seen."""
    # What the kit's channels would add by themselves.
    channel = grpc.aio.insecure_channel(address, options=(("grpc.enable_retries", 0),))
    return AllStubs(_WithToken(channel, token))  # type: ignore[arg-type]  # as much of a channel as stubs need


class _WithToken:
    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),)

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._channel, name)
        if name == "close":
            return made

        def method(*args: Any, **kwargs: Any) -> Any:
            call = made(*args, **kwargs)
            return lambda *request, **more: call(*request, metadata=self._metadata, **more)

        return method


class Clients:
    """Raw stubs of every service of a stack, for each of its principals."""

    def __init__(self, stack: Stack) -> None:
        assert stack.endpoints is not None
        self._endpoints = stack.endpoints
        names = ("owner", "reviewer", "importer", "reader")
        self._tokens = {name: stack.folder.token_file(name).read_text().strip() for name in names}
        self._made: dict[tuple[str, str], AllStubs] = {}

    def of(self, who: str, service: str) -> AllStubs:
        """The stubs of the process that hosts a service."""
        address = getattr(self._endpoints, service)
        if (who, address) not in self._made:
            self._made[who, address] = _raw(address, self._tokens[who])
        return self._made[who, address]

    async def close(self) -> None:
        """Close all channels."""
        for stubs in self._made.values():
            await stubs.channel.close()


async def _write(clients: Clients, load: Load, number: int) -> None:
    """Publish one rule after another until the server no longer answers."""
    owner, reviewer = clients.of("owner", "ledger").proposals, clients.of("reviewer", "ledger").proposals
    while True:
        title = f"Rule {number} of {new_id()}"
        content = ledger_pb2.Content(title=title, summary=f"{title} holds at high tide.", importance=0.5)
        mutation = proposal_pb2.Mutation(
            create=proposal_pb2.CreateMutation(category=ledger_pb2.CATEGORY_DESIGN_RULE, content=content)
        )
        create = proposal_service_pb2.CreateProposalRequest(
            project=NAME, request_id=new_id(), mutation=mutation, reason="because", evidence=[evidence_input()]
        )
        step = Step(title, create, new_id())
        load.steps.append(step)
        try:
            await _finish(owner, reviewer, step)
        except grpc.aio.AioRpcError as error:
            load.refused(error)
            return


async def _finish(owner: Any, reviewer: Any, step: Step) -> None:
    """Take a write to its end; the same requests again when it was begun before."""
    proposal = (await owner.CreateProposal(step.create)).proposal
    step.proposal = proposal.name
    if proposal.status != proposal_pb2.PROPOSAL_STATUS_APPLIED:
        await reviewer.ApproveProposal(
            proposal_service_pb2.ApproveProposalRequest(
                proposal=proposal.name, request_id=f"approve {step.apply_id}", preview_hash=proposal.preview_hash
            )
        )
    applied = await owner.ApplyProposal(
        proposal_service_pb2.ApplyProposalRequest(proposal=proposal.name, request_id=step.apply_id)
    )
    step.position = applied.position


def _documents() -> list[ingest_service_pb2.IngestObservationsRequest]:
    made = []
    for number in range(1, 401):
        request = ingest_service_pb2.IngestObservationsRequest(project=NAME, sequence=number, apply_approved=True)
        request.observation.source_kind = ledger_pb2.SOURCE_KIND_ADR
        request.observation.locator = f"docs/adr/{number:04d}-berth.md"
        request.observation.text = (
            f"# {number}. Berth {number} is for boats of type {number}\n\nStatus: Accepted\n\n"
            f"## Context\n\nBoats of type {number} need depth.\n\n## Decision\n\nBerth {number} is theirs.\n"
        )
        request.observation.attributes["identity_key"] = f"adr/{number:04d}"
        made.append(request)
    return made


async def _ingest(clients: Clients, load: Load) -> None:
    async def messages() -> AsyncIterator[Any]:
        for request in _documents():
            yield request

    try:
        async for answer in clients.of("importer", "ingest").ingest.IngestObservations(messages()):
            if answer.observation:
                load.observed[answer.sequence] = answer.observation
    except grpc.aio.AioRpcError as error:
        load.refused(error)


async def _search(clients: Clients, load: Load) -> None:
    request = retrieval_service_pb2.SearchRequest(project=NAME, text="Which rule holds at high tide?")
    try:
        while True:
            await clients.of("reader", "retrieval").retrieval.Search(request, timeout=10.0)
    except grpc.aio.AioRpcError as error:
        load.refused(error)


async def _watch(clients: Clients, load: Load, after: int) -> None:
    request = ledger_service_pb2.WatchChangesRequest(project=NAME, after_position=after)
    try:
        async for answer in clients.of("reader", "ledger").ledger.WatchChanges(request):
            if answer.HasField("change"):
                load.watched.append(answer.change.position)
    except grpc.aio.AioRpcError as error:
        load.refused(error)


async def _make_project(owner: DecisionsClient) -> None:
    project = await owner.create_project(PROJECT)
    project.policy.approval_rules.append(import_rule())
    await owner.update_policy(PROJECT, project.policy, expected_version=project.policy.version)


BUG = '"event": "bug"'
ALLOWED = {
    f"UNAVAILABLE {Reason.SHUTTING_DOWN}",
    f"UNAVAILABLE {Reason.DEPENDENCY_UNAVAILABLE}",
    # The transport's own words for a call that the grace period did not suffice for.
    f"CANCELLED {Reason.DEPENDENCY_UNAVAILABLE}",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_sigterm_under_load_loses_nothing(stack: Stack) -> None:
    """S5, L7, I1: told to stop in full work, twice: what was acknowledged is there and indexed; the rest resumes."""
    load = Load()
    stack.start()
    async with stack.client("owner") as owner:
        await _make_project(owner)
    rng = random.Random(7)
    for life in range(2):
        if life:
            stack.start()
        clients = Clients(stack)
        before = len(load.acknowledged)
        tasks = [asyncio.ensure_future(_write(clients, load, number)) for number in range(WRITERS)]
        tasks += [asyncio.ensure_future(work) for work in (_ingest(clients, load), _search(clients, load))]
        tasks.append(asyncio.ensure_future(_watch(clients, load, max(load.watched, default=0))))

        async def enough(before: int = before, wanted: int = ENOUGH + rng.randrange(20), tasks: Any = tasks) -> bool:
            ended = [task for task in tasks if task.done()]
            assert not ended, (ended, load.refusals)
            return len(load.acknowledged) - before >= wanted and len(load.observed) > 0

        await until(enough, 90)
        codes = await asyncio.to_thread(stack.stop)
        assert codes == [0] * len(codes), codes
        async with asyncio.timeout(30):
            await asyncio.gather(*tasks)
        await clients.close()
        assert stack.folder.read_endpoint() is None
    bugs = [line for process in stack.processes for line in process.log.read_text("utf-8").splitlines() if BUG in line]
    assert set(load.refusals) <= ALLOWED, (load.refusals, bugs[:2])
    stack.start()
    await _judge(stack, load)
    for process in stack.processes:
        lines = process.log.read_text("utf-8")
        assert BUG not in lines, [line for line in lines.splitlines() if BUG in line][:2]
        assert "holds at high tide" not in lines, "S2: content of memories and questions is not logged"


async def _judge(stack: Stack, load: Load) -> None:
    """Compare what a new server holds with what was acknowledged; finish the rest; compare again with the index."""
    async with stack.client("owner", timeout_seconds=60.0) as owner:
        changes = {change.position: change async for change in owner.changes(PROJECT)}
        assert sorted(changes) == list(range(1, len(changes) + 1))
        for step in load.acknowledged:
            assert changes[step.position].proposal == step.proposal
        assert load.watched == sorted(set(load.watched))
        assert set(load.watched) <= set(changes)
        open_steps = [step for step in load.steps if not step.position]
        clients = Clients(stack)
        proposals = clients.of("owner", "ledger").proposals, clients.of("reviewer", "ledger").proposals
        for step in open_steps:
            await _finish(*proposals, step)
        again = Load()
        await _ingest(clients, again)
        await clients.close()
        assert len(again.observed) == len(_documents())
        assert load.observed.items() <= again.observed.items()
        changes = {change.position: change async for change in owner.changes(PROJECT)}
        positions = [step.position for step in load.steps]
        assert len(set(positions)) == len(positions)
        made = [change for change in changes.values() if change.mutation == "create"]
        assert len(made) == len(load.steps) + len(_documents()), "each once, however often it was sent"
        assert (await owner.verify_audit(PROJECT)).valid
        await owner.wait_for_index(PROJECT, timeout_seconds=90)
        status = await owner.index_status(PROJECT)
        assert (status.dead_letters, status.applied_position) == (0, len(changes))
        assert status.heads == len(made)
        async for progress in owner.verify_index(PROJECT):
            assert list(progress.drifts) == []
        titles = {step.title for step in load.steps}
        found = {head.revision.content.title async for head in owner.heads(PROJECT)}
        assert titles <= found


def test_lines_of_a_log_are_json() -> None:
    """S5: what the test looks for in a log is written as it looks for it."""
    assert BUG in json.dumps({"event": "bug"})
