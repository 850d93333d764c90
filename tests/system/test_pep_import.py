"""The real history of the PEPs, through the whole stack: imported once, imported again, asked about the past."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from decisionssearch.ledger.v1 import admin_service_pb2 as admin_pb2
from decisionssearch.ledger.v1 import ledger_pb2
from stacks import Stack

from dsearch.cli.operate import import_rule
from dsearch.client import DecisionsClient
from dsearch.sources import pep
from dsearch.sources.importer import run_import
from service_kit.errors import DomainError, Reason

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "peps"
PROJECT = "python"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A running embedded deployment."""
    made = Stack("all_in_one", tmp_path / "data")
    try:
        made.start()
        yield made
    finally:
        made.kill()


async def status_at(client: DecisionsClient, key: str, moment: datetime) -> str | None:
    """Return the status of a document at a moment; None when nothing covers it."""
    try:
        head = await client.get_head(PROJECT, key, valid_at=moment)
    except DomainError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        return None
    if head.state in {ledger_pb2.STATE_SCHEDULED, ledger_pb2.STATE_INVALIDATED}:
        return None
    return head.revision.content.attributes.get("source_status")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not DATA.is_dir(), reason=f"the PEP data set is not at {DATA}")
async def test_importing_twice_changes_nothing_and_the_past_is_exact(stack: Stack) -> None:
    """G4, L8: the whole history goes in by rule; again: no commit; every as-of answer equals git's own."""
    reading = pep.read(DATA)
    async with stack.client("owner", timeout_seconds=60.0) as owner:
        project = await owner.create_project(PROJECT)
        policy = admin_pb2.Policy()
        policy.CopyFrom(project.policy)
        policy.approval_rules.append(import_rule())
        await owner.update_policy(PROJECT, policy, expected_version=project.policy.version)
        async with stack.client("importer", timeout_seconds=60.0) as importer:
            once = await run_import(importer, PROJECT, reading)
            assert (once.refused, once.waiting, once.relations) == ([], [], len(reading.relations))
            position = (await importer.get_project(PROJECT)).position
            again = await run_import(importer, PROJECT, reading)
            assert again.replayed == again.sent == 2188 + len(reading.relations)
            assert (await importer.get_project(PROJECT)).position == position
        wrong = []
        for line in (DATA / "asof.jsonl").read_text().splitlines():
            row = json.loads(line)
            moment = datetime.fromisoformat(row["date"]).replace(tzinfo=UTC)
            found = await status_at(owner, pep.key_of(int(row["pep"].split()[1])), moment)
            if found != row["status"]:
                wrong.append((row, found))
        assert wrong == []
        replaced = await owner.get_head(PROJECT, "pep/333")
        assert replaced.state == ledger_pb2.STATE_SUPERSEDED
        assert [r.identity_key for r in replaced.replaced_by] == ["pep/3333"]
        before = datetime(2026, 4, 1, tzinfo=UTC)
        governance = await owner.get_head(PROJECT, "pep/609")
        assert [r.identity_key for r in governance.replaced_by] == ["pep/772"]
        assert (await owner.get_head(PROJECT, "pep/609", valid_at=before)).state == ledger_pb2.STATE_ACTIVE
        assert (await owner.verify_audit(PROJECT)).valid
