"""A project with a bit of everything in it, and the way out of one store and into another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.decide import EvidenceDraft
from ledger_svc.domain.model import (
    Admission,
    AdmissionOutcome,
    CancelSchedule,
    Category,
    Content,
    Create,
    Deprecate,
    Invalidate,
    Link,
    Observation,
    RelationKind,
    Signal,
    SignalKind,
    SourceKind,
    Supersede,
    Unlink,
    Update,
    VerificationState,
)
from ledger_svc.export_file import Part
from ledger_svc.service.context import as_principal
from ledger_svc.service.evidence import EvidenceService
from ledger_svc.service.moving import Imported, MovingService
from ledger_svc.state import BEGINNING
from ledger_svc.store import LedgerStore
from tests.contract.test_ledger_store_contract import ANA, ROOT, RUI, World

PIECE = 1_000
"""Bytes of one message of an import, in the tests: chunks are cut anywhere."""


async def furnish(world: World) -> None:
    """Fill a project with everything that can be in one.

    Histories, schedules, relations retired and asserted again, flags, evidence with verifications, proposals of every
    end, a second policy, a branch, observations, admissions, signals. The project is there.
    """
    day = timedelta(days=1)
    start = world.clock.present
    base = await world.create("Invoices are immutable", key="adr/0001", valid_from=start - 30 * day)
    above = await world.create("Faturas são imutáveis — Straße 😀", key="adr/0002")
    third = await world.create("no key")
    await world.publish(Link(RelationKind.DEPENDS_ON, above, base))
    await world.publish(Supersede(base, Content("Invoices are kept for ten years"), start - 10 * day))
    await world.publish(Update(above, Content("adapted", summary="so")))
    await world.publish(Supersede(base, Content("Invoices are kept for five years")))
    scheduled = await world.publish(Supersede(base, Content("scheduled"), start + 100 * day))
    await world.publish(CancelSchedule(base, scheduled.view.proposal.result_revision_id))
    await world.publish(Supersede(third, Content("scheduled"), start + 50 * day))
    linked = await world.publish(Link(RelationKind.RELATED_TO, third, base))
    relation = linked.view.proposal.result_relation_id
    await world.publish(Unlink(relation))
    await world.publish(Link(RelationKind.RELATED_TO, third, base))
    old = await world.create("the old way", key="adr/0003")
    await world.publish(Deprecate(old, above))
    gone = await world.create("gone", key="adr/0004")
    await world.publish(Invalidate(gone))
    await world.publish(Create(Category.DESIGN_RULE, Content("on a branch"), "adr/0005"), branch="release/2.x")
    stale = await world.approve(await world.propose(Supersede(base, Content("stale"))))
    await world.publish(Supersede(base, Content("won")))
    await _refused(world.apply(stale))
    await world.propose(Supersede(base, Content("pending")))
    await world.approve(await world.propose(Supersede(above, Content("approved"))))
    rejected = await world.propose(Supersede(above, Content("rejected")))
    call = world.request(RUI, "RejectProposal")
    await world.proposals.reject(call, rejected.proposal.proposal_id, "no")
    evidence = EvidenceService(world.ledger)
    draft = EvidenceDraft(SourceKind.COMMIT, "git:x@1:a.md", excerpt="we decided")
    registered, _ = await evidence.register(world.request(ANA, "RegisterEvidence"), draft)
    for state in (VerificationState.CONTRADICTED, VerificationState.VERIFIED):
        await evidence.verify(world.request(RUI, "RecordVerification"), registered.evidence_id, state, "git@1")
    view = await world.store.project("p1")
    assert view is not None
    await world.admin.update_policy(world.request(ROOT, "UpdatePolicy"), view.policy.version, view.policy)
    who = as_principal(ANA, "p1")
    facts = {"b": "1", "a": "2"}
    seen = [
        Observation("", "p1", SourceKind.ADR, f"{n}.md", f"sha256:{n:064x}", "t", "x", "", None, facts, who, BEGINNING)
        for n in range(3)
    ]
    recorded = await world.observations.record(world.request(ANA, "RecordObservations"), seen)
    ids = [one.view.observation.observation_id for one in recorded]
    for outcome in (AdmissionOutcome.FAILED, AdmissionOutcome.NO_MEMORY):
        admission = Admission(ids[0], 0, outcome, ("nothing in it",), (), "structured/adr@1", who, BEGINNING)
        await world.observations.admit(world.request(ANA, "RecordAdmissions"), [admission])
    signals = [
        Signal("p1", family, kind, world.clock.now(), who, BEGINNING)
        for family in (above, base, above)
        for kind in (SignalKind.USED, SignalKind.HELPFUL)
    ]
    await world.observations.signal(world.request(ANA, "RecordSignals"), signals)


async def _refused(call: Any) -> None:
    try:
        await call
    except Exception:  # noqa: BLE001 - that it is refused is the point
        return
    raise AssertionError("was not refused")


async def parts_of(world: World, project: str = "p1", after: int = 0, digest: str = "") -> list[Part]:
    """Export, in parts."""
    return [part async for part in MovingService(world.ledger).export(ROOT, project, after, digest)]


async def export_of(world: World, project: str = "p1") -> bytes:
    """Export, as one file."""
    return b"".join(part.data for part in await parts_of(world, project))


async def pieces(data: bytes, size: int = PIECE) -> AsyncIterator[bytes]:
    """Yield bytes in pieces."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def import_into(world: World, data: bytes, project: str = "p1") -> Imported:
    """Import a file."""
    return await MovingService(world.ledger).import_project(ROOT, project, pieces(data))


async def problems_of(store: LedgerStore, project: str = "p1") -> list[Any]:
    """Verify the audit."""
    return await store.verify(project, ChainVerifier())
