"""What only the SQLite store can show: the schema's own guards, tampering by byte, the cost of queries."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger_svc import rows as r
from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.model import (
    Category,
    Content,
    Create,
    Deprecate,
    Invalidate,
    Link,
    RelationKind,
    Revision,
    Supersede,
)
from ledger_svc.outbox import MOST_ATTEMPTS
from ledger_svc.store_sqlite import SchemaTooNewError, SqliteLedgerStore
from ledger_svc.store_sqlite.connection import connect
from ledger_svc.views import Detail, HeadsPageQuery, HeadsQuery, ProjectionKey, RelationsQuery
from service_kit.errors import DomainError, Reason
from tests.contract.test_ledger_store_contract import ANA, World

IMMUTABLE = {
    "revisions": ("content", "body", "family_id", "number"),
    "evidence": ("body", "fingerprint"),
    "verifications": ("body",),
    "audit": ("body", "sequence"),
    "commits": ("body", "position"),
    "families": ("body", "category"),
    "identity_keys": ("family_id",),
    "policies": ("body",),
    "approvals": ("body", "proposal_id"),
    "proposals": ("body",),
    "replies": ("request_hash", "rpc"),
    "observations": ("body",),
    "admissions": ("body",),
    "signals": ("body",),
    "relations": ("body", "kind"),
    "timeline_rows": ("valid_to", "revision_id", "standing", "recorded_from"),
    "review_flags": ("cause",),
    "heads": ("project_id",),
}


async def _fill(world: World) -> None:
    """One of every record."""
    from ledger_svc.domain.model import (
        Admission,
        AdmissionOutcome,
        Observation,
        Signal,
        SignalKind,
        SourceKind,
        VerificationState,
    )
    from ledger_svc.service.context import as_principal
    from ledger_svc.service.evidence import EvidenceService
    from ledger_svc.state import BEGINNING
    from tests.contract.test_ledger_store_contract import RUI

    await world.make_project()
    old, new = await world.create("old", key="adr/1"), await world.create("new", key="adr/2")
    await world.publish(Link(RelationKind.DEPENDS_ON, old, new))
    await world.publish(Supersede(new, Content("newer")))
    await world.publish(Deprecate(old, new))
    await world.propose(Supersede(new, Content("waiting")))
    who = as_principal(ANA, "p1")
    text = Observation("", "p1", SourceKind.ADR, "docs/1", "sha256:" + "a" * 64, "t", "x", "", None, {}, who, BEGINNING)
    (seen,) = await world.observations.record(world.request(ANA, "RecordObservations"), [text])
    ident = seen.view.observation.observation_id
    admission = Admission(ident, 0, AdmissionOutcome.NO_MEMORY, (), (), "x", who, BEGINNING)
    await world.observations.admit(world.request(ANA, "RecordAdmissions"), [admission])
    signal = Signal("p1", new, SignalKind.USED, world.clock.now(), who, BEGINNING)
    await world.observations.signal(world.request(ANA, "RecordSignals"), [signal])
    head = await world.head(new)
    evidence = EvidenceService(world.ledger)
    await evidence.verify(
        world.request(RUI, "RecordVerification"),
        head.revision.evidence_links[0].evidence_id,
        VerificationState.VERIFIED,
        "git@1: equal",
    )


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """A closed ledger file with one of every record."""
    path = tmp_path / "ledger.sqlite"
    store = await SqliteLedgerStore.open(path)
    await _fill(World(store))
    await store.close()
    return path


async def test_the_database_refuses_to_change_what_is_immutable(file: Path) -> None:
    """L13: UPDATE and DELETE of every immutable column and row are refused by the database itself."""
    database = connect(str(file))
    try:
        for table, columns in IMMUTABLE.items():
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0, table  # noqa: S608
            for column in columns:
                other = f"CASE typeof({column}) WHEN 'integer' THEN {column} - 1 ELSE {column} || '1' END"
                with pytest.raises(sqlite3.IntegrityError, match="immutable"):
                    database.execute(f"UPDATE {table} SET {column} = {other}")  # noqa: S608
            with pytest.raises(sqlite3.IntegrityError, match="never deleted"):
                database.execute(f"DELETE FROM {table}")  # noqa: S608
        with pytest.raises(sqlite3.IntegrityError):
            database.execute("INSERT OR REPLACE INTO audit SELECT project_id, sequence, '{}' FROM audit LIMIT 1")
        for settled in (
            "UPDATE timeline_rows SET closed_position = 99 WHERE closed_position > 0",
            "UPDATE proposals SET status = 'PENDING' WHERE status = 'APPLIED'",
            "UPDATE projects SET position = 0",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="immutable"):
                database.execute(settled)
    finally:
        database.close()


async def test_a_newer_schema_is_refused(file: Path) -> None:
    """L1: a program that is older than the file does not touch it, and says what to do."""
    database = connect(str(file))
    database.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    database.close()
    with pytest.raises(SchemaTooNewError, match="start a newer program"):
        await SqliteLedgerStore.open(file)


# --- Faults -----------------------------------------------------------------------------------------------------------


class FaultyConnection(sqlite3.Connection):
    """A connection on which the n-th statement that writes fails, once."""

    fail_at = 0
    writes = 0

    def _count(self, sql: str) -> None:
        if sql.lstrip().startswith(("INSERT", "UPDATE", "DELETE", "COMMIT")):
            cls = FaultyConnection
            cls.writes += 1
            if cls.writes == cls.fail_at:
                raise sqlite3.OperationalError("disk I/O error")

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        """Run a statement, or fail."""
        self._count(sql)
        return super().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
        """Run a statement many times, or fail."""
        self._count(sql)
        return super().executemany(sql, *args)


async def test_a_fault_at_any_step_of_an_apply_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: whichever statement of the apply fails, even the commit: nothing is there; asked again, all of it is."""
    plain = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: plain(*a, **{**k, "factory": FaultyConnection}))
    store = await SqliteLedgerStore.open(tmp_path / "ledger.sqlite")
    try:
        world = World(store)
        await world.make_project()
        base, above = await world.create("base"), await world.create("above")
        await world.publish(Link(RelationKind.DEPENDS_ON, above, base))
        position, faults = 3, 0
        for step in range(1, 60):
            view = await world.approve(await world.propose(Supersede(base, Content(f"step {step}"))))
            item = (world.request(ANA, "ApplyProposal"), view.proposal.proposal_id, "")
            FaultyConnection.writes, FaultyConnection.fail_at = 0, step
            (answer,) = await asyncio.gather(
                world.proposals.apply(ANA, "p1", [item], brief=True), return_exceptions=True
            )
            FaultyConnection.fail_at = 0
            if not isinstance(answer, BaseException):
                break
            assert isinstance(answer, DomainError)
            assert answer.reason is Reason.DEPENDENCY_UNAVAILABLE
            faults += 1
            assert await store.position("p1") == position
            assert await store.verify("p1", ChainVerifier()) == []
            (applied,) = await world.proposals.apply(ANA, "p1", [item], brief=True)
            position += 1
            assert getattr(applied, "position", 0) == position
        assert faults > 12
        assert await store.verify("p1", ChainVerifier()) == []
    finally:
        await store.close()


