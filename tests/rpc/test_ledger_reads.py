"""Reads of the ledger over a real server: time, pages, watches, history, graph, outbox."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
import pytest
from decisionssearch.common.v1 import common_pb2
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    evidence_service_pb2,
    ledger_pb2,
    ledger_service_pb2,
    observation_service_pb2,
    outbox_service_pb2,
    proposal_pb2,
    proposal_service_pb2,
)
from google.protobuf.duration_pb2 import Duration

from service_kit.clock import from_timestamp
from service_kit.errors import Reason
from service_kit.ids import new_id
from service_kit.ledger_token import encode
from tests.ledger_stack import (
    PROJECT,
    Stack,
    create_rule,
    evidence_input,
    refusal,
    rule_content,
    running,
    stamp,
    supersede,
)

NAME = f"projects/{PROJECT}"
DAY = timedelta(days=1)


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """A ledger with an empty project."""
    async with running(heartbeat_seconds=0.2) as made:
        await made.make_project()
        yield made


def link(kind: Any, source: str, target: str) -> proposal_pb2.Mutation:
    """The mutation that relates two families."""
    return proposal_pb2.Mutation(
        link=proposal_pb2.LinkMutation(kind=kind, source_family=source, target_family=target, rationale="so")
    )


# --- Time -------------------------------------------------------------------------------------------------------------


async def test_the_two_axes_are_asked_separately(stack: Stack) -> None:
    """L8: in force in the past as known today, and what would have been answered then, over the wire."""
    start = stack.clock.present
    first = await stack.create("first", valid_from=start - 10 * DAY)
    family, known_then = first.head.family.name, stack.clock.now()
    stack.clock.advance(DAY)
    await stack.publish(supersede(family, "second", valid_from=start - 5 * DAY))
    assert (await stack.head(family, valid_at=stamp(start - 6 * DAY))).revision.content.title == "first"
    assert (await stack.head(family, valid_at=stamp(start - 5 * DAY))).revision.content.title == "second"
    then = await stack.head(family, valid_at=stamp(start - 3 * DAY), known_at=stamp(known_then))
    assert then.revision.content.title == "first"
    assert then.state == ledger_pb2.STATE_ACTIVE
    error = await refusal(
        stack.as_("reader").ledger.GetHead(
            ledger_service_pb2.GetHeadRequest(family=family, known_at=stamp(start - 20 * DAY))
        )
    )
    assert error.reason is Reason.NOT_FOUND


async def test_a_schedule_shows_comes_into_force_and_can_be_cancelled(stack: Stack) -> None:
    """L8: a scheduled change leaves the present in force until its moment; cancelled, it never was."""
    family = (await stack.create("now")).head.family.name
    later = stack.clock.present + 5 * DAY
    await stack.publish(supersede(family, "then", valid_from=later))
    head = await stack.head(family)
    assert (head.state, head.revision.content.title) == (ledger_pb2.STATE_ACTIVE, "now")
    assert head.head_revision != head.revision.name
    assert [row.revision for row in head.scheduled] == [head.head_revision]
    assert from_timestamp(head.valid_to) == later
    assert (await stack.head(family, valid_at=stamp(later))).revision.content.title == "then"
    cancel = proposal_pb2.CancelScheduleMutation(family=family, revision=head.head_revision)
    await stack.publish(proposal_pb2.Mutation(cancel_schedule=cancel))
    assert (await stack.head(family, valid_at=stamp(later))).revision.content.title == "now"


async def test_a_deprecated_family_names_what_took_its_place(stack: Stack) -> None:
    """R1: the old family is SUPERSEDED and leads to the new one, in both directions, with why and since when."""
    old = (await stack.create("old way", key="adr/1")).head.family.name
    new = (await stack.create("new way", key="adr/2")).head.family.name
    mutation = proposal_pb2.DeprecateMutation(family=old, replacement_family=new, rationale="it is better")
    await stack.publish(proposal_pb2.Mutation(deprecate=mutation))
    head = await stack.head(old)
    assert head.state == ledger_pb2.STATE_SUPERSEDED
    (by,) = head.replaced_by
    assert (by.family, by.identity_key, by.title, by.reason) == (new, "adr/2", "new way", "it is better")
    assert [r.family for r in (await stack.head(new)).replaces] == [old]
    batch = await stack.as_("reader").ledger.BatchGetHeads(
        ledger_service_pb2.BatchGetHeadsRequest(
            project=NAME, identity_keys=["adr/1", "adr/9"], follow_replacements=True
        )
    )
    assert [h.family.name for h in batch.heads] == [old, new]
    assert list(batch.missing_identity_keys) == ["adr/9"]


async def test_a_read_is_never_older_than_its_token(stack: Stack) -> None:
    """R2: with the token of a write a read sees it; a token of the future is waited for, then refused."""
    applied = await stack.create()
    fresh = common_pb2.Consistency(at_least_as_fresh=applied.token)
    assert (await stack.head(applied.head.family.name, consistency=fresh)).state == ledger_pb2.STATE_ACTIVE
    token = encode(stack.store.info.ledger_id, PROJECT, 2)
    request = ledger_service_pb2.GetHeadRequest(
        family=applied.head.family.name, consistency=common_pb2.Consistency(at_least_as_fresh=token)
    )
    waiting = asyncio.ensure_future(stack.as_("reader").ledger.GetHead(request))
    await stack.create("another")
    assert (await waiting).head.family.name == applied.head.family.name
    request.consistency.at_least_as_fresh.CopyFrom(encode(stack.store.info.ledger_id, PROJECT, 99))
    error = await refusal(stack.as_("reader").ledger.GetHead(request, timeout=0.5))
    assert error.reason is Reason.NOT_FRESH_ENOUGH
    assert error.metadata == {"needed_position": "99", "position": "2"}


# --- Pages ------------------------------------------------------------------------------------------------------------


async def _pages(call: Any, request: Any, field: str, between: Any = None) -> list[Any]:
    found: list[Any] = []
    while True:
        answer = await call(request)
        found += getattr(answer, field)
        if not answer.next_page_token:
            return found
        request.page_token = answer.next_page_token
        if between is not None:
            await between()


async def test_pages_of_every_list_add_up_under_writes(stack: Stack) -> None:
    """L18: the union of the pages is the full set of the first page's moment, each once, whatever is written since."""
    families = [(await stack.create(f"rule {n}")).head.family.name for n in range(7)]

    async def write() -> None:
        await stack.create(f"more {new_id()}")

    read = stack.as_("reader")
    heads = await _pages(
        read.ledger.QueryHeads, ledger_service_pb2.QueryHeadsRequest(project=NAME, page_size=2), "heads", write
    )
    assert [h.family.name for h in heads] == sorted(families)
    listed = await _pages(
        read.ledger.ListFamilies, ledger_service_pb2.ListFamiliesRequest(project=NAME, page_size=3), "families", write
    )
    names = [f.name for f in listed]
    assert names[:7] == families
    assert len(names) == len(set(names))
    proposals = await _pages(
        read.proposals.ListProposals,
        proposal_service_pb2.ListProposalsRequest(
            project=NAME, page_size=3, statuses=[proposal_pb2.PROPOSAL_STATUS_APPLIED]
        ),
        "proposals",
    )
    assert len(proposals) >= 7
    assert len({p.name for p in proposals}) == len(proposals)
    projected = await _pages(
        read.ledger.ListProjections, ledger_service_pb2.ListProjectionsRequest(project=NAME, page_size=3), "projections"
    )
    assert {p.family.name for p in projected} >= set(families)


