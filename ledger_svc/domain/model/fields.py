"""Marks on dataclass fields that tell the canonical form how to read them.

Every field of a record is hashed unless it says otherwise here, so a field that is added later is covered from its
first day. A mark that takes a field out of the meaning carries its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

AS_SET: Final[Mapping[str, str]] = {"canonical": "set"}
"""Order and repetition mean nothing: sorted and deduplicated before hashing."""


def server_made(why: str) -> Mapping[str, str]:
    """Not part of what makes two requests equal: an id, a position or a time that the server gave.

    Record hashes, which the audit chain holds, still cover the field.
    """
    return {"canonical": "server", "why": why}


def derived(why: str) -> Mapping[str, str]:
    """Never hashed with this record: another record, hashed on its own, says it."""
    return {"canonical": "derived", "why": why}