# --- Tampering --------------------------------------------------------------------------------------------------------

AUDITED = (
    "projects",
    "policies",
    "families",
    "identity_keys",
    "revisions",
    "timeline_rows",
    "heads",
    "relations",
    "review_flags",
    "evidence",
    "verifications",
    "proposals",
    "approvals",
    "commits",
    "audit",
)
_NOT_COVERED = {
    ("families", "seq"),
    ("revisions", "seq"),
    ("relations", "seq"),
    ("evidence", "seq"),
    ("proposals", "seq"),
    ("approvals", "seq"),
    ("projects", "recorded_at"),
    ("projects", "importing"),
    ("projects", "import_digest"),
    ("projects", "import_records"),
    ("heads", "project_id"),
    ("review_flags", "project_id"),
}
"""Order of insertion and copies that only serve look-ups; no answer is read from them. How far an import came is no
record either: it can hide a project whole, which nobody overlooks, and changes no answer about one that is shown."""


def _cells(database: sqlite3.Connection) -> Iterator[tuple[str, int, str, Any]]:
    """Yield every stored cell of every audited record: table, row number, column, value."""
    for table in AUDITED:
        cursor = database.execute(f"SELECT * FROM {table}")  # noqa: S608 - a fixed list
        names = [d[0] for d in cursor.description]
        for number, row in enumerate(cursor.fetchall()):
            for name, value in zip(names, row, strict=True):
                if (table, name) not in _NOT_COVERED:
                    yield table, number, name, value


