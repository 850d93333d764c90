"""Ingest: observations in, proposals and recorded outcomes out.

Observations are handled in micro-batches, every step of which is one call for all of them::

    sanitise → record → (replays end here) → extract
      → [stored heads → neighbours → gates → propose → apply] → relate → admit

The part in brackets runs in waves: within a wave every identity occurs once, so the observations of one identity are
handled in the order in which they came, each judged against what the one before it published. Nothing is kept
between calls: the ledger knows what was recorded, and every write carries a request id made of what it writes, so a
batch that broke off anywhere is simply sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ingest_svc.domain import (
    Admission,
    Candidate,
    EvidenceReference,
    GateResult,
    OutcomeKind,
    RawObservation,
    RelationDraft,
    Similar,
    Stored,
    Verdict,
)
from ingest_svc.extractor import Extracted, Extractor, NothingToRemember
from ingest_svc.gates import Rules, Situation, judge, needs_comparison
from ingest_svc.index_client import SimilaritySource
from ingest_svc.ledger_client import AdmissionRecord, LedgerClient, Proposed
from ingest_svc.work import (
    MOVED,
    TRANSIENT,
    Handled,
    Incoming,
    Item,
    Target,
    Work,
    admission_of_items,
    clean_of,
    failed_as,
    gates_of,
    handled_as,
    linking_of,
    not_extracted,
    publication_of,
    relinked,
    replayed_as,
    sanitise_batch,
    sanitised_candidate,
    settle,
    waves,
)
from service_kit.errors import DomainError, Reason
from service_kit.logs import get_logger
from service_kit.sanitising.sanitise import Sanitised, sanitise

BATCH_SIZE: Final = 64
LINGER_SECONDS: Final = 0.004
"""How long a batch that is not full waits for the next observation."""
ATTEMPTS: Final = 3
"""How often a candidate is judged anew when its head moved under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the gates say of a candidate, with the titles of its neighbours."""

    candidate: Candidate
    stored: Stored | None
    verdict: Verdict
    redactions: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProposed:
    """The answer to a memory of somebody's own wording."""

    admission: Admission
    gates: tuple[GateResult, ...]
    proposal: Proposed | None = None
    redactions: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Link:
    """One relation on its way."""

    work: Work
    relation: RelationDraft
    source: Stored
    end: Stored
    error: DomainError | None = None


