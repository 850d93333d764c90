"""Reads of governance: proposals, approvals, observations, the audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ledger_svc import rows as r
from ledger_svc.domain.model import Admission, AdmissionOutcome, AuditEntry, Observation, ProposalStatus
from ledger_svc.records import load
from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.reads import Reader
from ledger_svc.views import ObservationView, ProposalView


class GovernanceReader(Reader):
    """The reads of :class:`Reader` and those of governance."""

    async def proposal(self, project_id: str, proposal_id: str) -> ProposalView | None:
        """Return a proposal with approvals and evidence."""
        found = await self._tx.run(q.PROPOSALS_BY_ID, project_id=project_id, ids=[proposal_id])
        views = await self._proposal_views(found)
        return views[0] if views else None

    async def _proposal_views(self, found: Sequence[Sequence[Any]]) -> list[ProposalView]:
        proposals = [r.proposal_of(*row[:3]) for row in found]
        links = [link.evidence_id for proposal in proposals for link in proposal.evidence_links]
        evidence = await self.evidence(links)
        return [
            ProposalView(
                proposal,
                tuple(r.approval_of(*one) for one in row[4]),
                {i: evidence[i] for i in (link.evidence_id for link in proposal.evidence_links) if i in evidence},
            )
            for proposal, row in zip(proposals, found, strict=True)
        ]

    async def proposals(
        self, project_id: str, statuses: Iterable[ProposalStatus], family_id: str, after: int, limit: int
    ) -> tuple[list[ProposalView], int]:
        """Return proposals, oldest first, and the cursor of the last one looked at (0 at the end of the list)."""
        found = await self._tx.run(
            q.PROPOSALS_OF_FAMILY if family_id else q.PROPOSALS_PAGE,
            project_id=project_id,
            statuses=sorted(s.value for s in statuses),
            family_id=family_id,
            after=after,
            limit=limit,
        )
        return await self._proposal_views(found), int(found[-1][3]) if len(found) == limit else 0

    async def observations(
        self, project_id: str, outcomes: Iterable[AdmissionOutcome], after: int, limit: int
    ) -> list[ObservationView]:
        """Return observations with their latest admission, oldest first."""
        wanted = sorted(o.value for o in outcomes)
        found = await self._tx.run(
            q.OBSERVATIONS_OF_OUTCOMES if wanted else q.OBSERVATIONS_PAGE,
            project_id=project_id,
            outcomes=wanted,
            after=after,
            limit=limit,
        )
        return [_observation_view(body, seq, admission[0] if admission else None) for body, seq, admission in found]

    async def observations_by_id(
        self, project_id: str, observation_ids: Sequence[str], admissions: Mapping[str, int]
    ) -> dict[str, ObservationView]:
        """Return observations, each with its admission of the given number."""
        keys = [[ident, admissions.get(ident, 0)] for ident in observation_ids]
        found = await self._tx.run(q.OBSERVATIONS_AT, project_id=project_id, keys=keys)
        views = [_observation_view(*row) for row in found]
        return {view.observation.observation_id: view for view in views}

    async def audit(self, project_id: str, after_sequence: int, limit: int) -> tuple[list[AuditEntry], int]:
        """Return audit entries in order, and the sequence of the newest one."""
        found = await self._tx.run(q.AUDIT, project_id=project_id, after=after_sequence, limit=limit)
        tip = await self._tx.one(q.AUDIT_TIP, project_id=project_id)
        return [load(AuditEntry, row[0]) for row in found], 0 if tip is None else int(tip[0])


def _observation_view(body: str, seq: int, admission: str | None) -> ObservationView:
    return ObservationView(load(Observation, body), load(Admission, admission) if admission else None, seq)
