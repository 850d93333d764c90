"""Reads back every audited record of a project exactly as stored, and shows each to the verifier."""

from __future__ import annotations

from ledger_svc.audit_scan import LAYOUTS, check_entry, check_keys, check_project, check_record
from ledger_svc.domain.audit import ChainProblem, ChainVerifier
from ledger_svc.domain.model import AuditTip
from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.database import Transaction


async def scan(tx: Transaction, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
    """Show everything of a project to the verifier; return what is wrong."""
    problems: list[ChainProblem] = []
    async for record in await tx.each(q.ENTRIES_AS_STORED, project_id=project_id):
        number, text = record.values()
        problems += check_entry(project_id, number, text, verifier)
    found = await tx.one(q.PROJECT_AS_STORED, project_id=project_id)
    if found is None:
        return problems
    body, position, sequence, entry_hash = found
    last = await tx.one(q.LAST_COMMIT, project_id=project_id)
    last_commit = 0 if last is None else last[0]
    problems += check_project(project_id, body, position, AuditTip(sequence, entry_hash), last_commit, verifier)
    for layout in LAYOUTS:
        async for record in await tx.each(q.AS_STORED[layout.kind], project_id=project_id):
            problems += check_record(layout, tuple(record.values()), project_id, verifier)
    keys = dict(await tx.run(q.KEYS_AS_STORED, project_id=project_id))
    bodies = [row[0] for row in await tx.run(q.FAMILIES_AS_STORED, project_id=project_id)]
    return problems + check_keys(keys, bodies, verifier) + verifier.missing()
