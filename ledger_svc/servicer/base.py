"""What the servicers share: the ledger, page tokens, and how they become one server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from decisionssearch.common.v1 import common_pb2, errors_pb2

from ledger_svc.service.context import Ledger
from service_kit import ledger_token
from service_kit.errors import as_domain_error
from service_kit.errors import to_item_error as item_error
from service_kit.paging import PageTokens


@dataclass(slots=True)
class Desk:
    """The servicers' tools."""

    ledger: Ledger
    pages: PageTokens

    @classmethod
    def of(cls, ledger: Ledger) -> Desk:
        """Return the tools for a ledger; its page tokens outlive the process."""
        key = hashlib.sha256(f"page tokens of {ledger.store.info.ledger_id}".encode()).digest()
        return cls(ledger, PageTokens(key))

    @property
    def ledger_id(self) -> str:
        """Which ledger it is."""
        return self.ledger.store.info.ledger_id

    def token(self, project_id: str, position: int) -> common_pb2.LedgerToken:
        """Return the token of a position."""
        return ledger_token.encode(self.ledger_id, project_id, position)


def failed_item(error: Exception) -> errors_pb2.ItemError:
    """Return the failure of one item of a batch; a bug is raised, and masked at the boundary."""
    typed = as_domain_error(error)
    if typed is None:
        raise error
    return item_error(typed)
