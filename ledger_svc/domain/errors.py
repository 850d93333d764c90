"""Errors of the ledger's pure domain.

The tree is flat on purpose; the reason, not the class, says what happened:

- DomainError(reason, message, metadata, fields)
    - INVALID_FIELD, LIMIT_EXCEEDED, REQUEST_ID_REUSED      the caller must change the request
    - PERMISSION_DENIED, APPROVER_NOT_ALLOWED               the caller may not do this
    - NOT_FOUND, ALREADY_EXISTS                             a name is absent or taken
    - HEAD_MOVED                                            read again, decide again; the proposal becomes STALE
    - WRITE_CONTENTION                                      send the same request again
    - PROPOSAL_STATUS, APPROVAL_MISSING,
      PREVIEW_HASH_MISMATCH, EVIDENCE_INSUFFICIENT,
      STATE_CONFLICT, RELATION_CYCLE                        somebody must change something first
    - INTEGRITY                                             stored bytes do not match their hash

A reason is the name of a value of ``common/v1/errors.proto``'s ErrorReason without its prefix. The boundary's table
gives each reason its status code; nothing here knows about transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger_svc.domain import names

if TYPE_CHECKING:
    from ledger_svc.domain.model import ExpectedHead

INVALID_FIELD = "INVALID_FIELD"
LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
PERMISSION_DENIED = "PERMISSION_DENIED"
APPROVER_NOT_ALLOWED = "APPROVER_NOT_ALLOWED"
NOT_FOUND = "NOT_FOUND"
ALREADY_EXISTS = "ALREADY_EXISTS"
HEAD_MOVED = "HEAD_MOVED"
WRITE_CONTENTION = "WRITE_CONTENTION"
PROPOSAL_STATUS = "PROPOSAL_STATUS"
APPROVAL_MISSING = "APPROVAL_MISSING"
PREVIEW_HASH_MISMATCH = "PREVIEW_HASH_MISMATCH"
EVIDENCE_INSUFFICIENT = "EVIDENCE_INSUFFICIENT"
STATE_CONFLICT = "STATE_CONFLICT"
RELATION_CYCLE = "RELATION_CYCLE"
INTEGRITY = "INTEGRITY"


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One wrong field: its path in the request and what to do about it."""

    field: str
    description: str