class IngestService:
    """Takes observations and candidates through sanitising, extraction and the gates to the ledger."""

    def __init__(self, ledger: LedgerClient, index: SimilaritySource, extractor: Extractor) -> None:
        self._ledger = ledger
        self._index = index
        self._extractor = extractor
        self._log = get_logger("ingest")

    # --- Streams ----------------------------------------------------------------------------------------------------

    async def ingest(self, target: Target, source: AsyncIterator[Incoming]) -> AsyncIterator[Handled]:
        """Handle a stream of observations; yields each outcome when its batch is done.

        Raises:
            DomainError: The project does not exist, the caller may not propose in it, or the ledger is gone.
        """
        rules = await self._ledger.rules(target.project)
        stream = _Stream(self, target, rules)
        async for batch in batches(source):
            for handled in await stream.handle(batch):
                yield handled
        await stream.finish()

    async def handle(self, target: Target, rules: Rules, batch: Sequence[Incoming]) -> Sequence[Handled]:
        """Handle one batch by itself."""
        stream = _Stream(self, target, rules)
        handled = await stream.handle(batch)
        await stream.finish()
        return handled

    # --- One candidate ----------------------------------------------------------------------------------------------

    async def evaluate(
        self, target: Target, candidate: Candidate, registered: Sequence[EvidenceReference] = ()
    ) -> Evaluation:
        """Run a candidate through all gates; store nothing."""
        rules = await self._ledger.rules(target.project)
        candidate, redactions = sanitised_candidate(candidate)
        stored = await self._ledger.stored(target.project, target.branch, [candidate.identity_key])
        item = Item(candidate, 0, stored=stored.get(candidate.identity_key))
        await self.judge_all(target, rules, [item], registered)
        if item.verdict is None:
            raise AssertionError("every item is judged")
        return Evaluation(candidate=candidate, stored=item.stored, verdict=item.verdict, redactions=redactions)

    async def propose_memory(
        self,
        target: Target,
        request_id: str,
        observation: RawObservation,
        candidate: Candidate,
        reason: str,
        registered: Sequence[EvidenceReference] = (),
    ) -> MemoryProposed:
        """Take a memory of the caller's own wording through the same gates, and propose it.

        The request is recorded as an observation, so that a repeated one finds its first answer.
        """
        clean, redactions = clean_of(observation)
        # Twice: under the caller's id, where another request is refused before it is stored; then for its outcome.
        await self._ledger.record(target.project, [clean], request_id=f"propose/{request_id}")
        recorded = (await self._ledger.record(target.project, [clean]))[0]
        if isinstance(recorded, DomainError):
            raise recorded
        if recorded.admission is not None and recorded.admission.final:
            known = recorded.admission
            proposal = await self._ledger.proposal(known.proposals[0]) if known.proposals else None
            return MemoryProposed(
                admission=known, gates=gates_of(known), proposal=proposal, redactions=dict(redactions)
            )
        evaluation = await self.evaluate(target, candidate, registered)
        verdict, candidate = evaluation.verdict, evaluation.candidate
        item = Item(candidate, 0, verdict=verdict, stored=evaluation.stored)
        proposed: Proposed | None = None
        if verdict.admitted:
            change = replace(
                publication_of(item, recorded.name),
                request_id=f"propose/{request_id}",
                reason=sanitise(reason).text,
                registered=tuple(registered),
            )
            answer = (await self._ledger.propose(target.project, target.branch, [change]))[0]
            if isinstance(answer, DomainError):
                failed = Admission(
                    kind=OutcomeKind.FAILED, reasons=(answer.message,), retryable=answer.reason in TRANSIENT
                )
                await self._ledger.admit(target.project, [AdmissionRecord(recorded.name, failed)])
                raise answer
            proposed = answer
        item.proposal = proposed.name if proposed is not None else ""
        admission = admission_of_items([item], candidate.extractor or "proposer")
        await self._ledger.admit(target.project, [AdmissionRecord(recorded.name, admission)])
        return MemoryProposed(
            admission=admission,
            gates=verdict.gates,
            proposal=proposed,
            redactions={**dict(redactions), **dict(evaluation.redactions)},
        )

    @staticmethod
    async def sanitise_text(text: str) -> Sanitised:
        """Show what sanitising makes of a text; store nothing."""
        return await asyncio.to_thread(sanitise, text)

    # --- Steps, each one call for many ------------------------------------------------------------------------------

    async def record(self, target: Target, works: Sequence[Work]) -> None:
        """Record the observations; what is known and done is answered from its record."""
        results = await self._ledger.record(target.project, [work.clean for work in works])
        for work, result in zip(works, results, strict=True):
            if isinstance(result, DomainError):
                work.handled = failed_as(work, result)
            else:
                work.name = result.name
                if result.admission is not None and result.admission.final:
                    work.handled = replayed_as(work, result)

    async def extract(self, works: Sequence[Work]) -> None:
        """Read candidates from the observations."""
        results = await asyncio.gather(*(self._extractor.extract(work.clean) for work in works))
        for work, result in zip(works, results, strict=True):
            work.extractor = result.extractor
            if isinstance(result, Extracted):
                work.items = [Item(candidate, index) for index, candidate in enumerate(result.candidates)]
                work.only_relations = not result.candidates
                work.relations = [
                    *result.relations,
                    *(relation for candidate in result.candidates for relation in candidate.relations),
                ]
            elif isinstance(result, NothingToRemember):
                admission = Admission(kind=OutcomeKind.NO_MEMORY, reasons=(result.reason,), extractor=result.extractor)
                work.handled = handled_as(work, admission)
            else:
                work.handled = not_extracted(work, result)

    async def judge_all(
        self, target: Target, rules: Rules, items: Sequence[Item], registered: Sequence[EvidenceReference] = ()
    ) -> None:
        """Judge candidates whose stored heads are known; compares those that need it in one call."""
        compared = [item for item in items if needs_comparison(item.candidate, item.stored)]
        neighbours: dict[int, tuple[Similar, ...]] = {}
        model, lost = "", False
        if compared:
            try:
                comparison = await self._index.similar(
                    target.project, target.branch, [item.candidate.content for item in compared]
                )
                model = comparison.model
                neighbours = await self._in_force(target, compared, comparison.neighbours)
            except DomainError as error:
                # A path without the index loses advice and nothing else.
                self._log.warning("not_compared", reason=error.reason.value)
                lost = True
        asked = {id(item) for item in compared}
        for item in items:
            mine = id(item) in asked
            item.verdict = judge(
                item.candidate,
                Situation(
                    project=target.project,
                    stored=item.stored,
                    similar=neighbours.get(id(item), ()),
                    model=model if mine else "",
                    comparison_failed=lost and mine,
                    registered_sources=sum(reference.stance.value == "SUPPORTS" for reference in registered),
                    rules=rules,
                ),
            )

    async def _in_force(
        self, target: Target, items: Sequence[Item], found: Sequence[tuple[Similar, ...]]
    ) -> dict[int, tuple[Similar, ...]]:
        """The neighbours that the ledger holds in force now, with their heads and titles: the index may lag."""
        heads = await self._ledger.heads(
            target.project, target.branch, [neighbour.family for row in found for neighbour in row]
        )
        kept: dict[int, tuple[Similar, ...]] = {}
        for item, row in zip(items, found, strict=True):
            kept[id(item)] = tuple(
                replace(neighbour, head=heads[neighbour.family].head, title=heads[neighbour.family].title)
                for neighbour in row
                if neighbour.family in heads and heads[neighbour.family].active
            )
        return kept

    async def publish(self, target: Target, rules: Rules, wave: Sequence[tuple[Work, Item]]) -> None:
        """Judge, propose and apply one wave; a candidate whose head moved under it is judged anew."""
        pending = list(wave)
        for attempt in range(1, ATTEMPTS + 1):
            keys = [item.candidate.identity_key for _, item in pending]
            stored = await self._ledger.stored(target.project, target.branch, keys)
            for _, item in pending:
                item.stored = stored.get(item.candidate.identity_key)
                item.error = None
            await self.judge_all(target, rules, [item for _, item in pending])
            admitted = [(work, item) for work, item in pending if item.verdict is not None and item.verdict.admitted]
            if not admitted:
                return
            answers = await self._ledger.propose(
                target.project, target.branch, [publication_of(item, work.name) for work, item in admitted]
            )
            approved: list[Item] = []
            for (_, item), answer in zip(admitted, answers, strict=True):
                if isinstance(answer, DomainError):
                    item.error = answer
                    continue
                item.proposal = answer.name
                item.applied = answer.applied
                if answer.approved and target.apply_approved:
                    approved.append(item)
            await self._apply(target, approved)
            pending = [(work, item) for work, item in admitted if item.error and item.error.reason in MOVED]
            if not pending or attempt == ATTEMPTS:
                return

    async def _apply(self, target: Target, items: Sequence[Item]) -> None:
        left = list(items)
        for _ in range(ATTEMPTS):
            if not left:
                return
            results = await self._ledger.apply(target.project, [item.proposal for item in left])
            again: list[Item] = []
            for item, error in zip(left, results, strict=True):
                item.error = error
                item.applied = error is None
                if error is not None and error.reason is Reason.WRITE_CONTENTION:
                    again.append(item)
            left = again

    async def link(self, target: Target, works: Sequence[Work]) -> None:
        """Propose the relations whose two ends are published; note those that wait for one."""
        keys = [
            key for work in works for relation in work.relations for key in (relation.source_key, relation.target_key)
        ]
        if not keys:
            return
        families = await self._ledger.stored(target.project, target.branch, keys)
        asked: list[_Link] = []
        for work in works:
            waiting: list[RelationDraft] = []
            for relation in work.relations:
                source, end = families.get(relation.source_key), families.get(relation.target_key)
                if source is None or end is None:
                    work.missing.append(relation.target_key if end is None else relation.source_key)
                    waiting.append(relation)
                elif source.family != end.family:
                    asked.append(_Link(work, relation, source, end))
            work.relations = waiting
        again = await self._link(target, asked, later=False)
        refused = await self._link(target, again, later=True)
        for link in refused:
            if link.error is not None:
                link.work.link_errors.append(link.error)

    async def _link(self, target: Target, links: Sequence[_Link], *, later: bool) -> Sequence[_Link]:
        """Propose and apply relations; return those whose target held on after the time that they name."""
        if not links:
            return ()
        changes = [linking_of(one.work, one.relation, one.source, one.end, later=later) for one in links]
        answers = await self._ledger.propose(target.project, target.branch, changes)
        approved: list[tuple[_Link, Proposed]] = []
        for link, answer in zip(links, answers, strict=True):
            link.error = answer if isinstance(answer, DomainError) else None
            if isinstance(answer, Proposed):
                link.work.links.append(answer.name)
                if answer.applied:
                    link.work.linked.append(link.source.family)
                elif answer.approved and target.apply_approved:
                    approved.append((link, answer))
        results = await self._ledger.apply(target.project, [proposed.name for _, proposed in approved])
        for (link, proposed), error in zip(approved, results, strict=True):
            link.error = error
            if error is None:
                link.work.linked.append(link.source.family)
            elif error.reason is Reason.ALREADY_EXISTS:
                link.work.links.remove(proposed.name)
        held_on: list[_Link] = []
        for link in links:
            error = link.error
            if error is None:
                continue
            if error.reason in {Reason.ALREADY_EXISTS, Reason.REQUEST_ID_REUSED}:
                link.work.known_links += 1
            elif later or error.metadata.get("rule") == "still_in_force":
                held_on.append(link)
            else:
                link.work.link_errors.append(error)
        return held_on

    async def finish(self, target: Target, works: Sequence[Work]) -> Sequence[Handled]:
        """Record the outcomes of a batch and return them."""
        unsettled = [work for work in works if work.handled is None]
        new_keys = [
            item.candidate.identity_key
            for work in unsettled
            for item in work.items
            if item.applied and item.stored is None and item.candidate.identity_key
        ]
        made = await self._ledger.stored(target.project, target.branch, new_keys) if new_keys else {}
        for work in unsettled:
            work.handled = settle(work, made)
        records = [
            AdmissionRecord(work.name, work.handled.admission)
            for work in works
            if work.name and work.handled is not None and not work.handled.replayed
        ]
        if records:
            await self._ledger.admit(target.project, records)
        return [work.handled for work in works if work.handled is not None]


