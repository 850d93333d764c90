"""Evidence is registered and checked against its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar

from ledger_svc.domain import errors, names, validate
from ledger_svc.domain.canonical import evidence_fingerprint, is_hash, nfc, text_hash
from ledger_svc.domain.decide.finish import finish, no_commit
from ledger_svc.domain.model import (
    AuditAction,
    ChangeSet,
    Evidence,
    Principal,
    PrincipalKind,
    SourceKind,
    Verification,
    VerificationState,
)
from ledger_svc.domain.state import State


@dataclass(frozen=True, slots=True)
class EvidenceDraft:
    """Evidence to register, as its bringer gives it."""

    SCHEMA: ClassVar[str] = "evidence-draft/1"

    source_kind: SourceKind
    locator: str
    source_hash: str = ""
    excerpt: str = ""
    author: str = ""
    extractor: str = ""
    reliability: float = 1.0
    source_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """Records for a list of drafts, in their order; ``added`` are those that were not there before."""

    evidence: tuple[Evidence, ...]
    added: tuple[Evidence, ...]


def fingerprint_of(draft: EvidenceDraft) -> str:
    """The fingerprint that a draft would get: what a store looks existing evidence up by."""
    return _record(
        draft, "", "", Principal("", "", PrincipalKind.SERVICE), datetime.min.replace(tzinfo=UTC)
    ).fingerprint


def register(
    state: State,
    drafts: Sequence[EvidenceDraft],
    registrar: Principal,
    now: datetime,
    *,
    new_id: Callable[[], str],
    paths: Sequence[str] = (),
) -> Registration:
    """Make the records of drafts; the same fingerprint gives the record that is there already.

    Args:
        state: With the evidence of all fingerprints (``StateNeeds.fingerprints``).
        drafts: What to register.
        registrar: Who brings it, from the credential.
        now: The ledger's clock.
        new_id: Makes ids.
        paths: Where each draft is in what was asked for; ``evidence[index]`` when left out.

    Raises:
        DomainError: INVALID_FIELD or LIMIT_EXCEEDED, naming the draft by its path.
    """
    known = {record.fingerprint: record for record in state.evidence.values()}
    recorded_at = no_commit(state, now).recorded_at
    records: list[Evidence] = []
    added: list[Evidence] = []
    for index, draft in enumerate(drafts):
        _check(draft, registrar, paths[index] if paths else f"evidence[{index}]")
        record = _record(draft, "", state.project_id, registrar, recorded_at)
        existing = known.get(record.fingerprint)
        if existing is None:
            existing = replace(record, evidence_id=new_id())
            known[existing.fingerprint] = existing
            added.append(existing)
        records.append(existing)
    return Registration(tuple(records), tuple(added))


def decide_evidence(
    state: State, drafts: Sequence[EvidenceDraft], registrar: Principal, now: datetime, *, new_id: Callable[[], str]
) -> tuple[Registration, ChangeSet | None]:
    """Register evidence by itself; no change set when all of it was there already.

    Raises:
        DomainError: As ``register``.
    """
    paths = ("evidence",) if len(drafts) == 1 else ()
    registration = register(state, drafts, registrar, now, new_id=new_id, paths=paths)
    if not registration.added:
        return registration, None
    change = replace(no_commit(state, now), evidence=registration.added)
    subject = names.evidence(state.project_id, registration.added[0].evidence_id)
    details = {"count": str(len(registration.added))}
    action = AuditAction.REGISTER_EVIDENCE
    return registration, finish(state, change, action=action, actor=registrar, subject=subject, details=details)


def decide_verification(
    state: State,
    evidence_id: str,
    found: VerificationState,
    method: str,
    verifier: Principal,
    now: datetime,
) -> ChangeSet:
    """Record what a look at the source of a piece of evidence gave.

    Raises:
        DomainError: NOT_FOUND, INVALID_FIELD, or APPROVER_NOT_ALLOWED for an agent that says VERIFIED.
    """
    record = state.evidence.get(evidence_id)
    if record is None or record.project_id != state.project_id:
        raise errors.not_found(names.evidence(state.project_id, evidence_id))
    validate.check_length("method", method, validate.MAX_REASON)
    if not method.strip():
        raise errors.invalid_field("method", "say how it was checked, e.g. git@1: excerpt hash equal")
    if verifier.kind is PrincipalKind.AGENT and found is VerificationState.VERIFIED:
        raise errors.approver_not_allowed("agent_never_verifies", "an agent's word does not verify evidence")
    change = no_commit(state, now)
    check = Verification(
        evidence_id=evidence_id,
        number=len(record.verifications) + 1,
        state=found,
        method=nfc(method),
        verifier=verifier,
        recorded_at=change.recorded_at,
    )
    return finish(
        state,
        replace(change, verifications=(check,)),
        action=AuditAction.RECORD_VERIFICATION,
        actor=verifier,
        subject=names.evidence(state.project_id, evidence_id),
        details={"state": found.value},
    )


def _check(draft: EvidenceDraft, registrar: Principal, path: str) -> None:
    if not draft.locator.strip():
        raise errors.invalid_field(f"{path}.locator", "say where the source is")
    if draft.source_hash and not is_hash(draft.source_hash):
        raise errors.invalid_field(f"{path}.source_hash", "must be sha256:<64 hex digits> or empty")
    if draft.source_time is not None and draft.source_time.utcoffset() is None:
        raise errors.invalid_field(f"{path}.source_time", "a time needs an offset from UTC")
    if draft.source_kind is SourceKind.STATEMENT and registrar.kind is not PrincipalKind.HUMAN:
        raise errors.invalid_field(f"{path}.source_kind", "a STATEMENT is a person's own word, recorded by a person")
    validate.check_fraction(f"{path}.reliability", draft.reliability)
    validate.check_length(f"{path}.locator", draft.locator, validate.MAX_LOCATOR)
    validate.check_length(f"{path}.excerpt", draft.excerpt, validate.MAX_TEXT)
    validate.check_length(f"{path}.author", draft.author, validate.MAX_LOCATOR)
    validate.check_length(f"{path}.extractor", draft.extractor, validate.MAX_LOCATOR)


def _record(
    draft: EvidenceDraft, evidence_id: str, project_id: str, registrar: Principal, recorded_at: datetime
) -> Evidence:
    excerpt = nfc(draft.excerpt)
    record = Evidence(
        evidence_id=evidence_id,
        project_id=project_id,
        source_kind=draft.source_kind,
        locator=nfc(draft.locator),
        source_hash=draft.source_hash,
        excerpt=excerpt,
        excerpt_hash=text_hash(excerpt) if excerpt else "",
        author=nfc(draft.author),
        extractor=nfc(draft.extractor),
        reliability=draft.reliability,
        source_time=draft.source_time.astimezone(UTC) if draft.source_time is not None else None,
        fingerprint="",
        registered_by=registrar,
        recorded_at=recorded_at,
    )
    return replace(record, fingerprint=evidence_fingerprint(record))
