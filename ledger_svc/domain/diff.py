"""What differs between contents, who set which field, and where a revision comes from. Pure readings of history."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ledger_svc.domain.canonical import canonical_json
from ledger_svc.domain.errors import invalid_field
from ledger_svc.domain.model import Content, FieldChange, Revision

CONTENT_FIELDS: Final = tuple(f.name for f in dataclasses.fields(Content))
"""Names of the fields of Content, in order."""

_SETS: Final = frozenset(f.name for f in dataclasses.fields(Content) if f.metadata.get("canonical") == "set")


def content_fields(content: Content) -> dict[str, str]:
    """Each filled field with its value as canonical JSON; attributes one by one, as ``attributes.<key>``."""
    values: dict[str, str] = {}
    for name in CONTENT_FIELDS:
        value = getattr(content, name)
        if name == "attributes":
            for key in sorted(value):
                values[f"attributes.{key}"] = canonical_json(value[key]).decode()
        elif value not in ("", ()):
            values[name] = canonical_json(frozenset(value) if name in _SETS else value).decode()
    return values


def diff_contents(before: Content | None, after: Content | None) -> tuple[FieldChange, ...]:
    """Fields that differ, in the order of Content's fields; None is content that is not there."""
    old = content_fields(before) if before is not None else {}
    new = content_fields(after) if after is not None else {}
    ordered = sorted(old.keys() | new.keys(), key=_field_order)
    return tuple(
        FieldChange(name, old.get(name, ""), new.get(name, "")) for name in ordered if old.get(name) != new.get(name)
    )


def _field_order(name: str) -> tuple[int, str]:
    return CONTENT_FIELDS.index(name.split(".", 1)[0]), name


def merge_fields(base: Content, new: Content, fields: Iterable[str]) -> Content:
    """``base`` with the named fields as ``new`` has them; ``attributes.<key>`` names one attribute.

    Raises:
        DomainError: INVALID_FIELD for a name that is no field of Content.
    """
    changes: dict[str, object] = {}
    attributes = dict(base.attributes)
    for name in fields:
        if name.startswith("attributes."):
            key = name.removeprefix("attributes.")
            attributes.pop(key, None)
            if key in new.attributes:
                attributes[key] = new.attributes[key]
            changes["attributes"] = attributes
        elif name == "attributes":
            attributes = dict(new.attributes)
            changes["attributes"] = attributes
        elif name in CONTENT_FIELDS:
            changes[name] = getattr(new, name)
        else:
            raise invalid_field("update_mask", f"Content has no field {name}")
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # Names and values come from Content.


@dataclass(frozen=True, slots=True)
class FieldOrigin:
    """One filled field of a revision with the revision that gave it its present value."""

    field: str
    value: str
    revision_id: str


def blame(history: Sequence[Revision]) -> tuple[FieldOrigin, ...]:
    """Say for each field of the last revision which one set it.

    Args:
        history: The chain of first parents up to the revision in question, oldest first, as ``lineage`` gives it.
    """
    if not history:
        return ()
    values = content_fields(history[-1].content)
    origin = dict.fromkeys(values, history[-1].revision_id)
    open_fields = set(values)
    for revision in reversed(history):
        earlier = content_fields(revision.content)
        open_fields = {name for name in open_fields if earlier.get(name) == values[name]}
        if not open_fields:
            break
        for name in open_fields:
            origin[name] = revision.revision_id
    return tuple(FieldOrigin(name, values[name], origin[name]) for name in sorted(values, key=_field_order))


def lineage(revision_id: str, revisions: Mapping[str, Revision]) -> tuple[Revision, ...]:
    """The chain of first parents up to a revision, oldest first; stops where a parent is not among ``revisions``."""
    chain: list[Revision] = []
    seen: set[str] = set()
    current = revisions.get(revision_id)
    while current is not None and current.revision_id not in seen:
        seen.add(current.revision_id)
        chain.append(current)
        current = revisions.get(current.parents[0]) if current.parents else None
    return tuple(reversed(chain))
