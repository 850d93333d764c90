"""L6: who, not what they say: authority over the wire, with real tokens, by every way to propose and to approve."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from decisionssearch.common.v1 import common_pb2
from decisionssearch.ingest.v1 import ingest_service_pb2
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    evidence_service_pb2,
    ledger_pb2,
    observation_service_pb2,
    proposal_pb2,
    proposal_service_pb2,
)

from all_in_one.folder import FIRST_PRINCIPALS
from service_kit.errors import DomainError, Reason, from_item_error
from service_kit.ids import new_id
from service_kit.principals import Kind, Principal, Role, grant
from tests.ledger_stack import create_rule, evidence_input, refusal, supersede
from tests.whole_rpcs import Home, approve, call, candidate, furnish, propose
from tests.whole_stack import OWN, PRINCIPALS, Whole, deployment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Whole, Home]]:
    """A deployment with a furnished project."""
    async with deployment(tmp_path_factory.mktemp("authority") / "data") as whole:
        yield whole, await furnish(whole, Home(OWN, "proposer", "reviewer", "admin"))


async def _by_batch(whole: Whole, home: Home, proposal: proposal_pb2.Proposal, who: str) -> DomainError:
    request = proposal_service_pb2.BatchApproveProposalsRequest(
        project=home.project,
        requests=[
            proposal_service_pb2.ApproveProposalRequest(
                proposal=proposal.name, request_id=new_id(), preview_hash=proposal.preview_hash
            )
        ],
    )
    return from_item_error((await whole.as_(who).proposals.BatchApproveProposals(request)).results[0].error)


async def _proposed(whole: Whole, home: Home, how: str, who: str) -> proposal_pb2.Proposal:
    """A proposal of somebody, made the one way or the other."""
    title = f"Quays are swept on day {new_id()}"
    if how == "ledger":
        return await propose(whole, home, create_rule(title), who=who)
    if how == "batch":
        request = proposal_service_pb2.CreateProposalRequest(
            request_id=new_id(), mutation=create_rule(title), reason="because", evidence=[evidence_input()]
        )
        answer = await whole.as_(who).proposals.BatchCreateProposals(
            proposal_service_pb2.BatchCreateProposalsRequest(project=home.project, requests=[request])
        )
        made: proposal_pb2.Proposal = answer.results[0].proposal
        return made
    if how == "ingest":
        wanted = candidate(title)
        wanted.content.details = title
        memory = ingest_service_pb2.ProposeMemoryRequest(
            project=home.project, request_id=new_id(), candidate=wanted, reason="because"
        )
        answered = await whole.as_(who).ingest.ProposeMemory(memory)
        assert answered.HasField("proposal"), answered
        return answered.proposal
    key = new_id()[-4:]
    stream = ingest_service_pb2.IngestObservationsRequest(project=home.project, sequence=1)
    stream.observation.source_kind = ledger_pb2.SOURCE_KIND_ADR
    stream.observation.locator = f"docs/adr/{key}-{new_id()}.md"
    # The source may name anybody as its author.
    stream.observation.author = "rui"
    stream.observation.attributes["identity_key"] = f"adr/{new_id()}"
    stream.observation.text = f"# 7. {title}\n\nStatus: Accepted\n\nDeciders: rui\n\n## Decision\n\n{title}.\n"
    answers: list[Any] = list(await call(whole.as_(who), "IngestService.IngestObservations", stream))
    assert answers[0].proposals, answers
    found = await whole.as_(who).proposals.GetProposal(
        proposal_service_pb2.GetProposalRequest(name=answers[0].proposals[0])
    )
    return found.proposal


WAYS = ("ledger", "batch", "ingest", "observation")


@pytest.mark.parametrize("how", WAYS)
async def test_the_requester_is_who_the_credential_says(how: str, world: Any) -> None:
    """L6, G6: by whatever way a proposal comes, its requester is the caller, no service or author."""
    whole, home = world
    proposal = await _proposed(whole, home, how, "both")
    assert (proposal.requester.issuer, proposal.requester.subject) == ("local", "bob")
    assert proposal.requester.kind == common_pb2.PRINCIPAL_KIND_HUMAN
    agents = await _proposed(whole, home, how, "agent")
    assert agents.requester.kind == common_pb2.PRINCIPAL_KIND_AGENT
    assert agents.requester.on_behalf_of == "eva"


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("proposer", "approver", "rule"),
    [
        ("both", "both", "proposer_is_not_approver"),
        ("both", "agent-reviewer", "agent_never_approves"),
        ("agent", "eva", "principal_is_not_approver"),
    ],
)
async def test_who_may_not_approve(how: str, proposer: str, approver: str, rule: str, world: Any) -> None:
    """L6: nobody their own, an agent nothing, nobody what an agent asked for them; one by one and in a batch."""
    whole, home = world
    proposal = await _proposed(whole, home, how, proposer)
    single = await refusal(approve(whole, home, proposal, who=approver))
    for error in (single, await _by_batch(whole, home, proposal, approver)):
        assert (error.reason, error.metadata["rule"]) == (Reason.APPROVER_NOT_ALLOWED, rule), error
    audit = await whole.as_("admin").admin.ListAuditEntries(
        admin_service_pb2.ListAuditEntriesRequest(project=home.project, page_size=500)
    )
    refused = [entry for entry in audit.entries if entry.resource == proposal.name and entry.action == "refuse_approve"]
    assert [entry.principal.subject for entry in refused] == [PRINCIPALS[approver].subject] * 2
    with pytest.raises(AssertionError, match="was not refused"):
        await refusal(approve(whole, home, proposal, who="reviewer"))


SPELLINGS = [
    *("Bob", "BOB", " bob", "bob ", "b\u200bob", "bob\u00ad", "b\u2060o\u2060b", "\ufeffbob"),
    *("bоb", "ｂｏｂ", "ḃob", "b0b", "𝐛𝐨𝐛", "bob\u0301"),
    *("bob@corp.example", "bob+work@corp.example", "CORP\\bob", "oidc|bob", "user:bob", "Bob@CORP.EXAMPLE"),
]


@pytest.mark.parametrize("issuer", ["local", "https://login.corp.example"])
@pytest.mark.parametrize("spelling", SPELLINGS, ids=ascii)
async def test_a_look_alike_is_the_same_person(spelling: str, issuer: str, world: Any) -> None:
    """L6: a second token under a spelling of the same name, of any issuer, does not approve what the first proposed."""
    whole, home = world
    who = f"{issuer} {spelling}"
    whole.token(who, Principal(issuer, spelling, Kind.HUMAN, "", (grant(OWN, [Role.REVIEWER]),)))
    proposal = await propose(whole, home, create_rule(f"Rule {new_id()}"), who="both")
    error = await refusal(approve(whole, home, proposal, who=who))
    assert error.reason is Reason.APPROVER_NOT_ALLOWED
    assert error.metadata["rule"] == "proposer_is_not_approver"


@pytest.mark.parametrize("name", ["Eva", "eva ", "еva", "eva@corp.example", "e\u200bva"])
async def test_the_person_behind_an_agent_has_look_alikes_too(name: str, world: Any) -> None:
    """L6: whichever way the agent's token spells the person that it acts for, that person does not approve."""
    whole, home = world
    who = f"agent of {name}"
    whole.token(who, Principal("local", f"agent-{new_id()}", Kind.AGENT, name, (grant(OWN, [Role.PROPOSER]),)))
    proposal = await propose(whole, home, create_rule(f"Rule {new_id()}"), who=who)
    error = await refusal(approve(whole, home, proposal, who="eva"))
    assert error.metadata["rule"] == "principal_is_not_approver"