def _flipped(value: Any, chance: random.Random) -> Any:
    if isinstance(value, int):
        return value - 1 if value > 1 else value + 1
    if not value:
        return "x"
    at = chance.randrange(len(value))
    return value[:at] + ("y" if value[at] == "x" else "x") + value[at + 1 :]


async def test_any_flipped_byte_of_an_audited_record_is_named(file: Path, tmp_path: Path) -> None:
    """L15: change one character or number of any cell of any audited record: VerifyAudit names an entry."""
    chance = random.Random(3)
    origin = sqlite3.connect(file)
    cells = list(_cells(origin))
    triggers = [row[0] for row in origin.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]
    missed = []
    for table, number, column, value in cells:
        forged = sqlite3.connect(":memory:")
        origin.backup(forged)
        for trigger in triggers:
            forged.execute(f"DROP TRIGGER {trigger}")
        keys = [row[1] for row in forged.execute(f"PRAGMA table_info({table})") if row[5]]
        key = ", ".join(keys)
        picked = forged.execute(f"SELECT {key} FROM {table} LIMIT 1 OFFSET ?", (number,)).fetchone()  # noqa: S608
        where = " AND ".join(f"{k} = ?" for k in keys)
        try:
            forged.execute(
                f"UPDATE {table} SET {column} = ? WHERE {where}",  # noqa: S608 - a fixed list
                (_flipped(value, chance), *picked),
            )
        except sqlite3.IntegrityError:
            continue  # The schema refuses this one by itself.
        forged.commit()
        problems = _verify(forged)
        if not any(problem.sequence > 0 for problem in problems):
            missed.append((table, column, value, problems))
        forged.close()
    origin.close()
    assert len(cells) > 250
    assert missed == []


async def test_a_removed_record_is_named(file: Path) -> None:
    """L15: a row that is gone is as visible as one that was changed; so is a chain that was cut at its end."""
    origin = sqlite3.connect(file)
    for statement in (
        "DELETE FROM revisions WHERE seq = 1",
        "DELETE FROM timeline_rows WHERE opened_position = 1",
        "DELETE FROM approvals WHERE seq = 1",
        "DELETE FROM audit WHERE sequence = (SELECT max(sequence) FROM audit)",
        "DELETE FROM audit WHERE sequence = 3",
        "DELETE FROM identity_keys WHERE identity_key = 'adr/1'",
        "DELETE FROM commits WHERE position = 2",
    ):
        forged = sqlite3.connect(":memory:")
        origin.backup(forged)
        for row in forged.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            forged.execute(f"DROP TRIGGER {row[0]}")
        forged.execute(statement)
        assert _verify(forged), statement
        forged.close()
    origin.close()


def _verify(database: sqlite3.Connection) -> list[Any]:
    from ledger_svc.store_sqlite.audit_scan import scan

    return scan(database, "p1", ChainVerifier())


# --- Cost -------------------------------------------------------------------------------------------------------------


async def test_no_query_of_a_request_scans_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """L17: the planner finds every row of every statement on the path of a request by an index."""
    statements: set[str] = set()
    store = await SqliteLedgerStore.open(":memory:")
    try:
        world = World(store)
        store._connection.set_trace_callback(statements.add)
        await _fill(world)
        await _read_everything(world)
        store._connection.set_trace_callback(None)
        plans = await store._readers.run(lambda c: _plans(c, statements))
    finally:
        await store.close()
    assert len(plans) > 60
    scans = {sql: plan for sql, plan in plans.items() if _scans(sql, plan)}
    assert scans == {}