class _Stream:
    """The batches of one call. Relations that wait for their other end are tried again as more is published."""

    def __init__(self, service: IngestService, target: Target, rules: Rules) -> None:
        self._service = service
        self._target = target
        self._rules = rules
        self._waiting: list[Work] = []

    async def handle(self, batch: Sequence[Incoming]) -> Sequence[Handled]:
        """Handle one batch."""
        works = await asyncio.to_thread(sanitise_batch, batch)
        try:
            return await self._handle(works)
        except DomainError as error:
            if error.reason not in TRANSIENT:
                raise
            # The ledger did not answer: nothing is lost, what has no outcome is told so and can be sent again.
            return [work.handled or failed_as(work, error) for work in works]

    async def _handle(self, works: Sequence[Work]) -> Sequence[Handled]:
        service, target = self._service, self._target
        await service.record(target, works)
        await service.extract([work for work in works if work.handled is None])
        open_works = [work for work in works if work.handled is None]
        for wave in waves(open_works):
            await service.publish(target, self._rules, wave)
        await service.link(target, open_works)
        handled = await service.finish(target, works)
        self._waiting += [work for work in open_works if work.relations and not work.only_relations]
        await self._retry_links()
        return handled

    async def _retry_links(self) -> None:
        if not self._waiting:
            return
        before = {id(work): len(work.links) for work in self._waiting}
        await self._service.link(self._target, self._waiting)
        news = [work for work in self._waiting if len(work.links) > before[id(work)]]
        if news:
            await self._service.finish(self._target, [relinked(work) for work in news])
        self._waiting = [work for work in self._waiting if work.relations]

    async def finish(self) -> None:
        """End the stream: relations whose other end never came are left to the observation that brings it."""
        self._waiting.clear()


async def batches(source: AsyncIterator[Incoming]) -> AsyncIterator[Sequence[Incoming]]:
    """Gather what is there: up to a full batch, and no longer than a moment after the last one came.

    Reading goes on while a batch is being handled, so that the next one is full when there is enough to do.
    """
    queue: asyncio.Queue[Incoming | None] = asyncio.Queue(2 * BATCH_SIZE)

    async def pump() -> None:
        try:
            async for incoming in source:
                await queue.put(incoming)
        except Exception:
            # Not when cancelled: then nobody reads the queue any more.
            await queue.put(None)
            raise
        await queue.put(None)

    reader = asyncio.create_task(pump())
    try:
        ended = False
        while not ended:
            batch: list[Incoming] = []
            while len(batch) < BATCH_SIZE:
                try:
                    async with asyncio.timeout(LINGER_SECONDS if batch else None):
                        incoming = await queue.get()
                except TimeoutError:
                    break
                if incoming is None:
                    ended = True
                    break
                batch.append(incoming)
            if batch:
                yield batch
        # What ended the source early is told after what came before it was handled.
        await reader
    finally:
        if not reader.done():
            reader.cancel()
            await asyncio.wait([reader])
