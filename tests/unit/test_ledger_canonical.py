"""Canonical form: what a hash covers, and what it must not depend on."""

from __future__ import annotations

import dataclasses
import types
import typing
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from random import Random
from zoneinfo import ZoneInfo

import pytest
import rfc8785
from hypothesis import assume, given
from hypothesis import strategies as st

from ledger_svc.domain import model
from ledger_svc.domain.canonical import (
    canonical_json,
    content_hash,
    evidence_fingerprint,
    instant_text,
    is_hash,
    meaning_hash,
    normalised,
    preview_hash,
    record_hash,
    request_hash,
    revision_hash,
    text_hash,
)
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import Content, Evidence, EvidenceLink, Principal, PrincipalKind, Proposal, Stance

RECORDS = sorted(
    (c for c in vars(model).values() if dataclasses.is_dataclass(c) and hasattr(c, "SCHEMA")), key=lambda c: c.__name__
)

NOT_IN_MEANING = {
    "Principal.roles",
    "EvidenceLink.evidence_id",
    "Evidence.evidence_id",
    "Evidence.project_id",
    "Evidence.fingerprint",
    "Evidence.registered_by",
    "Evidence.recorded_at",
    "Evidence.verifications",
    "Draft.observation_id",
    "Proposal.proposal_id",
    "Proposal.preview_hash",
    "Proposal.created_at",
    "Proposal.observation_id",
    "Draft.warnings",
    "Proposal.warnings",
    "Proposal.status",
    "Proposal.status_reason",
    "Proposal.decided_at",
    "Proposal.decided_by",
    "Proposal.applied_position",
    "Proposal.result_family_id",
    "Proposal.result_revision_id",
    "Proposal.result_relation_id",
    "AuditEntry.entry_hash",
    "Observation.observation_id",
    "Observation.recorded_by",
    "Observation.recorded_at",
}
"""Every field that a meaning leaves out, written down once more: leaving out another one is a decision, not a slip."""

NOT_IN_RECORD = {"Principal.roles", "Evidence.verifications", "AuditEntry.entry_hash"}
"""Every field that even a record hash leaves out: not stored, or a record of its own, or the hash itself."""


