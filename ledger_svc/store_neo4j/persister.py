"""Writes changes within the transaction that holds the project's lock: rows of one kind, one ``UNWIND`` each.

No rule is here: what is wrong was refused by the decision, and what a bug lets through is refused by a constraint, or
by a statement that does not change as many nodes as it was given rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ledger_svc import rows as r
from ledger_svc.domain.model import AuditEntry, ChangeSet, Project, Relation, RelationKind, StoredReply
from ledger_svc.instants import to_micros
from ledger_svc.records import dump
from ledger_svc.state import Change, Landing, NothingChangedError
from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.database import Transaction
from ledger_svc.store_neo4j.keys import active_end, active_key, event_id, head_key, page_key
from ledger_svc.store_neo4j.loader import Counters

Properties = dict[str, Any]


def _named(columns: str, row: Sequence[Any]) -> Properties:
    return dict(zip(columns.split(", "), row, strict=True))


@dataclass(slots=True)
class _Rows:
    """Rows of several changes, kind by kind, in an order in which all of them can be written."""

    families: list[Properties] = field(default_factory=list)
    identity_keys: list[Properties] = field(default_factory=list)
    evidence: list[Properties] = field(default_factory=list)
    verifications: list[Properties] = field(default_factory=list)
    revisions: list[Properties] = field(default_factory=list)
    parents: list[Properties] = field(default_factory=list)
    citations: list[Properties] = field(default_factory=list)
    rows_opened: list[Properties] = field(default_factory=list)
    rows_closed: list[Properties] = field(default_factory=list)
    heads: dict[str, Properties] = field(default_factory=dict)
    flags_raised: list[Properties] = field(default_factory=list)
    flags_cleared: list[Properties] = field(default_factory=list)
    relations_opened: dict[RelationKind, list[Properties]] = field(default_factory=dict)
    relations_retired: dict[RelationKind, list[Properties]] = field(default_factory=dict)
    policies: list[Properties] = field(default_factory=list)
    proposals_added: list[Properties] = field(default_factory=list)
    proposals_changed: dict[str, Properties] = field(default_factory=dict)
    proposal_families: dict[tuple[str, str], Properties] = field(default_factory=dict)
    approvals_added: list[Properties] = field(default_factory=list)
    approvals_changed: dict[str, Properties] = field(default_factory=dict)
    commits: list[Properties] = field(default_factory=list)
    audit: list[Properties] = field(default_factory=list)
    events: list[Properties] = field(default_factory=list)
    replies: list[Properties] = field(default_factory=list)
    observations: list[Properties] = field(default_factory=list)
    admissions: list[Properties] = field(default_factory=list)
    signals: list[Properties] = field(default_factory=list)
    projects: list[Properties] = field(default_factory=list)

    def parts(self) -> dict[str, list[Properties]]:
        """Return the rows of each part of the statement that writes them."""
        made = {}
        for part in q.PERSIST_PARTS:
            rows = getattr(self, part)
            made[part] = list(rows.values()) if isinstance(rows, dict) else rows
        return made

    def relation_statements(self) -> list[tuple[str, list[Properties]]]:
        """Return what else to run: statements with their rows."""
        opened = [(q.ADD_RELATIONS[kind], rows) for kind, rows in self.relations_opened.items()]
        return opened + [(q.RETIRE_RELATIONS[kind], rows) for kind, rows in self.relations_retired.items()]


class Persister:
    """Writes changes of one project."""

    PERSIST = q.PERSIST

    def __init__(self, transaction: Transaction, project_id: str, counters: Counters) -> None:
        self._tx = transaction
        self._project_id = project_id
        self._counters = counters
        self._project: Properties = {}
        """What changes on the project's node."""
        self._waiting: list[Change] = []

    @classmethod
    async def prepare(cls, transaction: Transaction) -> None:
        """Let the server plan the statement that writes before somebody waits for it: that takes a second or two."""
        await transaction.run(cls.PERSIST, parts=_Rows().parts())

    def persist(self, changes: Sequence[Change]) -> None:
        """Take changes; they are written by the next :meth:`flush`, or at the end."""
        self._waiting += changes

    async def flush(self) -> None:
        """Write what waits, so that a read sees it."""
        await self._write(ending=False)

    async def finish(self) -> int:
        """Write everything, the project itself included; return its version."""
        await self._write(ending=True)
        return self._counters.version

    async def _write(self, *, ending: bool) -> None:
        changes, self._waiting = self._waiting, []
        if changes and not self._counters.number:
            await self._make_project(changes)
        parts = list(_parts(changes)) or [[]]
        for part in parts:
            rows = await asyncio.to_thread(self._rows, part)
            if ending and part is parts[-1] and self._project:
                self._counters.version += 1
                rows.projects.append(self._project_row())
            await self._run(rows)

    async def _run(self, rows: _Rows) -> None:
        parts = rows.parts()
        if any(parts.values()):
            counts = await self._tx.one(self.PERSIST, parts=parts)
            for (part, made), count in zip(parts.items(), counts or (), strict=True):
                if count != len(made):
                    raise NothingChangedError(part)
        for query, made in rows.relation_statements():
            done = await self._tx.one(query, rows=made)
            if done is None or done[0] != len(made):
                raise NothingChangedError(query)

    def _project_row(self) -> Properties:
        counters = self._counters
        own = {"project_id": self._project_id, "seq": counters.sequence, "version": counters.version}
        return {**self._project, **own}

    async def _make_project(self, changes: Iterable[Change]) -> None:
        made = next((c.project for c in changes if isinstance(c, ChangeSet) and c.project is not None), None)
        if made is None:
            raise NothingChangedError("the project does not exist")
        row = {
            **_project_properties(made),
            "project_id": made.project_id,
            "position": 0,
            "recorded_at": 0,
            "audit_sequence": 0,
            "audit_hash": "",
            "version": 0,
            "seq": 0,
        }
        done = await self._tx.run(q.ADD_PROJECT, rows=[row])
        self._counters.number = done[0][0]

    def _next(self) -> int:
        self._counters.sequence += 1
        return self._counters.sequence

    def _rows(self, changes: Iterable[Change]) -> _Rows:
        rows = _Rows()
        for change in changes:
            # Also a reply alone changes what a reader may see.
            self._project.setdefault("lock", 0)
            if isinstance(change, Landing):
                self._landing(rows, change)
            else:
                self._note_project(change)
                self._knowledge(rows, change)
                self._relations(rows, change)
                self._governance(rows, change)
                self._feed(rows, change)
            rows.replies += [_reply(reply) for reply in change.replies]
        return rows

    def _note_project(self, change: ChangeSet) -> None:
        if change.project is not None:
            self._project.update(_project_properties(change.project))
        if change.policy is not None:
            self._project.update(policy=dump(change.policy))
        if change.position is not None:
            self._project.update(position=change.position, recorded_at=to_micros(change.recorded_at))
        if change.audit:
            tip = change.audit[-1]
            self._project.update(audit_sequence=tip.sequence, audit_hash=tip.entry_hash)

    def _knowledge(self, rows: _Rows, change: ChangeSet) -> None:
        for family in change.families:
            rows.families.append(
                {
                    "family_id": family.family_id,
                    "project_id": family.project_id,
                    "scope": family.scope.value,
                    "category": family.category.value,
                    "position": family.created_position,
                    "identity_key": family.identity_key,
                    "page": page_key(family.created_position, family.family_id),
                    "body": dump(family),
                }
            )
            rows.identity_keys += [
                {"project_id": family.project_id, "identity_key": key, "family_id": family.family_id}
                for key in dict.fromkeys((family.identity_key, *family.aliases))
                if key
            ]
        for revision in change.revisions:
            row = _named(r.REVISION_COLUMNS, r.revision_row(revision))
            head = head_key(revision.family_id, revision.branch)
            row.update(head=head, recorded_at=to_micros(revision.recorded_at), reason=revision.reason)
            rows.revisions.append(row)
            own = {"revision_id": revision.revision_id}
            rows.parents += [{**own, "parent_id": parent} for parent in revision.parents]
            rows.citations += [
                {**own, "evidence_id": link.evidence_id, "stance": link.stance.value, "claim": link.claim}
                for link in revision.evidence_links
            ]
        for opened in change.rows_opened:
            row = _named(r.ROW_COLUMNS, r.timeline_row(opened))
            rows.rows_opened.append({**row, "head": head_key(opened.family_id, opened.branch)})
        for closed in change.rows_closed:
            row = _named(r.ROW_COLUMNS, r.timeline_row(closed))
            names = ("opened_position", "valid_from", "recorded_to", "closed_position")
            kept = {name: row[name] for name in names}
            rows.rows_closed.append({**kept, "head": head_key(closed.family_id, closed.branch)})
        for published in change.heads:
            key = head_key(published.family_id, published.branch)
            row = _named(r.HEAD_COLUMNS, r.head_row(published))
            rows.heads[key] = {**row, "head": key, "project_id": change.project_id}
        for flag in change.flags_raised:
            row = _named(r.FLAG_COLUMNS, r.flag_row(flag))
            more = {"head": head_key(flag.family_id, flag.branch), "project_id": change.project_id}
            rows.flags_raised.append({**row, **more})
        rows.flags_cleared += [
            {
                "head": head_key(flag.family_id, flag.branch),
                "cause_family_id": flag.cause_family_id,
                "position": flag.position,
                "cleared_position": flag.cleared_position,
            }
            for flag in change.flags_cleared
        ]

    def _relations(self, rows: _Rows, change: ChangeSet) -> None:
        for relation in change.relations_opened:
            rows.relations_opened.setdefault(relation.kind, []).append(_relation(relation))
        for relation in change.relations_retired:
            progress = _named("retired_from, retired_recorded_at, retired_position", r.relation_progress(relation))
            row = {**progress, "relation_id": relation.relation_id}
            rows.relations_retired.setdefault(relation.kind, []).append(row)

    def _governance(self, rows: _Rows, change: ChangeSet) -> None:
        if change.policy is not None:
            rows.policies.append(
                {"project_id": change.project_id, "version": change.policy.version, "body": dump(change.policy)}
            )
        rows.evidence += [
            {
                "evidence_id": e.evidence_id,
                "project_id": e.project_id,
                "fingerprint": e.fingerprint,
                "locator": e.locator,
                "body": r.evidence_body(e),
            }
            for e in change.evidence
        ]
        rows.verifications += [
            {"evidence_id": v.evidence_id, "number": v.number, "body": dump(v)} for v in change.verifications
        ]
        for proposal in change.proposals_added:
            body, status, progress = r.proposal_texts(proposal)
            rows.proposals_added.append(
                {
                    "proposal_id": proposal.proposal_id,
                    "project_id": proposal.project_id,
                    "kind": proposal.kind.value,
                    "body": body,
                    "status": status,
                    "progress": progress,
                    "seq": self._next(),
                }
            )
            self._about(rows, proposal.proposal_id, (head.family_id for head in proposal.expected_heads))
        for proposal in change.proposals_changed:
            status, progress = r.proposal_progress(proposal)
            ident = proposal.proposal_id
            rows.proposals_changed[ident] = {"proposal_id": ident, "status": status.value, "progress": progress}
            self._about(rows, ident, filter(None, (proposal.result_family_id,)))
        for approval in change.approvals_added:
            body, progress = r.approval_texts(approval)
            rows.approvals_added.append(
                {
                    "approval_id": approval.approval_id,
                    "project_id": approval.project_id,
                    "proposal_id": approval.proposal_id,
                    "body": body,
                    "progress": progress,
                    "seq": self._next(),
                }
            )
        for approval in change.approvals_changed:
            progress = r.approval_texts(approval)[1]
            ident = approval.approval_id
            rows.approvals_changed[ident] = {"approval_id": ident, "progress": progress}

    @staticmethod
    def _about(rows: _Rows, proposal_id: str, family_ids: Iterable[str]) -> None:
        for family_id in sorted(set(family_ids)):
            rows.proposal_families[family_id, proposal_id] = {"family_id": family_id, "proposal_id": proposal_id}

    def _feed(self, rows: _Rows, change: ChangeSet) -> None:
        if change.commit is not None:
            commit = change.commit
            rows.commits.append(
                {
                    "project_id": commit.project_id,
                    "position": commit.position,
                    "recorded_at": to_micros(commit.recorded_at),
                    "kind": commit.kind.value,
                    "body": dump(commit),
                }
            )
        rows.audit += [_entry(entry) for entry in change.audit]
        rows.events += [
            {
                "event_id": event_id(self._next(), self._counters.number),
                "project_id": event.project_id,
                "position": event.position,
                "family_id": event.family_id,
                "branch": event.branch,
                "head": head_key(event.family_id, event.branch),
                "kind": event.kind.value,
                "recorded_at": to_micros(event.recorded_at),
                "due_since": to_micros(event.recorded_at),
                "attempts": 0,
                "fencing": 0,
                "worker": "",
                "last_error": "",
            }
            for event in change.events
        ]

    def _landing(self, rows: _Rows, change: Landing) -> None:
        rows.observations += [
            {
                "observation_id": o.observation_id,
                "project_id": o.project_id,
                "source_kind": o.source_kind.value,
                "locator": o.locator,
                "source_hash": o.source_hash,
                "body": dump(o),
                "outcome": "",
                "seq": self._next(),
            }
            for o in change.observations
        ]
        rows.admissions += [
            {
                "observation_id": a.observation_id,
                "number": a.number,
                "outcome": a.outcome.value,
                "body": dump(a),
            }
            for a in change.admissions
        ]
        rows.signals += [
            {"project_id": s.project_id, "family_id": s.family_id, "kind": s.kind.value, "body": dump(s)}
            for s in change.signals
        ]


