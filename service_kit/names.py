"""Resource names: ``projects/{project}/families/{family}/revisions/{revision}`` and their like.

The same text names a resource in the ledger, the index payload, a hit, the logs and the metadata of an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from service_kit.errors import invalid

PROJECT_ID: Final = re.compile(r"[a-z][a-z0-9-]{1,62}", re.ASCII)
BRANCH: Final = re.compile(r"[a-z0-9][a-z0-9._/-]{0,99}", re.ASCII)
UUID_TEXT: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)

PROJECT_ID_RULE: Final = "must be 2 to 63 of a-z, 0-9 and -, starting with a letter"
BRANCH_RULE: Final = "must be 1 to 100 of a-z, 0-9 and . _ / -, starting with a letter or digit"


class NameKind(Enum):
    """What a name can name: the collections on its path below the project."""

    PROJECT = ()
    FAMILY = ("families",)
    REVISION = ("families", "revisions")
    PROPOSAL = ("proposals",)
    APPROVAL = ("proposals", "approvals")
    EVIDENCE = ("evidence",)
    RELATION = ("relations",)
    OBSERVATION = ("observations",)
    CONFLICT = ("conflicts",)

    @property
    def template(self) -> str:
        """The shape of the name, for messages."""
        parts = ["projects/{project}", *(f"{c}/{{id}}" for c in self.value)]
        return "/".join(parts)


@dataclass(frozen=True, slots=True)
class ResourceName:
    """A parsed name. ``str()`` gives the text back."""

    kind: NameKind
    project: str
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = ["projects", self.project]
        for collection, ident in zip(self.kind.value, self.ids, strict=True):
            parts += [collection, ident]
        return "/".join(parts)

    @property
    def id(self) -> str:
        """The last id: the family's for a family, the revision's for a revision, the project's for a project."""
        return self.ids[-1] if self.ids else self.project

    @property
    def parent(self) -> ResourceName:
        """The name one level up; the project's for a resource directly below it."""
        if not self.ids:
            raise ValueError("a project has no parent")
        return ResourceName(NameKind(self.kind.value[:-1]), self.project, self.ids[:-1])


def build(kind: NameKind, project: str, *ids: str) -> str:
    """Return the text of a name made from parts that are known to be well formed."""
    return str(ResourceName(kind, project, ids))


def project_name(project: str) -> str:
    """Return the name of a project."""
    return f"projects/{project}"


def family_name(project: str, family: str) -> str:
    """Return the name of a family."""
    return f"projects/{project}/families/{family}"


def revision_name(project: str, family: str, revision: str) -> str:
    """Return the name of a revision."""
    return f"projects/{project}/families/{family}/revisions/{revision}"


def proposal_name(project: str, proposal: str) -> str:
    """Return the name of a proposal."""
    return f"projects/{project}/proposals/{proposal}"


def evidence_name(project: str, evidence: str) -> str:
    """Return the name of a piece of evidence."""
    return f"projects/{project}/evidence/{evidence}"


def relation_name(project: str, relation: str) -> str:
    """Return the name of a relation."""
    return f"projects/{project}/relations/{relation}"


def observation_name(project: str, observation: str) -> str:
    """Return the name of an observation."""
    return f"projects/{project}/observations/{observation}"


def parse(text: str, kind: NameKind, field: str, *, project: str | None = None) -> ResourceName:
    """Return the parts of a name of the given kind.

    Args:
        text: The name.
        kind: What it must name.
        field: Path of the field it came in, for the error.
        project: Id of the project that the request is about, when it must be that one.

    Raises:
        InvalidRequest: The name is empty, malformed, of another kind, or of another project.
    """
    if not text:
        raise invalid(field, f"is required, as {kind.template}")
    parts = text.split("/")
    collections = ("projects", *kind.value)
    if len(parts) != 2 * len(collections) or tuple(parts[::2]) != collections:
        raise invalid(field, f"must be a name like {kind.template}")
    found, *ids = parts[1::2]
    if not PROJECT_ID.fullmatch(found):
        raise invalid(field, f"the project id {PROJECT_ID_RULE}")
    if not all(UUID_TEXT.fullmatch(ident) for ident in ids):
        raise invalid(field, "each id must be a lower-case UUID with dashes, as the server made it")
    if project is not None and found != project:
        raise invalid(field, f"must be of the project that the request is about, projects/{project}")
    return ResourceName(kind, found, tuple(ids))


def parse_project(text: str, field: str = "project") -> str:
    """Return the id in the name of a project.

    Raises:
        InvalidRequest: It is not the name of a project.
    """
    return parse(text, NameKind.PROJECT, field).project


def check_project_id(text: str, field: str = "project_id") -> str:
    """Return the id of a project when it is well formed.

    Raises:
        InvalidRequest: It is not.
    """
    if not PROJECT_ID.fullmatch(text):
        raise invalid(field, PROJECT_ID_RULE)
    return text


def check_branch(text: str, field: str = "branch", *, default: str = "main") -> str:
    """Return the branch, the default for an empty one.

    Raises:
        InvalidRequest: It is malformed.
    """
    if not text:
        return default
    if not BRANCH.fullmatch(text):
        raise invalid(field, BRANCH_RULE)
    return text
