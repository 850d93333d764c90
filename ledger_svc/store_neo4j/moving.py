"""Moving house: reads a whole project in order, and writes one step of an import under the lock of its node.

Until the last step the project's node has the label ``Importing`` instead of ``Project``, by which every other
statement finds a project: so nobody sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

from neo4j.exceptions import ConstraintError

from ledger_svc import rows as r
from ledger_svc.domain.model import (
    Admission,
    AuditEntry,
    Commit,
    Observation,
    Policy,
    Proposal,
    ProposalStatus,
    ReviewFlag,
    Signal,
    StoredReply,
)
from ledger_svc.domain.moving import (
    ImportMarker,
    ImportProgress,
    ImportStep,
    MovingRecord,
    ids_taken,
    is_done,
    signal_key,
)
from ledger_svc.moving import RecordSink, changes_of, fill_events
from ledger_svc.records import dump, load
from ledger_svc.state import Change
from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.database import Transaction
from ledger_svc.store_neo4j.keys import head_key
from ledger_svc.store_neo4j.loader import Counters
from ledger_svc.store_neo4j.persister import Persister

_PAGE: Final = 200
_FAMILIES_AT_ONCE: Final = 50


class _Source:
    """Reads in one transaction, in pages."""

    def __init__(self, transaction: Transaction, project_id: str) -> None:
        self._tx = transaction
        self._own = {"project_id": project_id}
        self._project_id = project_id

    async def _each(self, query: str, **parameters: Any) -> AsyncIterator[list[list[Any]]]:
        """Yield the rows of a statement, some at a time."""
        page: list[list[Any]] = []
        async for record in await self._tx.each(query, **self._own, **parameters):
            page.append(record.values())
            if len(page) == _PAGE:
                yield page
                page = []
        if page:
            yield page

    async def _paged(self, query: str, place: int, **parameters: Any) -> AsyncIterator[list[list[Any]]]:
        """Yield the pages of a statement that takes ``after`` and ``limit``; ``place`` of a row says how far it is."""
        after = 0
        while True:
            page = await self._tx.run(query, **self._own, **parameters, after=after, limit=_PAGE)
            if page:
                yield page
            if len(page) < _PAGE:
                return
            after = page[-1][place]

    async def _families(self) -> AsyncIterator[list[str]]:
        """Yield ids of families in order, some at a time."""
        ids: list[str] = []
        async for page in self._each(q.MOVE_FAMILY_IDS):
            ids += [row[0] for row in page]
        for at in range(0, len(ids), _FAMILIES_AT_ONCE):
            yield ids[at : at + _FAMILIES_AT_ONCE]

    async def _by_family(self, query: str) -> AsyncIterator[list[list[Any]]]:
        async for ids in self._families():
            async for page in self._each(query, ids=ids):
                yield page

    async def pages(self) -> AsyncIterator[tuple[Callable[[list[list[Any]]], Iterable[MovingRecord]], list[list[Any]]]]:
        """Yield pages of rows in the order of an export, each with what makes records of them."""
        project = await self._tx.run(q.PROJECT, **self._own)
        yield _each_of(lambda row: r.project_of(row[0])), project
        async for page in self._each(q.MOVE_POLICIES):
            yield _each_of(lambda row: load(Policy, row[0])), page
        async for page in self._each(q.ENTRIES_AS_STORED):
            yield _each_of(lambda row: load(AuditEntry, row[1])), page
        async for page in self._each(q.MOVE_FAMILIES):
            yield _each_of(lambda row: r.family_of(row[0])), page
        async for page in self._each(q.MOVE_EVIDENCE):
            yield _each_of(lambda row: r.evidence_of(row[0], row[1])), page
        async for page in self._by_family(q.MOVE_REVISIONS):
            yield _each_of(lambda row: r.revision_of(*row)), page
        async for page in self._by_family(q.MOVE_ROWS):
            yield _each_of(lambda row: r.timeline_row_of(tuple(row[0]))), page
        async for page in self._by_family(q.MOVE_HEADS):
            yield _each_of(lambda row: r.head_of(tuple(row[0]))), page
        async for page in self._each(q.MOVE_RELATIONS):
            yield _each_of(lambda row: r.relation_of(tuple(row[0]))), page
        async for page in self._by_family(q.MOVE_FLAGS):
            yield _each_of(lambda row: r.flag_of(tuple(row[0]))), page
        statuses = sorted(status.value for status in ProposalStatus)
        async for page in self._paged(q.PROPOSALS_PAGE, 3, statuses=statuses):
            yield _proposals, page
        async for page in self._each(q.MOVE_COMMITS):
            yield _each_of(lambda row: load(Commit, row[0])), page
        async for page in self._paged(q.MOVE_OBSERVATIONS, 1):
            yield _observations, page
        async for ids in self._families():
            yield _signals, await self._tx.run(q.MOVE_SIGNALS, **self._own, ids=ids)
        async for page in self._each(q.MOVE_REPLIES):
            yield _each_of(self._reply), page

    def _reply(self, row: list[Any]) -> StoredReply:
        caller, request_id, rpc, *rest = row
        return r.reply_of(self._project_id, (caller, rpc, request_id, *rest))


def _each_of(read: Callable[[list[Any]], MovingRecord]) -> Callable[[list[list[Any]]], Iterable[MovingRecord]]:
    return lambda page: map(read, page)


def _proposals(page: list[list[Any]]) -> Iterable[MovingRecord]:
    for body, status, progress, _, approvals in page:
        yield r.proposal_of(body, status, progress)
        yield from (r.approval_of(*one) for one in approvals)


def _observations(page: list[list[Any]]) -> Iterable[MovingRecord]:
    for body, _, admissions in page:
        yield load(Observation, body)
        yield from (load(Admission, one) for one in admissions)


def _signals(page: list[list[Any]]) -> Iterable[MovingRecord]:
    for (bodies,) in page:
        yield from sorted((load(Signal, body) for body in bodies), key=signal_key)


async def export(tx: Transaction, project_id: str, sink: RecordSink) -> bool:
    """Put every record of a project into the sink; False when there is no such project."""
    if not await tx.run(q.POSITION, project_id=project_id):
        return False
    sink.begin()

    def put(make: Callable[[list[list[Any]]], Iterable[MovingRecord]], page: list[list[Any]]) -> None:
        for record in make(page):
            sink.put(record)

    async for make, page in _Source(tx, project_id).pages():
        # In a thread: other calls go on meanwhile.
        await asyncio.to_thread(put, make, page)
    return True


async def progress(tx: Transaction, project_id: str) -> ImportProgress:
    """Return what is known of a project that is to be imported."""
    row = await tx.one(q.IMPORTED, project_id=project_id)
    visible = row is not None
    if row is None:
        row = await tx.one(q.IMPORTING, project_id=project_id)
    if row is None:
        return ImportProgress()
    digest, records = row
    return ImportProgress(visible, ImportMarker(digest, records) if digest else None)


async def import_step(tx: Transaction, step: ImportStep, records: Sequence[MovingRecord]) -> tuple[bool, int, int]:
    """Do a step; return whether there was something to do, and the version and position of the project."""
    own = {"project_id": step.project_id}
    # One at a time, also where there is no node of the project yet.
    await tx.run(q.LOCK_PROJECTS)
    if is_done(await progress(tx, step.project_id), step):
        return False, 0, 0
    counters = await _lock(tx, step)
    persister = _ImportPersister(tx, step.project_id, counters)
    try:
        await _persist(persister, changes_of(step.project_id, records))
        flagged = sorted({head_key(f.family_id, f.branch) for f in records if isinstance(f, ReviewFlag)})
        if flagged:
            await tx.run(q.MOVE_FLAGGED, heads=flagged)
        about = [
            {"family_id": p.result_family_id, "proposal_id": p.proposal_id}
            for p in records
            if isinstance(p, Proposal) and p.result_family_id
        ]
        if about:
            await tx.run(q.ADD_PROPOSAL_FAMILIES, rows=about)
        position = (await tx.run(q.IMPORT_NOTE, **own, records=step.upto))[0][0]
        if step.last:
            heads = [(family_id, branch) for family_id, branch in await tx.run(q.MOVE_HEAD_KEYS, **own)]
            for change in fill_events(step.project_id, position, heads, step.now):
                await _persist(persister, [change])
        await persister.finish()
        if step.last:
            await tx.run(q.IMPORT_SHOW, **own)
    except ConstraintError:
        # Everything that a file can have wrong by itself was looked at before.
        raise ids_taken(step.project_id) from None
    return True, counters.version, position


async def _lock(tx: Transaction, step: ImportStep) -> Counters:
    row = await tx.one(q.IMPORT_LOCK, project_id=step.project_id)
    if row is None:
        made = {
            "project_id": step.project_id,
            "body": dump(step.project),
            "policy_version": step.project.policy_version,
            "title": step.project.display_name,
            "position": 0,
            "recorded_at": 0,
            "audit_sequence": 0,
            "audit_hash": "",
            "version": 0,
            "seq": 0,
            "import_digest": step.digest,
            "import_records": 0,
        }
        row = await tx.one(q.ADD_IMPORT, rows=[made])
    version, sequence, number = row or (0, 0, 0)
    return Counters(number, sequence, version)


class _ImportPersister(Persister):
    """Writes below the hidden node."""

    PERSIST = q.PERSIST_IMPORT


async def _persist(persister: Persister, changes: Sequence[Change]) -> None:
    persister.persist(changes)
    await persister.flush()