def _parts(changes: Iterable[Change]) -> Iterable[list[Change]]:
    """Cut where kinds cannot be written together: what asserts a relation again goes after what has retired it."""
    part: list[Change] = []
    retired = False
    for change in changes:
        if isinstance(change, ChangeSet):
            if retired and change.relations_opened:
                yield part
                part, retired = [], False
            retired = retired or bool(change.relations_retired)
        part.append(change)
    if part:
        yield part


def _project_properties(project: Project) -> Properties:
    return {"body": dump(project), "policy_version": project.policy_version, "title": project.display_name}


def _relation(relation: Relation) -> Properties:
    columns = "relation_id, project_id, branch, kind, source_id, target_id, position, body"
    row = _named(f"{columns}, {_PROGRESS}", r.relation_row(relation))
    kind, branch = relation.kind.value, relation.branch
    row.update(
        page=page_key(relation.position, relation.relation_id),
        active_key=active_key(relation.source_id, kind, relation.target_id, branch),
        active_out=active_end(relation.source_id, kind, branch),
        active_in=active_end(relation.target_id, kind, branch),
    )
    return row


_PROGRESS: Final = "retired_from, retired_recorded_at, retired_position"


def _entry(entry: AuditEntry) -> Properties:
    return {
        "project_id": entry.project_id,
        "sequence": entry.sequence,
        "action": entry.action.value,
        "body": dump(entry),
    }


def _reply(reply: StoredReply) -> Properties:
    return {
        "project_id": reply.project_id,
        "caller": reply.caller,
        "rpc": reply.rpc,
        "request_id": reply.request_id,
        "request_hash": reply.request_hash,
        "reply": reply.reply,
        "recorded_at": to_micros(reply.recorded_at),
    }