@pytest.mark.parametrize("name", ["bobby", "rob", "bob2", "alice"])
async def test_other_people_are_other_people(name: str, world: Any) -> None:
    """L6: the rule is about likeness, not about letters in common: another name approves."""
    whole, home = world
    whole.token(f"other {name}", Principal("local", name, Kind.HUMAN, "", (grant(OWN, [Role.REVIEWER]),)))
    proposal = await propose(whole, home, create_rule(f"Rule {new_id()}"), who="both")
    assert (await approve(whole, home, proposal, who=f"other {name}")).approver.subject == name


async def test_two_approvals_are_two_people(world: Any) -> None:
    """L6: where the policy asks for two, a person's second spelling is not the second person."""
    whole, home = world
    project = (
        await whole.as_("admin").admin.GetProject(admin_service_pb2.GetProjectRequest(name=home.project))
    ).project
    policy = admin_service_pb2.Policy()
    policy.CopyFrom(project.policy)
    for category in policy.categories:
        if category.category == ledger_pb2.CATEGORY_DESIGN_PATTERN:
            category.approvals_needed = 2
    await whole.as_("admin").admin.UpdatePolicy(
        admin_service_pb2.UpdatePolicyRequest(
            project=home.project, request_id=new_id(), expected_version=policy.version, policy=policy
        )
    )
    wanted = create_rule(f"Pattern {new_id()}", category=ledger_pb2.CATEGORY_DESIGN_PATTERN)
    proposal = await propose(whole, home, wanted)
    await approve(whole, home, proposal)
    whole.token("rui again", Principal("other", "RUI@corp.example", Kind.HUMAN, "", (grant(OWN, [Role.REVIEWER]),)))
    for who in ("reviewer", "rui again"):
        error = await refusal(approve(whole, home, proposal, who=who))
        assert (error.reason, error.metadata["rule"]) == (Reason.APPROVER_NOT_ALLOWED, "already_approved")
    apply = proposal_service_pb2.ApplyProposalRequest(proposal=proposal.name, request_id=new_id())
    assert (await refusal(whole.as_("proposer").proposals.ApplyProposal(apply))).reason is Reason.APPROVAL_MISSING
    await approve(whole, home, proposal, who="eva")
    assert (await whole.as_("proposer").proposals.ApplyProposal(apply)).position


