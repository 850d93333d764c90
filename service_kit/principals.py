"""Who calls, and what they may do where. Authority comes from the credential, never from a field of a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from decisionssearch.common.v1 import common_pb2

from service_kit.errors import permission_denied

ALL_PROJECTS: Final = "*"


class Kind(StrEnum):
    """What kind of actor a principal is."""

    HUMAN = "HUMAN"
    AGENT = "AGENT"
    SERVICE = "SERVICE"
    POLICY = "POLICY"


class Role(StrEnum):
    """A right within a project. The names are independent of each other, but every role lets its holder read."""

    READER = "reader"
    PROPOSER = "proposer"
    REVIEWER = "reviewer"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Grant:
    """Roles in one project (its id), or in all of them (``*``)."""

    project: str
    roles: frozenset[Role]


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated actor. Two principals are the same actor when issuer and subject are equal."""

    issuer: str
    subject: str
    kind: Kind
    on_behalf_of: str = ""
    grants: tuple[Grant, ...] = ()

    @property
    def id(self) -> str:
        """Issuer and subject in one text, for logs and audit."""
        return f"{self.issuer}:{self.subject}"

    def roles_in(self, project: str) -> frozenset[Role]:
        """Return the roles in a project (id, resource name, or ``*`` for those that hold everywhere)."""
        wanted = project.removeprefix("projects/")
        roles = frozenset[Role]().union(*(g.roles for g in self.grants if g.project in {ALL_PROJECTS, wanted}))
        return roles | {Role.READER} if roles else roles

    def can(self, project: str, role: Role) -> bool:
        """Return whether the principal holds the role in the project."""
        return role in self.roles_in(project)

    @property
    def projects(self) -> frozenset[str]:
        """Ids of the projects that the principal may read; contains ``*`` when that is every project."""
        return frozenset(g.project for g in self.grants if g.roles)

    def to_proto(self) -> common_pb2.Principal:
        """Return the message that responses and audit entries carry."""
        return common_pb2.Principal(
            issuer=self.issuer,
            subject=self.subject,
            kind=common_pb2.PrincipalKind.Value(f"PRINCIPAL_KIND_{self.kind.value}"),
            on_behalf_of=self.on_behalf_of,
        )


def require(principal: Principal, project: str, role: Role) -> None:
    """Refuse with PERMISSION_DENIED unless the principal holds the role in the project.

    Call it before looking the project up: the answer must not depend on whether the project exists.
    """
    if not principal.can(project, role):
        raise permission_denied(project, role.value)


def grant(project: str, roles: Iterable[Role | str]) -> Grant:
    """Return a grant from role names; an unknown role is a ``ValueError``."""
    return Grant(project, frozenset(Role(r) for r in roles))
