"""A little ledger in memory for tests of the pure domain: it keeps every record and lets the real decisions run.

Every decision is made on a State that holds exactly the facts that ``StateNeeds`` names, so a need that is forgotten
fails a test. Stores can be compared with it: ``narrowed`` is the reference of what a store has to load.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from ledger_svc.domain import decide as d
from ledger_svc.domain.audit import records_of
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import (
    Approval,
    AuditAction,
    AuditEntry,
    ChangeSet,
    Content,
    Draft,
    EvidenceLink,
    Mutation,
    Policy,
    Principal,
    PrincipalKind,
    Proposal,
    Relation,
    RelationKind,
    Role,
    SourceKind,
    Stance,
    TimelineRow,
    VerificationState,
)
from ledger_svc.domain.state import State, StateNeeds, apply_to_state, needs_of, rows_since

EVERYTHING = frozenset(Role)
ANA = Principal("local", "ana", PrincipalKind.HUMAN, roles=EVERYTHING)
BRUNO = Principal("local", "bruno", PrincipalKind.HUMAN, roles=EVERYTHING)
CARLA = Principal("local", "carla", PrincipalKind.HUMAN, roles=EVERYTHING)
AGENT = Principal("local", "copilot", PrincipalKind.AGENT, on_behalf_of="bruno", roles=EVERYTHING)
IMPORTER = Principal("local", "importer", PrincipalKind.SERVICE, roles=EVERYTHING)
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def day(number: float) -> datetime:
    """A moment so many days after the start."""
    return START + timedelta(days=number)


@dataclass
class World:
    """The whole ledger of one project."""

    state: State
    clock: datetime = START
    rows: list[TimelineRow] = field(default_factory=list)
    entries: list[AuditEntry] = field(default_factory=list)
    changes: list[ChangeSet] = field(default_factory=list)
    counter: itertools.count = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def new(cls, policy: Policy | None = None) -> World:
        """A project with the default policy, or the one given."""
        change = d.decide_project("billing", "Billing", policy, ANA, START)
        assert change.project is not None
        assert change.policy is not None
        world = cls(State(change.project, change.policy))
        world.take(change)
        return world

    def new_id(self) -> str:
        """The next id, in order."""
        return f"id-{next(self.counter):05d}"

    @property
    def now(self) -> datetime:
        """The clock, which goes on by a second with every look."""
        self.clock += timedelta(seconds=1)
        return self.clock

    def take(self, change: ChangeSet) -> ChangeSet:
        """Persist a change set."""
        closed = {row.key: row for row in change.rows_closed}
        known = {row.key for row in self.rows}
        assert closed.keys() <= known, "closes a row that is not there"
        assert all(row.recorded_to is None for row in self.rows if row.key in closed), "closes a row twice"
        self.rows = [closed.get(row.key, row) for row in self.rows] + list(change.rows_opened)
        self.entries.extend(change.audit)
        self.changes.append(change)
        assert (change.position is None) == (change.commit is None)
        if change.position is not None:
            assert change.position == self.state.position + 1
            assert change.events
            assert len({(e.family_id, e.branch) for e in change.events}) == len(change.events)
        assert len(list(records_of(change))) == len(change.audit[0].records)
        self.state = apply_to_state(self.state, change)
        return change

    def narrowed(self, needs: StateNeeds) -> State:
        """Exactly the facts that were asked for."""
        return narrowed(self.state, needs)

    def state_for(self, change: Draft | Proposal) -> State:
        """Exactly the facts that a decision on this needs, of the rows only the latest that will do."""
        return narrowed(self.state, needs_of(change), rows_since(change, self.clock))

    # --- Short ways -----------------------------------------------------------------------------------------------

    def evidence(
        self,
        locator: str = "git:repo@3f2a91c:docs/adr/0001.md",
        stance: Stance = Stance.SUPPORTS,
        verified: VerificationState | None = None,
        **draft: object,
    ) -> EvidenceLink:
        """Evidence, registered, as a link."""
        item = d.EvidenceDraft(**{"source_kind": SourceKind.ADR, "locator": locator, **draft})  # type: ignore[arg-type]
        state = self.narrowed(StateNeeds("billing", fingerprints=frozenset({d.fingerprint_of(item)})))
        registration, change = d.decide_evidence(state, [item], ANA, self.now, new_id=self.new_id)
        if change is not None:
            self.take(change)
        record = registration.evidence[0]
        if verified is not None:
            state = self.narrowed(StateNeeds("billing", evidence=frozenset({record.evidence_id})))
            self.take(d.decide_verification(state, record.evidence_id, verified, "git@1: looked", ANA, self.now))
        return EvidenceLink(record.evidence_id, record.fingerprint, stance)

    def draft(self, mutation: Mutation, *, reason: str = "because", branch: str = "main", **more: object) -> Draft:
        """A draft; with evidence when it publishes something."""
        if "evidence_links" not in more and hasattr(mutation, "content"):
            more["evidence_links"] = (self.evidence(),)
        return Draft("billing", branch, mutation, reason, **more)  # type: ignore[arg-type]

    def propose(self, mutation: Mutation, by: Principal = ANA, **more: object) -> Proposal:
        """Propose, on exactly the facts needed."""
        draft = self.draft(mutation, **more)  # type: ignore[arg-type]
        state = self.state_for(draft)
        change = d.decide_proposal(state, draft, by, self.state.policy, self.now, new_id=self.new_id)
        self.take(change)
        return change.proposals_added[0]

    def approve(self, proposal: Proposal, by: Principal = BRUNO, given: str | None = None) -> Approval:
        """Approve the bytes of the proposal, or those of another hash."""
        state = self.state_for(proposal)
        change = d.decide_approval(
            state,
            proposal,
            self.state.approvals.get(proposal.proposal_id, ()),
            by,
            proposal.preview_hash if given is None else given,
            self.state.policy,
            self.now,
            new_id=self.new_id,
        )
        self.take(change)
        return change.approvals_added[0]

    def apply(self, proposal: Proposal, by: Principal = ANA) -> ChangeSet:
        """Apply; a refusal is recorded and raised."""
        state = self.state_for(proposal)
        approvals = self.state.approvals.get(proposal.proposal_id, ())
        outcome = d.decide_or_refuse(
            state, proposal, approvals, self.state.policy, self.now, actor=by, new_id=self.new_id
        )
        self.take(outcome.change)
        if outcome.error is not None:
            raise outcome.error
        return outcome.change

    def commit(self, mutation: Mutation, by: Principal = ANA, approver: Principal = BRUNO, **more: object) -> ChangeSet:
        """Propose, approve and apply."""
        proposal = self.propose(mutation, by, **more)
        self.approve(proposal, approver)
        return self.apply(proposal, by)

    def refused(self, action: AuditAction, by: Principal, error: DomainError, proposal: Proposal) -> ChangeSet:
        """Record a refusal."""
        return self.take(d.refuse(self.state, action, by, error, self.now, proposal=proposal))

    def proposal(self, proposal: Proposal) -> Proposal:
        """A proposal as it is stored now."""
        return self.state.proposals[proposal.proposal_id]

    def rows_of(self, family_id: str, branch: str = "main") -> list[TimelineRow]:
        """All rows of a family, closed ones too."""
        return [row for row in self.rows if (row.family_id, row.branch) == (family_id, branch)]


def narrowed(state: State, needs: StateNeeds, since: datetime | None = None) -> State:
    """The State that a store has to give for these needs, picked out of the whole; rows only from a moment on."""
    active = [r for r in state.relations.values() if not r.is_retired]
    heads = {key: state.heads[key] for key in needs.heads if key in state.heads}
    revision_ids = {head.revision_id for head in heads.values()} | needs.revisions
    revisions = {i: state.revisions[i] for i in revision_ids if i in state.revisions}
    linked = {link.evidence_id for i in needs.revisions & revisions.keys() for link in revisions[i].evidence_links}
    wanted = needs.evidence | linked
    evidence = {
        e.evidence_id: e
        for e in state.evidence.values()
        if e.evidence_id in wanted or e.fingerprint in needs.fingerprints
    }
    relations = {i: state.relations[i] for i in needs.relations if i in state.relations}
    named = {end for r in relations.values() for end in (r.source_id, r.target_id)}
    cascade = {RelationKind.DEPENDS_ON, RelationKind.REFINES, RelationKind.DEPRECATES}
    for r in active:
        is_pair = (r.branch, r.kind, r.source_id, r.target_id) in needs.pairs
        if is_pair or ((r.target_id, r.branch) in needs.incoming and r.kind in cascade):
            relations[r.relation_id] = r
    for branch, kind, start in needs.reach:
        relations.update({r.relation_id: r for r in _reach(active, branch, kind, start)})
    family_ids = needs.families | {family_id for family_id, _ in needs.heads} | named
    return replace(
        state,
        families={i: state.families[i] for i in family_ids if i in state.families},
        owners={key: state.owners[key] for key in needs.identity_keys if key in state.owners},
        heads=heads,
        rows={key: latest_rows(state.rows[key], since) for key in needs.heads if key in state.rows},
        rows_since={} if since is None else dict.fromkeys(needs.heads, since),
        revisions=revisions,
        evidence=evidence,
        relations=relations,
        flags={key: state.flags[key] for key in needs.heads if key in state.flags},
        proposals={i: state.proposals[i] for i in needs.proposals if i in state.proposals},
        approvals={i: state.approvals[i] for i in needs.proposals if i in state.approvals},
    )


def latest_rows(rows: tuple[TimelineRow, ...], since: datetime | None) -> tuple[TimelineRow, ...]:
    """The last row that starts by a moment, and all later ones."""
    started = [row.valid_from for row in rows if since is None or row.valid_from <= since]
    if since is None or not started:
        return rows
    return tuple(row for row in rows if row.valid_from >= max(started))


def _reach(active: list[Relation], branch: str, kind: RelationKind, start: str) -> list[Relation]:
    found: list[Relation] = []
    seen, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        for r in active:
            if (r.branch, r.kind, r.source_id) == (branch, kind, here):
                found.append(r)
                if r.target_id not in seen:
                    seen.add(r.target_id)
                    waiting.append(r.target_id)
    return found


def rule(title: str, **more: object) -> Content:
    """Content of a business rule."""
    return Content(title=title, **{"domain": "billing", **more})  # type: ignore[arg-type]


def raising(call: Callable[[], object]) -> DomainError:
    """The refusal of a call."""
    try:
        call()
    except DomainError as error:
        return error
    raise AssertionError("was not refused")
