"""G1 on every write path: whoever calls, and whatever field a secret is in, it is stored, answered and logged nowhere.

The fields are read from the contracts, so that one that is added is tried too. A secret is planted in every text field
of every request that writes; then the answers, the log, every value of the ledger's file and every file of the data
folder are searched for it.
"""

from __future__ import annotations

import io
import logging
import random
import sqlite3
import string
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
import pytest_asyncio
import structlog
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    evidence_service_pb2,
    ledger_pb2,
    proposal_pb2,
    proposal_service_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from service_kit import logs
from service_kit.errors import Reason, from_item_error, from_rpc_error
from service_kit.ids import new_id
from tests.ledger_stack import create_rule, evidence_input, rule_content, supersede
from tests.whole_rpcs import METHODS, REQUESTS, Home, approve, call, furnish, propose
from tests.whole_stack import OWN, Whole, deployment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

READS: Final = ("Get", "List", "BatchGet", "Query", "Diff", "Blame", "Expand", "Watch", "Search", "Find", "Verify")
"""How the names of RPCs begin that write nothing."""

WRITES: Final = sorted(rpc for rpc in METHODS if not rpc.partition(".")[2].startswith(READS))

BYTES: Final = frozenset({"AdminService.ExportProject", "AdminService.ImportProject"})
"""A project as a file of its ledger's own bytes: what a ledger exported was sanitised when it came in."""

WHO: Final = {
    "ProposalService.ApproveProposal": "reviewer",
    "ProposalService.BatchApproveProposals": "reviewer",
    "ProposalService.RejectProposal": "reviewer",
    "ProposalService.RevokeApproval": "reviewer",
    "EvidenceService.RecordVerification": "reviewer",
    "AdminService.CreateProject": "root",
    "AdminService.UpdatePolicy": "admin",
    "IndexService.RebuildIndex": "admin",
}
"""Who may, where that is not a proposer; the outbox is for "service"."""

_RANDOM: Final = random.Random()
# Lower case: it is a well-formed branch and the id of a project.
SECRET: Final = "glpat-" + "".join(_RANDOM.choices(string.ascii_lowercase + string.digits, k=14)) + "7q2x9k"
PERSON: Final = "ana" + "".join(_RANDOM.choices(string.ascii_lowercase, k=9)) + "@example.org"
CANARY: Final = "canary" + "".join(_RANDOM.choices(string.ascii_lowercase, k=9))
TEXT: Final = f"{CANARY} {SECRET} of {PERSON}"


@dataclass(slots=True)
class World:
    """A deployment, and what was seen of it."""

    whole: Whole
    home: Home
    log: io.StringIO
    answers: list[bytes] = field(default_factory=list)

    async def send(self, rpc: str, request: Message) -> list[Message] | Exception:
        """Make a call, and keep all that comes back of it."""
        who = "service" if rpc.startswith("OutboxService.") else WHO.get(rpc, "proposer")
        try:
            made = await call(self.whole.as_(who), rpc, request)
        except grpc.aio.AioRpcError as error:
            trailing = error.trailing_metadata() or ()
            self.answers.append(repr((error.details(), list(trailing))).encode())
            return from_rpc_error(error)
        self.answers += [answer.SerializeToString() for answer in made]
        return list(made)

    def answered(self, text: str) -> bool:
        """Whether a text is in an answer of the last calls."""
        return any(text.encode() in answer for answer in self.answers[-20:])

    def found(self, text: str) -> list[str]:
        """Where a text is: answers, log, ledger, or a file of the data folder."""
        wanted = text.encode()
        places = ["an answer"] if any(wanted in answer for answer in self.answers) else []
        places += ["the log"] if text in self.log.getvalue() else []
        folder = self.whole.running.folder.ledger_file.parent
        for file in folder.rglob("*"):
            if file.is_file() and wanted in file.read_bytes():
                places.append(file.name)
        return [*places, *_columns(self.whole.running.folder.ledger_file, wanted)]


def _columns(ledger_file: Path, wanted: bytes) -> Iterator[str]:
    """The columns of the ledger's file that hold a text; a long one is on several pages of the file itself."""
    with closing(sqlite3.connect(f"file:{ledger_file}?mode=ro", uri=True)) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            cursor = file.execute(f"SELECT * FROM {table}")  # noqa: S608 - names of its own tables
            names = [column[0] for column in cursor.description]
            seen = {
                name
                for row in cursor
                for name, value in zip(names, row, strict=True)
                if wanted in (value if isinstance(value, bytes) else str(value).encode())
            }
            yield from (f"{table}.{name}" for name in sorted(seen))


