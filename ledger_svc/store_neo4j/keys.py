"""Composed properties: what several values are found by together, as one text. Ids and kinds hold no slash."""

from __future__ import annotations


def head_key(family_id: str, branch: str) -> str:
    """Return the name of a (family, branch). A branch may hold slashes; it comes last."""
    return f"{family_id}/{branch}"


def page_key(position: int, ident: str) -> str:
    """Return what orders records by position and id, as text."""
    return f"{position:019d}/{ident}"


def active_key(source_id: str, kind: str, target_id: str, branch: str) -> str:
    """Return what an active relation is unique by."""
    return f"{source_id}/{kind}/{target_id}/{branch}"


def active_end(family_id: str, kind: str, branch: str) -> str:
    """Return what the active relations at one end of a kind are found by."""
    return f"{family_id}/{kind}/{branch}"


_PROJECT_BITS = 20


def event_id(sequence: int, project_number: int) -> int:
    """Return the id of an event: unique without a counter that all projects would contend for, growing in each."""
    return sequence << _PROJECT_BITS | project_number
