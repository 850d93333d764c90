"""The write side on one connection: loads what decisions ask for, and persists what they decided.

Both run within the transaction that the writer has open. No rule is here: what is wrong was refused by the decision,
and what a bug lets through is refused by the schema.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from ledger_svc import rows as r
from ledger_svc.domain.model import (
    AuditTip,
    ChangeSet,
    Observation,
    Policy,
    Relation,
    RelationKind,
    ReviewFlag,
    StoredReply,
)
from ledger_svc.domain.state import State
from ledger_svc.instants import end_to_micros, from_micros, to_micros
from ledger_svc.records import dump, load
from ledger_svc.state import INCOMING, Change, FoundState, Landing, NothingChangedError, StateQuery, WorkingState
from ledger_svc.store_sqlite.governance_reads import GovernanceReader


class StateLoader:
    """Fills a working state."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._reader = GovernanceReader(connection)

    def _one(self, sql: str, *values: Any) -> Any:
        return self._db.execute(sql, values).fetchone()

    def begin(self, project_id: str) -> WorkingState:
        """Return the state of a project with nothing but the project in it."""
        row = self._one(
            "SELECT body, position, recorded_at, audit_sequence, audit_hash, importing FROM projects "
            "WHERE project_id = ?",
            project_id,
        )
        if row is None or row[5]:
            return WorkingState(project_id, importing=row is not None)
        project = r.project_of(row[0])
        policy = self._one(
            "SELECT body FROM policies WHERE project_id = ? AND version = ?", project_id, project.policy_version
        )
        state = State(
            project=project,
            policy=load(Policy, policy[0]),
            position=row[1],
            last_recorded_at=from_micros(row[2]) if row[1] else None,
            audit_tip=AuditTip(row[3], row[4]),
        )
        return WorkingState(project_id, state)

    def load(self, working: WorkingState, query: StateQuery) -> None:
        """Read what the query names."""
        for key in query.replies:
            reply = self._reply(query.project_id, *key)
            if reply is not None:
                working.replies[key] = reply
        self._load_observations(working, query)
        if working.state is not None:
            found = FoundState(working.state)
            self._load_families(found, query)
            self._load_evidence(found, query)
            self._load_relations(found, query)
            self._load_proposals(found, query)
            working.state = found.state()
        working.note(query)

    def _load_families(self, found: FoundState, query: StateQuery) -> None:
        needs = query.needs
        for identity_key in needs.identity_keys:
            owner = self._one(
                "SELECT family_id FROM identity_keys WHERE project_id = ? AND identity_key = ?",
                needs.project_id,
                identity_key,
            )
            if owner is not None:
                found.owners[identity_key] = owner[0]
        for family_id in needs.families:
            self._family(found, needs.project_id, family_id)
        since = to_micros(query.rows_since)
        revisions = set(needs.revisions)
        for family_id, branch in needs.heads:
            if not self._family(found, needs.project_id, family_id):
                continue
            row = self._one(
                f"SELECT {r.HEAD_COLUMNS} FROM heads WHERE family_id = ? AND branch = ?",
                family_id,
                branch,
            )
            if row is None:
                continue
            head = r.head_of(row)
            found.heads[family_id, branch] = head
            found.rows[family_id, branch] = self._reader.rows_from(family_id, branch, since, None)
            found.flags[family_id, branch] = self._open_flags(family_id, branch)
            revisions.add(head.revision_id)
        wanted = [revision_id for revision_id in revisions if revision_id not in found.revisions]
        found.revisions.update(self._reader.revisions(needs.project_id, wanted))
        found.evidence_ids.update(
            link.evidence_id
            for revision_id in needs.revisions
            if revision_id in found.revisions
            for link in found.revisions[revision_id].evidence_links
        )

    def _family(self, found: FoundState, project_id: str, family_id: str) -> bool:
        if family_id not in found.families:
            family = self._reader.family(project_id, family_id)
            if family is None:
                return False
            found.families[family_id] = family
        return True

    def _load_evidence(self, found: FoundState, query: StateQuery) -> None:
        found.evidence_ids |= query.needs.evidence
        for fingerprint in query.needs.fingerprints:
            row = self._one(
                "SELECT evidence_id FROM evidence WHERE project_id = ? AND fingerprint = ?",
                query.project_id,
                fingerprint,
            )
            if row is not None:
                found.evidence_ids.add(row[0])
        loaded = self._reader.evidence(found.evidence_ids - found.evidence.keys())
        found.evidence.update({k: e for k, e in loaded.items() if e.project_id == query.project_id})

    def _load_relations(self, found: FoundState, query: StateQuery) -> None:
        needs = query.needs
        for relation_id in needs.relations:
            relation = self._reader.relation(needs.project_id, relation_id)
            if relation is not None:
                found.relations[relation_id] = relation
                for end in (relation.source_id, relation.target_id):
                    self._family(found, needs.project_id, end)
        for branch, kind, source, target in needs.pairs:
            self._relations(
                found,
                "INDEXED BY relations_active WHERE source_id = ? AND branch = ? AND kind = ? AND target_id = ? "
                "AND retired_position = 0",
                source,
                branch,
                kind.value,
                target,
            )
        for branch, kind, start in needs.reach:
            self._reach(found, branch, kind, start)
        for family_id, branch in needs.incoming:
            for kind in INCOMING:
                self._relations(
                    found,
                    "INDEXED BY relations_active_in WHERE target_id = ? AND branch = ? AND kind = ? "
                    "AND retired_position = 0",
                    family_id,
                    branch,
                    kind.value,
                )

    def _relations(self, found: FoundState, where: str, *values: str) -> list[Relation]:
        rows = self._db.execute(f"SELECT {r.RELATION_COLUMNS} FROM relations {where}", values).fetchall()
        made = [r.relation_of(row) for row in rows]
        found.relations.update({relation.relation_id: relation for relation in made})
        return made

    def _reach(self, found: FoundState, branch: str, kind: RelationKind, start: str) -> None:
        seen, queue = {start}, [start]
        while queue:
            source = queue.pop()
            for relation in self._relations(
                found,
                "INDEXED BY relations_active WHERE source_id = ? AND branch = ? AND kind = ? AND retired_position = 0",
                source,
                branch,
                kind.value,
            ):
                if relation.target_id not in seen:
                    seen.add(relation.target_id)
                    queue.append(relation.target_id)

    def _load_proposals(self, found: FoundState, query: StateQuery) -> None:
        for proposal_id in query.needs.proposals:
            row = self._one(
                "SELECT body, status, progress FROM proposals WHERE proposal_id = ? AND project_id = ?",
                proposal_id,
                query.project_id,
            )
            if row is not None:
                found.proposals[proposal_id] = r.proposal_of(*row)
                found.approvals[proposal_id] = tuple(self._reader.approvals(proposal_id))

    def _load_observations(self, working: WorkingState, query: StateQuery) -> None:
        for key in query.observation_keys:
            row = self._one(
                "SELECT observation_id, body FROM observations "
                "WHERE project_id = ? AND source_kind = ? AND locator = ? AND source_hash = ?",
                query.project_id,
                *key,
            )
            if row is not None:
                working.observation_keys[key] = row[0]
                working.observations[row[0]] = load(Observation, row[1])
                working.admissions[row[0]] = self._admissions(row[0])
        for observation_id in query.observations:
            row = self._one(
                "SELECT body FROM observations WHERE observation_id = ? AND project_id = ?",
                observation_id,
                query.project_id,
            )
            if row is not None:
                working.observations[observation_id] = load(Observation, row[0])
                working.admissions[observation_id] = self._admissions(observation_id)

    def _admissions(self, observation_id: str) -> int:
        row = self._one("SELECT max(number) FROM admissions WHERE observation_id = ?", observation_id)
        return row[0] or 0

    def _reply(self, project_id: str, caller: str, rpc: str, request_id: str) -> StoredReply | None:
        row = self._one(
            "SELECT request_hash, reply, recorded_at FROM replies "
            "WHERE project_id = ? AND caller = ? AND rpc = ? AND request_id = ?",
            project_id,
            caller,
            rpc,
            request_id,
        )
        if row is None:
            return None
        return r.reply_of(project_id, (caller, rpc, request_id, *row))

    def _open_flags(self, family_id: str, branch: str) -> tuple[ReviewFlag, ...]:
        rows = self._db.execute(
            f"SELECT {r.FLAG_COLUMNS} FROM review_flags "
            "WHERE family_id = ? AND branch = ? AND cleared_position = 0 ORDER BY position, cause_family_id",
            (family_id, branch),
        ).fetchall()
        return tuple(r.flag_of(row) for row in rows)


