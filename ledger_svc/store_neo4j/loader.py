"""Fills a working state within the transaction that holds the project's lock. No rule is here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ledger_svc import rows as r
from ledger_svc.domain.model import AuditTip, Observation, Policy, StoredReply
from ledger_svc.domain.state import State
from ledger_svc.instants import from_micros, to_micros
from ledger_svc.records import load
from ledger_svc.state import INCOMING, FoundState, StateQuery, WorkingState
from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.database import Transaction
from ledger_svc.store_neo4j.keys import active_end, active_key, head_key


@dataclass(slots=True)
class Counters:
    """What the adapter counts for a project. Zero while there is no project."""

    number: int = 0
    """Which project it is, in order of creation."""
    sequence: int = 0
    """The last number given to a proposal, approval, observation or event."""
    version: int = 0
    """Grows with every group that wrote something."""


class StateLoader:
    """Reads what decisions ask for."""

    def __init__(self, transaction: Transaction) -> None:
        self._tx = transaction

    async def begin(self, project_id: str) -> tuple[WorkingState, Counters]:
        """Lock the project; return its state with nothing but the project in it."""
        row = await self._tx.one(q.LOCK, project_id=project_id)
        if row is None:
            importing = await self._tx.one(q.IMPORTING, project_id=project_id) is not None
            return WorkingState(project_id, importing=importing), Counters()
        body, policy, position, recorded_at, sequence, entry_hash, version, last, number = row
        state = State(
            project=r.project_of(body),
            policy=load(Policy, policy),
            position=position,
            last_recorded_at=from_micros(recorded_at) if position else None,
            audit_tip=AuditTip(sequence, entry_hash),
        )
        return WorkingState(project_id, state), Counters(number, last, version)

    async def load(self, working: WorkingState, query: StateQuery) -> None:
        """Read what the query names."""
        await self._replies(working, query)
        await self._observations(working, query)
        if working.state is not None:
            found = FoundState(working.state)
            await self._families(found, query)
            await self._heads(found, query)
            await self._revisions(found, query)
            await self._proposals(found, query)
            await self._relations(found, query)
            await self._evidence(found, query)
            working.state = found.state()
        working.note(query)

    async def _replies(self, working: WorkingState, query: StateQuery) -> None:
        if not query.replies:
            return
        keys = [list(key) for key in query.replies]
        for row in await self._tx.run(q.REPLIES, project_id=query.project_id, keys=keys):
            caller, rpc, request_id, request_hash, reply, recorded_at = row
            working.replies[caller, rpc, request_id] = StoredReply(
                query.project_id, caller, request_id, rpc, request_hash, bytes(reply), from_micros(recorded_at)
            )

    async def _observations(self, working: WorkingState, query: StateQuery) -> None:
        if query.observation_keys:
            keys = [list(key) for key in query.observation_keys]
            for (body,) in await self._tx.run(q.OBSERVATIONS_BY_KEY, project_id=query.project_id, keys=keys):
                found = load(Observation, body)
                working.observation_keys[found.source_kind.value, found.locator, found.source_hash] = (
                    found.observation_id
                )
                working.observations[found.observation_id] = found
        if query.observations:
            ids = list(query.observations)
            for body, _, admission in await self._tx.run(q.OBSERVATIONS_BY_ID, project_id=query.project_id, ids=ids):
                found = load(Observation, body)
                working.observations[found.observation_id] = found
                working.admissions[found.observation_id] = admission[1] if admission else 0

    async def _families(self, found: FoundState, query: StateQuery) -> None:
        needs = query.needs
        if needs.identity_keys:
            rows = await self._tx.run(q.OWNERS, project_id=needs.project_id, keys=list(needs.identity_keys))
            found.owners.update(dict(rows))
        await self._family_records(found, needs.project_id, needs.families)

    async def _family_records(self, found: FoundState, project_id: str, family_ids: Iterable[str]) -> None:
        wanted = sorted(set(family_ids) - found.families.keys())
        if wanted:
            for (body,) in await self._tx.run(q.FAMILIES_BY_ID, project_id=project_id, ids=wanted):
                family = r.family_of(body)
                found.families[family.family_id] = family

    async def _heads(self, found: FoundState, query: StateQuery) -> None:
        needs = query.needs
        if not needs.heads:
            return
        keys = [{"family_id": f, "branch": b, "head": head_key(f, b)} for f, b in sorted(needs.heads)]
        for row in await self._tx.run(
            q.STATE_HEADS, project_id=needs.project_id, heads=keys, valid=to_micros(query.rows_since)
        ):
            body, branch, head, rows, flags, revision, content = row
            family = r.family_of(body)
            found.families[family.family_id] = family
            if head[0] is None:
                continue
            key = (family.family_id, branch)
            found.heads[key] = r.head_of(head)
            found.rows[key] = tuple(r.timeline_row_of(one) for one in rows)
            found.flags[key] = tuple(r.flag_of(one) for one in flags)
            if head[2] not in found.revisions:
                found.revisions[head[2]] = r.revision_of(revision, content)

    async def _revisions(self, found: FoundState, query: StateQuery) -> None:
        needs = query.needs
        wanted = sorted(needs.revisions - found.revisions.keys())
        if wanted:
            for body, content in await self._tx.run(q.REVISIONS, project_id=needs.project_id, ids=wanted):
                revision = r.revision_of(body, content)
                found.revisions[revision.revision_id] = revision
        found.evidence_ids.update(
            link.evidence_id
            for revision_id in needs.revisions
            if revision_id in found.revisions
            for link in found.revisions[revision_id].evidence_links
        )

    async def _proposals(self, found: FoundState, query: StateQuery) -> None:
        if not query.needs.proposals:
            return
        ids = sorted(query.needs.proposals)
        for row in await self._tx.run(q.PROPOSALS_BY_ID, project_id=query.project_id, ids=ids):
            body, status, progress, _, approvals = row
            proposal = r.proposal_of(body, status, progress)
            found.proposals[proposal.proposal_id] = proposal
            found.approvals[proposal.proposal_id] = tuple(r.approval_of(*one) for one in approvals)

    async def _relations(self, found: FoundState, query: StateQuery) -> None:
        needs = query.needs
        if needs.relations:
            rows = await self._tx.run(q.RELATIONS_BY_ID, project_id=needs.project_id, ids=sorted(needs.relations))
            self._keep(found, rows)
            named = [found.relations[i] for i in needs.relations if i in found.relations]
            ends = [end for relation in named for end in (relation.source_id, relation.target_id)]
            await self._family_records(found, needs.project_id, ends)
        if needs.pairs:
            keys = [active_key(source, kind.value, target, branch) for branch, kind, source, target in needs.pairs]
            self._keep(found, await self._tx.run(q.RELATIONS_ACTIVE, keys=keys))
        if needs.incoming:
            keys = [
                active_end(family_id, kind.value, branch) for family_id, branch in needs.incoming for kind in INCOMING
            ]
            self._keep(found, await self._tx.run(q.RELATIONS_ACTIVE_IN, keys=keys))
        await self._reach(found, query)

    async def _reach(self, found: FoundState, query: StateQuery) -> None:
        """Follow active relations, all starts together, one round trip for each step away from them."""
        seen = {active_end(start, kind.value, branch) for branch, kind, start in query.needs.reach}
        edge = sorted(seen)
        while edge:
            made = self._keep(found, await self._tx.run(q.RELATIONS_ACTIVE_OUT, keys=edge))
            edge = sorted({active_end(one.target_id, one.kind.value, one.branch) for one in made} - seen)
            seen.update(edge)

    @staticmethod
    def _keep(found: FoundState, rows: Iterable[list[Any]]) -> list[Any]:
        made = [r.relation_of(tuple(row)) for (row,) in rows]
        found.relations.update({relation.relation_id: relation for relation in made})
        return made

    async def _evidence(self, found: FoundState, query: StateQuery) -> None:
        found.evidence_ids |= query.needs.evidence
        if query.needs.fingerprints:
            rows = await self._tx.run(
                q.EVIDENCE_IDS, project_id=query.project_id, fingerprints=sorted(query.needs.fingerprints)
            )
            found.evidence_ids.update(row[0] for row in rows)
        wanted = sorted(found.evidence_ids - found.evidence.keys())
        if wanted:
            for body, checks in await self._tx.run(q.EVIDENCE, ids=wanted):
                evidence = r.evidence_of(body, checks)
                if evidence.project_id == query.project_id:
                    found.evidence[evidence.evidence_id] = evidence
