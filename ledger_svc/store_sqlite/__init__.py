"""The ledger in one SQLite file: the embedded store, and with ``:memory:`` the double that tests use."""

from ledger_svc.store import SchemaTooNewError
from ledger_svc.store_sqlite.connection import AlreadyOpenError
from ledger_svc.store_sqlite.schema import SCHEMA_VERSION
from ledger_svc.store_sqlite.store import SqliteLedgerStore

__all__ = ["SCHEMA_VERSION", "AlreadyOpenError", "SchemaTooNewError", "SqliteLedgerStore"]
