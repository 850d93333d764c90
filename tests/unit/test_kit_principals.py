"""Who may do what where."""

from __future__ import annotations

import pytest
from decisionssearch.common.v1 import common_pb2

from service_kit.errors import DomainError, Reason
from service_kit.principals import Kind, Principal, Role, grant, require

ANA = Principal("local", "ana", Kind.HUMAN, grants=(grant("billing", ["proposer"]), grant("*", [])))
ROOT = Principal("local", "root", Kind.SERVICE, grants=(grant("*", ["admin"]), grant("billing", ["reviewer"])))


def test_roles_are_independent_but_all_may_read() -> None:
    """S1: a proposer reads and proposes, and is neither reviewer nor admin; an empty grant gives nothing."""
    assert ANA.roles_in("billing") == {Role.PROPOSER, Role.READER}
    assert ANA.roles_in("projects/billing") == ANA.roles_in("billing")
    assert ANA.roles_in("payments") == frozenset()
    assert ANA.projects == {"billing"}


def test_roles_everywhere_add_to_those_of_a_project() -> None:
    """S1: a grant on all projects holds in each, and only such a grant counts for what belongs to none."""
    assert ROOT.roles_in("billing") == {Role.ADMIN, Role.REVIEWER, Role.READER}
    assert ROOT.roles_in("new") == {Role.ADMIN, Role.READER}
    assert ROOT.roles_in("*") == {Role.ADMIN, Role.READER}


def test_a_missing_role_is_denied_in_the_same_words_everywhere() -> None:
    """S1: the answer is the same for a foreign project and for one that does not exist."""
    require(ANA, "billing", Role.READER)
    answers = []
    for project in ("payments", "missing0"):
        with pytest.raises(DomainError) as denied:
            require(ANA, project, Role.READER)
        assert denied.value.reason is Reason.PERMISSION_DENIED
        answers.append(denied.value.message.replace(project, ""))
    assert answers[0] == answers[1]


def test_no_name_of_a_project_is_a_pattern() -> None:
    """S1: only a grant can say ``*``; asking for a project by a prefix or a look-alike finds nothing."""
    for project in ("bill", "billing2", "Billing", "", "projects/", "bіlling"):
        assert ANA.roles_in(project) == frozenset()


def test_an_unknown_role_is_refused() -> None:
    """S1: a misspelled role in a grant is an error, not a grant of nothing."""
    with pytest.raises(ValueError, match="owner"):
        grant("billing", ["owner"])


def test_the_message_says_who_and_never_what_they_may() -> None:
    """L6: the wire carries issuer, subject, kind and on whose behalf; grants stay inside."""
    agent = Principal("local", "bot", Kind.AGENT, on_behalf_of="ana", grants=ANA.grants)
    assert agent.to_proto() == common_pb2.Principal(
        issuer="local", subject="bot", kind=common_pb2.PRINCIPAL_KIND_AGENT, on_behalf_of="ana"
    )
    assert agent.id == "local:bot"
