"""Writes as decisions: each looks its request_id up first, then asks the domain, and keeps its answer with its effect.

What is kept of an answer is only what cannot be read again: ids, positions, where the proposal stood. From that and
the stored records the first answer is made again, after any time and any restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from ledger_svc.domain import errors
from ledger_svc.domain.decide import refuse
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import AuditAction, ChangeSet, Principal, Proposal, ProposalStatus, StoredReply
from ledger_svc.domain.state import State, StateNeeds
from ledger_svc.group import Decided, Refused
from ledger_svc.service.context import Ledger, as_principal, unknown_project
from ledger_svc.state import BEGINNING, Change, Landing, StateQuery, WorkingState
from service_kit.principals import Principal as Caller
from service_kit.principals import Role

T = TypeVar("T")

QUIET: Final = frozenset(
    {errors.INVALID_FIELD, errors.LIMIT_EXCEEDED, errors.REQUEST_ID_REUSED, errors.NOT_FOUND, errors.ALREADY_EXISTS}
)
"""Refusals of what was not even asked for properly: they leave nothing behind."""


@dataclass(frozen=True, slots=True)
class Request:
    """One mutating call, or one item of a batch."""

    caller: Caller
    project_id: str
    rpc: str
    request_id: str
    content: bytes = field(repr=False)
    """The request message; the same request_id with other content is refused."""
    role: Role = Role.PROPOSER

    @property
    def key(self) -> tuple[str, str, str]:
        """What the request_id is unique within."""
        return (f"{self.caller.issuer} {self.caller.subject}", self.rpc, self.request_id)

    @property
    def hash(self) -> str:
        """What the content is told apart by."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def principal(self) -> Principal:
        """Who calls."""
        return as_principal(self.caller, self.project_id)


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """The answer of a command: made now, or kept from the first time."""

    kept: Mapping[str, Any]
    value: T | None = None
    """What the decision saw and made, for the answer; None when the request is a repetition."""
    recorded_at: datetime = BEGINNING


@dataclass(slots=True)
class Command(Generic[T]):
    """Base of the writes: the request_id first, the decision second, the refusal's audit entry last."""

    ledger: Ledger
    request: Request

    ACTION = AuditAction.APPLY
    """What a refusal is recorded as."""

    @property
    def project_id(self) -> str:
        """The project that is locked for it."""
        return self.request.project_id

    def needs(self, working: WorkingState) -> StateQuery:
        """Ask for the stored reply, and for what the decision reads unless there is one."""
        query = StateQuery(StateNeeds(self.project_id), self.ledger.now(), frozenset({self.request.key}))
        if self.request.key in working.replies or working.state is None:
            return query
        return query | self.asks(working, working.state)

    def decide(self, working: WorkingState) -> Decided[Made[T]]:
        """Answer as the first time, or decide."""
        stored = working.replies.get(self.request.key)
        if stored is not None:
            return self.repeat(stored)
        if working.state is None:
            raise unknown_project(self.request.caller, self.project_id, self.request.role)
        now = self.ledger.now()
        try:
            value, kept, change = self.run(working.state, working, now)
        except DomainError as error:
            if error.reason in QUIET:
                raise
            raise self._refusal(working.state, error, now) from error
        recorded_at = change.recorded_at if change is not None and hasattr(change, "recorded_at") else now
        if change is None:
            change = self.nothing(working.state, now)
        reply = self.reply(kept, recorded_at)
        return Decided(Made(kept, value, recorded_at), (replace(change, replies=(reply,)),))

    def asks(self, working: WorkingState, state: State) -> StateQuery:
        """Return what :meth:`run` reads."""
        del working, state
        return StateQuery(StateNeeds(self.project_id), self.ledger.now())

    def run(self, state: State, working: WorkingState, now: datetime) -> tuple[T, Mapping[str, Any], Change | None]:
        """Decide: what the answer needs, what is kept of it, and what to persist."""
        raise NotImplementedError

    def proposal_of(self, state: State) -> Proposal | None:
        """Return the proposal that it is about, for the audit entry of a refusal."""
        del state
        return None

    def subject(self) -> str:
        """Return the resource that it is about, where that is no proposal."""
        return ""

    def nothing(self, state: State, now: datetime) -> Change:
        """Return a change that only keeps the reply."""
        del state, now
        return Landing(self.project_id)

    def reply(self, kept: Mapping[str, Any], recorded_at: datetime) -> StoredReply:
        """Return what is kept of the answer."""
        caller, rpc, request_id = self.request.key
        body = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
        return StoredReply(self.project_id, caller, request_id, rpc, self.request.hash, body, recorded_at)

    def repeat(self, stored: StoredReply) -> Decided[Made[T]]:
        """Answer as the first time; refuse another request under the same id."""
        if stored.request_hash != self.request.hash:
            raise errors.request_id_reused(self.request.request_id, self.request.rpc)
        kept = json.loads(stored.reply)
        failed = kept.get("error")
        if failed is not None:
            raise DomainError(failed["reason"], failed["message"], failed["metadata"])
        return Decided(Made(kept, None, stored.recorded_at))

    def _refusal(self, state: State, error: DomainError, now: datetime) -> Refused:
        proposal = self.proposal_of(state)
        change = refuse(
            state, self.ACTION, self.request.principal, error, now, subject=self.subject(), proposal=proposal
        )
        return self.keep_if_stale(error, change)

    def keep_if_stale(self, error: DomainError, change: ChangeSet) -> Refused:
        """Return the refusal. One that made the proposal STALE is kept: a repetition gets the same answer."""
        if any(p.status is ProposalStatus.STALE for p in change.proposals_changed):
            kept = {"error": {"reason": error.reason, "message": error.message, "metadata": error.metadata}}
            change = replace(change, replies=(self.reply(kept, change.recorded_at),))
        return Refused(error, (change,))


@dataclass(slots=True)
class Refusal:
    """Records that somebody asked for what they may not do."""

    ledger: Ledger
    caller: Caller
    project_id: str
    action: AuditAction
    error: DomainError
    subject: str

    def needs(self, working: WorkingState) -> StateQuery:
        """Nothing but the project."""
        return StateQuery(StateNeeds(working.project_id), self.ledger.now())

    def decide(self, working: WorkingState) -> Decided[None]:
        """Make the audit entry."""
        if working.state is None:
            return Decided(None)
        principal = as_principal(self.caller, self.project_id)
        change = refuse(working.state, self.action, principal, self.error, self.ledger.now(), subject=self.subject)
        return Decided(None, (change,))