async def test_a_page_token_belongs_to_its_arguments(stack: Stack) -> None:
    """L18: another filter under the same token is refused, not mixed."""
    for n in range(3):
        await stack.create(f"rule {n}")
    request = ledger_service_pb2.QueryHeadsRequest(project=NAME, page_size=1)
    request.page_token = (await stack.as_("reader").ledger.QueryHeads(request)).next_page_token
    request.needs_review_only = True
    error = await refusal(stack.as_("reader").ledger.QueryHeads(request))
    assert error.reason is Reason.PAGE_TOKEN_MISMATCH


async def test_heads_are_filtered_by_scope_category_state_and_flag(stack: Stack) -> None:
    """L18: a filter returns exactly what fits; an unknown value is an error, never "all"."""
    base = (await stack.create("base")).head.family.name
    above = (await stack.create("above")).head.family.name
    await stack.publish(link(ledger_pb2.RELATION_KIND_DEPENDS_ON, above, base))
    episode = await stack.publish(
        create_rule("happened", category=ledger_pb2.CATEGORY_EPISODE, task="deploy", outcome="it went well")
    )
    await stack.publish(supersede(base, "changed base"))
    gone = (await stack.create("gone")).head.family.name
    await stack.publish(proposal_pb2.Mutation(invalidate=proposal_pb2.InvalidateMutation(family=gone)))

    async def query(**more: Any) -> list[str]:
        request = ledger_service_pb2.QueryHeadsRequest(project=NAME, **more)
        return [h.family.name for h in (await stack.as_("reader").ledger.QueryHeads(request)).heads]

    assert await query(scopes=[ledger_pb2.SCOPE_EPISODIC]) == [episode.head.family.name]
    assert await query(categories=[ledger_pb2.CATEGORY_DESIGN_RULE]) == sorted([base, above])
    assert await query(states=[ledger_pb2.STATE_INVALIDATED]) == [gone]
    assert await query(needs_review_only=True) == [above]
    head = await stack.head(above)
    assert [(f.cause_family, f.cause) for f in head.needs_review] == [(base, "SUPERSEDED")]


