"""Governance: propose, preview, approve, reject, withdraw, revoke, apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from ledger_svc.domain import errors
from ledger_svc.domain.decide import (
    EvidenceDraft,
    decide_approval,
    decide_or_refuse,
    decide_proposal,
    decide_rejection,
    decide_revocation,
    decide_withdrawal,
    fingerprint_of,
    preview,
    register,
)
from ledger_svc.domain.model import (
    Approval,
    AuditAction,
    ChangeSet,
    Draft,
    Evidence,
    EvidenceLink,
    Proposal,
    ProposalStatus,
    Relation,
    Stance,
)
from ledger_svc.domain.policy import category_policy
from ledger_svc.domain.state import State, StateNeeds, needs_of, rows_since
from ledger_svc.group import Decided, Outcome
from ledger_svc.records import from_plain, to_plain
from ledger_svc.service.commands import Command, Made, Refusal, Request
from ledger_svc.service.context import Ledger, as_principal, unknown_project
from ledger_svc.state import StateQuery, WorkingState
from ledger_svc.views import Detail, HeadsQuery, HeadView, ProposalView
from service_kit import names
from service_kit.errors import as_domain_error, not_found
from service_kit.principals import Principal as Caller
from service_kit.principals import Role

_PROGRESS: Final = (
    "status_reason",
    "decided_at",
    "decided_by",
    "applied_position",
    "result_family_id",
    "result_revision_id",
    "result_relation_id",
)


@dataclass(frozen=True, slots=True)
class EvidenceInput:
    """Evidence of a proposal: the id of a registered one, or a draft to register with it."""

    source: str | EvidenceDraft
    stance: Stance
    confidence: float
    claim: str


@dataclass(frozen=True, slots=True)
class Proposing:
    """What a proposer asks for, before the evidence has ids."""

    draft: Draft
    evidence: tuple[EvidenceInput, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to an apply."""

    position: int
    view: ProposalView | None
    """None in a brief answer."""
    head: HeadView | None
    recorded_at: datetime
    relation: Relation | None


