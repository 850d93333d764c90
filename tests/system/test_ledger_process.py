"""The ledger as a process of its own: how it starts, refuses, dies and stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from decisionssearch.ledger.v1 import admin_service_pb2, ledger_pb2, ledger_service_pb2, proposal_pb2
from decisionssearch.ledger.v1 import proposal_service_pb2 as pb

from service_kit.clients import connect
from service_kit.ids import new_id
from service_kit.principals import Kind, Principal, Role, grant
from service_kit.tokens import TokenFile
from tests.ledger_stack import Client

PROJECT = "projects/lives"
POLICY = admin_service_pb2.Policy(categories=[admin_service_pb2.CategoryPolicy(category=ledger_pb2.CATEGORY_EPISODE)])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Folder:
    """A data folder with tokens, and the environment of a ledger on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = f"127.0.0.1:{_free_port()}"
        tokens = TokenFile(path / "tokens.json")
        self.tokens = {
            name: tokens.issue(Principal("local", name, Kind.HUMAN, "", (grant("*", roles),)))
            for name, roles in {"ana": [Role.PROPOSER, Role.ADMIN], "rui": [Role.REVIEWER]}.items()
        }
        self.environment = {
            **os.environ,
            "DSEARCH_LEDGER_BIND": self.address,
            "DSEARCH_LEDGER_DATABASE": str(path / "ledger.sqlite"),
            "DSEARCH_LEDGER_TOKENS_FILE": str(path / "tokens.json"),
            "DSEARCH_LEDGER_LOG_LEVEL": "warning",
        }

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        command = [sys.executable, "-m", "ledger_svc", *arguments]
        environment = {**self.environment, **more}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def start(self) -> subprocess.Popen[bytes]:
        """Start a server."""
        return subprocess.Popen([sys.executable, "-m", "ledger_svc"], env=self.environment)


@asynccontextmanager
async def _clients(folder: Folder) -> AsyncIterator[dict[str, Client]]:
    made = {
        name: Client(connect(folder.address, token=lambda token=token: token, timeout_seconds=30.0))  # type: ignore[misc]
        for name, token in folder.tokens.items()
    }
    try:
        for client in made.values():
            await asyncio.wait_for(client.channel.channel_ready(), 30)
        yield made
    finally:
        for client in made.values():
            await client.channel.close()


async def _write(clients: dict[str, Client], acknowledged: list[tuple[int, str]], stop: asyncio.Event) -> None:
    """Publish batches until told to stop or cut off; note what was acknowledged."""
    propose, review = clients["ana"].proposals, clients["rui"].proposals
    while not stop.is_set():
        content = ledger_pb2.Content(title=f"decision {new_id()}", task="t", outcome="o")
        mutation = proposal_pb2.Mutation(
            create=proposal_pb2.CreateMutation(category=ledger_pb2.CATEGORY_EPISODE, content=content)
        )
        request = pb.CreateProposalRequest(project=PROJECT, request_id=new_id(), mutation=mutation, reason="because")
        try:
            proposal = (await propose.CreateProposal(request)).proposal
            await review.ApproveProposal(
                pb.ApproveProposalRequest(
                    proposal=proposal.name, request_id=new_id(), preview_hash=proposal.preview_hash
                )
            )
            apply = pb.ApplyProposalRequest(proposal=proposal.name, request_id=new_id())
            applied = await propose.ApplyProposal(apply)
        except grpc.aio.AioRpcError:
            if not stop.is_set():
                raise
            return
        acknowledged.append((applied.position, proposal.name))


async def _until(acknowledged: list[Any], count: int, writers: list[asyncio.Future[None]]) -> None:
    async with asyncio.timeout(60):
        while len(acknowledged) < count:
            for writer in writers:
                if writer.done():
                    writer.result()
            await asyncio.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
async def test_a_server_that_ends_under_load_loses_nothing_acknowledged(how: int, tmp_path: Path) -> None:
    """L1, S5: killed or told to stop while clients write: a new server has all that was acknowledged, in order."""
    folder = Folder(tmp_path)
    acknowledged: list[tuple[int, str]] = []
    for life in range(3):
        process, sent = folder.start(), False
        try:
            async with _clients(folder) as clients:
                if life == 0:
                    make = admin_service_pb2.CreateProjectRequest(name=PROJECT, request_id=new_id(), policy=POLICY)
                    await clients["ana"].admin.CreateProject(make)
                stop = asyncio.Event()
                writers = [asyncio.ensure_future(_write(clients, acknowledged, stop)) for _ in range(4)]
                await _until(acknowledged, 20 * (life + 1), writers)
                process.send_signal(how)
                sent = True
                stop.set()
                # Whoever waits for a server that does not come back acknowledges nothing any more.
                await asyncio.to_thread(process.wait, 30)
                for writer in writers:
                    writer.cancel()
                await asyncio.gather(*writers, return_exceptions=True)
        finally:
            if not sent:
                process.kill()
            process.wait(30)
        assert process.returncode == (0 if how == signal.SIGTERM else -signal.SIGKILL)
    process = folder.start()
    try:
        async with _clients(folder) as clients:
            listed = await clients["ana"].ledger.ListChanges(
                ledger_service_pb2.ListChangesRequest(project=PROJECT, page_size=500)
            )
            stored = {c.position: c.proposal for c in listed.changes}
            assert sorted(stored) == list(range(1, len(stored) + 1))
            assert {p: stored.get(p) for p, _ in acknowledged} == dict(acknowledged)
            verified = await clients["ana"].admin.VerifyAudit(admin_service_pb2.VerifyAuditRequest(project=PROJECT))
            assert verified.valid
    finally:
        process.terminate()
        process.wait(30)


async def test_a_second_server_on_the_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """S5: the second process says which folder is in use and by whom, and exits with 2."""
    folder = Folder(tmp_path)
    process = folder.start()
    try:
        async with _clients(folder):
            second = folder.run(DSEARCH_LEDGER_BIND="127.0.0.1:0")
    finally:
        process.terminate()
        process.wait(30)
    assert second.returncode == 2
    assert f"is in use by another process (process {process.pid})" in second.stderr
    assert "Traceback" not in second.stderr


def test_help_and_wrong_settings(tmp_path: Path) -> None:
    """S3: --help shows every setting with an example; a misspelled one is refused by name."""
    folder = Folder(tmp_path)
    shown = folder.run("--help")
    assert shown.returncode == 0
    assert "DSEARCH_LEDGER_DATABASE" in shown.stdout
    assert "example:" in shown.stdout
    wrong = folder.run(DSEARCH_LEDGER_DATABSE="x")
    assert wrong.returncode == 2
    assert "did you mean DSEARCH_LEDGER_DATABASE" in wrong.stderr