def sample(kind: object, salt: str) -> object:
    """Some value of an annotated type; another salt gives another value."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        options = [a for a in args if a is not type(None)]
        return sample(options[len(salt) % len(options)], salt)
    if origin is tuple:
        return tuple(sample(args[0], f"{salt}{i}") for i in range(2))
    if origin is frozenset:
        return frozenset({sample(args[0], salt)})
    if origin is not None and issubclass(origin, Mapping):
        return {sample(args[0], salt): sample(args[1], salt)}
    assert isinstance(kind, type)
    if issubclass(kind, Enum):
        return list(kind)[len(salt) % len(kind)]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{f.name: sample(hints[f.name], salt) for f in dataclasses.fields(kind)})
    simple: dict[type, object] = {
        str: f"text {salt}",
        int: 7 + len(salt),
        bool: bool(len(salt) % 2),
        float: 0.25 + len(salt) / 100,
        datetime: datetime(2020, 1, 1, tzinfo=UTC) + timedelta(days=len(salt)),
        timedelta: timedelta(hours=len(salt)),
    }
    return simple[kind]


def changed(kind: object, value: object) -> object:
    """A value of the type that differs from the one given."""
    for salt in ("yy", "zzz", "wwww"):
        other = sample(kind, salt)
        if other != value:
            return other
    raise AssertionError(f"no other value of {kind}")


def fields_of(cls: type) -> Iterator[tuple[dataclasses.Field, object]]:
    """Fields with their types."""
    hints = typing.get_type_hints(cls)
    return ((f, hints[f.name]) for f in dataclasses.fields(cls))


@pytest.mark.parametrize("cls", RECORDS, ids=lambda c: c.__name__)
def test_every_field_of_every_record_is_hashed_or_named_as_left_out(cls: type) -> None:
    """L4: changing any single field changes the hash, except those written down above; so new fields are covered."""
    value = sample(cls, "x")
    for f, kind in fields_of(cls):
        name = f"{cls.__name__}.{f.name}"
        other = dataclasses.replace(value, **{f.name: changed(kind, getattr(value, f.name))})
        assert (meaning_hash(other) == meaning_hash(value)) == (name in NOT_IN_MEANING), name
        assert (record_hash(other) == record_hash(value)) == (name in NOT_IN_RECORD), name
        assert ("why" in f.metadata) == (name in NOT_IN_MEANING), f"{name}: a field is left out with a reason"


@pytest.mark.parametrize("cls", RECORDS, ids=lambda c: c.__name__)
def test_a_field_that_goes_empty_changes_the_hash(cls: type) -> None:
    """L4: leaving empty fields out of the form hides no change: filled and empty differ."""
    value = sample(cls, "x")
    for f, _ in fields_of(cls):
        name = f"{cls.__name__}.{f.name}"
        old = getattr(value, f.name)
        empty = {str: "", tuple: (), frozenset: frozenset(), dict: {}}.get(type(old))
        if empty is None or name in NOT_IN_MEANING:
            continue
        assert meaning_hash(dataclasses.replace(value, **{f.name: empty})) != meaning_hash(value), name


def test_the_preview_hash_covers_proposal_and_evidence() -> None:
    """L4: mutation, before, after, diff, links, heads, reason, requester, policy version and evidence records count."""
    proposal, evidence = sample(Proposal, "x"), sample(Evidence, "x")
    assert isinstance(proposal, Proposal)
    assert isinstance(evidence, Evidence)
    base = preview_hash(proposal, [evidence])
    assert is_hash(base)
    for f, kind in fields_of(Proposal):
        other = dataclasses.replace(proposal, **{f.name: changed(kind, getattr(proposal, f.name))})
        assert (preview_hash(other, [evidence]) == base) == (f"Proposal.{f.name}" in NOT_IN_MEANING), f.name
    for f, kind in fields_of(Evidence):
        record = dataclasses.replace(evidence, **{f.name: changed(kind, getattr(evidence, f.name))})
        assert (preview_hash(proposal, [record]) == base) == (f"Evidence.{f.name}" in NOT_IN_MEANING), f.name
        assert (evidence_fingerprint(record) == evidence_fingerprint(evidence)) == (
            f"Evidence.{f.name}" in NOT_IN_MEANING
        )
    assert preview_hash(proposal, []) != base


def test_the_revision_hash_covers_each_of_its_parts() -> None:
    """L4: content, parents, what it restores, links, author, reason, branch and validity each change the hash."""
    link = sample(EvidenceLink, "x")
    parts: dict = {
        "content": "sha256:a",
        "parents": ["sha256:p"],
        "restores": "",
        "evidence_links": [link],
        "author": Principal("local", "ana", PrincipalKind.HUMAN),
        "reason": "because",
        "branch": "main",
        "valid_from": datetime(2020, 1, 1, tzinfo=UTC),
        "valid_to": None,
    }
    others: dict = {
        "content": "sha256:b",
        "parents": [],
        "restores": "sha256:r",
        "evidence_links": [],
        "author": Principal("local", "ana", PrincipalKind.AGENT),
        "reason": "otherwise",
        "branch": "next",
        "valid_from": datetime(2020, 1, 2, tzinfo=UTC),
        "valid_to": datetime(2021, 1, 1, tzinfo=UTC),
    }
    base = revision_hash(**parts)
    hashes = {revision_hash(**{**parts, name: value}) for name, value in others.items()}
    assert len(hashes | {base}) == len(others) + 1


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(words, st.lists(words, max_size=5), st.dictionaries(words, words, max_size=3), st.randoms(use_true_random=False))
def test_equal_meaning_gives_an_equal_hash(text: str, items: list[str], facts: dict[str, str], random: Random) -> None:
    """L4: NFC or NFD, sets in another order or with repetition, another order of keys: the hash stays."""
    assume(has_distinct_keys(facts))
    one = Content(
        title=text,
        rules=tuple(items),
        tags=tuple(items),
        files=tuple(items),
        attributes=facts,
    )
    shuffled = [unicodedata.normalize("NFD", item) for item in items] + items[:1]
    random.shuffle(shuffled)
    other = Content(
        title=unicodedata.normalize("NFD", text),
        rules=tuple(unicodedata.normalize("NFD", item) for item in items),
        tags=tuple(shuffled),
        files=tuple(reversed(items)),
        attributes={unicodedata.normalize("NFD", key): facts[key] for key in reversed(facts)},
    )
    assert content_hash(one) == content_hash(other) == content_hash(normalised(other))
    if len(set(items)) > 1 and list(reversed(items)) != items:
        assert content_hash(one) != content_hash(dataclasses.replace(one, rules=tuple(reversed(items))))


@given(st.integers(-60_000_000_000, 250_000_000_000), st.integers(0, 999_999), st.integers(-840, 840))
def test_an_instant_is_the_same_in_every_offset(seconds: int, micros: int, minutes: int) -> None:
    """L4, L9: the same instant in another offset gives the same form; one microsecond later gives another."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=micros)
    elsewhere = moment.astimezone(timezone(timedelta(minutes=minutes)))
    assert instant_text(moment) == instant_text(elsewhere)
    assert meaning_hash([moment]) == meaning_hash([elsewhere])
    assert meaning_hash([moment]) != meaning_hash([moment + timedelta(microseconds=1)])


