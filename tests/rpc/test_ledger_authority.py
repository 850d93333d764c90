"""Who may do what: every RPC, every role, own, foreign and unknown project; approvers; retries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from decisionssearch.ledger.v1 import admin_service_pb2, ledger_pb2, proposal_pb2, proposal_service_pb2

from service_kit.errors import Reason
from service_kit.ids import new_id
from service_kit.principals import Kind, Principal, Role, grant
from tests import ledger_stack
from tests.ledger_rpcs import RPCS, Things, call, fill, rename
from tests.ledger_stack import (
    FOREIGN,
    PRINCIPALS,
    PROJECT,
    Stack,
    create_rule,
    evidence_input,
    refusal,
    running,
    supersede,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS = ("reader", "ana", "rui", "admin", "agent", "agent-reviewer", "importer", "indexer", "root", "stranger")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[tuple[Stack, Things]]:
    """One ledger with one of everything, and another project in it."""
    async with running() as stack:
        things = await fill(stack)
        await stack.make_project(FOREIGN)
        yield stack, things


def _may(rpc: tuple[str, str], who: str, project: str) -> bool:
    """The matrix, in words of the contract: what a role in the project lets one do."""
    principal = PRINCIPALS[who]
    roles, role = principal.roles_in(project), RPCS[rpc].role
    if role == "anyone":
        return True
    if role == "service":
        return who == "indexer"
    if rpc[1] == "RecordVerification":
        return Role.REVIEWER in roles or (Role.PROPOSER in roles and principal.kind is Kind.SERVICE)
    needed = {"reader": Role.READER, "party": Role.READER}.get(role) or Role(role)
    return needed in roles


@pytest.mark.parametrize("who", CALLERS)
@pytest.mark.parametrize("rpc", list(RPCS), ids=lambda rpc: rpc[1])
async def test_the_authorisation_matrix(rpc: tuple[str, str], who: str, world: Any) -> None:
    """S1: every RPC × role × own, foreign and unknown project: PERMISSION_DENIED for what is not allowed, only that."""
    stack, things = world
    for project in (PROJECT, FOREIGN, "nowhere"):
        request = RPCS[rpc].request(things)
        rename(request, PROJECT, project)
        if rpc == ("admin", "CreateProject"):
            request.name = f"projects/{project}"
        allowed = _may(rpc, who, project)
        if not allowed:
            error = await refusal(call(stack, rpc, who, request))
            assert error.reason is Reason.PERMISSION_DENIED, (project, error)
        elif project == "nowhere" and RPCS[rpc].role != "anyone" and rpc != ("admin", "CreateProject"):
            if rpc[0] == "outbox" and "project" not in type(request).DESCRIPTOR.fields_by_name:
                continue
            # Only who administers everything may learn that it does not exist.
            error = await refusal(call(stack, rpc, who, request))
            expected = Reason.NOT_FOUND if PRINCIPALS[who].can("*", Role.ADMIN) else Reason.PERMISSION_DENIED
            assert error.reason is expected, (project, error)
        elif rpc != ("admin", "CreateProject"):
            try:
                await call(stack, rpc, who, request)
            except Exception as error:  # noqa: BLE001 - any answer but that of a missing role will do
                details = str(error)
                assert "this needs the role" not in details, details


async def test_a_missing_token_is_unauthenticated(world: Any) -> None:
    """S1: without a credential, or with an unknown one, there is no answer but UNAUTHENTICATED."""
    stack, things = world
    error = await refusal(call(stack, ("ledger", "GetHead"), "nobody", RPCS["ledger", "GetHead"].request(things)))
    assert error.reason is Reason.UNAUTHENTICATED


async def test_a_foreign_and_an_unknown_project_look_alike(world: Any) -> None:
    """S1, S2: the refusal does not tell whether the project exists."""
    stack, things = world
    answers = []
    for project in (FOREIGN, "nowhere-at-all"):
        request = RPCS["ledger", "GetHead"].request(things)
        rename(request, PROJECT, project)
        error = await refusal(call(stack, ("ledger", "GetHead"), "reader", request))
        answers.append((error.reason, error.message.replace(project, "X"), dict(error.metadata, project="X")))
    assert answers[0] == answers[1]


async def test_listing_projects_shows_only_ones_own(world: Any) -> None:
    """S1: a reader sees the projects of their grants, an administrator of all sees all."""
    stack, _ = world
    own = await stack.as_("reader").admin.ListProjects(admin_service_pb2.ListProjectsRequest())
    assert [p.name for p in own.projects] == [f"projects/{PROJECT}"]
    everything = await stack.as_("root").admin.ListProjects(admin_service_pb2.ListProjectsRequest(page_size=1))
    assert everything.next_page_token


# --- Who approves -----------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def fresh() -> AsyncIterator[Stack]:
    """A ledger with an empty project."""
    async with running() as stack:
        await stack.make_project()
        yield stack


@pytest.mark.parametrize(
    ("proposer", "approver", "rule"),
    [
        ("both", "both", "proposer_is_not_approver"),
        ("ana", "agent-reviewer", "agent_never_approves"),
        ("agent", "eva", "principal_is_not_approver"),
    ],
)
async def test_who_may_not_approve(proposer: str, approver: str, rule: str, fresh: Stack) -> None:
    """L6: an agent never approves, nobody their own, nobody what an agent asked on their behalf; the audit has it."""
    proposal = await fresh.propose(create_rule(), who=proposer)
    error = await refusal(fresh.approve(proposal, who=approver))
    assert (error.reason, error.metadata["rule"]) == (Reason.APPROVER_NOT_ALLOWED, rule)
    entries, _ = await fresh.store.audit(PROJECT, 0, 500)
    assert entries[-1].action.value == "refuse_approve"
    assert entries[-1].actor.subject == PRINCIPALS[approver].subject
    assert (await fresh.approve(proposal, who="rui")).proposal.status == proposal_pb2.PROPOSAL_STATUS_APPROVED


@pytest.mark.parametrize("alias", ["Bob", "bob ", "bоb", "b\u200bob", "bob@corp.example", "CORP\\bob", "ｂｏｂ"])
async def test_look_alikes_are_one_person(alias: str, fresh: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """L6: the same person under another spelling does not approve what they proposed."""
    other = Principal("other", alias, Kind.HUMAN, "", (grant(PROJECT, [Role.REVIEWER]),))
    monkeypatch.setitem(ledger_stack.PRINCIPALS, "alias", other)
    proposal = await fresh.propose(create_rule(), who="both")
    error = await refusal(fresh.approve(proposal, who="alias"))
    assert error.reason is Reason.APPROVER_NOT_ALLOWED


async def test_a_member_without_the_role_leaves_a_trace(fresh: Stack) -> None:
    """L15: asking for what one may not do is in the audit; a stranger's attempt is not, lest they fill it."""
    proposal = await fresh.propose(create_rule())
    for who, action in (("agent", "refuse_approve"), ("reader", "refuse_approve")):
        error = await refusal(fresh.approve(proposal, who=who))
        assert error.reason is Reason.PERMISSION_DENIED
        entries, newest = await fresh.store.audit(PROJECT, 0, 500)
        assert entries[-1].action.value == action
        assert entries[-1].subject == proposal.name
    await refusal(fresh.approve(proposal, who="stranger"))
    assert (await fresh.store.audit(PROJECT, 0, 1))[1] == newest


