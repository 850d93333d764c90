"""Evidence: register, read, verify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ledger_svc.domain.decide import EvidenceDraft, decide_evidence, decide_verification, fingerprint_of
from ledger_svc.domain.model import AuditAction, ChangeSet, Evidence, VerificationState
from ledger_svc.domain.state import State, StateNeeds
from ledger_svc.service.commands import Command, Made, Request
from ledger_svc.service.context import Ledger
from ledger_svc.state import StateQuery, WorkingState
from service_kit import names
from service_kit.errors import as_domain_error, not_found, permission_denied
from service_kit.principals import Kind, Role
from service_kit.principals import Principal as Caller


class EvidenceService:
    """Evidence of a project."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def register(self, request: Request, draft: EvidenceDraft) -> tuple[Evidence, bool]:
        """Register evidence; return it and whether it is new."""
        await self._ledger.enter(request.caller, request.project_id, Role.PROPOSER)
        made = await self._decide(_Register(self._ledger, request, draft))
        return await self._evidence(request.project_id, made), made.kept["created"]

    async def get(self, caller: Caller, project_id: str, evidence_id: str) -> Evidence:
        """Return one piece of evidence."""
        await self._ledger.enter(caller, project_id)
        found = await self._ledger.store.evidence(project_id, evidence_id)
        if found is None:
            raise not_found(names.evidence_name(project_id, evidence_id))
        return found

    async def verify(self, request: Request, evidence_id: str, found: VerificationState, method: str) -> Evidence:
        """Record what a look at the source gave: a reviewer's, or a program's of the deployment."""
        caller, project_id = request.caller, request.project_id
        is_program = caller.kind is Kind.SERVICE and caller.can(project_id, Role.PROPOSER)
        if not (is_program or caller.can(project_id, Role.REVIEWER)):
            raise permission_denied(project_id, Role.REVIEWER.value)
        await self._ledger.enter(caller, project_id)
        made = await self._decide(_Verify(self._ledger, request, evidence_id, found, method))
        return await self._evidence(project_id, made)

    async def _decide(self, command: Command[Evidence]) -> Made[Evidence]:
        outcome = (await self._ledger.store.decide([command]))[0]
        if outcome.error is not None:
            raise as_domain_error(outcome.error) or outcome.error
        made: Made[Evidence] = outcome.result
        return made

    async def _evidence(self, project_id: str, made: Made[Evidence]) -> Evidence:
        if made.value is not None:
            return made.value
        record = await self._ledger.store.evidence(project_id, made.kept["evidence"])
        if record is None:
            raise LookupError("a kept answer names evidence that is not stored")
        return replace(record, verifications=record.verifications[: made.kept["checks"]])


def _kept(record: Evidence, **more: Any) -> dict[str, Any]:
    return {"evidence": record.evidence_id, "checks": len(record.verifications), **more}


@dataclass(slots=True)
class _Register(Command[Evidence]):
    draft: EvidenceDraft

    ACTION = AuditAction.REGISTER_EVIDENCE

    def asks(self, working: WorkingState, state: State) -> StateQuery:
        del working, state
        needs = StateNeeds(self.project_id, fingerprints=frozenset({fingerprint_of(self.draft)}))
        return StateQuery(needs, self.ledger.now())

    def run(
        self, state: State, working: WorkingState, now: datetime
    ) -> tuple[Evidence, Mapping[str, Any], ChangeSet | None]:
        del working
        registration, change = decide_evidence(
            state, [self.draft], self.request.principal, now, new_id=self.ledger.new_id
        )
        record = registration.evidence[0]
        return record, _kept(record, created=change is not None), change


@dataclass(slots=True)
class _Verify(Command[Evidence]):
    evidence_id: str
    found: VerificationState
    method: str

    ACTION = AuditAction.RECORD_VERIFICATION

    def subject(self) -> str:
        return names.evidence_name(self.project_id, self.evidence_id)

    def asks(self, working: WorkingState, state: State) -> StateQuery:
        del working, state
        return StateQuery(StateNeeds(self.project_id, evidence=frozenset({self.evidence_id})), self.ledger.now())

    def run(
        self, state: State, working: WorkingState, now: datetime
    ) -> tuple[Evidence, Mapping[str, Any], ChangeSet | None]:
        del working
        change = decide_verification(state, self.evidence_id, self.found, self.method, self.request.principal, now)
        before = state.evidence[self.evidence_id]
        record = replace(before, verifications=(*before.verifications, *change.verifications))
        return record, _kept(record), change