@pytest.mark.parametrize("kind", [Kind.POLICY, Kind.SERVICE])
async def test_only_people_review(kind: Kind, world: Any) -> None:
    """L6: a token of a program, or one that calls itself a policy, approves nothing, whatever its roles."""
    whole, home = world
    who = f"a {kind}"
    whole.token(who, Principal("policy", f"structured-import@1 {kind}", kind, "", (grant(OWN, [Role.REVIEWER]),)))
    proposal = await propose(whole, home, create_rule(f"Rule {new_id()}"))
    error = await refusal(approve(whole, home, proposal, who=who))
    assert (error.reason, error.metadata["rule"]) == (Reason.APPROVER_NOT_ALLOWED, "kind_not_allowed")
    rejected = proposal_service_pb2.RejectProposalRequest(proposal=proposal.name, request_id=new_id(), comment="no")
    assert (await refusal(whole.as_(who).proposals.RejectProposal(rejected))).reason is Reason.APPROVER_NOT_ALLOWED


async def test_a_rule_is_for_the_service_that_it_names_exactly(world: Any) -> None:
    """L6: a look-alike of the importer, an agent or a person under its very name is not approved by its rule."""
    whole, home = world
    project = (
        await whole.as_("admin").admin.GetProject(admin_service_pb2.GetProjectRequest(name=home.project))
    ).project
    rule = admin_service_pb2.ApprovalRule(
        id="import", issuer="local", subject="ci", mutations=["create"], extractors=["structured/adr"]
    )
    policy = admin_service_pb2.Policy()
    policy.CopyFrom(project.policy)
    policy.approval_rules.append(rule)
    await whole.as_("admin").admin.UpdatePolicy(
        admin_service_pb2.UpdatePolicyRequest(
            project=home.project, request_id=new_id(), expected_version=policy.version, policy=policy
        )
    )
    allowed = await propose(whole, home, create_rule(f"Rule {new_id()}"), who="importer")
    assert [approval.policy_rule.partition("@")[0] for approval in allowed.approvals] == ["import"]
    assert allowed.approvals[0].approver.kind == common_pb2.PRINCIPAL_KIND_POLICY
    for number, (issuer, subject, kind) in enumerate(
        [
            ("local", "CI", Kind.SERVICE),
            ("local", "ci ", Kind.SERVICE),
            ("other", "ci", Kind.SERVICE),
            ("local", "ci", Kind.AGENT),
            ("local", "ci", Kind.HUMAN),
        ]
    ):
        who = f"importer {number}"
        whole.token(who, Principal(issuer, subject, kind, "", (grant(OWN, [Role.PROPOSER]),)))
        proposal = await propose(whole, home, create_rule(f"Rule {new_id()}"), who=who)
        assert (proposal.status, list(proposal.approvals)) == (proposal_pb2.PROPOSAL_STATUS_PENDING, []), who