_INSERT_REVISION: Final = f"INSERT INTO revisions ({r.REVISION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_ROW: Final = f"INSERT INTO timeline_rows ({r.ROW_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_HEAD: Final = (
    f"INSERT INTO heads ({r.HEAD_COLUMNS}, project_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (family_id, branch) DO UPDATE SET revision_id = excluded.revision_id, number = excluded.number, "
    "position = excluded.position, recorded_at = excluded.recorded_at, invalid_from = excluded.invalid_from"
)
_INSERT_FLAG: Final = f"INSERT INTO review_flags ({r.FLAG_COLUMNS}, project_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Persister:
    """Writes changes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def persist(self, change: Change) -> None:
        """Write one change within the open transaction."""
        if isinstance(change, Landing):
            self._landing(change)
        else:
            self._project(change)
            self._knowledge(change)
            self._relations(change)
            self._governance(change)
            self._feed(change)
        self._replies(change.replies)

    def _many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._db.executemany(sql, rows)

    def _exactly(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        for row in rows:
            if self._db.execute(sql, row).rowcount != 1:
                raise NothingChangedError(sql)

    def _project(self, change: ChangeSet) -> None:
        tip = change.audit[-1] if change.audit else None
        known = self._db.execute("SELECT 1 FROM projects WHERE project_id = ?", (change.project_id,)).fetchone()
        if known is None:
            if change.project is None:
                raise NothingChangedError("the project does not exist")
            self._db.execute(
                "INSERT INTO projects (project_id, body) VALUES (?, ?)", (change.project_id, dump(change.project))
            )
        elif change.project is not None:
            self._db.execute(
                "UPDATE projects SET body = ? WHERE project_id = ?", (dump(change.project), change.project_id)
            )
        if change.position is not None:
            self._db.execute(
                "UPDATE projects SET position = ?, recorded_at = ? WHERE project_id = ?",
                (change.position, to_micros(change.recorded_at), change.project_id),
            )
        if tip is not None:
            self._db.execute(
                "UPDATE projects SET audit_sequence = ?, audit_hash = ? WHERE project_id = ?",
                (tip.sequence, tip.entry_hash, change.project_id),
            )
        if change.policy is not None:
            self._db.execute(
                "INSERT INTO policies (project_id, version, body) VALUES (?, ?, ?)",
                (change.project_id, change.policy.version, dump(change.policy)),
            )

    def _knowledge(self, change: ChangeSet) -> None:
        for family in change.families:
            self._db.execute(
                "INSERT INTO families (family_id, project_id, scope, category, position, body) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (
                    family.family_id,
                    family.project_id,
                    family.scope.value,
                    family.category.value,
                    family.created_position,
                    dump(family),
                ),
            )
            self._many(
                "INSERT INTO identity_keys (project_id, identity_key, family_id) VALUES (?, ?, ?)",
                [(family.project_id, key, family.family_id) for key in family.keys],
            )
        self._many(_INSERT_REVISION, [r.revision_row(v) for v in change.revisions])
        self._exactly(
            "UPDATE timeline_rows SET recorded_to = ?, closed_position = ? "
            "WHERE family_id = ? AND branch = ? AND opened_position = ? AND valid_from = ?",
            [
                (
                    end_to_micros(row.recorded_to),
                    row.closed_position,
                    row.family_id,
                    row.branch,
                    row.opened_position,
                    to_micros(row.valid_from),
                )
                for row in change.rows_closed
            ],
        )
        self._many(_INSERT_ROW, [r.timeline_row(row) for row in change.rows_opened])
        self._many(_INSERT_HEAD, [(*r.head_row(head), change.project_id) for head in change.heads])
        self._many(_INSERT_FLAG, [(*r.flag_row(flag), change.project_id) for flag in change.flags_raised])
        self._exactly(
            "UPDATE review_flags SET cleared_position = ? "
            "WHERE family_id = ? AND branch = ? AND cause_family_id = ? AND position = ?",
            [
                (flag.cleared_position, flag.family_id, flag.branch, flag.cause_family_id, flag.position)
                for flag in change.flags_cleared
            ],
        )

    def _relations(self, change: ChangeSet) -> None:
        self._many(
            "INSERT INTO relations (relation_id, project_id, branch, kind, source_id, target_id, position, body, "
            "retired_from, retired_recorded_at, retired_position) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [r.relation_row(relation) for relation in change.relations_opened],
        )
        self._exactly(
            "UPDATE relations SET retired_from = ?, retired_recorded_at = ?, retired_position = ? "
            "WHERE relation_id = ?",
            [(*r.relation_progress(relation), relation.relation_id) for relation in change.relations_retired],
        )

    def _governance(self, change: ChangeSet) -> None:
        self._many(
            "INSERT INTO evidence (evidence_id, project_id, fingerprint, body) VALUES (?, ?, ?, ?)",
            [(e.evidence_id, e.project_id, e.fingerprint, r.evidence_body(e)) for e in change.evidence],
        )
        self._many(
            "INSERT INTO verifications (evidence_id, number, body) VALUES (?, ?, ?)",
            [(v.evidence_id, v.number, dump(v)) for v in change.verifications],
        )
        for proposal in change.proposals_added:
            body, status, progress = r.proposal_texts(proposal)
            cursor = self._db.execute(
                "INSERT INTO proposals (proposal_id, project_id, body, status, progress) VALUES (?, ?, ?, ?, ?)",
                (proposal.proposal_id, proposal.project_id, body, status, progress),
            )
            about = {*(head.family_id for head in proposal.expected_heads), proposal.result_family_id}
            families = sorted(about - {""})
            self._many(
                "INSERT INTO proposal_families (family_id, proposal_id, seq) VALUES (?, ?, ?)",
                [(family_id, proposal.proposal_id, cursor.lastrowid) for family_id in families],
            )
        for proposal in change.proposals_changed:
            status, progress = r.proposal_progress(proposal)
            self._exactly(
                "UPDATE proposals SET status = ?, progress = ? WHERE proposal_id = ?",
                [(status, progress, proposal.proposal_id)],
            )
            if proposal.result_family_id:
                self._db.execute(
                    "INSERT OR IGNORE INTO proposal_families (family_id, proposal_id, seq) "
                    "SELECT ?, proposal_id, seq FROM proposals WHERE proposal_id = ?",
                    (proposal.result_family_id, proposal.proposal_id),
                )
        for approval in change.approvals_added:
            body, progress = r.approval_texts(approval)
            self._db.execute(
                "INSERT INTO approvals (approval_id, project_id, proposal_id, body, progress) VALUES (?, ?, ?, ?, ?)",
                (approval.approval_id, approval.project_id, approval.proposal_id, body, progress),
            )
        for approval in change.approvals_changed:
            self._exactly(
                "UPDATE approvals SET progress = ? WHERE approval_id = ?",
                [(r.approval_texts(approval)[1], approval.approval_id)],
            )

    def _feed(self, change: ChangeSet) -> None:
        if change.commit is not None:
            commit = change.commit
            self._db.execute(
                "INSERT INTO commits (project_id, position, recorded_at, body) VALUES (?, ?, ?, ?)",
                (commit.project_id, commit.position, to_micros(commit.recorded_at), dump(commit)),
            )
        self._many(
            "INSERT INTO audit (project_id, sequence, body) VALUES (?, ?, ?)",
            [(entry.project_id, entry.sequence, dump(entry)) for entry in change.audit],
        )
        self._many(
            "INSERT INTO outbox (project_id, position, family_id, branch, kind, recorded_at, available_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (e.project_id, e.position, e.family_id, e.branch, e.kind.value, to_micros(e.recorded_at), 0)
                for e in change.events
            ],
        )

    def _landing(self, change: Landing) -> None:
        self._many(
            "INSERT INTO observations (observation_id, project_id, source_kind, locator, source_hash, body) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [
                (o.observation_id, o.project_id, o.source_kind.value, o.locator, o.source_hash, dump(o))
                for o in change.observations
            ],
        )
        for admission in change.admissions:
            self._db.execute(
                "INSERT INTO admissions (observation_id, number, body) VALUES (?, ?, ?)",
                (admission.observation_id, admission.number, dump(admission)),
            )
            self._exactly(
                "UPDATE observations SET outcome = ? WHERE observation_id = ?",
                [(admission.outcome.value, admission.observation_id)],
            )
        self._many(
            "INSERT INTO signals (project_id, family_id, body) VALUES (?, ?, ?)",
            [(s.project_id, s.family_id, dump(s)) for s in change.signals],
        )

    def _replies(self, replies: Iterable[StoredReply]) -> None:
        self._many(
            "INSERT INTO replies (project_id, caller, rpc, request_id, request_hash, reply, recorded_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (p.project_id, p.caller, p.rpc, p.request_id, p.request_hash, p.reply, to_micros(p.recorded_at))
                for p in replies
            ],
        )
