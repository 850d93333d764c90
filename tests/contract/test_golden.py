"""S6: what a released version has written still opens, answers and verifies; what a newer one wrote is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ledger_svc import export_file
from ledger_svc.store import SchemaTooNewError
from ledger_svc.store_sqlite import SCHEMA_VERSION, SqliteLedgerStore, schema
from ledger_svc.store_sqlite.connection import connect
from tests.contract.test_ledger_store_contract import World
from tests.golden.make import (
    EXPECTED_FILE,
    EXPORT_FILE,
    FOLDER,
    LEDGER_ID,
    PROJECT,
    answers_of,
    database_file,
    fill,
)
from tests.moving_world import export_of, import_into

DATABASES = sorted(FOLDER.glob("ledger-v*.sqlite"))
EXPORTS = sorted(FOLDER.glob("export-v*.dsearch.jsonl"))
EXPECTED = json.loads(EXPECTED_FILE.read_text(encoding="utf-8"))


def _copy(file: Path, folder: Path) -> Path:
    return Path(shutil.copy(file, folder / "ledger.sqlite"))


def _statements(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as connection:
        return {row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}


@pytest.mark.parametrize("golden", DATABASES, ids=lambda file: file.stem)
async def test_a_golden_database_opens_answers_and_verifies(golden: Path, tmp_path: Path) -> None:
    """S6: the database of every schema version is migrated, has its heads, its audit, and exports as it always did."""
    store = await SqliteLedgerStore.open(_copy(golden, tmp_path))
    try:
        assert store.info.ledger_id == LEDGER_ID
        assert store.info.schema_version == SCHEMA_VERSION
        assert await answers_of(store) == EXPECTED
        assert await export_of(World(store), PROJECT) == EXPORT_FILE.read_bytes()
    finally:
        await store.close()


@pytest.mark.parametrize("golden", EXPORTS, ids=lambda file: file.stem)
async def test_a_golden_export_is_imported(golden: Path) -> None:
    """S6: the export of every format version is taken in, answers the same, and verifies."""
    store = await SqliteLedgerStore.open()
    try:
        world = World(store)
        await import_into(world, golden.read_bytes(), PROJECT)
        assert await answers_of(store) == EXPECTED
        assert await export_of(world, PROJECT) == EXPORT_FILE.read_bytes()
    finally:
        await store.close()


async def test_the_files_are_what_the_script_makes(tmp_path: Path) -> None:
    """S6: the newest golden files are those of this program: a change of what is stored shows here.

    Before the first release: ``python -m tests.golden.make``. After it: a new version, a migration, a new database.
    """
    assert database_file(SCHEMA_VERSION) in DATABASES
    assert EXPORT_FILE.name == f"export-v{export_file.FORMAT_VERSION}.dsearch.jsonl"
    export, answers = await fill(tmp_path / "new.sqlite")
    assert export == EXPORT_FILE.read_bytes()
    assert answers == EXPECTED
    migrated = _copy(DATABASES[-1], tmp_path)
    await (await SqliteLedgerStore.open(migrated)).close()
    assert _statements(migrated) == _statements(tmp_path / "new.sqlite")


async def test_a_newer_database_is_refused_untouched(tmp_path: Path) -> None:
    """S6: a program that does not know the schema says so, and writes nothing."""
    file = _copy(DATABASES[-1], tmp_path)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION + 1),))
    before = file.read_bytes()
    with pytest.raises(SchemaTooNewError, match="start a newer program"):
        await SqliteLedgerStore.open(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert len(before) == len(file.read_bytes())
    assert _statements(file) == _statements(DATABASES[-1])


# --- The way from one version to the next -----------------------------------------------------------------------------


def _add_a_column(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE signals ADD COLUMN note TEXT NOT NULL DEFAULT 'none'")


def _break_half_way(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE half (a INTEGER) STRICT")
    raise OSError("the disk is full")


async def test_migrations_run_in_order_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: a database of an older version goes through every step between, and is of the newest version after it."""
    ran: list[int] = []
    made = {1: lambda c: (ran.append(1), _add_a_column(c)), 2: lambda c: ran.append(2)}
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", made)
    file = _copy(database_file(1), tmp_path)
    for _ in range(2):
        store = await SqliteLedgerStore.open(file)
        try:
            assert store.info.schema_version == 3
            assert await answers_of(store) == EXPECTED
        finally:
            await store.close()
    assert ran == [1, 2]
    with closing(sqlite3.connect(file)) as connection:
        assert {row[0] for row in connection.execute("SELECT note FROM signals")} == {"none"}


async def test_a_migration_that_dies_leaves_the_version_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6, L1: of a step that fails nothing is there; steps before it stay, and the next start goes on from there."""
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: _add_a_column, 2: _break_half_way})
    file = _copy(database_file(1), tmp_path)
    with pytest.raises(OSError, match="disk"):
        await SqliteLedgerStore.open(file)
    with closing(connect(str(file))) as connection:
        assert schema.stored_version(connection) == 2
        assert not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchall()
    monkeypatch.setattr(schema, "MIGRATIONS", {2: lambda connection: None})
    store = await SqliteLedgerStore.open(file)
    try:
        assert store.info.schema_version == 3
        assert await answers_of(store) == EXPECTED
    finally:
        await store.close()


def test_every_step_has_its_migration() -> None:
    """S6: from each older version a step leads on, so no database that was ever written is left behind."""
    assert set(schema.MIGRATIONS) == set(range(1, SCHEMA_VERSION))
