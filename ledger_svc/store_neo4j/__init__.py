"""The ledger on a Neo4j server, for teams that share one: many processes may serve it at the same time."""

from ledger_svc.store_neo4j.database import Neo4jConnection
from ledger_svc.store_neo4j.schema import SCHEMA_VERSION
from ledger_svc.store_neo4j.store import Neo4jLedgerStore

__all__ = ["SCHEMA_VERSION", "Neo4jConnection", "Neo4jLedgerStore"]