async def _read_everything(world: World) -> None:
    store, now = world.store, world.clock.now()
    families = await store.families("p1", "", "", (0, ""), 10)
    await store.families("p1", "SEMANTIC", "", (0, ""), 10)
    await store.families("p1", "", "DESIGN_RULE", (0, ""), 10)
    one = families[0].family_id
    for known_at in (None, now):
        await store.heads(HeadsQuery("p1", "main", now, known_at, Detail.FULL, (one,), ("adr/2",), True))
        await store.history(one, "main", known_at, 99, 10)
    page = HeadsPageQuery("p1", "main", now, now, Detail.BASIC, frozenset(), frozenset(), False, "", 5)
    await store.heads_page(page)
    await store.heads_page(replace(page, flagged_only=True))
    await store.relations(RelationsQuery("p1"))
    await store.relations(RelationsQuery("p1", one, frozenset({RelationKind.DEPENDS_ON}), True))
    await store.relations_of([one], "main", RelationKind)
    await store.changes("p1", 0, 10)
    await store.projections("p1", await store.projection_keys("p1", ("", ""), 10))
    await store.projections("p1", [ProjectionKey(one, "main", 2)])
    await store.proposals("p1", [], one, 0, 10)
    from ledger_svc.domain.model import AdmissionOutcome, ProposalStatus

    views, _ = await store.proposals("p1", list(ProposalStatus), "", 0, 10)
    await store.proposal("p1", views[0].proposal.proposal_id)
    await store.observations("p1", [], 0, 10)
    await store.observations("p1", list(AdmissionOutcome), 0, 10)
    await store.audit("p1", 0, 10)
    await store.projects("", 10, None)
    await store.projects("", 10, frozenset({"p1"}))
    await store.claim_events("w", 10, now, now + timedelta(seconds=9), MOST_ATTEMPTS)
    await store.outbox_stats("p1", now)
    await store.next_event_due(now)
    await store.dead_letters("p1", 0, 10)
    await store.dead_letters("", 0, 10)


def _plans(connection: sqlite3.Connection, statements: set[str]) -> dict[str, list[str]]:
    plans = {}
    for sql in statements:
        if sql.split(None, 1)[0] in {"SELECT", "UPDATE", "DELETE", "INSERT"} and "sqlite_sequence" not in sql:
            plans[sql] = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
    return plans


def _scans(sql: str, plan: list[str]) -> bool:
    harmless = ("SCAN j", "SCAN json_each", "SCAN (", "SCAN h", "SCAN CONSTANT ROW", "SCAN constant row")
    for step in plan:
        if step.startswith("SCAN") and not step.startswith(harmless) and "VIRTUAL TABLE" not in step:
            # A list in order of its key reads only the rows that it returns.
            if "LIMIT" in sql and "USING" in step:
                continue
            if step == "SCAN projects" and "LIMIT" in sql:
                continue
            return True
        # Sorting the rows of one revision, or the flags of one head, costs what is returned.
        few = "WHERE revision_id =" in sql or "FROM review_flags" in sql or "UNION" in sql or "json_each" in sql
        if "USE TEMP B-TREE" in step and not few:
            return True
    return False


SIZES = (1_000, 100_000)


@pytest.mark.slow
async def test_the_cost_does_not_grow_with_history(tmp_path: Path) -> None:
    """L17: heads, applies and claims cost the same at 1,000 and at 100,000 revisions, in one family and around it."""
    worlds: list[tuple[World, str, tuple[str, ...]]] = []
    best: list[dict[str, float]] = [{} for _ in SIZES]
    try:
        for size in SIZES:
            world = World(await SqliteLedgerStore.open(tmp_path / f"{size}.sqlite"))
            await world.make_project()
            family = await world.create("start", key="adr/1")
            head = await world.head(family)
            await world.store._write(lambda c, head=head, size=size: _grow(c, head.revision, size))
            worlds.append((world, family, tuple([await world.create(f"other {n}") for n in range(20)])))
        # In turns, so that a busy moment of the machine meets both; the best of each is the cost of the work itself.
        for turn in range(40):
            for found, (world, family, others) in zip(best, worlds, strict=True):
                for name, seconds in (await _measure(world, family, others, turn)).items():
                    found[name] = min(seconds, found.get(name, seconds))
    finally:
        for world, _, _ in worlds:
            await world.store.close()
    small, large = best
    assert {n: (small[n], large[n]) for n in small if large[n] > small[n] * 1.5} == {}


