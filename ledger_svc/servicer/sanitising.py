"""G1 at the ledger: no request becomes a record before secrets and personal data are taken out of it.

Every mutating RPC begins with one of these calls, so that it holds whoever calls: ingest, an agent, a script.
What is stored of a request, its hash included, is of the sanitised one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from service_kit.sanitising.messages import MessageSanitiser, Replacement

SANITISER: Final = MessageSanitiser(
    # Names and keys: looked up, compared and stored as they are. Whatever else a request says is text.
    identifiers=frozenset(
        {
            "any_of",
            "approval",
            "branch",
            "duplicate_of",
            "evidence",
            "family",
            "id",
            "identity_key",
            "mutations",
            "name",
            "observation",
            "paths",
            "preview_hash",
            "project",
            "proposal",
            "proposals",
            "refines_family",
            "relation",
            "replacement_family",
            "request_id",
            "revision",
            "role",
            "source_family",
            "source_hash",
            "target_family",
            "to_revision",
            "worker",
        }
    ),
    # Who a rule is for, as a credential will name them.
    principals=frozenset({"issuer", "subject"}),
)

take = SANITISER.take
take_each = SANITISER.take_each

_WHERE: Final = re.compile(r"mutation\.[a-z_]+\.(?:create\.)?")


def warnings(replaced: Iterable[Replacement]) -> tuple[str, ...]:
    """Return what a reviewer is told of a proposal, e.g. ``content.summary: 1 EMAIL was replaced before storing``."""
    return tuple(_WHERE.sub("", str(one), count=1) for one in replaced)