# --- Changes ----------------------------------------------------------------------------------------------------------


async def test_a_watch_is_dense_resumable_and_beats(stack: Stack) -> None:
    """L14: concurrent writers: a watcher sees every position in order, resumes after any, and knows it is connected."""
    proposals = [await stack.propose(create_rule(f"rule {n}")) for n in range(12)]
    for proposal in proposals:
        await stack.approve(proposal)
    watch = stack.as_("reader").ledger.WatchChanges(ledger_service_pb2.WatchChangesRequest(project=NAME))
    applies = [asyncio.ensure_future(stack.apply(p)) for p in proposals]
    seen: list[int] = []
    beats = 0
    async for answer in watch:
        if answer.HasField("change"):
            seen.append(answer.change.position)
        else:
            beats += 1
        if len(seen) == 12 and beats >= 2:
            break
    watch.cancel()
    await asyncio.gather(*applies)
    assert seen == list(range(1, 13))
    again = stack.as_("reader").ledger.WatchChanges(
        ledger_service_pb2.WatchChangesRequest(project=NAME, after_position=9)
    )
    rest = [a.change.position async for a in _first(again, 3)]
    assert rest == [10, 11, 12]
    listed = await stack.as_("reader").ledger.ListChanges(
        ledger_service_pb2.ListChangesRequest(project=NAME, page_size=500)
    )
    times = [from_timestamp(c.record_time) for c in listed.changes]
    assert times == sorted(set(times))
    assert listed.changes[0].mutation == "create"


async def _first(watch: Any, count: int) -> AsyncIterator[Any]:
    async for answer in watch:
        if answer.HasField("change"):
            yield answer
            count -= 1
        if not count:
            watch.cancel()
            return


async def test_a_watch_ends_with_the_server(stack: Stack) -> None:
    """S5: a watcher is told to go on elsewhere, and the shutdown does not wait for it."""
    watch = stack.as_("reader").ledger.WatchChanges(ledger_service_pb2.WatchChangesRequest(project=NAME))
    await anext(aiter(watch))
    closing = asyncio.ensure_future(stack.host.close())
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in watch:
            pass
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(4):
        await closing