async def test_the_policy_approves_structured_imports_of_the_named_service_only(fresh: Stack) -> None:
    """L6: a rule approves as a POLICY principal for its importer; the same content of anybody else waits."""
    rule = admin_service_pb2.ApprovalRule(
        id="structured-import",
        issuer="local",
        subject="importer",
        mutations=["create"],
        extractors=["structured/adr"],
    )
    request = admin_service_pb2.UpdatePolicyRequest(
        project=f"projects/{PROJECT}",
        request_id=new_id(),
        expected_version=1,
        policy=admin_service_pb2.Policy(approval_rules=[rule]),
    )
    project = (await fresh.as_("admin").admin.UpdatePolicy(request)).project
    assert project.policy.version == 2
    own = await fresh.propose(create_rule("imported"), who="importer")
    assert own.status == proposal_pb2.PROPOSAL_STATUS_APPROVED
    assert own.approvals[0].policy_rule == "structured-import@2"
    applied = await fresh.apply(own, who="importer")
    assert applied.head.revision.approvers[0].issuer == "policy"
    for who, evidence in (("ana", None), ("importer", [evidence_input(stance=ledger_pb2.STANCE_CONTEXT)])):
        other = await fresh.propose(create_rule(f"by {who}"), who=who, evidence=evidence)
        assert other.status == proposal_pb2.PROPOSAL_STATUS_PENDING


