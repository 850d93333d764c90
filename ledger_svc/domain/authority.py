"""Where a role is not enough: acts that come to the same as approving.

An agent never approves. Who makes a project's policy writes the rules that approve, and says what people are asked for;
who imports a project brings approvals that this ledger never saw anybody give. The audit chain of a file only shows
that it was not changed since, not that it is true. So neither is for agents, and an import is for who answers for the
whole ledger. Who may decide a proposal is in ``policy``.
"""

from __future__ import annotations

from typing import Final

from ledger_svc.domain.errors import permission_denied
from ledger_svc.domain.model import Principal, PrincipalKind, Role

EVERYWHERE: Final = "*"
"""In the place of a project's id: all of them, also those that do not exist yet."""


def check_policy_maker(principal: Principal, project_id: str) -> None:
    """Refuse a principal who may not make the policy of a project, whatever its roles.

    Raises:
        DomainError: PERMISSION_DENIED, with the rule ``agent_makes_no_policy``.
    """
    if principal.kind is PrincipalKind.AGENT:
        raise permission_denied(
            project_id,
            "admin",
            "an agent makes no policy, whose rules approve: ask a person with the role admin to do it",
            rule="agent_makes_no_policy",
        )


def check_importer(principal: Principal) -> None:
    """Refuse a principal who may not bring in a project with its history.

    Args:
        principal: Who asks, with the roles that they hold in all projects (``*``), not in that one.

    Raises:
        DomainError: PERMISSION_DENIED, with the rule ``agent_imports_nothing`` or ``import_needs_all_projects``.
    """
    if principal.kind is PrincipalKind.AGENT:
        raise permission_denied(
            EVERYWHERE,
            "admin",
            "an agent imports no history, which holds approvals: ask a person with the role admin in all projects",
            rule="agent_imports_nothing",
        )
    if Role.ADMIN not in principal.roles:
        raise permission_denied(
            EVERYWHERE,
            "admin",
            "an import brings approvals with it and needs the role admin in all projects (*), not in this one alone: "
            "ask whoever runs this ledger to import the file",
            rule="import_needs_all_projects",
        )
