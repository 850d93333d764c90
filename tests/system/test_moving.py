"""S6, the backup drill: a project moves to another deployment by the commands that an operator uses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stacks import Stack, environment

from dsearch.cli.frame import Exit
from dsearch.cli.operate import import_rule
from dsearch.client import DecisionsClient
from dsearch.sources import adr
from dsearch.sources.importer import run_import

SAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adr"
PROJECT = "ferrybox"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
QUESTIONS = (
    "How long does a customer have to pick up a parcel before the code expires?",
    "Por quanto tempo guardamos os dados pessoais de quem recebe encomendas?",
    "Which database do we use?",
    "Which mountain did the king climb to hear the singing whale?",
)


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[tuple[Stack, Stack]]:
    """Two deployments; the first runs."""
    made = Stack("all_in_one", tmp_path / "old"), Stack("all_in_one", tmp_path / "new")
    try:
        made[0].start()
        yield made
    finally:
        for stack in made:
            stack.kill()


def dsearch(stack: Stack, *arguments: str) -> tuple[int, Any]:
    """Run a command against a deployment; return its exit code and what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "dsearch", *arguments, "--data", str(stack.root), "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or done.stderr)


async def answers(client: DecisionsClient) -> list[Any]:
    """What searches say: hits in order with their scores, or why there are none."""
    found = []
    for question in QUESTIONS:
        response = await client.search(PROJECT, question, valid_at=NOW)
        hits = [(hit.head.revision.name, hit.score.final) for hit in response.hits]
        found.append((hits, response.abstention.reason))
    return found


def check_equal(answered: list[Any], before: list[Any]) -> None:
    """Compare answers: same memories, order and reasons; scores up to what the batching of the embedder changes."""
    for (hits, reason), (hits_before, reason_before) in zip(answered, before, strict=True):
        assert reason == reason_before
        assert [name for name, _ in hits] == [name for name, _ in hits_before]
        assert [score for _, score in hits] == pytest.approx([score for _, score in hits_before], abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_backup_drill(stacks: tuple[Stack, Stack], tmp_path: Path) -> None:
    """S6: export, import into an empty ledger: the index fills; answers and checksums are equal, the audit verifies."""
    old, new = stacks
    async with old.client("owner") as owner, old.client("importer") as importer:
        project = await owner.create_project(PROJECT, display_name="Ferrybox")
        project.policy.approval_rules.append(import_rule())
        await owner.update_policy(PROJECT, project.policy, expected_version=project.policy.version)
        await run_import(importer, PROJECT, adr.read(SAMPLES, adr.Dates.AUTO))
        await owner.wait_for_index(PROJECT, calibrated_branch="main", timeout_seconds=90)
        before = await answers(owner)
        audit = await owner.verify_audit(PROJECT)
    assert any(hits for hits, _ in before)
    code, exported = dsearch(old, "export", PROJECT, str(tmp_path / "a.dsearch.jsonl"))
    assert code == Exit.OK
    assert not list(tmp_path.glob("*.part"))
    code, backed_up = dsearch(old, "backup", str(tmp_path / "backups"))
    assert (code, [one["sha256"] for one in backed_up]) == (Exit.OK, [exported["sha256"]])
    assert dsearch(old, "export", PROJECT, str(tmp_path / "a.dsearch.jsonl"))[0] == Exit.REFUSED
    assert dsearch(old, "export", "nowhere", str(tmp_path / "b"))[0] == Exit.NOT_FOUND
    assert not list(tmp_path.glob("*.part"))
    assert dsearch(old, "import", str(tmp_path / "backups" / f"{PROJECT}.dsearch.jsonl"))[0] == Exit.REFUSED
    assert old.stop() == [0]

    new.start()
    data = bytearray((tmp_path / "a.dsearch.jsonl").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad").write_bytes(data)
    code, refused = dsearch(new, "import", str(tmp_path / "bad"))
    assert code == Exit.PROBLEMS
    assert "chunk" in refused["error"]["message"]
    (tmp_path / "none").write_text("nothing\n")
    assert dsearch(new, "import", str(tmp_path / "none"))[0] == Exit.USAGE
    assert dsearch(new, "import", str(tmp_path / "absent"))[0] == Exit.NOT_FOUND
    assert dsearch(new, "projects") == (Exit.OK, [])

    code, imported = dsearch(new, "import", str(tmp_path / "a.dsearch.jsonl"), "--wait")
    assert (code, imported["sha256"], imported["chain_head"]) == (Exit.OK, exported["sha256"], audit.chain_head)
    code, again = dsearch(new, "import", str(tmp_path / "a.dsearch.jsonl"))
    assert (code, again["records_skipped"]) == (Exit.OK, imported["records"])
    async with new.client("owner", timeout_seconds=60.0) as owner:
        await owner.wait_for_index(PROJECT, calibrated_branch="main", timeout_seconds=90)
        check_equal(await answers(owner), before)
        verified = await owner.verify_audit(PROJECT)
        assert verified == audit
        assert verified.valid
    code, moved = dsearch(new, "export", PROJECT, str(tmp_path / "b.dsearch.jsonl"))
    assert (code, moved["sha256"]) == (Exit.OK, exported["sha256"])
    assert (tmp_path / "b.dsearch.jsonl").read_bytes() == (tmp_path / "a.dsearch.jsonl").read_bytes()
    code, rebuilt = dsearch(new, "rebuild", "--project", PROJECT)
    assert (code, rebuilt["state"]) == (Exit.OK, "REBUILD_STATE_SUCCEEDED")
    async with new.client("owner", timeout_seconds=60.0) as owner:
        check_equal(await answers(owner), before)
    assert dsearch(new, "verify", "--project", PROJECT)[0] == Exit.OK
