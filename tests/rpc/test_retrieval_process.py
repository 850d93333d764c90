"""The retrieval service as a process: settings, start, one call, SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import grpc
import pytest
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as pb
from decisionssearch.retrieval.v1 import retrieval_service_pb2_grpc

from retrieval_svc.settings import RetrievalSettings
from service_kit.clients import connect
from service_kit.errors import Reason, from_rpc_error
from service_kit.principals import Grant, Kind, Principal, Role
from service_kit.settings import SettingsError
from service_kit.tokens import TokenFile

ANA = Principal("local", "ana", Kind.HUMAN, grants=(Grant("billing", frozenset({Role.READER})),))


def test_misspelled_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that does not exist stops the start and names the one that was meant."""
    monkeypatch.setenv("DSEARCH_RETRIEVAL_SCAN_HEADZ", "1")
    with pytest.raises(SettingsError, match="DSEARCH_RETRIEVAL_SCAN_HEADS"):
        RetrievalSettings.load()


async def test_process_starts_answers_and_stops(tmp_path: Path) -> None:
    """The process serves without its dependencies (they may start later), says what is missing, and ends on SIGTERM."""
    token = TokenFile(tmp_path / "tokens.json").issue(ANA)
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("DSEARCH_")},
        "DSEARCH_RETRIEVAL_BIND": f"unix:{tmp_path / 'retrieval.sock'}",
        "DSEARCH_RETRIEVAL_TOKENS_FILE": str(tmp_path / "tokens.json"),
        "DSEARCH_RETRIEVAL_LEDGER_ADDRESS": f"unix:{tmp_path / 'ledger.sock'}",
        "DSEARCH_RETRIEVAL_INDEX_ADDRESS": f"unix:{tmp_path / 'index.sock'}",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "retrieval_svc", env=env, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with connect(env["DSEARCH_RETRIEVAL_BIND"], token=lambda: token) as channel:
            stub = retrieval_service_pb2_grpc.RetrievalServiceStub(channel)
            profiles = await stub.ListProfiles(pb.ListProfilesRequest(), timeout=30.0)
            assert {"article", "default"} <= {p.name for p in profiles.profiles}
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Search(pb.SearchRequest(project="projects/billing", text="refund"), timeout=20.0)
            assert from_rpc_error(caught.value).reason is Reason.DEPENDENCY_UNAVAILABLE
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 15.0) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
