"""The audit chain shows every kind of tampering."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from ledger_world import ANA, BRUNO, World, raising, rule

from ledger_svc.domain import decide as d
from ledger_svc.domain.audit import (
    ChainProblem,
    ChainVerifier,
    Record,
    details_json,
    record_key,
    records_of,
    verify_chain,
)
from ledger_svc.domain.canonical import audit_entry_hash
from ledger_svc.domain.model import (
    AuditAction,
    AuditTip,
    Category,
    Create,
    Deprecate,
    Link,
    PrincipalKind,
    RecordKind,
    RelationKind,
    Supersede,
    Unlink,
    VerificationState,
)


def history() -> World:
    """A ledger in which every kind of record exists."""
    w = World.new()
    a, b, c = (
        w.commit(Create(Category.BUSINESS_RULE, rule(f"Rule {n}"), f"rule/{n}")).families[0].family_id for n in range(3)
    )
    relation = w.commit(Link(RelationKind.DEPENDS_ON, b, a)).relations_opened[0]
    w.commit(Supersede(a, rule("Other")))
    w.commit(Unlink(relation.relation_id))
    w.commit(Deprecate(c, a))
    w.evidence(verified=VerificationState.VERIFIED)
    rejected = w.propose(Supersede(a, rule("Never")))
    w.take(d.decide_rejection(w.state, rejected, BRUNO, "no", w.state.policy, w.now))
    w.take(d.decide_policy(w.state, 1, w.state.policy, ANA, w.now))
    return w


def stored(w: World) -> dict[tuple[RecordKind, str], Record]:
    """Every record as it is stored at the end."""
    return {record_key(r): r for change in w.changes for r in records_of(change)}


def check(w: World, records: list[Record]) -> list[ChainProblem]:
    """All problems of a chain and its records."""
    verifier = ChainVerifier()
    problems = [p for entry in w.entries for p in verifier.entry(entry)]
    problems += verifier.tip(w.state.audit_tip)
    for record in records:
        problems += verifier.record(record)
    return problems + verifier.missing()


def test_an_honest_ledger_has_no_problem() -> None:
    """L15: the chain of a whole history verifies, and covers every kind of record."""
    w = history()
    records = stored(w)
    assert check(w, list(records.values())) == []
    assert {kind for kind, _ in records} == set(RecordKind)
    assert [e.sequence for e in w.entries] == list(range(1, len(w.entries) + 1))
    assert {e.position for e in w.entries} == set(range(w.state.position + 1))


def tampered(value: object) -> object:
    """The value with a little change, or itself when it has no simple one."""
    if isinstance(value, str) and type(value) is str:
        return value + "x"
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value + 1
    if hasattr(value, "microsecond"):
        return value.replace(microsecond=(value.microsecond + 1) % 1_000_000)
    return value


@pytest.mark.parametrize("kind", list(RecordKind))
def test_every_altered_field_of_every_record_names_its_entry(kind: RecordKind) -> None:
    """L15: flip any stored value and the entry that last covered the record is named."""
    w = history()
    records = stored(w)
    key, record = next((k, r) for k, r in reversed(records.items()) if k[0] is kind)
    covering = max(e.sequence for e in w.entries for r in e.records if (r.kind, r.record_id) == key)
    altered = 0
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        other = tampered(value)
        if f.metadata.get("canonical") == "derived" or other == value:
            continue
        forged = replace(record, **{f.name: other})  # type: ignore[arg-type]
        found = check(w, [forged if k == key else r for k, r in records.items()])
        assert found, f.name
        assert covering in {p.sequence for p in found}, f.name
        altered += 1
    assert altered >= 1


@pytest.mark.parametrize(
    "field", ["actor", "subject", "position", "recorded_at", "details", "previous_hash", "records"]
)
def test_an_altered_entry_is_named(field: str) -> None:
    """L15: an entry whose bytes were changed does not match its hash."""
    w = history()
    entry = w.entries[4]
    other = {
        "actor": replace(entry.actor, kind=PrincipalKind.AGENT),
        "subject": "projects/other",
        "position": entry.position + 1,
        "recorded_at": w.now,
        "details": {"reason": "none"},
        "previous_hash": "sha256:" + "0" * 64,
        "records": (),
    }[field]
    w.entries[4] = replace(entry, **{field: other})
    assert entry.sequence in {p.sequence for p in verify_chain(w.entries)}


def test_an_entry_that_was_rewritten_with_a_fresh_hash_shows_at_the_next_one() -> None:
    """L15: whoever rewrites one entry has to rewrite all that follow, and the tip that the project holds."""
    w = history()
    forged = replace(w.entries[4], subject="projects/other")
    w.entries[4] = replace(forged, entry_hash=audit_entry_hash(forged))
    assert [p.sequence for p in verify_chain(w.entries)] == [6]
    for index in range(5, len(w.entries)):
        entry = replace(w.entries[index], previous_hash=w.entries[index - 1].entry_hash)
        w.entries[index] = replace(entry, entry_hash=audit_entry_hash(entry))
    assert verify_chain(w.entries) == []
    assert verify_chain(w.entries, w.state.audit_tip)


def test_missing_swapped_and_cut_off_entries_show() -> None:
    """L15: removing one entry, swapping two, or cutting the end off breaks the chain; so does rewriting an entry."""
    w = history()
    assert verify_chain(w.entries[:3] + w.entries[4:])[0].sequence == 5
    swapped = [*w.entries[:3], w.entries[4], w.entries[3], *w.entries[5:]]
    assert verify_chain(swapped)
    assert verify_chain(w.entries[:-1]) == []
    assert verify_chain(w.entries[:-1], w.state.audit_tip)
    assert verify_chain([], AuditTip(3, "sha256:x"))


def test_deleted_and_slipped_in_records_show() -> None:
    """L15: a record that an entry names and that is gone is reported with that entry; an uncovered one as such."""
    w = history()
    records = stored(w)
    key = next(k for k in records if k[0] is RecordKind.REVISION)
    found = check(w, [r for k, r in records.items() if k != key])
    assert [(p.subject, p.problem) for p in found] == [(f"REVISION {key[1]}", "is not stored any more")]
    extra = replace(records[key], revision_id="slipped-in")  # type: ignore[call-arg]
    assert [p.sequence for p in check(w, [*records.values(), extra])] == [0]


def test_refusals_are_in_the_chain() -> None:
    """Audit: a refused approval and a refused apply leave an entry with the reason and no content."""
    w = World.new()
    proposal = w.propose(Create(Category.BUSINESS_RULE, rule("Secret title"), "rule/1"))
    error = raising(lambda: w.approve(proposal, ANA))
    w.refused(AuditAction.APPROVE, ANA, error, proposal)
    raising(lambda: w.apply(proposal))
    actions = [e.action for e in w.entries[-2:]]
    assert actions == [AuditAction.REFUSE_APPROVE, AuditAction.REFUSE_APPLY]
    assert w.entries[-2].details["reason"] == "APPROVER_NOT_ALLOWED"
    assert w.entries[-1].details["error.needed"] == "1"
    assert all("Secret title" not in details_json(e) for e in w.entries)
    assert verify_chain(w.entries, w.state.audit_tip) == []
