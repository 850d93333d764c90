"""Bad input on every RPC: a typed error that names the field, and nothing stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    ledger_pb2,
    ledger_service_pb2,
    observation_service_pb2,
    proposal_pb2,
    proposal_service_pb2,
)
from google.protobuf.timestamp_pb2 import Timestamp

from service_kit.errors import Reason, from_item_error
from service_kit.ids import new_id
from tests.ledger_rpcs import ALL_RPCS, RPCS, Things, call, fill, rename
from tests.ledger_stack import FOREIGN, PROJECT, Stack, create_rule, evidence_input, refusal, rule_content, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = {
    "name",
    "project",
    "family",
    "families",
    "proposal",
    "approval",
    "evidence",
    "observation",
    "revision",
    "from_revision",
    "to_revision",
    "relation",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[tuple[Stack, Things]]:
    """One ledger with one of everything, for all cases: none of them changes it."""
    async with running() as stack:
        yield stack, await fill(stack)


def _variants(rpc: tuple[str, str], request: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (what, field, request) for everything that can be wrong with the top level of a request."""

    def changed() -> Any:
        made = type(request)()
        made.CopyFrom(request)
        return made

    for field in RPCS[rpc].required:
        bad = changed()
        bad.ClearField(field)
        yield "missing", field, bad
    for descriptor in request.DESCRIPTOR.fields:
        field = descriptor.name
        is_text = descriptor.type == descriptor.TYPE_STRING
        is_enum = descriptor.type == descriptor.TYPE_ENUM
        if is_text and field in NAMES:
            for what, text in (("nonsense", "nonsense"), ("wrong kind", f"projects/{PROJECT}/things/1")):
                bad = changed()
                _set(bad, descriptor, text)
                yield what, field, bad
        if field == "request_id":
            bad = changed()
            bad.request_id = "x" * 129
            yield "oversized", field, bad
        if is_enum:
            bad = changed()
            _set(bad, descriptor, 999)
            yield "unknown enum", field, bad
        if field == "page_size":
            for size in (-1, 100_000):
                bad = changed()
                bad.page_size = size
                yield "out of range", field, bad
        if field == "page_token":
            bad = changed()
            bad.page_token = "abc"
            yield "altered", field, bad
        if descriptor.message_type is not None and descriptor.message_type.full_name == "google.protobuf.Timestamp":
            for what, stamp in (("too fine", Timestamp(nanos=1)), ("out of range", Timestamp(seconds=10**12))):
                bad = changed()
                getattr(bad, field).CopyFrom(stamp)
                yield what, field, bad
        if descriptor.message_type is not None and descriptor.message_type.name == "Consistency":
            bad = changed()
            bad.consistency.at_least_as_fresh.value = "made up"
            yield "made up token", "consistency.at_least_as_fresh", bad
        if field == "branch":
            bad = changed()
            bad.branch = "No Spaces Here"
            yield "malformed", field, bad
        if field in {"after_position", "after_sequence", "depth", "max_depth", "limit", "max_events"}:
            bad = changed()
            setattr(bad, field, -1)
            yield "negative", field, bad


def _set(message: Any, descriptor: Any, value: Any) -> None:
    if descriptor.is_repeated:
        getattr(message, descriptor.name).append(value)
    else:
        setattr(message, descriptor.name, value)


async def _digest(stack: Stack) -> tuple[int, int, int]:
    """What would show that something was stored: the audit, the proposals, the observations."""
    _, newest = await stack.store.audit(PROJECT, 0, 1)
    counted, _ = await stack.store.proposals(PROJECT, list(_STATUSES), "", 0, 500)
    return newest, len(counted), len(await stack.store.observations(PROJECT, [], 0, 500))


def _all_statuses() -> Any:
    from ledger_svc.domain.model import ProposalStatus

    return ProposalStatus


_STATUSES = _all_statuses()


@pytest.mark.parametrize("rpc", list(RPCS), ids=lambda rpc: rpc[1])
async def test_every_rpc_names_the_field_that_is_wrong(rpc: tuple[str, str], world: Any) -> None:
    """S4, L9: missing, malformed, oversized, out of range: INVALID_ARGUMENT with the field; nothing stored."""
    stack, things = world
    before = await _digest(stack)
    request = RPCS[rpc].request(things)
    for what, field, bad in _variants(rpc, request):
        error = await refusal(call(stack, rpc, RPCS[rpc].who, bad))
        expected = {Reason.INVALID_FIELD, Reason.PAGE_TOKEN_MISMATCH, Reason.LIMIT_EXCEEDED}
        assert error.reason in expected, (what, field, error)
        assert any(problem.field.split("[")[0] == field for problem in error.fields), (what, field, error.fields)
        assert all(problem.description for problem in error.fields)
    assert await _digest(stack) == before


