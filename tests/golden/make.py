"""Make the golden files of the current schema: ``python -m tests.golden.make``.

One SQLite database for each version of the schema, one export, and what both must answer. Ids and the clock are fixed,
so the same program makes the same files. What a released version has written is never made again: a new version of
the schema adds its own database, and the old ones show that they still open.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.export_file import FORMAT_VERSION
from ledger_svc.store import LedgerStore
from ledger_svc.store_sqlite import SCHEMA_VERSION, SqliteLedgerStore
from ledger_svc.views import Detail, HeadsPageQuery
from tests.contract.test_ledger_store_contract import World
from tests.ledger_stack import START
from tests.moving_world import export_of, furnish

FOLDER: Final = Path(__file__).parent
LEDGER_ID: Final = "01900000-0000-7000-8000-000000000001"
PROJECT: Final = "p1"


def database_file(version: int) -> Path:
    """The database of a version of the schema."""
    return FOLDER / f"ledger-v{version}.sqlite"


EXPORT_FILE: Final = FOLDER / f"export-v{FORMAT_VERSION}.dsearch.jsonl"
EXPECTED_FILE: Final = FOLDER / "expected.json"


async def answers_of(store: LedgerStore) -> dict[str, Any]:
    """What is compared: the heads as they were on a day, and where the audit ends."""
    found: dict[str, Any] = {}
    for branch in ("main", "release/2.x"):
        query = HeadsPageQuery(
            PROJECT, branch, START.replace(year=2027), None, Detail.FULL, frozenset(), frozenset(), False, "", 100
        )
        heads, _, position = await store.heads_page(query)
        found["position"] = position
        found[branch] = [
            [h.family.identity_key, h.revision.number, h.revision.content.title, h.revision.content_hash] for h in heads
        ]
    verifier = ChainVerifier()
    found["problems"] = [problem.problem for problem in await store.verify(PROJECT, verifier)]
    found["entries"], found["records"] = verifier.entries, verifier.records
    found["chain_head"] = verifier.chain_head
    return found


async def fill(file: Path) -> tuple[bytes, dict[str, Any]]:
    """Fill a new database; return its project as a file, and its answers."""
    with patch("ledger_svc.store_sqlite.store.new_id", lambda: LEDGER_ID):
        store = await SqliteLedgerStore.open(file)
    try:
        world = World(store)
        await world.make_project(PROJECT)
        await furnish(world)
        return await export_of(world, PROJECT), await answers_of(store)
    finally:
        await store.close()


def main() -> None:
    """Write the files."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "ledger.sqlite"
        export, answers = asyncio.run(fill(made))
        target = database_file(SCHEMA_VERSION)
        target.unlink(missing_ok=True)
        with closing(sqlite3.connect(made)) as connection:
            connection.execute("PRAGMA page_size = 1024")
            connection.execute("VACUUM INTO ?", (str(target),))
    EXPORT_FILE.write_bytes(export)
    EXPECTED_FILE.write_text(json.dumps(answers, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