def test_daylight_saving_and_naive_times() -> None:
    """L9: the two 01:30 of a fold are two instants, and a naive time is refused."""
    zone = ZoneInfo("America/New_York")
    first, second = datetime(2024, 11, 3, 1, 30, tzinfo=zone), datetime(2024, 11, 3, 1, 30, tzinfo=zone, fold=1)
    assert instant_text(first) == "2024-11-03T05:30:00.000000Z"
    assert instant_text(second) == "2024-11-03T06:30:00.000000Z"
    with pytest.raises(DomainError) as refused:
        meaning_hash({"valid_from": datetime(2024, 1, 1)})  # noqa: DTZ001 - a naive time is the point
    assert refused.value.reason == "INVALID_FIELD"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


def has_distinct_keys(value: object) -> bool:
    """Whether no two keys of an object are one text in NFC, which has no form."""
    if isinstance(value, dict):
        keys = {unicodedata.normalize("NFC", key) for key in value}
        return len(keys) == len(value) and all(map(has_distinct_keys, value.values()))
    return all(map(has_distinct_keys, value)) if isinstance(value, list) else True


def nfc_all(value: object) -> object:
    """The value with its texts in NFC."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [nfc_all(item) for item in value]
    if isinstance(value, dict):
        return {unicodedata.normalize("NFC", key): nfc_all(item) for key, item in value.items()}
    return value


@given(json_values)
def test_the_form_is_rfc_8785(value: object) -> None:
    """L4: the fast way writes the same bytes as a reference implementation of RFC 8785, odd numbers and keys too."""
    assume(has_distinct_keys(value))
    assert canonical_json(value) == rfc8785.dumps(nfc_all(value))


@pytest.mark.parametrize("number", [0.1, 1.0, -0.0, 1e-5, 1e-7, 1e16, 1e21, 1e300, 5e-324, 0.1 + 0.2, 2.0**53])
def test_numbers_are_written_as_ecmascript_does(number: float) -> None:
    """L4: an integral float equals the integer, and no exponent is written in Python's way."""
    assert canonical_json([number]) == rfc8785.dumps([number])


def test_what_has_no_form_is_refused() -> None:
    """L4, R8: NaN, infinities, half a surrogate pair, two keys that are one text, integers beyond 2^53, odd types."""
    for value in (float("nan"), float("inf"), "\ud800", {"é": 1, "e\u0301": 2}, 2**60):
        with pytest.raises(DomainError):
            canonical_json([value])
    with pytest.raises(DomainError):
        text_hash("\udfff")
    with pytest.raises(TypeError):
        canonical_json([object()])
    with pytest.raises(TypeError):
        canonical_json([b"bytes"])


def test_a_new_empty_field_leaves_old_hashes_as_they_were() -> None:
    """L4: the hash of a known content is pinned; a schema may grow by fields that are empty in old records."""
    pinned = "sha256:4d972bec0c742502c01011ab966e8a6a39c84234b1436d13a693a71d0b1b3e59"
    content = Content(title="Use PostgreSQL", rationale="Decisão", tags=("b", "a"))
    assert (
        canonical_json(content)
        == (
            '{"importance":0.5,"rationale":"Decisão","schema":"content/1","standing":"ADOPTED","tags":["a","b"],'
            '"title":"Use PostgreSQL"}'
        ).encode()
    )
    assert content_hash(content) == pinned


def test_request_hash_tells_rpcs_and_payloads_apart() -> None:
    """L7: the hash of a request covers the call and what it carries."""
    link = EvidenceLink("e1", "sha256:f", Stance.SUPPORTS)
    same = EvidenceLink("e2", "sha256:f", Stance.SUPPORTS)
    base = request_hash("CreateProposal", {"links": [link]})
    assert base == request_hash("CreateProposal", {"links": [same]})
    assert base != request_hash("ApplyProposal", {"links": [link]})
    assert base != request_hash("CreateProposal", {"links": []})