@pytest.mark.parametrize("rpc", list(RPCS), ids=lambda rpc: rpc[1])
async def test_every_rpc_treats_a_foreign_project_as_forbidden(rpc: tuple[str, str], world: Any) -> None:
    """S1: naming a project that is not one's own is PERMISSION_DENIED, whether or not it exists."""
    stack, things = world
    if RPCS[rpc].role in {"anyone", "service"} or rpc == ("admin", "CreateProject"):
        pytest.skip("is not about one project")
    before = await _digest(stack)
    request = RPCS[rpc].request(things)
    rename(request, PROJECT, FOREIGN)
    error = await refusal(call(stack, rpc, RPCS[rpc].who, request))
    assert error.reason is Reason.PERMISSION_DENIED, error
    assert await _digest(stack) == before


def _create(**more: Any) -> proposal_pb2.Mutation:
    made = create_rule()
    for name, value in more.items():
        if isinstance(value, Timestamp):
            getattr(made.create, name).CopyFrom(value)
        else:
            setattr(made.create, name, value)
    return made


def _content(**more: Any) -> proposal_pb2.Mutation:
    made = create_rule()
    for name, value in more.items():
        if isinstance(value, list):
            getattr(made.create.content, name).extend(value)
        else:
            setattr(made.create.content, name, value)
    return made


PROPOSALS: list[tuple[str, str, Callable[[Things], dict[str, Any]]]] = [
    ("no kind", "mutation", lambda t: {"mutation": proposal_pb2.Mutation()}),
    ("no category", "mutation.create.category", lambda t: {"mutation": _create(category=0)}),
    ("unknown category", "mutation.create.category", lambda t: {"mutation": _create(category=99)}),
    (
        "no content",
        "mutation.create.content",
        lambda t: {"mutation": proposal_pb2.Mutation(create=proposal_pb2.CreateMutation(category=3))},
    ),
    ("no title", "content.title", lambda t: {"mutation": _content(title=" ")}),
    ("long title", "content.title", lambda t: {"mutation": _content(title="x" * 301)}),
    ("importance", "content.importance", lambda t: {"mutation": _content(importance=1.5)}),
    ("NaN", "content.importance", lambda t: {"mutation": _content(importance=float("nan"))}),
    ("empty rule", "content.rules[0]", lambda t: {"mutation": _content(rules=[""])}),
    ("standing", "mutation.create.content.standing", lambda t: {"mutation": _content(standing=77)}),
    ("key with spaces", "identity_key", lambda t: {"mutation": _create(identity_key="adr 7")}),
    (
        "reversed",
        "mutation.create.valid_from",
        lambda t: {"mutation": _create(valid_from=Timestamp(seconds=9), valid_to=Timestamp(seconds=5))},
    ),
    (
        "empty interval",
        "mutation.create.valid_from",
        lambda t: {"mutation": _create(valid_from=Timestamp(seconds=9), valid_to=Timestamp(seconds=9))},
    ),
    (
        "too fine",
        "mutation.create.valid_from",
        lambda t: {"mutation": _create(valid_from=Timestamp(seconds=9, nanos=999))},
    ),
    (
        "foreign family",
        "mutation.supersede.family",
        lambda t: {
            "mutation": proposal_pb2.Mutation(
                supersede=proposal_pb2.SupersedeMutation(
                    family=t.family.replace(PROJECT, FOREIGN), content=rule_content()
                )
            )
        },
    ),
    (
        "other family's revision",
        "mutation.rollback.to_revision",
        lambda t: {
            "mutation": proposal_pb2.Mutation(
                rollback=proposal_pb2.RollbackMutation(family=t.other, to_revision=t.revision)
            )
        },
    ),
    (
        "unknown field of content",
        "update_mask",
        lambda t: {
            "mutation": proposal_pb2.Mutation(
                update=proposal_pb2.UpdateMutation(
                    family=t.family, content=rule_content(), update_mask={"paths": ["colour"]}
                )
            )
        },
    ),
    (
        "relation made by the ledger",
        "kind",
        lambda t: {
            "mutation": proposal_pb2.Mutation(
                link=proposal_pb2.LinkMutation(
                    kind=ledger_pb2.RELATION_KIND_MERGED_INTO, source_family=t.family, target_family=t.other
                )
            )
        },
    ),
    (
        "relation to itself",
        "target_family",
        lambda t: {
            "mutation": proposal_pb2.Mutation(
                link=proposal_pb2.LinkMutation(
                    kind=ledger_pb2.RELATION_KIND_REFINES, source_family=t.family, target_family=t.family
                )
            )
        },
    ),
    ("no reason", "reason", lambda t: {"reason": "  "}),
    ("long reason", "reason", lambda t: {"reason": "x" * 2_001}),
    ("no stance", "evidence[0].stance", lambda t: {"evidence": [evidence_input(stance=0)]}),
    ("evidence of nothing", "evidence[0].evidence", lambda t: {"evidence": [proposal_pb2.EvidenceInput(stance=1)]}),
    ("confidence", "evidence[0].confidence", lambda t: {"evidence": [evidence_input(confidence=2.0)]}),
    (
        "evidence hash",
        "evidence[0].draft.source_hash",
        lambda t: {
            "evidence": [
                proposal_pb2.EvidenceInput(
                    draft=ledger_pb2.EvidenceDraft(source_kind=1, locator="x", source_hash="md5:1"), stance=1
                )
            ]
        },
    ),
    (
        "role of a head",
        "expected_heads[0].role",
        lambda t: {"expected_heads": [proposal_pb2.ExpectedHead(family=t.family, role="boss")]},
    ),
    ("observation", "observation", lambda t: {"observation": "nonsense"}),
]


