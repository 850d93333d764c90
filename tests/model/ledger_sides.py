"""One store with the services on top, driven by commands of the oracle, its answers as texts that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.model import (
    CancelSchedule,
    Category,
    Commit,
    Content,
    Create,
    CreateAndLink,
    Deprecate,
    Draft,
    Invalidate,
    Link,
    MemoryState,
    Mutation,
    Policy,
    RelationKind,
    Rollback,
    SetExpiry,
    Standing,
    Supersede,
    Unlink,
    Update,
)
from ledger_svc.service.admin import AdminService
from ledger_svc.service.commands import Request
from ledger_svc.service.context import Ledger
from ledger_svc.service.proposals import Applied, ProposalService, Proposing
from ledger_svc.service.reads import ReadService
from ledger_svc.service.standing import replaced_by, state_of_head
from ledger_svc.servicer import outgoing
from ledger_svc.store import LedgerStore
from ledger_svc.views import Detail, HeadsPageQuery, HeadsQuery, HeadView, ProposalView
from service_kit.clock import ManualClock
from service_kit.errors import DomainError
from service_kit.principals import Kind, Principal, Role, grant
from tests.model.ledger_oracle import Answer, Command
from tests.model.timeline_table import FOREVER

START = datetime(2026, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
"""The finest step that the ledger knows: two commits that the clock does not tell apart are one tick apart."""

ROOT = Principal("local", "root", Kind.HUMAN, "", (grant("*", [Role.ADMIN]),))
ANA = Principal("local", "ana", Kind.HUMAN, "", (grant("*", [Role.PROPOSER]),))
RUI = Principal("local", "rui", Kind.HUMAN, "", (grant("*", [Role.REVIEWER]),))
CATEGORIES = {"SEMANTIC": Category.DESIGN_RULE, "EPISODIC": Category.EPISODE}
FREE = Policy(1)
"""One approval and nothing else is asked for: the histories are about time, not about evidence."""


def moment(tick: int) -> datetime:
    """The instant of a tick."""
    return START + tick * _TICK


def tick_of(instant: datetime | None) -> int:
    """The tick of an instant."""
    return FOREVER if instant is None else (instant - START) // _TICK


def mutation_of(command: Command) -> Mutation:
    """What a command is in the words of the ledger."""
    c = command
    start = None if c.start is None else moment(c.start)
    stop = None if c.stop is None else moment(c.stop)
    content = Content(c.title or "-", standing=Standing(c.standing))
    match c.what:
        case "create":
            return Create(CATEGORIES[c.scope], content, c.key, start, stop)
        case "refine":
            return CreateAndLink(CATEGORIES[c.scope], content, c.other, "finer", c.key, start, stop)
        case "update":
            return Update(c.family, content, start, stop)
        case "supersede":
            return Supersede(c.family, content, start, stop)
        case "rollback":
            return Rollback(c.family, c.revision, start, stop)
        case "invalidate":
            return Invalidate(c.family, start)
        case "expire":
            return SetExpiry(c.family, stop)
        case "cancel":
            return CancelSchedule(c.family, c.revision)
        case "deprecate":
            return Deprecate(c.family, c.other, start)
        case "link":
            return Link(RelationKind(c.kind), c.family, c.other, "", start, stop)
        case "unlink":
            return Unlink(c.relation, start)
    raise AssertionError(c.what)


@dataclass(frozen=True)
class Reply:
    """What a call came to."""

    text: bytes
    """The whole answer as a client reads it, or the refusal."""
    reason: str = ""
    """Of a refusal."""
    value: Any = None


class Side:
    """One store, with services whose ids are a count: stores that are told the same give the same ids."""

    def __init__(self, store: LedgerStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.ids = 0
        ledger = Ledger(store, clock, self._new_id)
        self.proposals = ProposalService(ledger)
        self.admin = AdminService(ledger)
        self.reads = ReadService(ledger)
        self.project = ""

    def _new_id(self) -> str:
        self.ids += 1
        return f"00000000-0000-7000-8000-{self.ids:012x}"

    def _request(self, caller: Principal, rpc: str, ident: str, content: str) -> Request:
        return Request(caller, self.project, rpc, ident, content.encode(), Role.READER)

    async def make_project(self, project: str) -> None:
        """Begin a history in an empty project."""
        self.project = project
        await self.admin.create_project(self._request(ROOT, "CreateProject", project, ""), project, FREE)

    async def propose(self, command: Command, ident: str, content: str) -> Reply:
        """Propose."""
        draft = Proposing(Draft(self.project, command.branch, mutation_of(command), "because"))
        call = self._request(ANA, "CreateProposal", ident, content)
        made = (await self.proposals.create(ANA, self.project, [(call, draft)]))[0]
        return _reply(made, lambda view: _text(outgoing.proposal(view)))

    async def approve(self, proposal: ProposalView, ident: str) -> Reply:
        """Approve."""
        call = self._request(RUI, "ApproveProposal", ident, proposal.proposal.proposal_id)
        item = (call, proposal.proposal.proposal_id, proposal.proposal.preview_hash, "")
        made = (await self.proposals.approve(RUI, self.project, [item]))[0]
        return _reply(made, lambda pair: _text(outgoing.proposal(pair[0])))

    async def apply(self, items: Sequence[tuple[str, str, str]]) -> list[Reply]:
        """Apply, all in one call: proposal, request id, content of the request."""
        calls = [
            (self._request(ANA, "ApplyProposal", ident, content), proposal, "") for proposal, ident, content in items
        ]
        made = await self.proposals.apply(ANA, self.project, calls, brief=False)
        return [_reply(one, _applied_text) for one in made]

    async def answers(self, families: Sequence[str], branch: str, valid: int, known: int | None) -> list[HeadView]:
        """Read heads at a point."""
        at = None if known is None else moment(known)
        query = HeadsQuery(self.project, branch, moment(valid), at, Detail.FULL, tuple(families))
        return list((await self.reads.heads(ANA, query, 0)).heads)

    async def listed(
        self, branch: str, valid: int, known: int, states: frozenset[MemoryState], size: int
    ) -> list[HeadView]:
        """Read all pages of the heads in some states."""
        found: list[HeadView] = []
        after = ""
        while True:
            query = HeadsPageQuery(
                self.project, branch, moment(valid), moment(known), Detail.BASIC,
                frozenset(), frozenset(), False, after, size,
            )  # fmt: skip
            page, after, _ = await self.reads.heads_page(ANA, query, states, 0)
            assert len(page) <= size
            found += page
            if not after:
                return found

    async def feed(self, after: int = 0) -> list[Commit]:
        """Read the change feed to its end."""
        found: list[Commit] = []
        while page := (await self.reads.changes(ANA, self.project, after + len(found), 7)).commits:
            found += page
        return found

    async def problems(self) -> list[Any]:
        """What verifying the whole project finds."""
        return await self.store.verify(self.project, ChainVerifier())


def read(view: HeadView, valid: int) -> Answer:
    """A head as the oracle would say it."""
    standing = state_of_head(view, moment(valid))
    assert view.revision is not None
    row = standing.row
    return (
        standing.state.value,
        view.revision.revision_id,
        (tick_of(row.valid_from), tick_of(row.valid_to)) if row else (0, 0),
        [(r.revision_id, tick_of(r.valid_from), tick_of(r.valid_to)) for r in standing.scheduled if r is not row],
        [replacing.other.family_id for replacing in replaced_by(view)],
        [(flag.cause_family_id, flag.cause) for flag in view.flags],
        view.position,
    )


def texts(views: Sequence[HeadView], valid: int) -> list[bytes]:
    """Heads as a client reads them."""
    return [_text(outgoing.head(view, moment(valid), Detail.FULL)) for view in views]


def _text(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _reply(made: Any, text: Callable[[Any], bytes]) -> Reply:
    if isinstance(made, DomainError):
        return Reply(f"{made.reason} {made.message} {sorted(made.metadata.items())}".encode(), made.reason)
    if isinstance(made, BaseException):
        raise made
    return Reply(text(made), "", made)


def _applied_text(applied: Applied) -> bytes:
    assert applied.view is not None
    parts = [_text(outgoing.proposal(applied.view))]
    if applied.head is not None:
        parts.append(_text(outgoing.head(applied.head, applied.recorded_at, Detail.BASIC)))
    if applied.relation is not None:
        parts.append(_text(outgoing.relation(applied.relation)))
    return b"\n".join([*parts, str((applied.position, applied.recorded_at)).encode()])
