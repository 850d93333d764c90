"""What every service of the ledger works with: store, clock, ids; and who may come in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ledger_svc.domain import model
from ledger_svc.domain.model import Principal
from ledger_svc.store import LedgerStore
from service_kit import names
from service_kit.clock import Clock
from service_kit.context import remaining_seconds
from service_kit.errors import DomainError, Reason, not_found, permission_denied
from service_kit.principals import ALL_PROJECTS, Role, require
from service_kit.principals import Principal as Caller

_LONGEST_WAIT_SECONDS: Final = 10.0
_TIME_TO_ANSWER_SECONDS: Final = 0.25


@dataclass(slots=True)
class Ledger:
    """The parts that the services share."""

    store: LedgerStore
    clock: Clock
    new_id: Callable[[], str]
    _known: set[str] = field(default_factory=set)
    """Projects that were found; a project never goes away."""

    async def enter(self, caller: Caller, project_id: str, role: Role = Role.READER) -> None:
        """Let a caller into a project.

        Raises:
            DomainError: PERMISSION_DENIED without the role; and for a project that does not exist, unless the caller
                administers all projects and may know: then NOT_FOUND.
        """
        require(caller, project_id, role)
        if project_id in self._known:
            return
        if await self.store.position(project_id) is None:
            raise unknown_project(caller, project_id, role)
        self._known.add(project_id)

    def exists(self, project_id: str) -> None:
        """Remember that a project was found."""
        self._known.add(project_id)

    async def wait_until_fresh(self, project_id: str, position: int) -> None:
        """Wait until the store is at a position of a project.

        Raises:
            DomainError: NOT_FRESH_ENOUGH, when the caller's time runs out before.
        """
        left = remaining_seconds()
        wait = _LONGEST_WAIT_SECONDS if left is None else min(_LONGEST_WAIT_SECONDS, left - _TIME_TO_ANSWER_SECONDS)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + wait
        while True:
            version = self.store.version(project_id)
            actual = await self.store.position(project_id) or 0
            if actual >= position:
                return
            # A commit that this process does not make is seen by asking again.
            wait = give_up - loop.time()
            if wait <= 0:
                raise DomainError(
                    Reason.NOT_FRESH_ENOUGH,
                    f"this ledger is at position {actual} of the project, before {position}; try again",
                    metadata={"needed_position": str(position), "position": str(actual)},
                )
            await self.store.changed(project_id, version, min(wait, 0.5))

    def now(self) -> datetime:
        """The present."""
        return self.clock.now()


def unknown_project(caller: Caller, project_id: str, role: Role) -> DomainError:
    """Return what a caller is told about a project that does not exist."""
    if caller.can(ALL_PROJECTS, Role.ADMIN):
        return not_found(names.project_name(project_id))
    return permission_denied(project_id, role.value)


def as_principal(caller: Caller, project_id: str) -> Principal:
    """Return the domain's principal: who calls, with the roles that they hold in the project."""
    return Principal(
        issuer=caller.issuer,
        subject=caller.subject,
        kind=model.PrincipalKind(caller.kind.value),
        on_behalf_of=caller.on_behalf_of,
        roles=frozenset(model.Role(role.name) for role in caller.roles_in(project_id)),
    )
