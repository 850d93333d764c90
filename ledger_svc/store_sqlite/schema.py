"""The SQLite schema: strict tables, and triggers that refuse what the ledger never does.

What is immutable is a ``body`` (the record's stored text) plus the columns that it is found by; what may change, once
or often, has columns of its own. Instants are integers in microseconds; an interval without an end ends at FOREVER.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from ledger_svc.domain.model import OPEN_STATUSES, ProposalStatus
from ledger_svc.instants import FOREVER

SCHEMA_VERSION: Final = 1

Migration = Callable[[sqlite3.Connection], None]

MIGRATIONS: Final[dict[int, Migration]] = {}
"""How to get from a version to the next one. Each runs in a transaction of its own, with its number: it is done wholly
or not at all, and a start that dies goes on with the next one. It drops the triggers that it has to get past."""

_TABLES: Final = f"""
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE projects (
    project_id TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    recorded_at INTEGER NOT NULL DEFAULT 0,
    audit_sequence INTEGER NOT NULL DEFAULT 0,
    audit_hash TEXT NOT NULL DEFAULT '',
    importing INTEGER NOT NULL DEFAULT 0,
    import_digest TEXT NOT NULL DEFAULT '',
    import_records INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE policies (
    project_id TEXT NOT NULL REFERENCES projects,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (project_id, version)
) STRICT;

CREATE TABLE families (
    seq INTEGER PRIMARY KEY,
    family_id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL REFERENCES projects,
    scope TEXT NOT NULL,
    category TEXT NOT NULL,
    position INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX families_by_project ON families (project_id, position, family_id);
CREATE INDEX families_by_scope ON families (project_id, scope, position, family_id);
CREATE INDEX families_by_category ON families (project_id, category, position, family_id);

CREATE TABLE identity_keys (
    project_id TEXT NOT NULL,
    identity_key TEXT NOT NULL,
    family_id TEXT NOT NULL REFERENCES families (family_id),
    PRIMARY KEY (project_id, identity_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE revisions (
    seq INTEGER PRIMARY KEY,
    revision_id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    family_id TEXT NOT NULL REFERENCES families (family_id),
    branch TEXT NOT NULL,
    number INTEGER NOT NULL,
    position INTEGER NOT NULL,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    content TEXT NOT NULL,
    UNIQUE (family_id, branch, number)
) STRICT;

CREATE TABLE timeline_rows (
    family_id TEXT NOT NULL REFERENCES families (family_id),
    branch TEXT NOT NULL,
    opened_position INTEGER NOT NULL,
    valid_from INTEGER NOT NULL,
    valid_to INTEGER NOT NULL,
    revision_id TEXT NOT NULL REFERENCES revisions (revision_id),
    standing TEXT NOT NULL,
    end_kind TEXT NOT NULL,
    intrinsic_to INTEGER NOT NULL,
    intrinsic_end TEXT NOT NULL,
    recorded_from INTEGER NOT NULL,
    recorded_to INTEGER NOT NULL DEFAULT {FOREVER},
    closed_position INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (family_id, branch, opened_position, valid_from)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX timeline_open ON timeline_rows (family_id, branch, valid_from) WHERE closed_position = 0;
CREATE INDEX timeline_valid ON timeline_rows (family_id, branch, valid_from, recorded_from, recorded_to);
CREATE INDEX timeline_revision ON timeline_rows (revision_id);
CREATE INDEX timeline_closed ON timeline_rows (family_id, branch, closed_position) WHERE closed_position > 0;

CREATE TABLE heads (
    family_id TEXT NOT NULL REFERENCES families (family_id),
    branch TEXT NOT NULL,
    project_id TEXT NOT NULL,
    revision_id TEXT NOT NULL REFERENCES revisions (revision_id),
    number INTEGER NOT NULL,
    position INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    invalid_from INTEGER NOT NULL,
    PRIMARY KEY (family_id, branch)
) STRICT, WITHOUT ROWID;
CREATE INDEX heads_by_project ON heads (project_id, branch, family_id);
CREATE INDEX heads_by_family ON heads (project_id, family_id, branch);

CREATE TABLE relations (
    seq INTEGER PRIMARY KEY,
    relation_id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    branch TEXT NOT NULL,
    kind TEXT NOT NULL,
    source_id TEXT NOT NULL REFERENCES families (family_id),
    target_id TEXT NOT NULL REFERENCES families (family_id),
    position INTEGER NOT NULL,
    body TEXT NOT NULL,
    retired_from INTEGER NOT NULL DEFAULT {FOREVER},
    retired_recorded_at INTEGER NOT NULL DEFAULT {FOREVER},
    retired_position INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX relations_active ON relations (source_id, branch, kind, target_id) WHERE retired_position = 0;
CREATE INDEX relations_active_in ON relations (target_id, branch, kind) WHERE retired_position = 0;
CREATE INDEX relations_out ON relations (source_id, kind);
CREATE INDEX relations_in ON relations (target_id, kind);
CREATE INDEX relations_by_project ON relations (project_id, position, relation_id);
CREATE INDEX relations_by_source ON relations (source_id, position, relation_id);
CREATE INDEX relations_by_target ON relations (target_id, position, relation_id);

CREATE TABLE review_flags (
    family_id TEXT NOT NULL REFERENCES families (family_id),
    branch TEXT NOT NULL,
    cause_family_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    project_id TEXT NOT NULL,
    via TEXT NOT NULL,
    cause TEXT NOT NULL,
    recorded_at INTEGER NOT NULL,
    cleared_position INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (family_id, branch, cause_family_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX review_flags_by_project ON review_flags (project_id, branch, family_id);

CREATE TABLE evidence (
    seq INTEGER PRIMARY KEY,
    evidence_id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL REFERENCES projects,
    fingerprint TEXT NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (project_id, fingerprint)
) STRICT;

CREATE TABLE verifications (
    evidence_id TEXT NOT NULL REFERENCES evidence (evidence_id),
    number INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (evidence_id, number)
) STRICT;

CREATE TABLE proposals (
    seq INTEGER PRIMARY KEY,
    proposal_id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL REFERENCES projects,
    body TEXT NOT NULL,
    status TEXT NOT NULL,
    progress TEXT NOT NULL
) STRICT;
CREATE INDEX proposals_by_status ON proposals (project_id, status, seq);
CREATE INDEX proposals_by_project ON proposals (project_id, seq);

CREATE TABLE proposal_families (
    family_id TEXT NOT NULL,
    proposal_id TEXT NOT NULL REFERENCES proposals (proposal_id),
    seq INTEGER NOT NULL,
    PRIMARY KEY (family_id, seq, proposal_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE approvals (
    seq INTEGER PRIMARY KEY,
    approval_id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    proposal_id TEXT NOT NULL REFERENCES proposals (proposal_id),
    body TEXT NOT NULL,
    progress TEXT NOT NULL
) STRICT;
CREATE INDEX approvals_by_proposal ON approvals (proposal_id, seq);

CREATE TABLE commits (
    project_id TEXT NOT NULL REFERENCES projects,
    position INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (project_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX commits_by_time ON commits (project_id, recorded_at, position);

CREATE TABLE audit (
    project_id TEXT NOT NULL REFERENCES projects,
    sequence INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (project_id, sequence)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    family_id TEXT NOT NULL,
    branch TEXT NOT NULL,
    kind TEXT NOT NULL,
    recorded_at INTEGER NOT NULL,
    available_at INTEGER NOT NULL DEFAULT 0,
    leased_until INTEGER NOT NULL DEFAULT 0,
    worker TEXT NOT NULL DEFAULT '',
    attempts INTEGER NOT NULL DEFAULT 0,
    fencing INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    last_error TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX outbox_due ON outbox (available_at, id) WHERE dead = 0;
CREATE INDEX outbox_live ON outbox (id, available_at) WHERE dead = 0;
CREATE INDEX outbox_leased ON outbox (leased_until) WHERE leased_until > 0;
CREATE INDEX outbox_leased_head ON outbox (family_id, branch, leased_until) WHERE leased_until > 0;
CREATE INDEX outbox_by_position ON outbox (project_id, position);
CREATE INDEX outbox_dead ON outbox (id) WHERE dead = 1;
CREATE INDEX outbox_dead_by_project ON outbox (project_id, id) WHERE dead = 1;

CREATE TABLE replies (
    project_id TEXT NOT NULL,
    caller TEXT NOT NULL,
    rpc TEXT NOT NULL,
    request_id TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    reply BLOB NOT NULL,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (project_id, caller, rpc, request_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE observations (
    seq INTEGER PRIMARY KEY,
    observation_id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL REFERENCES projects,
    source_kind TEXT NOT NULL,
    locator TEXT NOT NULL,
    source_hash TEXT NOT NULL,
    body TEXT NOT NULL,
    outcome TEXT NOT NULL DEFAULT '',
    UNIQUE (project_id, source_kind, locator, source_hash)
) STRICT;
CREATE INDEX observations_by_project ON observations (project_id, seq);
CREATE INDEX observations_by_outcome ON observations (project_id, outcome, seq);

CREATE TABLE admissions (
    observation_id TEXT NOT NULL REFERENCES observations (observation_id),
    number INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (observation_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE signals (
    seq INTEGER PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects,
    family_id TEXT NOT NULL REFERENCES families (family_id),
    body TEXT NOT NULL
) STRICT;
CREATE INDEX signals_by_family ON signals (family_id, seq);
"""

_NEVER_DELETED: Final = (
    "meta",
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
    "proposal_families",
    "approvals",
    "commits",
    "audit",
    "replies",
    "observations",
    "admissions",
    "signals",
)
"""Only the outbox forgets."""

_MUTABLE: Final[dict[str, tuple[str, ...]]] = {
    "meta": ("value",),
    "projects": (
        *("body", "position", "recorded_at", "audit_sequence", "audit_hash"),
        *("importing", "import_digest", "import_records"),
    ),
    "timeline_rows": ("recorded_to", "closed_position"),
    "heads": ("revision_id", "number", "position", "recorded_at", "invalid_from"),
    "relations": ("retired_from", "retired_recorded_at", "retired_position"),
    "review_flags": ("cleared_position",),
    "proposals": ("status", "progress"),
    "approvals": ("progress",),
    "observations": ("outcome",),
}
"""Columns that may change; every other column of every other table is written once."""

_OPEN: Final = ", ".join(f"'{status.value}'" for status in ProposalStatus if status in OPEN_STATUSES)

_WRITTEN_ONCE: Final[dict[str, str]] = {
    "timeline_rows": "OLD.closed_position <> 0",
    "relations": "OLD.retired_position <> 0",
    "review_flags": "OLD.cleared_position <> 0",
    "proposals": f"OLD.status NOT IN ({_OPEN})",
    "projects": (
        "NEW.position < OLD.position OR NEW.audit_sequence < OLD.audit_sequence OR NEW.importing > OLD.importing"
    ),
    "heads": "NEW.position < OLD.position",
}
"""When even the mutable columns are settled."""


def create(connection: sqlite3.Connection, ledger_id: str) -> None:
    """Make all tables and triggers in an empty database, within the open transaction."""
    for statement in _statements():
        connection.execute(statement)
    rows = (("ledger_id", ledger_id), ("schema_version", str(SCHEMA_VERSION)))
    connection.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", rows)


def stored_version(connection: sqlite3.Connection) -> int | None:
    """Return the version of the schema in a database, None for an empty one."""
    found = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone()
    if found is None:
        return None
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    return int(row[0])


def migrate(connection: sqlite3.Connection, version: int) -> int:
    """Bring a database to the version that this program writes; return it."""
    while version < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        try:
            MIGRATIONS[version](connection)
            version += 1
            connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(version),))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return version


def _statements() -> list[str]:
    made = [part.strip() for part in _TABLES.split(";\n") if part.strip()]
    # INSERT OR REPLACE deletes without firing these triggers, unless recursive triggers are on: see connect.
    made += [
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table}: rows are never deleted'); END"
        for table in _NEVER_DELETED
    ]
    for table in _NEVER_DELETED:
        mutable = _MUTABLE.get(table, ())
        frozen = [c for c in _columns(table) if c not in mutable]
        changed = " OR ".join(f"NEW.{c} IS NOT OLD.{c}" for c in frozen)
        settled = _WRITTEN_ONCE.get(table)
        condition = f"{changed} OR {settled}" if settled else changed
        made.append(
            f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{table}: this is immutable'); END"
        )
    return made


def _columns(table: str) -> list[str]:
    start = _TABLES.index(f"CREATE TABLE {table} (\n")
    body = _TABLES[start : _TABLES.index("\n) STRICT", start)].splitlines()[1:]
    names = [line.split()[0] for line in body]
    return [n for n in names if n not in {"PRIMARY", "UNIQUE"}]