async def test_an_agents_word_verifies_nothing(world: Any) -> None:
    """L6: an agent with the role of a reviewer does not turn evidence into VERIFIED, nor does it reject."""
    whole, home = world
    request = evidence_service_pb2.RecordVerificationRequest(
        evidence=home.evidence,
        request_id=new_id(),
        state=ledger_pb2.VERIFICATION_STATE_VERIFIED,
        method="looked at it",
    )
    error = await refusal(whole.as_("agent-reviewer").evidence.RecordVerification(request))
    assert error.reason is Reason.APPROVER_NOT_ALLOWED
    found = await whole.as_("reader").evidence.GetEvidence(evidence_service_pb2.GetEvidenceRequest(name=home.evidence))
    assert found.evidence.verification == ledger_pb2.VERIFICATION_STATE_UNVERIFIED


async def test_an_approval_is_of_bytes_not_of_a_name(world: Any) -> None:
    """L5, L6: the hash of another proposal, of an older one or a made up one approves nothing."""
    whole, home = world
    one = await propose(whole, home, supersede(home.other, "One"))
    two = await propose(whole, home, supersede(home.other, "Two"))
    for given in (two.preview_hash, one.preview_hash[:-1], one.preview_hash.upper(), f"sha256:{'0' * 64}"):
        request = proposal_service_pb2.ApproveProposalRequest(
            proposal=one.name, request_id=new_id(), preview_hash=given
        )
        error = await refusal(whole.as_("reviewer").proposals.ApproveProposal(request))
        assert error.reason in {Reason.PREVIEW_HASH_MISMATCH, Reason.INVALID_FIELD}, given


async def test_nobody_writes_in_anothers_name(world: Any) -> None:
    """L6: what requests say about authors stays text; recorders, registrars and verifiers are from the credential."""
    whole, home = world
    draft = evidence_input(f"docs/{new_id()}.md").draft
    draft.author = "rui"
    registered = await whole.as_("agent").evidence.RegisterEvidence(
        evidence_service_pb2.RegisterEvidenceRequest(project=home.project, request_id=new_id(), evidence=draft)
    )
    assert registered.evidence.registrar.subject == "agent-7"
    assert registered.evidence.author == "rui"
    statement = evidence_input(f"docs/{new_id()}.md").draft
    statement.source_kind = ledger_pb2.SOURCE_KIND_STATEMENT
    error = await refusal(
        whole.as_("agent").evidence.RegisterEvidence(
            evidence_service_pb2.RegisterEvidenceRequest(project=home.project, request_id=new_id(), evidence=statement)
        )
    )
    assert error.fields[0].field.endswith("source_kind"), "a STATEMENT is a person's own word"
    observed = observation_service_pb2.Observation(
        name=home.observation,
        source_kind=ledger_pb2.SOURCE_KIND_ADR,
        locator=f"docs/{new_id()}.md",
        source_hash=f"sha256:{'c' * 64}",
    )
    recorded = await whole.as_("proposer").observations.RecordObservations(
        observation_service_pb2.RecordObservationsRequest(
            project=home.project, request_id=new_id(), observations=[observed]
        )
    )
    assert recorded.results[0].observation.name != home.observation