def _grow(connection: sqlite3.Connection, first: Revision, size: int) -> None:
    """Lengthen the history of one family as its commits would have, without their ceremony."""
    step = timedelta(microseconds=1)
    revisions, timeline = [], []
    begins = first.valid_from
    known = connection.execute(f"SELECT {r.ROW_COLUMNS} FROM timeline_rows").fetchone()  # noqa: S608
    row = r.timeline_row_of(known)
    for number in range(2, size + 1):
        ident = f"11111111-0000-7000-8000-{number:012x}"
        begins += step
        revisions.append(
            r.revision_row(
                replace(first, revision_id=ident, number=number, position=number, recorded_at=begins, valid_from=begins)
            )
        )
        past = replace(row, valid_to=begins, opened_position=number, recorded_from=begins)
        timeline.append(r.timeline_row(past))
        timeline.append(r.timeline_row(replace(row, recorded_to=begins, closed_position=number)))
        row = replace(
            row, revision_id=ident, valid_from=begins, valid_to=None, opened_position=number, recorded_from=begins
        )
    timeline.append(r.timeline_row(row))
    marks = ", ".join("?" * 13)
    connection.executemany(f"INSERT INTO revisions ({r.REVISION_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", revisions)  # noqa: S608
    connection.executemany(
        f"INSERT OR IGNORE INTO timeline_rows ({r.ROW_COLUMNS}) VALUES ({marks})",  # noqa: S608 - fixed texts
        timeline,
    )
    first_row = (size, first.family_id, first.branch, known[2], known[3])
    connection.execute(
        "UPDATE timeline_rows SET recorded_to = recorded_from, closed_position = ? "
        "WHERE family_id = ? AND branch = ? AND opened_position = ? AND valid_from = ? AND closed_position = 0",
        first_row,
    )
    connection.execute(
        "UPDATE heads SET revision_id = ?, number = ?, position = ? WHERE family_id = ?",
        (f"11111111-0000-7000-8000-{size:012x}", size, size, first.family_id),
    )
    connection.execute("UPDATE projects SET position = ?", (size,))


async def _measure(world: World, family: str, others: tuple[str, ...], turn: int) -> dict[str, float]:
    async def timed(call: Any) -> float:
        started = time.perf_counter()
        await call
        return time.perf_counter() - started

    now = world.clock.now()
    one = HeadsQuery("p1", "main", now, None, Detail.BASIC, (family,))
    view = await world.approve(await world.propose(Supersede(family, Content(f"version {turn}"))))
    return {
        "head": await timed(world.store.heads(one)),
        "batch": await timed(world.store.heads(replace(one, family_ids=(family, *others)))),
        "apply": await timed(world.apply(view)),
        "claim": await timed(world.store.claim_events("w", 1, now, now + timedelta(seconds=9), 8)),
    }


async def test_many_decisions_share_one_transaction(tmp_path: Path) -> None:
    """L2: group commit: what waits together is written together; each decision of it stays all or nothing."""
    store = await SqliteLedgerStore.open(tmp_path / "ledger.sqlite")
    try:
        world = World(store)
        await world.make_project()
        views = [
            await world.approve(await world.propose(Create(Category.DESIGN_RULE, Content(f"r{n}")))) for n in range(30)
        ]
        before = store.groups
        await asyncio.gather(*(world.apply(view) for view in views))
        assert store.groups - before < 20
        invalid = await world.propose(Invalidate((await store.families("p1", "", "", (0, ""), 1))[0].family_id))
        assert invalid.proposal.preview_hash
    finally:
        await store.close()