async def test_a_watch_from_the_future_is_refused(stack: Stack) -> None:
    """L14, I5: a position that this ledger never reached is an error, not silence: it may have been restored."""
    watch = stack.as_("reader").ledger.WatchChanges(
        ledger_service_pb2.WatchChangesRequest(project=NAME, after_position=7)
    )
    error = await refusal(anext(aiter(watch)))
    assert error.fields[0].field == "after_position"


# --- History ----------------------------------------------------------------------------------------------------------


async def test_history_diff_and_blame_agree(stack: Stack) -> None:
    """L8: each field is traced to the revision, people and evidence that set it."""
    first = await stack.create("first", key="adr/1")
    family = first.head.family.name
    update = proposal_pb2.UpdateMutation(
        family=family, content=ledger_pb2.Content(summary="better said"), update_mask={"paths": ["summary"]}
    )
    second = await stack.publish(
        proposal_pb2.Mutation(update=update), evidence=[evidence_input("docs/2.md")], reason="clearer"
    )
    read = stack.as_("reader").ledger
    history = await read.ListRevisions(ledger_service_pb2.ListRevisionsRequest(family=family))
    assert [h.revision.name for h in history.history] == [second.head.revision.name, first.head.revision.name]
    assert len(history.history[1].rows) == 2
    diff = await read.DiffRevisions(
        ledger_service_pb2.DiffRevisionsRequest(
            from_revision=first.head.revision.name, to_revision=second.head.revision.name
        )
    )
    assert [(c.field, c.after) for c in diff.changes] == [("summary", '"better said"')]
    blame = {f.field: f for f in (await read.Blame(ledger_service_pb2.BlameRequest(family=family))).fields}
    assert blame["title"].revision == first.head.revision.name
    assert blame["summary"].revision == second.head.revision.name
    assert blame["summary"].reason == "clearer"
    assert [a.subject for a in blame["summary"].approvers] == ["rui"]
    assert blame["summary"].evidence[0].evidence.locator == "docs/2.md"
    got = await read.GetRevision(ledger_service_pb2.GetRevisionRequest(name=first.head.revision.name))
    assert got.revision == first.head.revision
    by_key = await read.GetFamily(ledger_service_pb2.GetFamilyRequest(project=NAME, identity_key="adr/1"))
    assert by_key.family.name == family
    assert by_key.family.creator.subject == "ana"


async def test_rollback_brings_an_older_content_back(stack: Stack) -> None:
    """L10: a rollback is a new revision with the content of an older one; the index follows by its projection."""
    first = await stack.create("first")
    family = first.head.family.name
    await stack.publish(supersede(family, "second"))
    rollback = proposal_pb2.RollbackMutation(family=family, to_revision=first.head.revision.name)
    await stack.publish(proposal_pb2.Mutation(rollback=rollback))
    head = await stack.head(family)
    assert head.revision.content_hash == first.head.revision.content_hash
    assert head.revision.name != first.head.revision.name
    key = ledger_service_pb2.ProjectionKey(family=family, since_position=3)
    answer = await stack.as_("reader").ledger.BatchGetProjections(
        ledger_service_pb2.BatchGetProjectionsRequest(project=NAME, keys=[key])
    )
    projected = {p.revision.name: p for p in answer.projections[0].revisions}
    assert projected[head.revision.name].is_head
    assert all(p.position == 3 for p in projected.values())


# --- Graph ------------------------------------------------------------------------------------------------------------


