"""Projects and their policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ledger_svc.domain import names, validate
from ledger_svc.domain import policy as rules
from ledger_svc.domain.authority import check_policy_maker
from ledger_svc.domain.canonical import nfc
from ledger_svc.domain.decide.finish import finish, no_commit
from ledger_svc.domain.errors import STATE_CONFLICT, DomainError
from ledger_svc.domain.model import AuditAction, ChangeSet, Policy, Principal, Project
from ledger_svc.domain.state import State

MAX_DISPLAY_NAME = 200


def decide_project(
    project_id: str, display_name: str, policy: Policy | None, creator: Principal, now: datetime
) -> ChangeSet:
    """Make a project with the first version of its policy. That its id is free is the store's unique name to keep.

    Raises:
        DomainError: INVALID_FIELD or LIMIT_EXCEEDED; PERMISSION_DENIED for an agent that brings a policy of its own.
    """
    if policy is not None:
        check_policy_maker(creator, project_id)
    validate.check_project_id(project_id)
    validate.check_length("display_name", display_name, MAX_DISPLAY_NAME)
    first = replace(policy if policy is not None else rules.default_policy(), version=1)
    rules.check_policy(first)
    project = Project(
        project_id=project_id,
        display_name=nfc(display_name),
        policy_version=1,
        created_at=now,
        created_by=creator,
    )
    state = State(project, first)
    change = replace(no_commit(state, now), project=project, policy=first)
    subject = names.project(project_id)
    action = AuditAction.CREATE_PROJECT
    return finish(state, change, action=action, actor=creator, subject=subject, details={"policy_version": "1"})


def decide_policy(state: State, expected_version: int, policy: Policy, admin: Principal, now: datetime) -> ChangeSet:
    """Replace the policy by its next version. Open proposals keep their hash and answer to the new rules.

    Raises:
        DomainError: STATE_CONFLICT when another version is in force than the admin has seen, INVALID_FIELD;
            PERMISSION_DENIED for an agent.
    """
    check_policy_maker(admin, state.project_id)
    current = state.policy.version
    if expected_version != current:
        raise DomainError(
            STATE_CONFLICT,
            f"the policy is at version {current}, not {expected_version}: read it again",
            {"rule": "policy_version", "expected": str(expected_version), "actual": str(current)},
        )
    following = replace(policy, version=current + 1)
    rules.check_policy(following)
    project = replace(state.project, policy_version=following.version)
    change = replace(no_commit(state, now), project=project, policy=following)
    return finish(
        state,
        change,
        action=AuditAction.UPDATE_POLICY,
        actor=admin,
        subject=names.project(state.project_id),
        details={"policy_version": str(following.version)},
    )
