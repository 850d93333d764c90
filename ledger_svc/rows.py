"""Domain records to and from rows, the same for every store: columns of a table here, properties of a node there.

Each pair of functions is the whole knowledge of one kind's columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ledger_svc.domain.model import (
    Approval,
    Content,
    Evidence,
    Family,
    Head,
    Project,
    Proposal,
    ProposalStatus,
    Relation,
    RelationKind,
    ReviewFlag,
    Revision,
    RowEnd,
    Standing,
    StoredReply,
    TimelineRow,
    Verification,
)
from ledger_svc.instants import end_from_micros, end_to_micros, from_micros, to_micros
from ledger_svc.outbox import EventView
from ledger_svc.records import dump_plain, from_plain, load, to_plain

Row = tuple[Any, ...]

PROPOSAL_PROGRESS: Final = (
    "status_reason",
    "decided_at",
    "decided_by",
    "applied_position",
    "result_family_id",
    "result_revision_id",
    "result_relation_id",
)
APPROVAL_PROGRESS: Final = ("revoked_at", "revoked_by", "consumed_position")

_STANDINGS: Final[Mapping[str, Standing]] = {m.value: m for m in Standing}
_ENDS: Final[Mapping[str, RowEnd]] = {m.value: m for m in RowEnd}


def _split(record: Any, apart: tuple[str, ...]) -> tuple[str, str]:
    """Return the text of what never changes in a record, and the text of what may."""
    plain = to_plain(record)
    progress = _take(plain, apart)
    return dump_plain(plain), dump_plain(progress)


# --- Projects, families -----------------------------------------------------------------------------------------------


def project_of(body: str) -> Project:
    """Return a project."""
    return load(Project, body)


def family_of(body: str) -> Family:
    """Return a family."""
    return load(Family, body)


# --- Revisions --------------------------------------------------------------------------------------------------------

_KEPT_CHARS: Final = 16_384
"""Longer revisions are not kept, so that a thousand of them stay small."""

REVISION_COLUMNS: Final = "revision_id, project_id, family_id, branch, number, position, title, body, content"


def revision_row(revision: Revision) -> Row:
    """Return the row of a revision."""
    plain = to_plain(revision)
    content = plain.pop("content")
    return (
        revision.revision_id,
        revision.project_id,
        revision.family_id,
        revision.branch,
        revision.number,
        revision.position,
        revision.content.title,
        dump_plain(plain),
        dump_plain(content),
    )


def revision_of(body: str, content: str) -> Revision:
    """Return a revision from its two texts."""
    read = _revision_of if len(body) + len(content) > _KEPT_CHARS else _kept_revision_of
    return read(body, content)


def _revision_of(body: str, content: str) -> Revision:
    plain = json.loads(body)
    plain["content"] = json.loads(content)
    return from_plain(Revision, plain)


# Kept by the texts themselves: what was changed below the code is another text, so nothing old can come back.
_kept_revision_of: Final = lru_cache(maxsize=1_024)(_revision_of)


def revision_with(body: str, content: Content) -> Revision:
    """Return a revision with a content that was read otherwise."""
    plain = json.loads(body)
    plain["content"] = to_plain(content)
    return from_plain(Revision, plain)


def content_of(content: str) -> Content:
    """Return a content."""
    return load(Content, content)


# --- Timeline, heads, flags -------------------------------------------------------------------------------------------

ROW_COLUMNS: Final = (
    "family_id, branch, opened_position, valid_from, valid_to, revision_id, standing, end_kind, intrinsic_to, "
    "intrinsic_end, recorded_from, recorded_to, closed_position"
)


def timeline_row(row: TimelineRow) -> Row:
    """Return the row of a timeline row."""
    return (
        row.family_id,
        row.branch,
        row.opened_position,
        to_micros(row.valid_from),
        end_to_micros(row.valid_to),
        row.revision_id,
        row.standing.value,
        row.end.value,
        end_to_micros(row.intrinsic_to),
        row.intrinsic_end.value,
        to_micros(row.recorded_from),
        end_to_micros(row.recorded_to),
        row.closed_position or 0,
    )


def timeline_row_of(row: Row) -> TimelineRow:
    """Return a timeline row from ROW_COLUMNS."""
    return TimelineRow(
        family_id=row[0],
        branch=row[1],
        opened_position=row[2],
        valid_from=from_micros(row[3]),
        valid_to=end_from_micros(row[4]),
        revision_id=row[5],
        standing=_STANDINGS[row[6]],
        end=_ENDS[row[7]],
        intrinsic_to=end_from_micros(row[8]),
        intrinsic_end=_ENDS[row[9]],
        recorded_from=from_micros(row[10]),
        recorded_to=end_from_micros(row[11]),
        closed_position=row[12] or None,
    )


HEAD_COLUMNS: Final = "family_id, branch, revision_id, number, position, recorded_at, invalid_from"


def head_row(head: Head) -> Row:
    """Return the row of a head, without its project."""
    return (
        head.family_id,
        head.branch,
        head.revision_id,
        head.number,
        head.position,
        to_micros(head.recorded_at),
        end_to_micros(head.invalid_from),
    )


def head_of(row: Row) -> Head:
    """Return a head from HEAD_COLUMNS."""
    return Head(
        family_id=row[0],
        branch=row[1],
        revision_id=row[2],
        number=row[3],
        position=row[4],
        recorded_at=from_micros(row[5]),
        invalid_from=end_from_micros(row[6]),
    )


FLAG_COLUMNS: Final = "family_id, branch, cause_family_id, position, via, cause, recorded_at, cleared_position"


def flag_row(flag: ReviewFlag) -> Row:
    """Return the row of a review flag, without its project."""
    return (
        flag.family_id,
        flag.branch,
        flag.cause_family_id,
        flag.position,
        flag.via.value,
        flag.cause,
        to_micros(flag.recorded_at),
        flag.cleared_position or 0,
    )


def flag_of(row: Row) -> ReviewFlag:
    """Return a review flag from FLAG_COLUMNS."""
    return ReviewFlag(
        family_id=row[0],
        branch=row[1],
        cause_family_id=row[2],
        position=row[3],
        via=RelationKind(row[4]),
        cause=row[5],
        recorded_at=from_micros(row[6]),
        cleared_position=row[7] or None,
    )


# --- Relations --------------------------------------------------------------------------------------------------------

RELATION_COLUMNS: Final = "body, retired_from, retired_recorded_at, retired_position"
_RELATION_PROGRESS: Final = ("retired_from", "retired_recorded_at", "retired_position")


def relation_row(relation: Relation) -> Row:
    """Return the row of a relation."""
    return (
        relation.relation_id,
        relation.project_id,
        relation.branch,
        relation.kind.value,
        relation.source_id,
        relation.target_id,
        relation.position,
        _split(relation, _RELATION_PROGRESS)[0],
        *relation_progress(relation),
    )


def relation_progress(relation: Relation) -> Row:
    """Return what retiring writes."""
    return (
        end_to_micros(relation.retired_from),
        end_to_micros(relation.retired_recorded_at),
        relation.retired_position or 0,
    )


def relation_of(row: Row) -> Relation:
    """Return a relation from RELATION_COLUMNS."""
    plain = json.loads(row[0])
    if row[3]:
        plain["retired_position"] = row[3]
        end = end_to_micros(None)
        if row[1] != end:
            plain["retired_from"] = row[1]
        if row[2] != end:
            plain["retired_recorded_at"] = row[2]
    return from_plain(Relation, plain)


# --- Evidence ---------------------------------------------------------------------------------------------------------


def evidence_body(evidence: Evidence) -> str:
    """Return the text of evidence without its verifications, which are records of their own."""
    return _split(evidence, ("verifications",))[0]


def evidence_of(body: str, verifications: list[str]) -> Evidence:
    """Return evidence with its verifications, oldest first."""
    plain = json.loads(body)
    if verifications:
        plain["verifications"] = [json.loads(v) for v in verifications]
    return from_plain(Evidence, plain)


def verification_of(body: str) -> Verification:
    """Return a verification."""
    return load(Verification, body)


# --- Proposals, approvals ---------------------------------------------------------------------------------------------


def proposal_texts(proposal: Proposal) -> tuple[str, str, str]:
    """Return body, status and progress of a proposal."""
    plain = to_plain(proposal)
    status = plain.pop("status")
    progress = _take(plain, PROPOSAL_PROGRESS)
    return dump_plain(plain), status, dump_plain(progress)


def proposal_of(body: str, status: str, progress: str) -> Proposal:
    """Return a proposal from its three texts."""
    plain = json.loads(body)
    plain.update(json.loads(progress))
    plain["status"] = status
    return from_plain(Proposal, plain)


def proposal_progress(proposal: Proposal) -> tuple[ProposalStatus, str]:
    """Return status and progress."""
    _, status, progress = proposal_texts(proposal)
    return ProposalStatus(status), progress


def approval_texts(approval: Approval) -> tuple[str, str]:
    """Return body and progress of an approval."""
    return _split(approval, APPROVAL_PROGRESS)


def approval_of(body: str, progress: str) -> Approval:
    """Return an approval from its two texts."""
    plain = json.loads(body)
    plain.update(json.loads(progress))
    return from_plain(Approval, plain)


# --- Kept answers, events ---------------------------------------------------------------------------------------------


def reply_of(project_id: str, row: Row) -> StoredReply:
    """Return a kept answer from caller, rpc, request_id, request_hash, reply, recorded_at."""
    caller, rpc, request_id, request_hash, reply, recorded_at = row
    return StoredReply(project_id, caller, request_id, rpc, request_hash, bytes(reply), from_micros(recorded_at))


def event_of(row: Row) -> EventView:
    """Return an event from id, project, position, family, branch, recorded_at, attempts, fencing, lease, last error."""
    return EventView(
        id=row[0],
        project_id=row[1],
        position=row[2],
        family_id=row[3],
        branch=row[4],
        recorded_at=from_micros(row[5]),
        attempts=row[6],
        fencing_token=row[7],
        lease_expires_at=from_micros(row[8]) if row[8] else None,
        last_error=row[9],
    )


def _take(plain: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: plain.pop(name) for name in names if name in plain}