async def test_lineage_and_expansion_follow_living_relations_only(stack: Stack) -> None:
    """R5: activation reaches neighbours with decay, strongest first, never through what is not in force."""
    names = {n: (await stack.create(n)).head.family.name for n in ("a", "b", "c", "d", "dead")}
    for source, target in (("a", "b"), ("b", "c"), ("a", "dead"), ("dead", "d")):
        await stack.publish(link(ledger_pb2.RELATION_KIND_DEPENDS_ON, names[source], names[target]))
    invalidate = proposal_pb2.InvalidateMutation(family=names["dead"])
    await stack.publish(proposal_pb2.Mutation(invalidate=invalidate))
    read = stack.as_("reader").ledger
    request = ledger_service_pb2.ExpandRelationsRequest(
        project=NAME, seeds=[ledger_service_pb2.Activation(family=names["a"], activation=1.0)]
    )
    reached = (await read.ExpandRelations(request)).reached
    assert [(r.family, r.activation, r.depth) for r in reached] == [(names["b"], 0.5, 1), (names["c"], 0.25, 2)]
    request.limit = 1
    cut = await read.ExpandRelations(request)
    assert cut.truncated
    assert len(cut.reached) == 1
    graph = await read.GetLineage(ledger_service_pb2.GetLineageRequest(family=names["c"], depth=2))
    assert [h.family.name for h in graph.heads] == [names["c"], names["b"], names["a"]]
    assert len(graph.relations) == 2


async def test_a_relation_is_taken_back_and_asserted_again(stack: Stack) -> None:
    """L12: retired relations stay in the history; the reverse is another relation; cycles are refused."""
    one, two = [(await stack.create(n)).head.family.name for n in ("one", "two")]
    made = await stack.publish(link(ledger_pb2.RELATION_KIND_DEPENDS_ON, one, two))
    cycle = await refusal(
        stack.as_("ana").proposals.CreateProposal(
            proposal_service_pb2.CreateProposalRequest(
                project=NAME,
                request_id=new_id(),
                mutation=link(ledger_pb2.RELATION_KIND_DEPENDS_ON, two, one),
                reason="round",
            )
        )
    )
    assert cycle.reason is Reason.RELATION_CYCLE
    unlink = proposal_pb2.UnlinkMutation(relation=made.relation.name)
    retired = await stack.publish(proposal_pb2.Mutation(unlink=unlink))
    assert retired.relation.state == ledger_pb2.RELATION_STATE_RETIRED
    again = await stack.publish(link(ledger_pb2.RELATION_KIND_DEPENDS_ON, one, two))
    assert again.relation.name != made.relation.name
    read = stack.as_("reader").ledger
    active = await read.ListRelations(ledger_service_pb2.ListRelationsRequest(project=NAME, family=two))
    everything = await read.ListRelations(
        ledger_service_pb2.ListRelationsRequest(project=NAME, family=two, include_retired=True)
    )
    assert [r.name for r in active.relations] == [again.relation.name]
    assert [r.name for r in everything.relations] == [made.relation.name, again.relation.name]


# --- Evidence, observations, previews ---------------------------------------------------------------------------------


async def test_evidence_is_registered_once_and_keeps_its_verifications(stack: Stack) -> None:
    """L4: the same fingerprint is one evidence; what a verifier found is added, never written over."""
    request = evidence_service_pb2.RegisterEvidenceRequest(project=NAME, evidence=evidence_input().draft)
    request.request_id = new_id()
    first = await stack.as_("ana").evidence.RegisterEvidence(request)
    request.request_id = new_id()
    second = await stack.as_("importer").evidence.RegisterEvidence(request)
    assert (first.created, second.created) == (True, False)
    assert first.evidence == second.evidence
    for who, state in (
        ("importer", ledger_pb2.VERIFICATION_STATE_VERIFIED),
        ("rui", ledger_pb2.VERIFICATION_STATE_UNAVAILABLE),
    ):
        record = evidence_service_pb2.RecordVerificationRequest(
            evidence=first.evidence.name, request_id=new_id(), state=state, method="looked"
        )
        answer = await stack.as_(who).evidence.RecordVerification(record)
    assert [v.verifier.subject for v in answer.evidence.verifications] == ["importer", "rui"]
    assert answer.evidence.verification == ledger_pb2.VERIFICATION_STATE_UNAVAILABLE


