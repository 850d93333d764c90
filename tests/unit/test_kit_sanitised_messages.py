"""G1: a request is sanitised as a whole; identifiers are judged, never rewritten; what was clean is remembered."""

from __future__ import annotations

import pytest
from decisionssearch.ledger.v1 import admin_service_pb2, evidence_service_pb2, ledger_pb2, observation_service_pb2

from service_kit.checks import FieldChecks
from service_kit.errors import InvalidRequest
from service_kit.ids import new_id
from service_kit.sanitising.messages import MessageSanitiser, found_in_identifier
from service_kit.sanitising.sanitise import sanitise, sanitise_mapping

SANITISER = MessageSanitiser(frozenset({"request_id", "project"}), frozenset({"issuer", "subject"}))
SECRET = "glpat-" + "x7q2" * 5


async def test_a_large_request_is_sanitised_like_a_small_one() -> None:
    """G1: past the size that goes to a thread, every item is still reached."""
    request = observation_service_pb2.RecordObservationsRequest(project="projects/p", request_id="r")
    for number in range(60):
        request.observations.add(text=f"{'word ' * 200}{number} ana@example.org")
    taken = await SANITISER.take(request)
    assert [one.field for one in taken.replaced] == [f"observations[{n}].text" for n in range(60)]
    assert all(one.text.endswith("[REDACTED:EMAIL]") for one in request.observations)


async def test_an_identifier_is_refused_with_its_path_and_left_alone() -> None:
    """G1: two keys must not become one, so a key is refused rather than rewritten; the message names the kind only."""
    request = evidence_service_pb2.RegisterEvidenceRequest(project="projects/p", request_id=SECRET)
    checks = FieldChecks()
    (await SANITISER.take(request)).check(checks)
    assert request.request_id == SECRET
    with pytest.raises(InvalidRequest) as refused:
        checks.raise_if_any()
    assert [problem.field for problem in refused.value.fields] == ["request_id"]
    assert SECRET not in str(refused.value)


async def test_a_rule_may_name_an_account_by_its_e_mail() -> None:
    """An account is often called like an e-mail; a token is not a name."""
    rule = admin_service_pb2.ApprovalRule(issuer="https://id.example.org", subject="ci@project.example.org")
    assert (await SANITISER.take(rule)).refused == []
    rule.subject = SECRET
    assert (await SANITISER.take(rule)).refused == [("subject", "GITLAB_TOKEN")]


async def test_a_secret_in_decomposed_letters_is_found() -> None:
    """G1: stores compose letters, so what is an e-mail only when composed is one."""
    content = ledger_pb2.Content(summary="jos\u0065\u0301@example.org", title="Decisa\u0303o")
    taken = await SANITISER.take(content)
    assert content.summary == "[REDACTED:EMAIL]"
    assert content.title == "Decisa\u0303o", "what holds nothing stays byte for byte"
    assert [str(one) for one in taken.replaced] == ["summary: 1 EMAIL was replaced before storing"]


def test_two_keys_that_become_one_keep_both_values() -> None:
    """Nothing is lost: the second placeholder is numbered."""
    clean, found = sanitise_mapping({"ana@example.org": "1", "rui@example.org": "2"})
    assert clean == {"[REDACTED:EMAIL]": "1", "[REDACTED:EMAIL] (2)": "2"}
    assert found == {"EMAIL": 2}
    assert sanitise_mapping(clean)[0] == clean


def test_names_that_the_server_made_are_no_secrets() -> None:
    """Ids are hex digits and dashes; they are passed without a look."""
    assert not found_in_identifier(f"projects/p/families/{new_id()}/revisions/{new_id()}")
    assert not found_in_identifier(new_id())
    assert list(found_in_identifier(f"projects/{SECRET}")) == ["GITLAB_TOKEN"]


def test_what_is_remembered_as_clean_is_never_a_secret() -> None:
    """G1: asking again and again gives the same findings."""
    for _ in range(3):
        assert sanitise(f"use {SECRET} here").findings == {"GITLAB_TOKEN": 1}
        assert sanitise("use it here").findings == {}