def _approving(subject: str) -> admin_service_pb2.Policy:
    """A policy that lets in what a service of that name proposes."""
    rule = admin_service_pb2.ApprovalRule(
        id="mine", issuer="local", subject=subject, mutations=["create"], extractors=["structured/adr"]
    )
    return admin_service_pb2.Policy(approval_rules=[rule])


async def test_an_agent_does_not_change_a_policy(world: Any) -> None:
    """L6: an agent with the role admin gives nobody an approval by rule; the attempt is in the audit, with its rule."""
    whole, home = world
    named = admin_service_pb2.GetProjectRequest(name=home.project)
    before = (await whole.as_("admin").admin.GetProject(named)).project.policy
    request = admin_service_pb2.UpdatePolicyRequest(
        project=home.project, request_id=new_id(), expected_version=before.version, policy=_approving("agent-9")
    )
    error = await refusal(whole.as_("agent-admin").admin.UpdatePolicy(request))
    assert (error.reason, error.metadata["rule"]) == (Reason.PERMISSION_DENIED, "agent_makes_no_policy")
    assert "ask a person" in error.message
    assert (await whole.as_("admin").admin.GetProject(named)).project.policy == before
    audit = await whole.as_("agent-admin").admin.ListAuditEntries(
        admin_service_pb2.ListAuditEntriesRequest(project=home.project, page_size=500)
    )
    refused = [entry for entry in audit.entries if entry.action == "refuse_update_policy"]
    assert [entry.principal.subject for entry in refused] == ["agent-9"]
    assert "agent_makes_no_policy" in refused[0].details


async def test_an_agent_makes_a_project_with_the_default_policy_only(world: Any) -> None:
    """L6: what an agent may not change it may not bring along either; a project as everybody gets it, it may make."""
    whole, _ = world
    request = admin_service_pb2.CreateProjectRequest(name="projects/fresh", request_id=new_id())
    request.policy.CopyFrom(_approving("agent-10"))
    before = whole.stored()
    error = await refusal(whole.as_("agent-root").admin.CreateProject(request))
    assert (error.reason, error.metadata["rule"]) == (Reason.PERMISSION_DENIED, "agent_makes_no_policy")
    assert whole.stored() == before
    request.ClearField("policy")
    made = (await whole.as_("agent-root").admin.CreateProject(request)).project
    assert not made.policy.approval_rules


async def test_only_who_answers_for_the_whole_ledger_imports(world: Any, tmp_path: Path) -> None:
    """L6: a real export of a project that is not here is refused to the admin of its name and to every agent."""
    whole, _ = world
    async with deployment(tmp_path / "other") as other:
        await other.make_project("ghost")
        export = admin_service_pb2.ExportProjectRequest(project="projects/ghost")
        data = b"".join([part.data async for part in other.as_("root").admin.ExportProject(export)])
    request = admin_service_pb2.ImportProjectRequest(project="projects/ghost", data=data)
    before = whole.stored()
    for who, rule in (
        ("ghost-admin", "import_needs_all_projects"),
        ("everywhere-reader", "import_needs_all_projects"),
        ("agent-root", "agent_imports_nothing"),
    ):
        error = await refusal(call(whole.as_(who), "AdminService.ImportProject", request))
        assert (error.reason, error.metadata["rule"]) == (Reason.PERMISSION_DENIED, rule), who
        assert error.metadata["project"] == "projects/*"
        assert "ask " in error.message
    assert whole.stored() == before
    # As the owner of a first start is: admin of everything.
    whole.token("owner", FIRST_PRINCIPALS["owner"])
    answer = (await call(whole.as_("owner"), "AdminService.ImportProject", request))[0]
    assert answer.project.name == "projects/ghost"
