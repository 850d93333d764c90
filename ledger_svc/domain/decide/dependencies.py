"""What a proposal depends on: heads, categories, evidence."""

from __future__ import annotations

from dataclasses import replace

from ledger_svc.domain import errors, names
from ledger_svc.domain import policy as rules
from ledger_svc.domain.canonical import nfc
from ledger_svc.domain.decide.making import carried_links
from ledger_svc.domain.decide.publications import restored_revision
from ledger_svc.domain.model import (
    CancelSchedule,
    Category,
    Create,
    CreateAndLink,
    Deprecate,
    Draft,
    Evidence,
    EvidenceLink,
    ExpectedHead,
    Invalidate,
    Link,
    Mutation,
    Policy,
    Proposal,
    Rollback,
    SetExpiry,
    Supersede,
    Unlink,
    Update,
)
from ledger_svc.domain.state import State


def expected_heads(state: State, draft: Draft) -> tuple[ExpectedHead, ...]:
    """Every head that the draft depends on, as it is now.

    Raises:
        DomainError: HEAD_MOVED when a head is not the one that the proposer says they saw.
    """
    needed = {(family_id, draft.branch): role for family_id, role in _dependencies(draft.mutation)}
    seen = {(head.family_id, head.branch): head for head in draft.expected_heads}
    for key, head in seen.items():
        needed.setdefault(key, head.role)
    heads = tuple(_expected(state, key, role) for key, role in needed.items())
    moved = [
        (seen[head.family_id, head.branch], head)
        for head in heads
        if (head.family_id, head.branch) in seen and not _is_same(seen[head.family_id, head.branch], head)
    ]
    if moved:
        raise errors.head_moved(state.project_id, moved)
    return heads


def _is_same(seen: ExpectedHead, actual: ExpectedHead) -> bool:
    same_commit = seen.position in {0, actual.position}
    return seen.revision_id == actual.revision_id and same_commit


def _expected(state: State, key: tuple[str, str], role: str) -> ExpectedHead:
    state.family(key[0])
    head = state.heads.get(key)
    if head is None:
        return ExpectedHead(key[0], key[1], "", 0, role)
    return ExpectedHead(key[0], key[1], head.revision_id, head.position, role)


def moved_heads(state: State, proposal: Proposal) -> list[tuple[ExpectedHead, ExpectedHead | None]]:
    """Heads that are not any more as the proposal expects them, as (expected, actual)."""
    moved: list[tuple[ExpectedHead, ExpectedHead | None]] = []
    for expected in proposal.expected_heads:
        actual = _expected(state, (expected.family_id, expected.branch), expected.role)
        if actual != expected:
            moved.append((expected, actual))
    return moved


def _dependencies(mutation: Mutation) -> tuple[tuple[str, str], ...]:
    """(family id, role) of every head that a mutation depends on."""
    match mutation:
        case Create() | Unlink():
            return ()
        case CreateAndLink():
            return ((mutation.refines_family_id, "refined"),)
        case Update() | Supersede() | Invalidate() | SetExpiry() | CancelSchedule() | Rollback():
            return ((mutation.family_id, "target"),)
        case Deprecate():
            return ((mutation.family_id, "target"), (mutation.replacement_family_id, "replacement"))
        case Link():
            return ((mutation.source_family_id, "source"), (mutation.target_family_id, "target"))


def governing_category(state: State, draft: Draft, policy: Policy) -> Category:
    """The category whose policy governs the draft: of a relation's two ends, the one that asks for more approvals."""
    mutation = draft.mutation
    match mutation:
        case Create() | CreateAndLink():
            return mutation.category
        case Link():
            ends = (mutation.target_family_id, mutation.source_family_id)
        case Unlink():
            relation = state.relations.get(mutation.relation_id)
            if relation is None or relation.project_id != state.project_id:
                raise errors.not_found(names.relation(state.project_id, mutation.relation_id))
            ends = (relation.target_id, relation.source_id)
        case Deprecate():
            ends = (mutation.family_id, mutation.replacement_family_id)
        case _:
            ends = (mutation.family_id, mutation.family_id)
    return rules.strictest(policy, [state.family(end).category for end in ends])


def evidence_of(state: State, proposal: Proposal) -> tuple[Evidence, ...]:
    """The evidence records that a proposal's hash covers: those that it links and those that a rollback brings back.

    Raises:
        DomainError: NOT_FOUND for a record that is not there.
    """
    restored = restored_revision(state, proposal.mutation) if isinstance(proposal.mutation, Rollback) else None
    links = carried_links(proposal.evidence_links, restored)
    return tuple(_evidence(state, link.evidence_id) for link in links)


def _evidence(state: State, evidence_id: str) -> Evidence:
    record = state.evidence.get(evidence_id)
    if record is None or record.project_id != state.project_id:
        raise errors.not_found(names.evidence(state.project_id, evidence_id))
    return record


def resolved_links(state: State, draft: Draft) -> tuple[EvidenceLink, ...]:
    """The links with the fingerprints of what they point at, each once."""
    links = (
        replace(link, fingerprint=_evidence(state, link.evidence_id).fingerprint, claim=nfc(link.claim))
        for link in draft.evidence_links
    )
    return tuple({(link.evidence_id, link.stance, link.claim): link for link in links}.values())