class ProposalService:
    """The only way to change published knowledge."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    # --- Propose ----------------------------------------------------------------------------------------------------

    async def preview(self, caller: Caller, proposing: Proposing) -> ProposalView:
        """Show what a proposal would be; store nothing."""
        project_id = proposing.draft.project_id
        await self._enter(caller, project_id, Role.PROPOSER, AuditAction.PROPOSE)
        outcomes = await self._ledger.store.decide([_Preview(self._ledger, caller, proposing)])
        view: ProposalView = _value(outcomes[0])
        return view

    async def create(
        self, caller: Caller, project_id: str, items: Sequence[tuple[Request, Proposing]]
    ) -> list[ProposalView | Exception]:
        """Propose, each by itself."""
        await self._enter(caller, project_id, Role.PROPOSER, AuditAction.PROPOSE)
        commands = [_Create(self._ledger, request, proposing) for request, proposing in items]
        return await self._views(project_id, await self._ledger.store.decide(commands))

    # --- Decide -----------------------------------------------------------------------------------------------------

    async def approve(
        self, caller: Caller, project_id: str, items: Sequence[tuple[Request, str, str, str]]
    ) -> list[tuple[ProposalView, Approval] | Exception]:
        """Say yes: request, proposal id, preview hash, comment; each by itself."""
        subject = names.proposal_name(project_id, items[0][1]) if items else ""
        await self._enter(caller, project_id, Role.REVIEWER, AuditAction.APPROVE, subject)
        commands = [_Approve(self._ledger, *item) for item in items]
        outcomes = await self._ledger.store.decide(commands)
        views = await self._views(project_id, outcomes)
        return [
            view if isinstance(view, Exception) else (view, _approval(view, outcome.result))
            for view, outcome in zip(views, outcomes, strict=True)
        ]

    async def reject(self, request: Request, proposal_id: str, comment: str) -> ProposalView:
        """Say no."""
        subject = names.proposal_name(request.project_id, proposal_id)
        await self._enter(request.caller, request.project_id, Role.REVIEWER, AuditAction.REJECT, subject)
        return await self._one(request, _Reject(self._ledger, request, proposal_id, comment))

    async def withdraw(self, request: Request, proposal_id: str, comment: str) -> ProposalView:
        """Take a proposal back: its requester, or an admin; the decision checks which."""
        await self._enter(request.caller, request.project_id, Role.READER, AuditAction.WITHDRAW)
        return await self._one(request, _Withdraw(self._ledger, request, proposal_id, comment))

    async def revoke(self, request: Request, proposal_id: str, approval_id: str, reason: str) -> ProposalView:
        """Take an approval back: its approver, or an admin; the decision checks which."""
        await self._enter(request.caller, request.project_id, Role.READER, AuditAction.REVOKE_APPROVAL)
        return await self._one(request, _Revoke(self._ledger, request, proposal_id, approval_id, reason))

    # --- Apply ------------------------------------------------------------------------------------------------------

    async def apply(
        self, caller: Caller, project_id: str, items: Sequence[tuple[Request, str, str]], *, brief: bool
    ) -> list[Applied | Exception]:
        """Commit: request, proposal id, expected preview hash or empty; each by itself and in order."""
        subject = names.proposal_name(project_id, items[0][1]) if items else ""
        await self._enter(caller, project_id, Role.PROPOSER, AuditAction.APPLY, subject)
        outcomes = await self._ledger.store.decide([_Apply(self._ledger, *item) for item in items])
        if brief:
            return [_brief(outcome) for outcome in outcomes]
        views = await self._views(project_id, outcomes)
        return [
            view if isinstance(view, Exception) else await self._applied(outcome.result, view)
            for view, outcome in zip(views, outcomes, strict=True)
        ]

    async def _applied(self, made: Made[ProposalView], view: ProposalView) -> Applied:
        """Read what an apply shows as of its commit, so that a repetition shows the same."""
        proposal = view.proposal
        head = relation = None
        if proposal.result_relation_id:
            relation = await self._ledger.store.relation(proposal.project_id, proposal.result_relation_id)
            if relation is not None and (relation.retired_position or 0) > (proposal.applied_position or 0):
                relation = replace(relation, retired_from=None, retired_recorded_at=None, retired_position=None)
        if proposal.result_revision_id or not proposal.result_relation_id or proposal.kind.value == "DEPRECATE":
            query = HeadsQuery(
                proposal.project_id,
                proposal.branch,
                made.recorded_at,
                made.recorded_at,
                Detail.BASIC,
                family_ids=(proposal.result_family_id,),
            )
            found = await self._ledger.store.heads(query)
            head = found.heads[0] if found.heads else None
        return Applied(proposal.applied_position or 0, view, head, made.recorded_at, relation)

    # --- Reads ------------------------------------------------------------------------------------------------------

    async def get(self, caller: Caller, project_id: str, proposal_id: str) -> ProposalView:
        """Return a proposal."""
        await self._ledger.enter(caller, project_id)
        view = await self._ledger.store.proposal(project_id, proposal_id)
        if view is None:
            raise not_found(names.proposal_name(project_id, proposal_id))
        return (await self._with_policy(project_id, [view]))[0]

    async def page(
        self,
        caller: Caller,
        project_id: str,
        statuses: frozenset[ProposalStatus],
        family_id: str,
        after: int,
        limit: int,
    ) -> tuple[list[ProposalView], int]:
        """List proposals, oldest first."""
        await self._ledger.enter(caller, project_id)
        views, cursor = await self._ledger.store.proposals(project_id, statuses, family_id, after, limit)
        return await self._with_policy(project_id, views), cursor

    async def _with_policy(self, project_id: str, views: Sequence[ProposalView]) -> list[ProposalView]:
        """Return the views with the number of approvals that the policy in force asks for."""
        project = await self._ledger.store.project(project_id)
        if project is None:
            return list(views)
        return [
            replace(view, approvals_needed=category_policy(project.policy, view.proposal.category).approvals_needed)
            for view in views
        ]

    # --- Helpers ----------------------------------------------------------------------------------------------------

    async def _enter(self, caller: Caller, project_id: str, role: Role, action: AuditAction, subject: str = "") -> None:
        """Let a caller in; a member of the project who lacks the role leaves a trace in the audit."""
        try:
            await self._ledger.enter(caller, project_id, role)
        except Exception as error:
            typed = errors.permission_denied(project_id, role.value)
            if role is not Role.READER and caller.can(project_id, Role.READER) and not caller.can(project_id, role):
                refusal = Refusal(self._ledger, caller, project_id, action, typed, subject)
                await self._ledger.store.decide([refusal])
            raise error from None

    async def _one(self, request: Request, command: Command[ProposalView]) -> ProposalView:
        outcomes = await self._ledger.store.decide([command])
        views = await self._views(request.project_id, outcomes)
        if isinstance(views[0], Exception):
            raise views[0]
        return views[0]

    async def _views(self, project_id: str, outcomes: Sequence[Outcome]) -> list[ProposalView | Exception]:
        """Return what each decision came to; a repetition is read again and shown as it stood then."""
        made: list[ProposalView | Exception] = []
        for outcome in outcomes:
            if outcome.error is not None:
                made.append(_refused(outcome.error))
                continue
            result: Made[ProposalView] = outcome.result
            if result.value is not None:
                made.append(result.value)
                continue
            now = await self._ledger.store.proposal(project_id, result.kept["proposal"])
            if now is None:
                raise LookupError("a kept answer names a proposal that is not stored")
            made.append(_as_it_stood(now, result.kept))
        return made


def _refused(error: BaseException) -> Exception:
    """Return an error that is an answer; a bug is raised, and masked at the boundary."""
    typed = as_domain_error(error)
    if typed is None:
        raise error
    return typed


def _value(outcome: Outcome) -> Any:
    if outcome.error is not None:
        raise _refused(outcome.error)
    return outcome.result


def _brief(outcome: Outcome) -> Applied | Exception:
    if outcome.error is not None:
        return _refused(outcome.error)
    made: Made[ProposalView] = outcome.result
    return Applied(made.kept["position"], None, None, made.recorded_at, None)


def _approval(view: ProposalView, made: Made[ProposalView]) -> Approval:
    wanted = made.kept["approval"]
    return next(a for a in view.approvals if a.approval_id == wanted)


# --- What is kept of an answer ----------------------------------------------------------------------------------------


def _kept(view: ProposalView, **more: Any) -> dict[str, Any]:
    proposal = view.proposal
    plain = to_plain(proposal)
    return {
        "proposal": proposal.proposal_id,
        "status": proposal.status.value,
        "progress": {name: plain[name] for name in _PROGRESS if name in plain},
        "approvals": len(view.approvals),
        "needed": view.approvals_needed,
        "checks": {e.evidence_id: len(e.verifications) for e in view.evidence.values() if e.verifications},
        **more,
    }


def _as_it_stood(view: ProposalView, kept: Mapping[str, Any]) -> ProposalView:
    plain = to_plain(view.proposal)
    for name in _PROGRESS:
        plain.pop(name, None)
    plain.update(kept["progress"], status=kept["status"])
    checks = kept["checks"]
    return ProposalView(
        from_plain(Proposal, plain),
        view.approvals[: kept["approvals"]],
        {
            key: replace(record, verifications=record.verifications[: checks.get(key, 0)])
            for key, record in view.evidence.items()
        },
        kept["needed"],
    )


def _view(state: State, proposal: Proposal, change: ChangeSet, more: Sequence[Evidence] = ()) -> ProposalView:
    """Return the proposal as it is after a change."""
    changed = [p for p in change.proposals_changed if p.proposal_id == proposal.proposal_id]
    approvals = {a.approval_id: a for a in state.approvals.get(proposal.proposal_id, ())}
    approvals.update({a.approval_id: a for a in (*change.approvals_changed, *change.approvals_added)})
    known = {**state.evidence, **{e.evidence_id: e for e in more}}
    return ProposalView(
        changed[0] if changed else proposal,
        tuple(approvals.values()),
        {link.evidence_id: known[link.evidence_id] for link in proposal.evidence_links if link.evidence_id in known},
        category_policy(state.policy, proposal.category).approvals_needed,
    )


# --- Decisions --------------------------------------------------------------------------------------------------------


def _asks_for_draft(ledger: Ledger, proposing: Proposing) -> StateQuery:
    draft = proposing.draft
    needs = needs_of(draft)
    named = {item.source for item in proposing.evidence if isinstance(item.source, str)}
    drafted = {fingerprint_of(item.source) for item in proposing.evidence if not isinstance(item.source, str)}
    needs = replace(needs, evidence=needs.evidence | named, fingerprints=needs.fingerprints | drafted)
    observations = frozenset({draft.observation_id}) if draft.observation_id else frozenset[str]()
    return StateQuery(needs, rows_since(draft, ledger.now()), observations=observations)


def _draft_with_links(
    ledger: Ledger, state: State, proposing: Proposing, caller: Caller, now: datetime
) -> tuple[Draft, tuple[Evidence, ...]]:
    """Return the draft with links to registered evidence, and the evidence that is registered with it."""
    drafts: list[EvidenceDraft] = []
    paths: list[str] = []
    for index, item in enumerate(proposing.evidence):
        if not isinstance(item.source, str):
            drafts.append(item.source)
            paths.append(f"evidence[{index}].draft")
    principal = as_principal(caller, state.project_id)
    registered = register(state, drafts, principal, now, new_id=ledger.new_id, paths=paths)
    fresh = iter(registered.evidence)
    links = []
    for item in proposing.evidence:
        record = state.evidence.get(item.source) if isinstance(item.source, str) else next(fresh)
        if record is None:
            raise errors.not_found(names.evidence_name(state.project_id, str(item.source)))
        links.append(EvidenceLink(record.evidence_id, record.fingerprint, item.stance, item.confidence, item.claim))
    return replace(proposing.draft, evidence_links=tuple(links)), registered.added


@dataclass(slots=True)
class _Preview:
    """Works a proposal out on the current state and stores nothing."""

    ledger: Ledger
    caller: Caller
    proposing: Proposing

    @property
    def project_id(self) -> str:
        return self.proposing.draft.project_id

    def needs(self, working: WorkingState) -> StateQuery:
        if working.state is None:
            return StateQuery(StateNeeds(self.project_id), self.ledger.now())
        return _asks_for_draft(self.ledger, self.proposing)

    def decide(self, working: WorkingState) -> Decided[ProposalView]:
        state = working.state
        if state is None:
            raise unknown_project(self.caller, self.project_id, Role.PROPOSER)
        now = self.ledger.now()
        draft, added = _draft_with_links(self.ledger, state, self.proposing, self.caller, now)
        known = replace(state, evidence={**state.evidence, **{e.evidence_id: e for e in added}})
        proposal = preview(known, draft, as_principal(self.caller, self.project_id), state.policy, now)
        nothing = ChangeSet(self.project_id, now, None, ())
        return Decided(_view(known, proposal, nothing))


@dataclass(slots=True)
class _Create(Command[ProposalView]):
    proposing: Proposing
    _asked: StateQuery | None = field(default=None, repr=False)

    ACTION = AuditAction.PROPOSE

    def asks(self, working: WorkingState, state: State) -> StateQuery:
        del working, state
        if self._asked is None:
            self._asked = _asks_for_draft(self.ledger, self.proposing)
        return self._asked

    def run(
        self, state: State, working: WorkingState, now: datetime
    ) -> tuple[ProposalView, Mapping[str, Any], ChangeSet]:
        observation = self.proposing.draft.observation_id
        if observation and observation not in working.observations:
            raise errors.not_found(names.observation_name(self.project_id, observation))
        draft, added = _draft_with_links(self.ledger, state, self.proposing, self.request.caller, now)
        change = decide_proposal(
            state, draft, self.request.principal, state.policy, now, new_id=self.ledger.new_id, new_evidence=added
        )
        view = _view(state, change.proposals_added[0], change, added)
        return view, _kept(view), change


@dataclass(slots=True)
class _OfProposal(Command[ProposalView]):
    """Base of the decisions on a stored proposal."""

    proposal_id: str

    def asks(self, working: WorkingState, state: State) -> StateQuery:
        del working
        proposal = state.proposals.get(self.proposal_id)
        now = self.ledger.now()
        if proposal is None:
            return StateQuery(StateNeeds(self.project_id, proposals=frozenset({self.proposal_id})), now)
        return StateQuery(needs_of(proposal), rows_since(proposal, now))

    def proposal_of(self, state: State) -> Proposal | None:
        return state.proposals.get(self.proposal_id)

    def run(
        self, state: State, working: WorkingState, now: datetime
    ) -> tuple[ProposalView, Mapping[str, Any], ChangeSet]:
        del working
        proposal = state.proposals.get(self.proposal_id)
        if proposal is None:
            raise errors.not_found(names.proposal_name(self.project_id, self.proposal_id))
        change = self.change(state, proposal, now)
        view = _view(state, proposal, change)
        return view, _kept(view, **self.more(change)), change

    def change(self, state: State, proposal: Proposal, now: datetime) -> ChangeSet:
        """Decide."""
        raise NotImplementedError

    def more(self, change: ChangeSet) -> dict[str, Any]:
        """Return what else is kept."""
        del change
        return {}


@dataclass(slots=True)
class _Approve(_OfProposal):
    preview_hash: str
    comment: str

    ACTION = AuditAction.APPROVE

    def change(self, state: State, proposal: Proposal, now: datetime) -> ChangeSet:
        return decide_approval(
            state,
            proposal,
            state.approvals.get(self.proposal_id, ()),
            self.request.principal,
            self.preview_hash,
            state.policy,
            now,
            comment=self.comment,
            new_id=self.ledger.new_id,
        )

    def more(self, change: ChangeSet) -> dict[str, Any]:
        return {"approval": change.approvals_added[0].approval_id}


@dataclass(slots=True)
class _Reject(_OfProposal):
    comment: str

    ACTION = AuditAction.REJECT

    def change(self, state: State, proposal: Proposal, now: datetime) -> ChangeSet:
        return decide_rejection(state, proposal, self.request.principal, self.comment, state.policy, now)


@dataclass(slots=True)
class _Withdraw(_OfProposal):
    comment: str

    ACTION = AuditAction.WITHDRAW

    def change(self, state: State, proposal: Proposal, now: datetime) -> ChangeSet:
        return decide_withdrawal(state, proposal, self.request.principal, self.comment, now)


@dataclass(slots=True)
class _Revoke(_OfProposal):
    approval_id: str
    reason: str

    ACTION = AuditAction.REVOKE_APPROVAL

    def change(self, state: State, proposal: Proposal, now: datetime) -> ChangeSet:
        approvals = state.approvals.get(self.proposal_id, ())
        return decide_revocation(
            state, proposal, approvals, self.approval_id, self.request.principal, self.reason, state.policy, now
        )


@dataclass(slots=True)
class _Apply(_OfProposal):
    preview_hash: str

    ACTION = AuditAction.APPLY

    def change(self, state: State, proposal: Proposal, now: datetime) -> ChangeSet:
        if self.preview_hash and self.preview_hash != proposal.preview_hash:
            raise errors.preview_hash_mismatch(self.preview_hash, proposal.preview_hash)
        outcome = decide_or_refuse(
            state,
            proposal,
            state.approvals.get(self.proposal_id, ()),
            state.policy,
            now,
            actor=self.request.principal,
            new_id=self.ledger.new_id,
        )
        if outcome.error is not None:
            raise self.keep_if_stale(outcome.error, outcome.change)
        return outcome.change

    def more(self, change: ChangeSet) -> dict[str, Any]:
        return {"position": change.position}