class DomainError(Exception):
    """A refusal with a machine-readable reason; the text is a sentence for people that says what to do next."""

    def __init__(
        self,
        reason: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        fields: Iterable[FieldProblem] = (),
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        self.fields: tuple[FieldProblem, ...] = tuple(fields)

    def __repr__(self) -> str:
        return f"DomainError({self.reason}: {self.message} {self.metadata})"


def invalid_field(field: str, description: str) -> DomainError:
    """One field is missing, malformed or out of range."""
    return invalid_fields((FieldProblem(field, description),))


def invalid_fields(problems: Iterable[FieldProblem]) -> DomainError:
    """Several fields are wrong; all are reported at once."""
    listed = tuple(problems)
    text = "; ".join(f"{p.field}: {p.description}" for p in listed)
    first = {"field": listed[0].field, "description": listed[0].description} if listed else {}
    return DomainError(INVALID_FIELD, text, first, listed)


def limit_exceeded(field: str, limit: int, actual: int, unit: str = "characters") -> DomainError:
    """A field or list is larger than its limit; nothing is cut silently."""
    text = f"{field} has {actual} {unit}, the limit is {limit}"
    problem = FieldProblem(field, f"at most {limit} {unit}, got {actual}")
    return DomainError(LIMIT_EXCEEDED, text, {"field": field, "limit": str(limit), "actual": str(actual)}, (problem,))


def request_id_reused(request_id: str, rpc: str) -> DomainError:
    """The request_id was used before with other content."""
    return DomainError(
        REQUEST_ID_REUSED,
        f"request_id {request_id} was used before with other content: take a new one for a new request",
        {"request_id": request_id, "rpc": rpc},
    )


def permission_denied(project_id: str, role: str, message: str = "", *, rule: str = "") -> DomainError:
    """The principal lacks a role in the project; or has it, and a rule says that this is not for its like."""
    metadata = {"project": names.project(project_id), "role": role}
    return DomainError(
        PERMISSION_DENIED,
        message or f"this needs the role {role} in {names.project(project_id)}",
        {**metadata, "rule": rule} if rule else metadata,
    )


def approver_not_allowed(rule: str, message: str) -> DomainError:
    """The principal may not decide this proposal; the rule says why."""
    return DomainError(APPROVER_NOT_ALLOWED, message, {"rule": rule})


def not_found(resource: str) -> DomainError:
    """No such resource."""
    return DomainError(NOT_FOUND, f"{resource} does not exist", {"resource": resource})


def identity_taken(project_id: str, identity_key: str, family_id: str) -> DomainError:
    """Another family owns this identity_key or has it as an alias."""
    family = names.family(project_id, family_id)
    return DomainError(
        ALREADY_EXISTS,
        f"identity_key {identity_key} belongs to {family}: propose an update of that family instead",
        {"identity_key": identity_key, "family": family},
    )


def relation_exists(project_id: str, relation_id: str) -> DomainError:
    """The same relation is already asserted."""
    relation = names.relation(project_id, relation_id)
    return DomainError(ALREADY_EXISTS, f"this relation is already asserted as {relation}", {"relation": relation})


def head_moved(project_id: str, moved: Iterable[tuple[ExpectedHead, ExpectedHead | None]]) -> DomainError:
    """Heads that the proposal depends on have moved; ``moved`` holds (expected, actual) pairs.

    The metadata carries the first pair under plain names and every further one with a suffix ``.2``, ``.3``, ...
    """
    metadata: dict[str, str] = {}
    pairs = list(moved)
    for number, (expected, actual) in enumerate(pairs, start=1):
        suffix = "" if number == 1 else f".{number}"
        metadata[f"family{suffix}"] = names.family(project_id, expected.family_id)
        metadata[f"branch{suffix}"] = expected.branch
        metadata[f"expected{suffix}"] = _head_text(project_id, expected)
        metadata[f"actual{suffix}"] = _head_text(project_id, actual)
        metadata[f"expected_position{suffix}"] = str(expected.position)
        metadata[f"actual_position{suffix}"] = str(actual.position if actual else 0)
    count = len(pairs)
    what = "a head that this depends on has moved" if count == 1 else f"{count} heads that this depends on have moved"
    return DomainError(HEAD_MOVED, f"{what}: read again and propose again on the actual heads", metadata)


def read_too_little() -> DomainError:
    """The facts that were read do not reach back far enough, because the clock went back: nothing was changed."""
    return DomainError(
        WRITE_CONTENTION,
        "the clock went back while this was decided: send the same request again",
        {"retry": "same_request"},
    )


def _head_text(project_id: str, head: ExpectedHead | None) -> str:
    if head is None or not head.revision_id:
        return ""
    return names.revision(project_id, head.family_id, head.revision_id)


def proposal_status(project_id: str, proposal_id: str, status: str, needed: str) -> DomainError:
    """The proposal is not in a status that allows this."""
    name = names.proposal(project_id, proposal_id)
    return DomainError(
        PROPOSAL_STATUS,
        f"{name} is {status}; this needs {needed}",
        {"proposal": name, "status": status, "needed": needed},
    )


def approval_missing(needed: int, valid: int, why: str = "") -> DomainError:
    """Fewer valid approvals than the policy asks for."""
    tail = f" ({why})" if why else ""
    return DomainError(
        APPROVAL_MISSING,
        f"{needed} valid approval(s) needed, {valid} found{tail}: ask a reviewer to approve this preview",
        {"needed": str(needed), "valid": str(valid)},
    )


def preview_hash_mismatch(given: str, actual: str) -> DomainError:
    """The bytes differ from those that were previewed or approved."""
    return DomainError(
        PREVIEW_HASH_MISMATCH,
        "the content differs from what was previewed: read the proposal again and decide on what it says now",
        {"given": given, "actual": actual},
    )


def evidence_insufficient(policy: str, needed: str, found: str, message: str) -> DomainError:
    """The evidence does not meet the policy of the category."""
    return DomainError(EVIDENCE_INSUFFICIENT, message, {"policy": policy, "needed": needed, "found": found})


def state_conflict(project_id: str, family_id: str, rule: str, message: str) -> DomainError:
    """The change contradicts the state of the family."""
    return DomainError(STATE_CONFLICT, message, {"family": names.family(project_id, family_id), "rule": rule})


def relation_cycle(kind: str, path: Iterable[str]) -> DomainError:
    """The relation would close a cycle."""
    text = ",".join(path)
    return DomainError(RELATION_CYCLE, f"this {kind} would close a cycle: {text}", {"kind": kind, "path": text})


def integrity(entry: str, message: str) -> DomainError:
    """Stored bytes do not match their hash."""
    return DomainError(INTEGRITY, message, {"entry": entry})
