"""What a proposal would do. One frozen class per kind; a value that is left out (None) means "at apply" or "never"."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from ledger_svc.domain.model.fields import AS_SET
from ledger_svc.domain.model.kinds import Category, MutationKind, RelationKind
from ledger_svc.domain.model.knowledge import Content


@dataclass(frozen=True, slots=True)
class Create:
    """A new family with its first revision."""

    SCHEMA: ClassVar[str] = "create/1"
    KIND: ClassVar[MutationKind] = MutationKind.CREATE

    category: Category
    """Fixes the scope as well."""
    content: Content
    identity_key: str = ""
    valid_from: datetime | None = None
    """None: from the apply on."""
    valid_to: datetime | None = None
    """None: the policy's default validity, or no end."""


@dataclass(frozen=True, slots=True)
class CreateAndLink:
    """A new family with its first revision, and a REFINES from it to an existing one, in one commit."""

    SCHEMA: ClassVar[str] = "create-and-link/1"
    KIND: ClassVar[MutationKind] = MutationKind.CREATE_AND_LINK

    category: Category
    """Fixes the scope as well."""
    content: Content
    refines_family_id: str
    rationale: str = ""
    """Why it refines it."""
    identity_key: str = ""
    valid_from: datetime | None = None
    valid_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """An edit: a new revision that leaves the decision as it was; dependents are not flagged."""

    SCHEMA: ClassVar[str] = "update/1"
    KIND: ClassVar[MutationKind] = MutationKind.UPDATE

    family_id: str
    content: Content
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    fields: tuple[str, ...] = field(default=(), metadata=AS_SET)
    """Fields of ``content`` that change, the others stay as the head has them; empty: all. A preview resolves it."""


@dataclass(frozen=True, slots=True)
class Supersede:
    """A new revision that decides otherwise from ``valid_from`` on; dependents are flagged for review."""

    SCHEMA: ClassVar[str] = "supersede/1"
    KIND: ClassVar[MutationKind] = MutationKind.SUPERSEDE

    family_id: str
    content: Content
    valid_from: datetime | None = None
    valid_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class Invalidate:
    """Nothing of the family holds from ``effective_from`` on; no older revision comes back."""

    SCHEMA: ClassVar[str] = "invalidate/1"
    KIND: ClassVar[MutationKind] = MutationKind.INVALIDATE

    family_id: str
    effective_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class SetExpiry:
    """The end of one revision's validity is known in advance, moved, or taken away (None)."""

    SCHEMA: ClassVar[str] = "set-expiry/1"
    KIND: ClassVar[MutationKind] = MutationKind.SET_EXPIRY

    family_id: str
    valid_to: datetime | None
    revision_id: str = ""
    """Empty: the revision in force when the proposal is made, else the last one; the preview fills it in."""


@dataclass(frozen=True, slots=True)
class CancelSchedule:
    """A revision that has not come into force is taken out again."""

    SCHEMA: ClassVar[str] = "cancel-schedule/1"
    KIND: ClassVar[MutationKind] = MutationKind.CANCEL_SCHEDULE

    family_id: str
    revision_id: str


@dataclass(frozen=True, slots=True)
class Deprecate:
    """Invalidates a family and says which one replaces it, by a DEPRECATES relation from the replacement."""

    SCHEMA: ClassVar[str] = "deprecate/1"
    KIND: ClassVar[MutationKind] = MutationKind.DEPRECATE

    family_id: str
    replacement_family_id: str
    effective_from: datetime | None = None
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class Rollback:
    """A new revision whose content equals an older one's."""

    SCHEMA: ClassVar[str] = "rollback/1"
    KIND: ClassVar[MutationKind] = MutationKind.ROLLBACK

    family_id: str
    to_revision_id: str
    valid_from: datetime | None = None
    valid_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """Asserts a relation between two families."""

    SCHEMA: ClassVar[str] = "link/1"
    KIND: ClassVar[MutationKind] = MutationKind.LINK

    relation_kind: RelationKind
    source_family_id: str
    target_family_id: str
    rationale: str = ""
    valid_from: datetime | None = None
    valid_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class Unlink:
    """Retires a relation; what it said about the time before ``retired_from`` stays."""

    SCHEMA: ClassVar[str] = "unlink/1"
    KIND: ClassVar[MutationKind] = MutationKind.UNLINK

    relation_id: str
    retired_from: datetime | None = None


Publication = Create | CreateAndLink | Update | Supersede | Rollback
Mutation = (
    Create
    | CreateAndLink
    | Update
    | Supersede
    | Invalidate
    | SetExpiry
    | CancelSchedule
    | Deprecate
    | Rollback
    | Link
    | Unlink
)
