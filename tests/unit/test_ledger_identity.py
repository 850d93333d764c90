"""Who is who: look-alikes are one person, different people are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_svc.domain.identity import acts_for, same_person, same_subject
from ledger_svc.domain.model import Principal, PrincipalKind


@pytest.mark.parametrize(
    "other",
    [
        "Alice",
        "ALICE",
        "alice ",
        "\talice\n",
        "аlice",  # Cyrillic а
        "ΑLICE",  # Greek capital alpha
        "ali\u200bce",  # zero-width space
        "ali\u00adce",  # soft hyphen
        "\u202ealice",  # right-to-left override
        "alice\u0000",
        "alice\ufeff",
        "ａｌｉｃｅ",  # full width
        "𝒶lice",  # mathematical script
        "alicé",
        "alice\u0301",
        "a1ice",
        "aIice",
        "alice@corp",
        "alice@corp.example",
        "Alice+reviews@corp",
        "alice＠corp",  # full-width at sign
        "CORP\\alice",
        "oidc|alice",
        "user:alice",
        "people/alice",
    ],
)
def test_a_look_alike_is_the_same_person(other: str) -> None:
    """L6: case, spaces, invisible characters, homoglyphs, addresses and qualified names do not make another person."""
    assert same_subject("alice", other)
    assert same_subject(other, "alice")
    assert same_subject("alice@other.example", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("alice", "bob"), ("alice", "alicia"), ("maria", "mario"), ("ana@corp", "bia@corp"), ("x1", "x2"), ("@a", "@b")],
)
def test_different_people_stay_different(one: str, other: str) -> None:
    """L6: the comparison does not take everybody for everybody; a shared domain is no shared name."""
    assert not same_subject(one, other)


def test_issuers_do_not_make_two_people_of_one() -> None:
    """L6: the same subject under another issuer or kind is the same person."""
    one = Principal("local", "alice", PrincipalKind.HUMAN)
    other = Principal("https://login.example", "alice@corp", PrincipalKind.SERVICE)
    assert same_person(one, other)


def test_an_agent_acts_for_a_person_however_they_are_spelled() -> None:
    """L6: on_behalf_of is compared like any name; an empty one is nobody."""
    agent = Principal("local", "copilot", PrincipalKind.AGENT, on_behalf_of="Alice@corp")
    assert acts_for(agent, Principal("local", "аlice", PrincipalKind.HUMAN))
    assert not acts_for(agent, Principal("local", "bob", PrincipalKind.HUMAN))
    nobody = Principal("local", "copilot", PrincipalKind.AGENT)
    assert not acts_for(nobody, Principal("local", "", PrincipalKind.HUMAN))


def test_invisible_names_are_all_the_same() -> None:
    """L6: a subject with nothing visible in it equals every other such subject."""
    assert same_subject("\u200b", "\u00ad\u200d")
    assert same_subject("", " ")
    assert not same_subject("\u200b", "alice")


@given(st.text(max_size=20), st.sampled_from(["\u200b", "\u00ad", " ", "\u2060", "\ufeff"]), st.integers(0, 20))
def test_an_invisible_character_never_makes_another_person(subject: str, mark: str, where: int) -> None:
    """L6: anywhere in any subject; and everybody is the same person as themselves."""
    assert same_subject(subject, subject)
    assert same_subject(subject, subject[:where] + mark + subject[where:])
    assert same_subject(subject, f"{mark}{subject}{mark}")
