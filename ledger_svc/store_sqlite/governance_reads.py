"""Reads of governance: proposals, approvals, observations, the audit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from ledger_svc import rows as r
from ledger_svc.domain.model import (
    Admission,
    AdmissionOutcome,
    Approval,
    AuditEntry,
    Observation,
    Proposal,
    ProposalStatus,
)
from ledger_svc.records import load
from ledger_svc.store_sqlite.reads import Reader
from ledger_svc.views import ObservationView, ProposalView


class GovernanceReader(Reader):
    """The reads of :class:`Reader` and those of governance."""

    def approvals(self, proposal_id: str) -> list[Approval]:
        """Return the approvals of a proposal, oldest first."""
        found = self._all("SELECT body, progress FROM approvals WHERE proposal_id = ? ORDER BY seq", proposal_id)
        return [r.approval_of(*row) for row in found]

    def proposal(self, project_id: str, proposal_id: str) -> ProposalView | None:
        """Return a proposal with approvals and evidence."""
        row = self._one(
            "SELECT body, status, progress FROM proposals WHERE proposal_id = ? AND project_id = ?",
            proposal_id,
            project_id,
        )
        return None if row is None else self._proposal_view(r.proposal_of(*row))

    def _proposal_view(self, proposal: Proposal) -> ProposalView:
        evidence = self.evidence(link.evidence_id for link in proposal.evidence_links)
        return ProposalView(proposal, tuple(self.approvals(proposal.proposal_id)), evidence)

    def proposals(
        self, project_id: str, statuses: Iterable[ProposalStatus], family_id: str, after: int, limit: int
    ) -> tuple[list[ProposalView], int]:
        """Return proposals, oldest first, and the cursor of the last one looked at (0 at the end of the list)."""
        wanted = sorted(s.value for s in statuses)
        if family_id:
            found = self._all(
                "SELECT p.body, p.status, p.progress, p.seq FROM proposal_families AS f "
                "CROSS JOIN proposals AS p ON p.seq = f.seq "
                "WHERE f.family_id = ? AND f.seq > ? AND p.project_id = ? "
                "AND p.status IN (SELECT value FROM json_each(?)) ORDER BY f.seq LIMIT ?",
                family_id,
                after,
                project_id,
                json.dumps(wanted),
                limit,
            )
        else:
            found = []
            for status in wanted:
                found += self._all(
                    "SELECT body, status, progress, seq FROM proposals INDEXED BY proposals_by_status "
                    "WHERE project_id = ? AND status = ? AND seq > ? ORDER BY seq LIMIT ?",
                    project_id,
                    status,
                    after,
                    limit,
                )
            found = sorted(found, key=lambda row: row[3])[:limit]
        views = [self._proposal_view(r.proposal_of(*row[:3])) for row in found]
        return views, found[-1][3] if len(found) == limit else 0

    def observations(
        self, project_id: str, outcomes: Iterable[AdmissionOutcome], after: int, limit: int
    ) -> list[ObservationView]:
        """Return observations with their latest admission, oldest first."""
        wanted = sorted(o.value for o in outcomes)
        if not wanted:
            found = self._all(
                "SELECT seq, observation_id, body FROM observations WHERE project_id = ? AND seq > ? "
                "ORDER BY seq LIMIT ?",
                project_id,
                after,
                limit,
            )
        else:
            found = []
            for outcome in wanted:
                found += self._all(
                    "SELECT seq, observation_id, body FROM observations WHERE project_id = ? AND outcome = ? "
                    "AND seq > ? ORDER BY seq LIMIT ?",
                    project_id,
                    outcome,
                    after,
                    limit,
                )
            found = sorted(found)[:limit]
        return [self._observation_view(*row) for row in found]

    def _observation_view(self, seq: int, observation_id: str, body: str) -> ObservationView:
        row = self._one(
            "SELECT body FROM admissions WHERE observation_id = ? ORDER BY number DESC LIMIT 1", observation_id
        )
        return ObservationView(load(Observation, body), load(Admission, row[0]) if row else None, seq)

    def observations_by_id(
        self, project_id: str, observation_ids: Sequence[str], admissions: Mapping[str, int]
    ) -> dict[str, ObservationView]:
        """Return observations, each with its admission of the given number."""
        made: dict[str, ObservationView] = {}
        for ident in observation_ids:
            row = self._one(
                "SELECT seq, body FROM observations WHERE observation_id = ? AND project_id = ?", ident, project_id
            )
            if row is None:
                continue
            found = self._one(
                "SELECT body FROM admissions WHERE observation_id = ? AND number = ?", ident, admissions.get(ident, 0)
            )
            admission = load(Admission, found[0]) if found else None
            made[ident] = ObservationView(load(Observation, row[1]), admission, row[0])
        return made

    def audit(self, project_id: str, after_sequence: int, limit: int) -> tuple[list[AuditEntry], int]:
        """Return audit entries in order, and the sequence of the newest one."""
        found = self._all(
            "SELECT body FROM audit WHERE project_id = ? AND sequence > ? ORDER BY sequence LIMIT ?",
            project_id,
            after_sequence,
            limit,
        )
        tip = self._one("SELECT audit_sequence FROM projects WHERE project_id = ?", project_id)
        return [load(AuditEntry, row[0]) for row in found], int(tip[0]) if tip else 0