async def test_a_preview_stores_nothing_and_shows_what_the_proposal_will(stack: Stack) -> None:
    """L5: validate_only gives the preview_hash that the stored proposal gets, and leaves no trace."""
    before = (await stack.store.audit(PROJECT, 0, 1))[1]
    request = proposal_service_pb2.CreateProposalRequest(
        project=NAME, mutation=create_rule(), evidence=[evidence_input()], reason="because", validate_only=True
    )
    preview = (await stack.as_("ana").proposals.CreateProposal(request)).proposal
    assert not preview.name
    assert preview.after.title == "Invoices are immutable"
    assert (await stack.store.audit(PROJECT, 0, 1))[1] == before
    stored = await stack.propose(create_rule())
    assert stored.preview_hash == preview.preview_hash
    assert stored.approvals_needed == 1


async def test_observations_keep_the_history_of_their_admissions(stack: Stack) -> None:
    """G3, L19: a FAILED observation can be tried again; neither it nor a signal makes a proposal or a revision."""
    one = observation_service_pb2.Observation(
        source_kind=ledger_pb2.SOURCE_KIND_ADR, locator="docs/1.md", source_hash=f"sha256:{'a' * 64}", text="texto"
    )
    client = stack.as_("ana").observations
    recorded = await client.RecordObservations(
        observation_service_pb2.RecordObservationsRequest(project=NAME, request_id=new_id(), observations=[one])
    )
    name = recorded.results[0].observation.name
    for outcome in (
        observation_service_pb2.ADMISSION_OUTCOME_FAILED,
        observation_service_pb2.ADMISSION_OUTCOME_NO_MEMORY,
    ):
        admission = observation_service_pb2.Admission(outcome=outcome, reasons=["weight: low"], retryable=True)
        await client.RecordAdmissions(
            observation_service_pb2.RecordAdmissionsRequest(
                project=NAME,
                request_id=new_id(),
                admissions=[observation_service_pb2.AdmissionRecord(observation=name, admission=admission)],
            )
        )
    listed = await client.ListObservations(
        observation_service_pb2.ListObservationsRequest(
            project=NAME, outcomes=[observation_service_pb2.ADMISSION_OUTCOME_NO_MEMORY]
        )
    )
    assert [o.name for o in listed.observations] == [name]
    failed = await client.ListObservations(
        observation_service_pb2.ListObservationsRequest(
            project=NAME, outcomes=[observation_service_pb2.ADMISSION_OUTCOME_FAILED]
        )
    )
    assert not failed.observations
    family = (await stack.create()).head.family.name
    before = await stack.store.position(PROJECT)
    await stack.as_("reader").observations.RecordSignals(
        observation_service_pb2.RecordSignalsRequest(
            project=NAME,
            request_id=new_id(),
            signals=[observation_service_pb2.Signal(family=family, kind=observation_service_pb2.SIGNAL_KIND_HELPFUL)],
        )
    )
    assert await stack.store.position(PROJECT) == before
    queue = await stack.as_("reader").proposals.ListProposals(proposal_service_pb2.ListProposalsRequest(project=NAME))
    assert not queue.proposals


async def test_the_review_queue_is_found_by_family_and_status(stack: Stack) -> None:
    """L18: the queue lists what waits; by family also what was decided."""
    family = (await stack.create()).head.family.name
    waiting = await stack.propose(supersede(family, "waiting"))
    rejected = await stack.propose(supersede(family, "rejected"))
    await stack.as_("rui").proposals.RejectProposal(
        proposal_service_pb2.RejectProposalRequest(proposal=rejected.name, request_id=new_id(), comment="no")
    )
    client = stack.as_("reader").proposals
    queue = await client.ListProposals(proposal_service_pb2.ListProposalsRequest(project=NAME))
    assert [p.name for p in queue.proposals] == [waiting.name]
    request = proposal_service_pb2.ListProposalsRequest(
        project=NAME, family=family, statuses=[proposal_pb2.PROPOSAL_STATUS_REJECTED]
    )
    decided = await client.ListProposals(request)
    assert [(p.name, p.decision_comment) for p in decided.proposals] == [(rejected.name, "no")]
    request.statuses[:] = [proposal_pb2.PROPOSAL_STATUS_APPLIED]
    assert len((await client.ListProposals(request)).proposals) == 1


