"""The main path, whole: observe, propose, approve, apply, index, search. The same in one process and in four."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from decisionssearch.index.v1 import index_service_pb2 as index_pb2
from decisionssearch.ledger.v1 import admin_service_pb2 as admin_pb2
from decisionssearch.ledger.v1 import ledger_pb2, proposal_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as retrieval_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from stacks import Stack

from dsearch.cli.operate import import_rule
from dsearch.client import DecisionsClient
from dsearch.sources import adr
from dsearch.sources.importer import run_import
from service_kit.errors import DomainError, Reason

SAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adr"
PROJECT = "ferrybox"
QUESTION = "How long does a customer have to pick up a parcel before the code expires?"
PERGUNTA = "Por quanto tempo guardamos os dados pessoais de quem recebe encomendas?"
NONSENSE = "Which mountain did the king climb to hear the singing whale?"


@pytest.fixture(params=["all_in_one", "four"])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """A running deployment; it is gone at the end of the test, whatever happened."""
    made = Stack(request.param, tmp_path / "data")
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_main_path(stack: Stack) -> None:
    """R1, R2, R6, L2, L6, L8, G4, I1, I4, S5: the whole scenario holds in one process and in four, over a restart."""
    await scenario(stack)


async def scenario(stack: Stack) -> None:
    """Run the main path against a deployment."""
    async with stack.client("owner") as owner, stack.client("reader") as reader:
        await _make_project(owner)
        await _import(stack)
        await owner.wait_for_index(PROJECT, calibrated_branch="main", timeout_seconds=90)
        await _search_before(reader)
        known = datetime.now(UTC)
        revision = await _supersede(stack, owner)
        await _search_after(owner)
        await _time(reader, known)
        await _history(reader, revision)
        await _race(stack, owner)
        await _silence(reader)
        await _upkeep(owner)
    codes = stack.stop()
    assert codes == [0] * len(codes)
    stack.start()
    async with stack.client("reader") as reader, stack.client("owner") as owner:
        await owner.wait_for_index(PROJECT, timeout_seconds=60)
        hit = await first(reader, QUESTION)
        assert "five days" in hit.head.revision.content.title
        assert (await owner.verify_audit(PROJECT)).valid


async def first(client: DecisionsClient, question: str, **options: object) -> retrieval_pb2.Hit:
    """Return the best hit; it must be in force."""
    response = await client.search(PROJECT, question, **options)
    assert response.hits, response.abstention
    assert all(hit.head.state == ledger_pb2.STATE_ACTIVE for hit in response.hits)
    return response.hits[0]


async def _make_project(owner: DecisionsClient) -> None:
    project = await owner.create_project(PROJECT, request_id="make")
    again = await owner.create_project(PROJECT, request_id="make")
    assert again == project
    policy = admin_pb2.Policy()
    policy.CopyFrom(project.policy)
    policy.approval_rules.append(import_rule())
    updated = await owner.update_policy(PROJECT, policy, expected_version=project.policy.version)
    assert updated.policy.version == project.policy.version + 1


async def _import(stack: Stack) -> None:
    reading = adr.read(SAMPLES, adr.Dates.DOCUMENT)
    async with stack.client("importer") as importer:
        once = await run_import(importer, PROJECT, reading)
        assert once.refused == []
        assert once.waiting == []
        assert once.relations == 2
        position = (await importer.get_project(PROJECT)).position
        again = await run_import(importer, PROJECT, reading)
        assert again.replayed == again.sent == once.sent
        assert (await importer.get_project(PROJECT)).position == position
        families = [f.identity_key async for f in importer.families(PROJECT)]
        assert sorted(families) == [f"adr/{n:04d}" for n in range(1, 15)]
        head = await importer.get_head(PROJECT, "adr/0007")
        policies = [a.subject for a in head.revision.approvers]
        assert policies, "an import is approved by the policy's rule, and recorded so"


async def _search_before(reader: DecisionsClient) -> None:
    hit = await first(reader, QUESTION)
    assert hit.head.family.identity_key == "adr/0007"
    assert "adr/0004" in [item.identity_key for item in hit.replaced]
    assert (await first(reader, PERGUNTA)).head.family.identity_key == "adr/0009"
    old = await reader.get_head(PROJECT, "adr/0004")
    assert old.state == ledger_pb2.STATE_SUPERSEDED
    assert [r.identity_key for r in old.replaced_by] == ["adr/0007"]
    context = await reader.context(PROJECT, QUESTION, token_budget=500)
    assert "72 hours" in context.text
    assert context.tokens <= 500


async def _supersede(stack: Stack, owner: DecisionsClient) -> str:
    head = await owner.get_head(PROJECT, "adr/0007")
    content = ledger_pb2.Content()
    content.CopyFrom(head.revision.content)
    content.title = "Collection codes have eight characters and last five days"
    content.summary = "A collection code has eight letters and digits and is valid for five days."
    mutation = proposal_pb2.Mutation(supersede=proposal_pb2.SupersedeMutation(family=head.family.name, content=content))
    evidence = proposal_pb2.EvidenceInput(
        draft=ledger_pb2.EvidenceDraft(
            source_kind=ledger_pb2.SOURCE_KIND_DOCUMENT, locator="trials/2025.md", excerpt="Returns fell to 1.6 %"
        ),
        stance=ledger_pb2.STANCE_SUPPORTS,
        confidence=0.9,
    )
    async with stack.client("agent") as agent, stack.client("reviewer") as reviewer:
        seen = await agent.propose(PROJECT, mutation, reason="the trial", evidence=[evidence], validate_only=True)
        assert "title" in [change.field for change in seen.diff]
        assert [p async for p in agent.proposals(PROJECT)] == []
        proposal = await agent.propose(PROJECT, mutation, reason="the trial", evidence=[evidence], request_id="once")
        assert (
            await agent.propose(PROJECT, mutation, reason="the trial", evidence=[evidence], request_id="once")
            == proposal
        )
        assert proposal.status == proposal_pb2.PROPOSAL_STATUS_PENDING
        for nobody in (agent, owner):
            with pytest.raises(DomainError) as refused:
                await nobody.approve(proposal.name, preview_hash=proposal.preview_hash)
            assert refused.value.reason in {Reason.APPROVER_NOT_ALLOWED, Reason.PERMISSION_DENIED}
        with pytest.raises(DomainError) as early:
            await owner.apply(proposal.name)
        assert early.value.reason in {Reason.APPROVAL_MISSING, Reason.PROPOSAL_STATUS}
        with pytest.raises(DomainError) as other:
            await reviewer.approve(proposal.name, preview_hash="sha256:" + "0" * 64)
        assert other.value.reason is Reason.PREVIEW_HASH_MISMATCH
        approved = await reviewer.approve(proposal.name, preview_hash=proposal.preview_hash, comment="read it")
        assert approved.proposal.status == proposal_pb2.PROPOSAL_STATUS_APPROVED
    applied = await owner.apply(proposal.name, request_id="apply")
    repeated = await owner.apply(proposal.name, request_id="apply")
    assert repeated.position == applied.position
    return applied.proposal.applied_revision


async def _search_after(owner: DecisionsClient) -> None:
    # The index may not have it yet: the client's token must make the difference.
    hit = await first(owner, QUESTION)
    assert "five days" in hit.head.revision.content.title
    assert any("the trial" in item.reason for item in hit.replaced)
    await owner.wait_for_index(PROJECT, timeout_seconds=60)
    assert "five days" in (await first(owner, QUESTION)).head.revision.content.title


async def _time(reader: DecisionsClient, known: datetime) -> None:
    past = datetime(2020, 6, 1, tzinfo=UTC)
    assert (await first(reader, QUESTION, valid_at=past)).head.family.identity_key == "adr/0004"
    then = await reader.get_head(PROJECT, "adr/0004", valid_at=past)
    assert then.state == ledger_pb2.STATE_ACTIVE
    later = await reader.get_head(PROJECT, "adr/0007", valid_at=past)
    assert later.state == ledger_pb2.STATE_SCHEDULED
    before = await reader.get_head(PROJECT, "adr/0007", known_at=known)
    assert "72 hours" in before.revision.content.title
    assert "72 hours" in (await first(reader, QUESTION, known_at=known)).head.revision.content.title


async def _history(reader: DecisionsClient, revision: str) -> None:
    family = await reader.family_name(PROJECT, "adr/0007")
    steps = [step async for step in reader.history(family)]
    assert steps[0].revision.name == revision
    assert len(steps) == 2
    changes = await reader.diff(steps[1].revision.name, revision)
    assert {"title", "summary"} <= {change.field for change in changes}
    blame = {field.field: field for field in await reader.blame(family)}
    assert blame["title"].revision == revision
    assert [a.subject for a in blame["title"].approvers] == ["reviewer"]
    assert blame["rationale"].revision == steps[1].revision.name
    lineage = await reader.lineage(family)
    assert "adr/0004" in [head.family.identity_key for head in lineage.heads]


async def _race(stack: Stack, owner: DecisionsClient) -> None:
    """L2: of two approved proposals on one head the second is told that the head moved."""
    family = await owner.family_name(PROJECT, "adr/0010")
    made = []
    async with stack.client("reviewer") as reviewer:
        for domain in ("configuration", "operations"):
            mutation = proposal_pb2.Mutation(
                update=proposal_pb2.UpdateMutation(
                    family=family, content=ledger_pb2.Content(domain=domain), update_mask=FieldMask(paths=["domain"])
                )
            )
            word = proposal_pb2.EvidenceInput(
                draft=ledger_pb2.EvidenceDraft(source_kind=ledger_pb2.SOURCE_KIND_STATEMENT, locator=f"owner:{domain}"),
                stance=ledger_pb2.STANCE_SUPPORTS,
                confidence=1.0,
            )
            proposal = await owner.propose(PROJECT, mutation, reason=f"name it {domain}", evidence=[word])
            await reviewer.approve(proposal.name, preview_hash=proposal.preview_hash)
            made.append(proposal)
    await owner.apply(made[0].name)
    with pytest.raises(DomainError) as moved:
        await owner.apply(made[1].name)
    assert moved.value.reason is Reason.HEAD_MOVED
    assert (await owner.get_proposal(made[1].name)).status == proposal_pb2.PROPOSAL_STATUS_STALE
    assert (await owner.get_head(PROJECT, "adr/0010")).revision.content.domain == "configuration"


async def _silence(reader: DecisionsClient) -> None:
    # While a commit is not searchable yet the reason would be that.
    await reader.wait_for_index(PROJECT, timeout_seconds=60)
    response = await reader.search(PROJECT, NONSENSE)
    assert not response.hits
    assert response.abstention.reason in {
        retrieval_pb2.ABSTENTION_REASON_BELOW_THRESHOLD,
        retrieval_pb2.ABSTENTION_REASON_OUT_OF_SCOPE,
    }
    assert response.abstention.message


async def _upkeep(owner: DecisionsClient) -> None:
    await owner.wait_for_index(PROJECT, timeout_seconds=60)
    last = index_pb2.VerifyIndexResponse()
    async for last in owner.verify_index(PROJECT):
        assert list(last.drifts) == []
    assert last.done
    assert last.total_drifts == 0
    status = await owner.index_status(PROJECT)
    assert (status.dead_letters, status.applied_position) == (0, status.ledger_position)
    audit = await owner.verify_audit(PROJECT)
    assert audit.valid, audit.problems
    refusals = [e async for e in owner.audit_entries(PROJECT) if "refuse" in e.action]
    assert refusals, "what was refused is on record"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_second_instance_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    """A second server on the same data folder ends at once and says which server holds it."""
    one, two = Stack("all_in_one", tmp_path), Stack("all_in_one", tmp_path)
    try:
        one.start()
        assert one.endpoints is not None
        with pytest.raises(AssertionError, match="in use by process"):
            two.start()
        assert one.stop() == [0]
    finally:
        one.kill()
        two.kill()
    assert one.folder.read_endpoint() is None