@contextmanager
def _logged() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    logs.configure("debug", stream=stream)
    try:
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A deployment with a furnished project; every case adds to it."""
    with _logged() as log:
        async with deployment(tmp_path_factory.mktemp("secret") / "data") as whole:
            home = await furnish(whole, Home(OWN, "proposer", "reviewer", "admin"))
            yield World(whole, home, log)


# --- Requests ---------------------------------------------------------------------------------------------------------


def _mutations(home: Home) -> Iterator[proposal_pb2.Mutation]:
    """Every kind of change."""
    yield create_rule(f"Rule {new_id()}", key=f"rule/{new_id()}")
    yield proposal_pb2.Mutation(
        create_and_link=proposal_pb2.CreateAndLinkMutation(
            create=create_rule(f"Finer {new_id()}").create, refines_family=home.family, rationale="finer"
        )
    )
    yield proposal_pb2.Mutation(update=proposal_pb2.UpdateMutation(family=home.other, content=rule_content("Edited")))
    yield supersede(home.other, f"Anew {new_id()}")
    yield proposal_pb2.Mutation(invalidate=proposal_pb2.InvalidateMutation(family=home.other))
    yield proposal_pb2.Mutation(set_expiry=proposal_pb2.SetExpiryMutation(family=home.other))
    yield proposal_pb2.Mutation(
        cancel_schedule=proposal_pb2.CancelScheduleMutation(family=home.family, revision=home.second)
    )
    yield proposal_pb2.Mutation(
        deprecate=proposal_pb2.DeprecateMutation(family=home.other, replacement_family=home.family, rationale="newer")
    )
    yield proposal_pb2.Mutation(rollback=proposal_pb2.RollbackMutation(family=home.family, to_revision=home.revision))
    yield proposal_pb2.Mutation(
        link=proposal_pb2.LinkMutation(
            kind=ledger_pb2.RELATION_KIND_RELATED_TO,
            source_family=home.family,
            target_family=home.other,
            rationale="akin",
        )
    )
    yield proposal_pb2.Mutation(unlink=proposal_pb2.UnlinkMutation(relation=home.relation))


async def _bases(world: World, rpc: str) -> list[Any]:
    """Requests that work, which together have every field in them."""
    request: Any = await REQUESTS[rpc](world.whole, world.home)
    if rpc == "ProposalService.CreateProposal":
        made = []
        for mutation in _mutations(world.home):
            one = type(request)()
            one.CopyFrom(request)
            one.mutation.CopyFrom(mutation)
            made.append(one)
        return made
    if rpc in {"AdminService.CreateProject", "AdminService.UpdatePolicy"}:
        request.policy.categories.add(
            category=ledger_pb2.CATEGORY_EPISODE, required=[admin_service_pb2.FieldRequirement(any_of=["task"])]
        )
        request.policy.approval_rules.add(
            id="import", issuer="local", subject="ci", mutations=["create"], extractors=["structured/adr"]
        )
    return [request]


Steps = tuple[FieldDescriptor, ...]


def _text_fields(message: Any, before: Steps = ()) -> Iterator[Steps]:
    """Every field of a request that holds text, at any depth, maps included; of a oneof, the part that is set."""
    for descriptor in message.DESCRIPTOR.fields:
        oneof = descriptor.containing_oneof
        chosen = message.WhichOneof(oneof.name) if oneof is not None else None
        if chosen is not None and chosen != descriptor.name:
            continue
        path = (*before, descriptor)
        inner = descriptor.message_type
        if inner is None:
            assert descriptor.type != FieldDescriptor.TYPE_BYTES, f"{descriptor.full_name}: nothing looks into bytes"
            if descriptor.type == FieldDescriptor.TYPE_STRING:
                yield path
        elif inner.GetOptions().map_entry:
            yield path
        else:
            value = getattr(message, descriptor.name)
            if descriptor.is_repeated:
                value = value[0] if len(value) else inner._concrete_class()
            yield from _text_fields(value, path)


def _planted(request: Any, path: Steps, text: str) -> Any:
    """A copy, as a new request, with the text in one field."""
    made = type(request)()
    made.CopyFrom(request)
    _renew(made)
    at = made
    for step in path[:-1]:
        value = getattr(at, step.name)
        at = (value[0] if len(value) else value.add()) if step.is_repeated else value
    last = path[-1]
    if last.message_type is not None:
        getattr(at, last.name).update({f"key {text}": f"value {text}"})
    elif last.is_repeated:
        getattr(at, last.name).append(text)
    else:
        setattr(at, last.name, text)
    return made


def _renew(request: Any) -> None:
    if isinstance(request, admin_service_pb2.CreateProjectRequest):
        request.name = f"projects/p-{new_id()}"
    if getattr(request, "request_id", ""):
        request.request_id = new_id()
    for item in getattr(request, "requests", ()):
        _renew(item)


def _dotted(path: Steps) -> str:
    return ".".join(step.name for step in path)


def _refusal(answer: Any) -> Any:
    """The reason why a call, or the first item of a batch, was refused; None when it was done."""
    if isinstance(answer, Exception):
        return getattr(answer, "reason", answer)
    for message in answer:
        for item in getattr(message, "results", ()):
            if item.WhichOneof("result") == "error":
                return from_item_error(item.error).reason
    return None


# --- What may not be rewritten ----------------------------------------------------------------------------------------

IDENTIFIERS: Final = frozenset(
    {
        *("project", "name", "family", "revision", "to_revision", "relation", "proposal", "proposals", "approval"),
        *("evidence", "observation", "duplicate_of", "refines_family", "replacement_family", "source_family"),
        *("target_family", "branch", "request_id", "identity_key", "preview_hash", "source_hash", "role", "paths"),
        *("id", "issuer", "subject", "mutations", "any_of", "worker"),
    }
)
"""Fields that are stored as they are, and so refuse a secret. Every other field takes it, rewritten."""


@pytest.mark.parametrize("rpc", WRITES)
async def test_a_secret_in_any_field_is_rewritten_or_refused(world: World, rpc: str) -> None:
    """G1: one field after the other; texts are taken and the secret replaced, identifiers are refused by name."""
    if rpc in BYTES:
        pytest.skip("bytes of a ledger")
    kinds = len(await _bases(world, rpc))
    for kind in range(kinds):
        for path in _text_fields((await _bases(world, rpc))[kind]):
            where = f"{rpc} {_dotted(path)}"
            identifier = path[-1].name in IDENTIFIERS
            # Anew for each field: many a request works only once.
            request = _planted((await _bases(world, rpc))[kind], path, SECRET if identifier else TEXT)
            refusal = _refusal(await world.send(rpc, request))
            if identifier:
                assert refusal is Reason.INVALID_FIELD, where
            else:
                assert refusal is None or (refusal is Reason.STATE_CONFLICT and kind > 0), where
            assert not world.answered(SECRET), where
            assert not world.answered(PERSON), where


async def _full(world: World, rpc: str, kind: int = 0) -> Any:
    """A request that works, with a secret in every text of it."""
    request = base = (await _bases(world, rpc))[kind]
    for path in _text_fields(base):
        if path[-1].name not in IDENTIFIERS:
            request = _planted(request, path, TEXT)
    return request


async def test_nothing_of_it_is_anywhere(world: World) -> None:
    """G1: a deployment that was given secrets in every text holds none of them: ledger, index, log, answers."""
    for rpc in WRITES:
        for kind in range(len(await _bases(world, rpc)) if rpc not in BYTES else 0):
            await world.send(rpc, await _full(world, rpc, kind))
    whole, home = world.whole, world.home
    request = await _full(world, "ProposalService.CreateProposal")
    made = await propose(whole, home, request.mutation, evidence=list(request.evidence), reason=request.reason)
    await approve(whole, home, made)
    await world.send(
        "ProposalService.ApplyProposal",
        proposal_service_pb2.ApplyProposalRequest(proposal=made.name, request_id=new_id()),
    )
    await whole.settled()
    await world.send("RetrievalService.Search", await REQUESTS["RetrievalService.Search"](whole, home))
    await world.send("LedgerService.QueryHeads", await REQUESTS["LedgerService.QueryHeads"](whole, home))
    await world.send("LedgerService.ListProjections", await REQUESTS["LedgerService.ListProjections"](whole, home))
    for rpc in ("ListAuditEntries", "ListProjects"):
        await world.send(f"AdminService.{rpc}", await REQUESTS[f"AdminService.{rpc}"](whole, home))
    # A control: what is stored is seen at all.
    seen = {place.partition(".")[0] for place in world.found(CANARY)}
    assert {"an answer", "revisions", "proposals", "evidence", "observations", "admissions"} <= seen
    assert world.found(SECRET) == []
    assert world.found(PERSON) == []


async def test_a_project_that_is_no_project_is_not_logged(world: World) -> None:
    """G1: what looks like a project may be anything; the log names only what holds no secret."""
    await world.send("AdminService.GetProject", admin_service_pb2.GetProjectRequest(name=f"projects/{SECRET}"))
    assert SECRET not in world.log.getvalue()
    # The caller alone is told what they asked for.
    world.answers.pop()


# --- What the caller and the reviewer see -----------------------------------------------------------------------------


def _request(world: World, **more: Any) -> proposal_service_pb2.CreateProposalRequest:
    fields: dict[str, Any] = {
        "project": world.home.project,
        "request_id": new_id(),
        "mutation": create_rule(f"Rule {new_id()}"),
        "evidence": [evidence_input()],
        "reason": "because",
    }
    return proposal_service_pb2.CreateProposalRequest(**{**fields, **more})


async def test_the_reviewer_is_told_what_was_taken_out(world: World) -> None:
    """G1: a proposal warns of every replacement by field and kind, in a preview, alone and in a batch."""
    request = _request(world, reason=f"{PERSON} and rui.lima@example.org said so")
    content = request.mutation.create.content
    content.summary = f"Ask {PERSON}."
    content.rules.extend(["Nothing here.", f"Use {SECRET} here."])
    content.attributes["password"] = "tr0ub4dor"
    request.evidence[0].draft.author = PERSON
    request.evidence[0].claim = f"{SECRET} works"
    expected = [
        "content.attributes: 1 SECRET was replaced before storing",
        "content.rules[1]: 1 GITLAB_TOKEN was replaced before storing",
        "content.summary: 1 EMAIL was replaced before storing",
        "evidence[0].claim: 1 GITLAB_TOKEN was replaced before storing",
        "evidence[0].draft.author: 1 EMAIL was replaced before storing",
        "reason: 2 EMAIL were replaced before storing",
    ]
    proposals = world.whole.as_("proposer").proposals
    asked = proposal_service_pb2.CreateProposalRequest()
    asked.CopyFrom(request)
    asked.validate_only = True
    preview = (await proposals.CreateProposal(asked)).proposal
    made = (await proposals.CreateProposal(request)).proposal
    for one in (preview, made):
        assert sorted(one.warnings) == expected
        assert one.after.summary == "Ask [REDACTED:EMAIL]."
        assert one.after.rules[1] == "Use [REDACTED:GITLAB_TOKEN] here."
        assert one.after.attributes["password"] == "[REDACTED:SECRET]"
        assert one.reason == "[REDACTED:EMAIL] and [REDACTED:EMAIL] said so"
    assert preview.preview_hash == made.preview_hash
    stored = (await proposals.GetProposal(proposal_service_pb2.GetProposalRequest(name=made.name))).proposal
    assert stored == made
    _renew(request)
    batch = proposal_service_pb2.BatchCreateProposalsRequest(
        project=world.home.project, requests=[_request(world), request]
    )
    results = (await proposals.BatchCreateProposals(batch)).results
    assert list(results[0].proposal.warnings) == []
    assert sorted(results[1].proposal.warnings) == expected


async def test_a_repeated_request_with_a_secret_is_answered_as_the_first_time(world: World) -> None:
    """L7, G1: the retry is free, and nothing of the request is kept but what is stored of it."""
    proposals = world.whole.as_("proposer").proposals
    request = _request(world, reason=f"{SECRET} was given to us")
    first = (await proposals.CreateProposal(request)).proposal
    assert (await proposals.CreateProposal(request)).proposal == first
    registration = evidence_service_pb2.RegisterEvidenceRequest(
        project=world.home.project, request_id=new_id(), evidence=evidence_input(f"mail:{PERSON}").draft
    )
    registered = await world.whole.as_("proposer").evidence.RegisterEvidence(registration)
    assert registered.evidence.locator == "mail:[REDACTED:EMAIL]"
    registration.request_id = new_id()
    again = await world.whole.as_("proposer").evidence.RegisterEvidence(registration)
    # The fingerprint is of the clean text.
    assert (again.evidence.name, again.created) == (registered.evidence.name, False)


async def test_what_ingest_sanitised_passes_unchanged(world: World) -> None:
    """G1: a text with placeholders is clean: no warning, not a letter changed."""
    request = _request(world, reason="[REDACTED:EMAIL] asked for it")
    request.mutation.create.content.summary = "The key [REDACTED:GITLAB_TOKEN] is of [REDACTED:EMAIL]."
    made = (await world.whole.as_("proposer").proposals.CreateProposal(request)).proposal
    assert list(made.warnings) == []
    assert made.after.summary == request.mutation.create.content.summary


async def test_an_item_of_a_batch_is_refused_by_itself(world: World) -> None:
    """G1: an identity key that holds a secret is refused with its path; the other items are taken."""
    bad = _request(world, mutation=create_rule("Bad", key=f"key/{SECRET}"))
    batch = proposal_service_pb2.BatchCreateProposalsRequest(
        project=world.home.project, requests=[bad, _request(world)]
    )
    results = (await world.whole.as_("proposer").proposals.BatchCreateProposals(batch)).results
    assert [problem.field for problem in results[0].error.fields] == ["requests[0].mutation.create.identity_key"]
    assert "GITLAB_TOKEN" in results[0].error.fields[0].description
    assert results[1].WhichOneof("result") == "proposal"