# --- Outbox, audit ----------------------------------------------------------------------------------------------------


async def test_a_claim_waits_for_an_event_without_polling(stack: Stack) -> None:
    """I1: a waiting claim answers with the commit that makes an event, long before its wait is over."""
    client = stack.as_("indexer").outbox
    request = outbox_service_pb2.ClaimEventsRequest(worker="w", wait=Duration(seconds=20))
    waiting = asyncio.ensure_future(client.ClaimEvents(request))
    nothing = await client.ClaimEvents(outbox_service_pb2.ClaimEventsRequest(worker="x"))
    assert not nothing.events
    await stack.create()
    async with asyncio.timeout(5):
        events = (await waiting).events
    assert len(events) == 1
    refs = [outbox_service_pb2.EventRef(id=e.id, fencing_token=e.fencing_token) for e in events]
    assert not (await client.AckEvents(outbox_service_pb2.AckEventsRequest(events=refs))).lost
    stats = await client.GetOutboxStats(outbox_service_pb2.GetOutboxStatsRequest(project=NAME))
    assert (stats.pending, stats.handled_position, stats.head_position) == (0, 1, 1)


async def test_a_waiting_claim_ends_with_the_server(stack: Stack) -> None:
    """S5: a claim that waits does not hold the shutdown."""
    request = outbox_service_pb2.ClaimEventsRequest(worker="w", wait=Duration(seconds=25))
    waiting = asyncio.ensure_future(stack.as_("indexer").outbox.ClaimEvents(request))
    await stack.as_("reader").admin.GetLedgerInfo(admin_service_pb2.GetLedgerInfoRequest())
    async with asyncio.timeout(4):
        await stack.host.close()
    answer = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(answer[0], grpc.aio.AioRpcError) or not answer[0].events


async def test_the_audit_lists_and_verifies_every_step(stack: Stack) -> None:
    """L15: every decision and refusal is one entry of an unbroken chain that anybody can recompute."""
    await stack.create()
    listed = await stack.as_("admin").admin.ListAuditEntries(admin_service_pb2.ListAuditEntriesRequest(project=NAME))
    assert [e.action for e in listed.entries] == ["create_project", "propose", "approve", "apply"]
    assert [e.previous_hash for e in listed.entries[1:]] == [e.entry_hash for e in listed.entries[:-1]]
    verified = await stack.as_("admin").admin.VerifyAudit(admin_service_pb2.VerifyAuditRequest(project=NAME))
    assert verified.valid
    assert verified.entries == 4
    assert verified.chain_head == listed.entries[-1].entry_hash
    info = await stack.as_("agent").admin.GetLedgerInfo(admin_service_pb2.GetLedgerInfoRequest())
    assert (info.store, info.caller.subject) == ("sqlite", "agent-7")


async def test_portuguese_content_comes_back_as_it_was(stack: Stack) -> None:
    """R8: accents, in composed or decomposed form, are one text; both languages work everywhere."""
    made = await stack.create("Decisão: as faturas são imutáveis", key="adr/decisão")
    assert made.head.revision.content.title == "Decisão: as faturas são imutáveis"
    found = await stack.as_("reader").ledger.GetFamily(
        ledger_service_pb2.GetFamilyRequest(project=NAME, identity_key="adr/decisão")
    )
    assert found.family.name == made.head.family.name
    title = unicodedata.normalize("NFD", "Decisão: as faturas são imutáveis")
    decomposed = supersede(made.head.family.name, title)
    error = await refusal(
        stack.as_("ana").proposals.CreateProposal(
            proposal_service_pb2.CreateProposalRequest(
                project=NAME, request_id=new_id(), mutation=decomposed, evidence=[evidence_input()], reason="igual"
            )
        )
    )
    assert error.reason is Reason.STATE_CONFLICT
    assert rule_content().title
