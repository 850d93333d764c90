"""Which projects there are: asked of the ledger, for an index has nothing to say about one that does not exist."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from index_svc.ledger_client import LedgerClient
from service_kit.errors import DomainError, Reason, dependency_unavailable, not_found, permission_denied
from service_kit.names import project_name
from service_kit.principals import ALL_PROJECTS, Principal, Role, require

_ASKING_SECONDS: Final = 2.0
_LOG = logging.getLogger(__name__)


class Projects:
    """Lets callers into projects.

    Args:
        ledger: Knows which projects there are.
        holds: Says whether the index has something of a project: then it exists, and nobody need wait for the ledger.
    """

    def __init__(self, ledger: LedgerClient, holds: Callable[[str], bool] = lambda _project: False) -> None:
        self._ledger = ledger
        self._holds = holds
        self._known: set[str] = set()

    async def enter(self, caller: Principal, project: str, role: Role) -> None:
        """Let a caller into a project (its id).

        Raises:
            DomainError: PERMISSION_DENIED without the role; and for a project that does not exist, unless the caller
                administers all projects and may know: then NOT_FOUND. DEPENDENCY_UNAVAILABLE for an administrator,
                when the ledger cannot be asked: upkeep waits for it; reads do not.
        """
        require(caller, project, role)
        if project in self._known or self._holds(project) or await self._exists(project, role):
            return
        if caller.can(ALL_PROJECTS, Role.ADMIN):
            raise not_found(project_name(project))
        raise permission_denied(project, role.value)

    async def _exists(self, project: str, role: Role) -> bool:
        try:
            async with asyncio.timeout(_ASKING_SECONDS):
                await self._ledger.stats(project)
        except (DomainError, TimeoutError) as error:
            if isinstance(error, DomainError) and error.reason is Reason.NOT_FOUND:
                return False
            if role is Role.ADMIN:
                raise dependency_unavailable("ledger") from None
            # The ledger is away: an answer with applied_position 0 says enough.
            _LOG.info("could not ask the ledger about %s", project)
            return True
        self._known.add(project)  # A project never goes away.
        return True
