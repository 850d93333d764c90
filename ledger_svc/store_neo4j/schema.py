"""The graph's schema: constraints, indexes, its version, and the way from one version to the next.

A record is a node: a ``body`` (the record's stored text, never changed) plus the properties that it is found by, and
properties of its own for what may change. ``head`` is ``family/branch``. Instants are integers in microseconds; an
interval without an end ends at FOREVER. Community Edition has neither existence nor node-key constraints, so the
adapter writes whole nodes or none; uniqueness is the database's own promise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final

from ledger_svc.domain.model import RelationKind
from ledger_svc.store import refuse_newer

SCHEMA_VERSION: Final = 1

UNIQUE: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "ledger_key": ("Ledger", ("key",)),
    "project_id": ("Project", ("project_id",)),
    "importing_id": ("Importing", ("project_id",)),
    "policy_version": ("Policy", ("project_id", "version")),
    "family_id": ("Family", ("family_id",)),
    "identity_key": ("IdentityKey", ("project_id", "identity_key")),
    "revision_id": ("Revision", ("revision_id",)),
    "revision_number": ("Revision", ("head", "number")),
    "timeline_row": ("TimelineRow", ("head", "opened_position", "valid_from")),
    "head": ("Head", ("head",)),
    "relation_id": ("Relation", ("relation_id",)),
    "relation_active": ("Relation", ("active_key",)),
    "review_flag": ("ReviewFlag", ("head", "cause_family_id", "position")),
    "evidence_id": ("Evidence", ("evidence_id",)),
    "evidence_fingerprint": ("Evidence", ("project_id", "fingerprint")),
    "verification": ("Verification", ("evidence_id", "number")),
    "proposal_id": ("Proposal", ("proposal_id",)),
    "approval_id": ("Approval", ("approval_id",)),
    "commit_position": ("Commit", ("project_id", "position")),
    "audit_sequence": ("AuditEntry", ("project_id", "sequence")),
    "outbox_event": ("OutboxEvent", ("event_id",)),
    "reply": ("Reply", ("project_id", "caller", "rpc", "request_id")),
    "observation_id": ("Observation", ("observation_id",)),
    "observation_source": ("Observation", ("project_id", "source_kind", "locator", "source_hash")),
    "admission": ("Admission", ("observation_id", "number")),
}
"""Constraint name to label and properties. Each is an index as well."""

INDEXES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "family_page": ("Family", ("project_id", "page")),
    "family_scope_page": ("Family", ("project_id", "scope", "page")),
    "family_category_page": ("Family", ("project_id", "category", "page")),
    "row_open": ("TimelineRow", ("head", "closed_position", "valid_from")),
    "row_valid": ("TimelineRow", ("head", "valid_from")),
    "row_revision": ("TimelineRow", ("revision_id",)),
    "head_page": ("Head", ("project_id", "branch", "family_id")),
    "head_key_page": ("Head", ("project_id", "head")),
    "relation_out": ("Relation", ("source_id", "kind")),
    "relation_in": ("Relation", ("target_id", "kind")),
    "relation_active_out": ("Relation", ("active_out",)),
    "relation_active_in": ("Relation", ("active_in",)),
    "relation_page": ("Relation", ("project_id", "page")),
    "relation_source_page": ("Relation", ("source_id", "page")),
    "relation_target_page": ("Relation", ("target_id", "page")),
    "flag_open": ("ReviewFlag", ("head", "cleared_position")),
    "flag_page": ("ReviewFlag", ("project_id", "branch", "family_id")),
    "proposal_status": ("Proposal", ("project_id", "status", "seq")),
    "proposal_family": ("ProposalFamily", ("family_id", "seq")),
    "approval_proposal": ("Approval", ("proposal_id", "seq")),
    "commit_time": ("Commit", ("project_id", "recorded_at")),
    "event_due": ("OutboxEvent", ("due_since",)),
    "event_waiting": ("OutboxEvent", ("rests_until",)),
    "event_leased": ("OutboxEvent", ("leased_until",)),
    "event_leased_head": ("OutboxEvent", ("head", "leased_until")),
    "event_position": ("OutboxEvent", ("project_id", "position")),
    "dead_letter": ("DeadLetter", ("event_id",)),
    "dead_letter_project": ("DeadLetter", ("project_id", "event_id")),
    "observation_page": ("Observation", ("project_id", "seq")),
    "observation_outcome": ("Observation", ("project_id", "outcome", "seq")),
    "signal_family": ("Signal", ("family_id",)),
}


RELATIONSHIPS: Final = (
    *("IN", "NAMES", "OF", "PARENT", "CITES", "SHOWS", "PUBLISHED", "AT", "ON", "SOURCE", "TARGET"),
    *("CHECKS", "ABOUT", "APPROVES", "OUTCOME_OF"),
    *(kind.value for kind in RelationKind),
)
"""Types of edges; each active relation is also a direct edge between its families, of its kind."""

PROPERTIES: Final = (
    *("ledger_id", "schema_version", "projects", "lock", "import_digest", "import_records"),
    *("title", "policy_version", "policy", "audit_sequence", "audit_hash", "seq", "number"),
    *("content", "reason", "recorded_from", "recorded_to", "valid_to", "standing", "end_kind"),
    *("intrinsic_to", "intrinsic_end", "invalid_from", "flag_position", "via", "cause"),
    *("retired_from", "retired_recorded_at", "retired_position", "stance", "claim", "progress"),
    *("action", "reply", "request_hash", "attempts", "fencing", "worker", "last_error", "body"),
)
"""Properties that no index names. The server warns of a name that it has never seen: all are made known at the start,
so that a warning means a misspelled name in a statement."""


def _missing(constraints: Collection[str], indexes: Collection[str]) -> Iterator[str]:
    """Return what makes the constraints and indexes that are not there; each may be repeated."""
    for name, (label, properties) in UNIQUE.items():
        if name not in constraints:
            listed = ", ".join(f"n.{p}" for p in properties)
            yield f"CREATE CONSTRAINT {name} IF NOT EXISTS FOR (n:{label}) REQUIRE ({listed}) IS UNIQUE"
    for name, (label, properties) in INDEXES.items():
        if name not in indexes:
            listed = ", ".join(f"n.{p}" for p in properties)
            yield f"CREATE INDEX {name} IF NOT EXISTS FOR (n:{label}) ON ({listed})"


Run = Callable[[str, Mapping[str, Any]], Awaitable[list[list[Any]]]]
"""Runs one statement in a transaction of its own."""
Migration = Callable[[Run], Awaitable[None]]

MIGRATIONS: Final[Mapping[int, Migration]] = {}
"""How to get from a version to the next one. A start that dies goes on with the step that it was in, so a step may be
repeated; two starts may run the same one at once. A constraint or index that changes is dropped by its step, under
whatever name: what is missing is made afterwards."""


async def prepare(run: Run, ledger_id: str, where: str, await_seconds: int) -> tuple[str, int]:
    """Make or migrate the schema, wait until its indexes are there; return the ledger's id and the schema's version.

    Two processes may do this at the same time: every step may be repeated, and the ledger's node is made once, last of
    all. While it is not there, nothing is: a start that died before it is begun anew. The stored version only grows, so
    an old program that looked before a new one migrated does not take that back; it is refused in the end.

    Raises:
        SchemaTooNewError: The database is newer; an old program would write what the new one cannot read.
    """
    version = await _stored_version(run)
    refuse_newer(version, SCHEMA_VERSION, where)
    if version < SCHEMA_VERSION:
        await _name_everything(run)
    # An empty database has nothing to migrate: it gets the schema as it is now. Asked again before each step: another
    # start may have done it.
    while 0 < version < SCHEMA_VERSION:
        await MIGRATIONS[version](run)
        await run(_REACHED, {"version": version + 1})
        version = await _stored_version(run)
    # Looked at after the steps: they may have dropped some.
    for statement in _missing(await _names(run, "CONSTRAINTS"), await _names(run, "INDEXES")):
        await run(statement, {})
    await run("CALL db.awaitIndexes($seconds)", {"seconds": await_seconds})
    made = await run(_MAKE, {"ledger_id": ledger_id, "version": SCHEMA_VERSION})
    ledger, version = str(made[0][0]), int(made[0][1])
    refuse_newer(version, SCHEMA_VERSION, where)
    return ledger, version


async def _names(run: Run, what: str) -> set[str]:
    return {str(row[0]) for row in await run(f"SHOW {what} YIELD name", {})}


async def _stored_version(run: Run) -> int:
    """Return the version that is stored, 0 in an empty database."""
    # Not asked for by its label before there is one: the server would warn of a name that it has never seen.
    if "ledger_key" not in await _names(run, "CONSTRAINTS"):
        return 0
    found = await run("MATCH (l:Ledger {key: 'ledger'}) RETURN properties(l)", {})
    return int(found[0][0]["schema_version"]) if found else 0


_REACHED: Final = (
    "MATCH (l:Ledger {key: 'ledger'}) "
    "SET l.schema_version = CASE WHEN l.schema_version < $version THEN $version ELSE l.schema_version END "
    "RETURN l.schema_version"
)

_MAKE: Final = (
    "MERGE (l:Ledger {key: 'ledger'}) "
    "ON CREATE SET l.ledger_id = $ledger_id, l.projects = 0, l.schema_version = $version "
    "MERGE (o:Ledger {key: 'outbox'}) "
    "RETURN l.ledger_id, l.schema_version"
)


async def _name_everything(run: Run) -> None:
    indexed = (*UNIQUE.values(), *INDEXES.values())
    names = {
        "db.createLabel": sorted({label for label, _ in indexed}),
        "db.createRelationshipType": list(RELATIONSHIPS),
        "db.createProperty": sorted({*PROPERTIES, *(p for _, properties in indexed for p in properties)}),
    }
    for procedure, listed in names.items():
        await run(f"UNWIND $names AS name CALL {procedure}(name) RETURN count(*)", {"names": listed})