@pytest.mark.parametrize(("what", "field", "build"), PROPOSALS, ids=[one[0] for one in PROPOSALS])
@pytest.mark.parametrize("how", ["store", "validate_only", "batch"])
async def test_a_malformed_proposal_names_its_field(
    how: str, what: str, field: str, build: Callable[[Things], dict[str, Any]], world: Any
) -> None:
    """L9, S4: one by one, as a preview and in a batch: the wrong field is named, nothing is stored."""
    stack, things = world
    before = await _digest(stack)
    values: dict[str, Any] = {
        "project": things.project,
        "request_id": new_id(),
        "mutation": create_rule(),
        "evidence": [evidence_input("docs/bad.md")],
        "reason": "because",
        **build(things),
    }
    request = proposal_service_pb2.CreateProposalRequest(**values, validate_only=how == "validate_only")
    client = stack.as_("ana").proposals
    if how == "batch":
        answer = await client.BatchCreateProposals(
            proposal_service_pb2.BatchCreateProposalsRequest(project=things.project, requests=[request])
        )
        error = from_item_error(answer.results[0].error)
    else:
        error = await refusal(client.CreateProposal(request))
    assert error.reason in {Reason.INVALID_FIELD, Reason.LIMIT_EXCEEDED}, error
    assert any(problem.field.endswith(field) for problem in error.fields), error.fields
    assert await _digest(stack) == before


async def test_all_problems_of_a_request_are_reported_at_once(world: Any) -> None:
    """S4: a caller mends everything in one go."""
    stack, _ = world
    error = await refusal(
        stack.as_("ana").proposals.CreateProposal(proposal_service_pb2.CreateProposalRequest(branch="A B"))
    )
    assert {p.field for p in error.fields} >= {"project", "request_id", "mutation", "branch"}


async def test_a_policy_that_nobody_could_meet_is_refused(world: Any) -> None:
    """S4: a wrong policy names its field, down to the rule and category."""
    stack, things = world
    policy = admin_service_pb2.Policy(
        categories=[
            admin_service_pb2.CategoryPolicy(category=3, approvals_needed=7),
            admin_service_pb2.CategoryPolicy(category=3),
            admin_service_pb2.CategoryPolicy(
                category=1, required=[admin_service_pb2.FieldRequirement(any_of=["colour"])]
            ),
        ],
        approval_rules=[admin_service_pb2.ApprovalRule(id="x", issuer="local", subject="s", mutations=["explode"])],
    )
    request = admin_service_pb2.UpdatePolicyRequest(
        project=things.project, request_id=new_id(), expected_version=1, policy=policy
    )
    error = await refusal(stack.as_("admin").admin.UpdatePolicy(request))
    assert {p.field for p in error.fields} == {
        "policy.categories[0].approvals_needed",
        "policy.categories[1].category",
        "policy.categories[2].required[0].any_of",
        "policy.approval_rules[0].mutations[0]",
    }


async def test_items_of_a_batch_fail_by_themselves(world: Any) -> None:
    """S4: one wrong observation of a batch is refused with its index, its neighbours are recorded."""
    stack, things = world
    good = observation_service_pb2.Observation(
        source_kind=ledger_pb2.SOURCE_KIND_ADR, locator="docs/good.md", source_hash=f"sha256:{'b' * 64}"
    )
    bad = observation_service_pb2.Observation(source_kind=ledger_pb2.SOURCE_KIND_ADR, source_hash="sha256:short")
    answer = await stack.as_("ana").observations.RecordObservations(
        observation_service_pb2.RecordObservationsRequest(
            project=things.project, request_id=new_id(), observations=[bad, good]
        )
    )
    assert answer.results[1].created
    error = from_item_error(answer.results[0].error)
    assert {p.field for p in error.fields} == {"observations[0].locator", "observations[0].source_hash"}


async def test_spreading_over_deprecations_is_refused(world: Any) -> None:
    """R1: activation never flows to what was replaced."""
    stack, things = world
    request = ledger_service_pb2.ExpandRelationsRequest(
        project=things.project,
        seeds=[ledger_service_pb2.Activation(family=things.family, activation=1.0)],
        kinds=[ledger_pb2.RELATION_KIND_DEPRECATES],
    )
    error = await refusal(stack.as_("reader").ledger.ExpandRelations(request))
    assert error.fields[0].field == "kinds"


async def test_no_rpc_is_left_out() -> None:
    """S1: every RPC of the contracts is in the catalogue that these tests go over."""
    assert set(RPCS) == set(ALL_RPCS)