async def test_revoking_and_withdrawing_are_for_the_parties(fresh: Stack) -> None:
    """L6: an approval is taken back by its approver or an admin, a proposal by its requester or an admin."""
    proposal = await fresh.propose(create_rule())
    approval = (await fresh.approve(proposal)).approval
    revoke = proposal_service_pb2.RevokeApprovalRequest(approval=approval.name, reason="mistaken")
    revoke.request_id = new_id()
    assert (await refusal(fresh.as_("eva").proposals.RevokeApproval(revoke))).reason is Reason.PERMISSION_DENIED
    revoked = await fresh.as_("rui").proposals.RevokeApproval(revoke)
    assert revoked.proposal.status == proposal_pb2.PROPOSAL_STATUS_PENDING
    error = await refusal(fresh.apply(proposal))
    assert error.reason is Reason.APPROVAL_MISSING
    withdraw = proposal_service_pb2.WithdrawProposalRequest(proposal=proposal.name, request_id=new_id())
    assert (await refusal(fresh.as_("rui").proposals.WithdrawProposal(withdraw))).reason is Reason.PERMISSION_DENIED
    withdrawn = await fresh.as_("ana").proposals.WithdrawProposal(withdraw)
    assert withdrawn.proposal.status == proposal_pb2.PROPOSAL_STATUS_WITHDRAWN
    # L7: what was withdrawn blocks nothing.
    assert (await fresh.propose(create_rule())).status == proposal_pb2.PROPOSAL_STATUS_PENDING


# --- Retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rpc", [r for r in RPCS if RPCS[r].mutates], ids=lambda rpc: rpc[1])
async def test_a_retry_gives_the_first_answer_also_after_a_restart(rpc: tuple[str, str], tmp_path: Path) -> None:
    """L7: repeated N times, then after later changes, then after a restart: the same answer, one effect."""
    file = tmp_path / "ledger.sqlite"
    async with running(file) as stack:
        things = await fill(stack)
        request, who = RPCS[rpc].request(things), RPCS[rpc].who
        first = await call(stack, rpc, who, request)
        _, sequence = await stack.store.audit(PROJECT, 0, 1)
        for _ in range(3):
            assert await call(stack, rpc, who, request) == first
        assert (await stack.store.audit(PROJECT, 0, 1))[1] == sequence
        await stack.publish(supersede(things.family, "later"))
        await stack.publish(supersede(things.other, "later still"))
        assert await call(stack, rpc, who, request) == first
        other = type(request)()
        other.CopyFrom(request)
        _alter(other)
        error = await refusal(call(stack, rpc, who, other))
        assert error.reason is Reason.REQUEST_ID_REUSED
        clock = stack.clock
    async with running(file, clock) as stack:
        assert await call(stack, rpc, who, request) == first


def _alter(request: Any) -> None:
    """Change something that is not the request_id."""
    for field, value in (
        ("reason", "another"),
        ("comment", "another"),
        ("method", "another"),
        ("display_name", "another"),
        ("expected_version", 9),
    ):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, value)
            return
    if "preview_hash" in request.DESCRIPTOR.fields_by_name:
        request.preview_hash = "sha256:" + "0" * 64
    elif "evidence" in request.DESCRIPTOR.fields_by_name:
        request.evidence.excerpt = "another"
    elif "observations" in request.DESCRIPTOR.fields_by_name:
        request.observations[0].title = "another"
    elif "admissions" in request.DESCRIPTOR.fields_by_name:
        request.admissions[0].admission.extractor = "another"
    else:
        request.signals[0].kind = 3


async def test_a_loser_hears_the_same_again(fresh: Stack) -> None:
    """L2, L7: HEAD_MOVED is the answer to the first try and to its retry, though the proposal is STALE since."""
    family = (await fresh.create()).head.family.name
    one, two = await fresh.propose(supersede(family, "one")), await fresh.propose(supersede(family, "two"))
    await fresh.approve(one)
    await fresh.approve(two)
    await fresh.apply(one)
    request = proposal_service_pb2.ApplyProposalRequest(proposal=two.name, request_id=new_id())
    errors = [await refusal(fresh.as_("ana").proposals.ApplyProposal(request)) for _ in range(2)]
    assert [e.reason for e in errors] == [Reason.HEAD_MOVED] * 2
    assert errors[0].metadata == errors[1].metadata
    assert errors[0].metadata["family"] == family
    got = await fresh.as_("reader").proposals.GetProposal(proposal_service_pb2.GetProposalRequest(name=two.name))
    assert got.proposal.status == proposal_pb2.PROPOSAL_STATUS_STALE
    assert (await refusal(fresh.apply(two))).reason is Reason.PROPOSAL_STATUS
