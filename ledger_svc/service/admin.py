"""Projects, their policy, and the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ledger_svc.domain import errors, moving
from ledger_svc.domain.audit import ChainProblem, ChainVerifier
from ledger_svc.domain.decide import decide_policy, decide_project
from ledger_svc.domain.model import AuditAction, AuditEntry, ChangeSet, Policy
from ledger_svc.domain.state import State
from ledger_svc.group import Decided
from ledger_svc.service.commands import Command, Made, Refusal, Request
from ledger_svc.service.context import Ledger
from ledger_svc.state import WorkingState
from ledger_svc.views import ProjectView, StoreInfo
from service_kit import names
from service_kit.errors import already_exists, as_domain_error, not_found
from service_kit.principals import ALL_PROJECTS, Role, require
from service_kit.principals import Principal as Caller

MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification of the audit found."""

    entries: int
    records: int
    problems: tuple[ChainProblem, ...]
    chain_head: str


class AdminService:
    """Administration. Reads never create a project."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def info(self) -> StoreInfo:
        """Which ledger this is."""
        return self._ledger.store.info

    async def create_project(self, request: Request, display_name: str, policy: Policy | None) -> ProjectView:
        """Make a project."""
        require(request.caller, request.project_id, Role.ADMIN)
        view = await self._project(request, _CreateProject(self._ledger, request, display_name, policy))
        self._ledger.exists(request.project_id)
        return view

    async def update_policy(self, request: Request, expected_version: int, policy: Policy) -> ProjectView:
        """Replace the policy by its next version."""
        caller, project_id = request.caller, request.project_id
        try:
            await self._ledger.enter(caller, project_id, Role.ADMIN)
        except Exception as error:
            if caller.can(project_id, Role.READER) and not caller.can(project_id, Role.ADMIN):
                typed = errors.permission_denied(project_id, Role.ADMIN.value)
                refusal = Refusal(self._ledger, caller, project_id, AuditAction.UPDATE_POLICY, typed, "")
                await self._ledger.store.decide([refusal])
            raise error from None
        return await self._project(request, _UpdatePolicy(self._ledger, request, expected_version, policy))

    async def project(self, caller: Caller, project_id: str) -> ProjectView:
        """Return a project."""
        await self._ledger.enter(caller, project_id)
        view = await self._ledger.store.project(project_id)
        if view is None:
            raise not_found(names.project_name(project_id))
        return view

    async def projects(self, caller: Caller, after: str, limit: int) -> list[ProjectView]:
        """List the projects that the caller may read."""
        may = caller.projects
        return await self._ledger.store.projects(after, limit, None if ALL_PROJECTS in may else may)

    async def audit(
        self, caller: Caller, project_id: str, after_sequence: int, limit: int
    ) -> tuple[list[AuditEntry], int]:
        """List audit entries in order; return the sequence of the newest one too."""
        await self._ledger.enter(caller, project_id, Role.ADMIN)
        return await self._ledger.store.audit(project_id, after_sequence, limit)

    async def verify(self, caller: Caller, project_id: str) -> Verified:
        """Recompute the audit chain and every hash that it covers."""
        await self._ledger.enter(caller, project_id, Role.ADMIN)
        verifier = ChainVerifier()
        problems = await self._ledger.store.verify(project_id, verifier)
        return Verified(verifier.entries, verifier.records, tuple(problems), verifier.chain_head)

    async def _project(self, request: Request, command: Command[ProjectView]) -> ProjectView:
        outcome = (await self._ledger.store.decide([command]))[0]
        if outcome.error is not None:
            raise as_domain_error(outcome.error) or outcome.error
        made: Made[ProjectView] = outcome.result
        if made.value is not None:
            return made.value
        view = await self._ledger.store.project(request.project_id)
        policy = await self._ledger.store.policy(request.project_id, made.kept["policy_version"])
        if view is None or policy is None:
            raise LookupError("a kept answer names a project that is not stored")
        project = replace(view.project, policy_version=policy.version)
        return ProjectView(project, policy, made.kept["position"], view.recorded_at)


def _kept(view: ProjectView) -> dict[str, Any]:
    return {"policy_version": view.policy.version, "position": view.position}


@dataclass(slots=True)
class _CreateProject(Command[ProjectView]):
    display_name: str
    policy: Policy | None

    def decide(self, working: WorkingState) -> Decided[Made[ProjectView]]:
        """Answer as the first time, or make the project; the one write that a missing project does not stop."""
        if working.importing:
            raise moving.being_imported(self.project_id)
        stored = working.replies.get(self.request.key)
        if stored is not None:
            return self.repeat(stored)
        if working.state is not None:
            name = names.project_name(self.project_id)
            raise already_exists(f"{name} exists already", project=name)
        change = decide_project(
            self.project_id, self.display_name, self.policy, self.request.principal, self.ledger.now()
        )
        if change.project is None or change.policy is None:
            raise LookupError("a new project has a record and a policy")
        view = ProjectView(change.project, change.policy, 0, change.recorded_at)
        kept = _kept(view)
        reply = self.reply(kept, change.recorded_at)
        return Decided(Made(kept, view, change.recorded_at), (replace(change, replies=(reply,)),))


@dataclass(slots=True)
class _UpdatePolicy(Command[ProjectView]):
    expected_version: int
    policy: Policy

    ACTION = AuditAction.UPDATE_POLICY

    def run(
        self, state: State, working: WorkingState, now: datetime
    ) -> tuple[ProjectView, Mapping[str, Any], ChangeSet]:
        del working
        change = decide_policy(state, self.expected_version, self.policy, self.request.principal, now)
        if change.project is None or change.policy is None:
            raise LookupError("a change of policy has both records")
        view = ProjectView(change.project, change.policy, state.position, change.recorded_at)
        return view, _kept(view), change
