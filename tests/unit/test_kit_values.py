"""Time, ids, names, page tokens and ledger tokens: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone
from uuid import RFC_4122, UUID

import pytest
from decisionssearch.common.v1 import common_pb2
from decisionssearch.ledger.v1 import ledger_service_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from service_kit import clock, ledger_token, names
from service_kit.errors import DomainError, InvalidRequest, Reason
from service_kit.ids import IdFactory, new_id, uuid7
from service_kit.names import NameKind, ResourceName
from service_kit.paging import PageTokens

INSTANTS = st.datetimes(
    min_value=datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis adds the zones
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001 - as above
    timezones=st.timezones(),
)
UUID_A = "0198c0de-0000-7000-8000-000000000001"
UUID_B = "0198c0de-0000-7000-8000-00000000000b"


# --- Time


@given(INSTANTS)
def test_an_instant_survives_message_and_text(instant: datetime) -> None:
    """L9: any offset round-trips to the same instant in UTC, to the microsecond."""
    for back in (
        clock.from_timestamp(clock.to_timestamp(instant)),
        clock.parse_text(clock.canonical_text(instant)),
    ):
        # In UTC: Python calls an hour that a zone repeats in autumn unequal to itself in any other zone.
        assert back == instant.astimezone(UTC)
        assert back.utcoffset() == timedelta(0)


@given(INSTANTS, INSTANTS)
def test_the_canonical_text_sorts_as_the_instants(one: datetime, other: datetime) -> None:
    """L4: one instant has one text, in whatever offset it came; texts order as instants."""
    assert (clock.canonical_text(one) < clock.canonical_text(other)) == (one.astimezone(UTC) < other.astimezone(UTC))
    assert clock.canonical_text(one.astimezone(timezone(timedelta(hours=-3)))) == clock.canonical_text(one)


def test_naive_instants_are_refused() -> None:
    """L9: a datetime without an offset names no instant."""
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - the subject of the test
    for use in (clock.to_timestamp, clock.canonical_text, clock.in_utc, clock.ManualClock):
        with pytest.raises(ValueError, match="offset"):
            use(naive)


@pytest.mark.parametrize(
    "timestamp",
    [
        Timestamp(nanos=-1),
        Timestamp(nanos=1_000_000_000),
        Timestamp(nanos=1),
        Timestamp(seconds=253_402_300_800),
        Timestamp(seconds=-62_135_596_801),
        Timestamp(seconds=2**62),
    ],
)
def test_impossible_timestamps_are_refused(timestamp: Timestamp) -> None:
    """L9: out of range, or finer than the ledger keeps: refused with the field, never rounded."""
    with pytest.raises(InvalidRequest) as refused:
        clock.from_timestamp(timestamp, "valid_from")
    assert refused.value.fields[0].field == "valid_from"


@pytest.mark.parametrize(
    "text", ["2026-01-01", "2026-01-01T00:00:00", "2026-02-30T00:00:00Z", "2026-01-01T00:00:00.1234567Z", "x", ""]
)
def test_texts_that_name_no_instant_are_refused(text: str) -> None:
    """L9: a date, a time without an offset or a day that does not exist is not guessed at."""
    with pytest.raises(InvalidRequest):
        clock.parse_text(text)


def test_the_clocks() -> None:
    """The clock of the machine is aware; the manual one moves only when told."""
    assert clock.SystemClock().now().utcoffset() == timedelta(0)
    manual = clock.ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    assert manual.now() == manual.now()
    assert manual.advance(timedelta(days=1)) == manual.now() == datetime(2026, 1, 2, tzinfo=UTC)


# --- Ids


def test_ids_grow_even_when_the_clock_does_not() -> None:
    """Ids of one process are unique and in order while the clock stands still, jumps back or overflows."""
    times = iter([5, 5, 5, 3, 3, 6] + [6] * 5_000)
    factory = IdFactory(lambda: next(times))
    made = [factory.uuid7() for _ in range(5_000)]
    assert made == sorted(set(made))
    assert all(u.version == 7 and u.variant == RFC_4122 for u in made)


def test_an_id_tells_its_millisecond() -> None:
    """The first 48 bits are the time, as RFC 9562 has it."""
    assert IdFactory(lambda: 0x0198_C0DE_BEEF).uuid7().int >> 80 == 0x0198_C0DE_BEEF
    text = new_id()
    assert names.UUID_TEXT.fullmatch(text)
    assert UUID(text) < uuid7()


# --- Names


@pytest.mark.parametrize("kind", list(NameKind))
def test_a_name_comes_back_as_it_was(kind: NameKind) -> None:
    """A built name parses to its parts, as its own kind and no other."""
    ids = (UUID_A, UUID_B)[: len(kind.value)]
    text = names.build(kind, "billing", *ids)
    assert names.parse(text, kind, "name") == ResourceName(kind, "billing", ids)
    for other in NameKind:
        if other is not kind:
            with pytest.raises(InvalidRequest):
                names.parse(text, other, "name")


def test_the_short_builders_agree() -> None:
    """Each builder makes the name of its kind."""
    one = {
        NameKind.PROJECT: names.project_name("p1"),
        NameKind.FAMILY: names.family_name("p1", UUID_A),
        NameKind.REVISION: names.revision_name("p1", UUID_A, UUID_B),
        NameKind.PROPOSAL: names.proposal_name("p1", UUID_A),
        NameKind.EVIDENCE: names.evidence_name("p1", UUID_A),
        NameKind.RELATION: names.relation_name("p1", UUID_A),
        NameKind.OBSERVATION: names.observation_name("p1", UUID_A),
    }
    for kind, text in one.items():
        assert str(names.parse(text, kind, "name")) == text
    parsed = names.parse(one[NameKind.REVISION], NameKind.REVISION, "name")
    assert (parsed.id, str(parsed.parent), str(parsed.parent.parent)) == (UUID_B, one[NameKind.FAMILY], "projects/p1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "billing",
        "projects/",
        "projects/B",
        "projects/b",
        "projects/billing/",
        "/projects/billing",
        "projects/billing\n",
        "projects/bіlling",
        "projects/billing/families/1",
        f"projects/billing/families/{UUID_A.upper()}",
        f"projects/billing/families/{UUID_A}/",
        f"projects/../families/{UUID_A}",
        f"projects/billing/families/{{{UUID_A}}}",
        f"projects/billing/families/{UUID_A}\n",
    ],
)
@pytest.mark.parametrize("kind", [NameKind.PROJECT, NameKind.FAMILY])
def test_malformed_names_are_refused_with_their_field(text: str, kind: NameKind) -> None:
    """S1: a wrong name is a typed error that names the field; nothing is guessed or trimmed."""
    with pytest.raises(InvalidRequest) as refused:
        names.parse(text, kind, "requests[2].family")
    assert refused.value.fields[0].field == "requests[2].family"


def test_a_name_of_another_project_is_refused() -> None:
    """S1: a request about one project cannot name a resource of another."""
    text = names.family_name("billing", UUID_A)
    assert names.parse(text, NameKind.FAMILY, "family", project="billing").project == "billing"
    with pytest.raises(InvalidRequest, match="projects/payments"):
        names.parse(text, NameKind.FAMILY, "family", project="payments")


def test_branches_and_project_ids() -> None:
    """An empty branch is main; what could be mistaken for another name is refused."""
    assert names.check_branch("") == "main"
    assert names.check_branch("release/1.2") == "release/1.2"
    assert names.check_project_id("a1") == "a1"
    assert names.parse_project("projects/a-1") == "a-1"
    for bad in ("Main", "/x", "a b", "x" * 101, "main\n", "é"):
        with pytest.raises(InvalidRequest):
            names.check_branch(bad)
    for bad in ("", "a", "1a", "A1", "a_b", "a" * 64, "aé"):
        with pytest.raises(InvalidRequest):
            names.check_project_id(bad)


# --- Page tokens

TOKENS = PageTokens(b"k" * 32)
ListFamilies = ledger_service_pb2.ListFamiliesRequest


def test_a_page_token_continues_where_it_was_made() -> None:
    """L18: state comes back whole, in any process with the same key, and the page size may change."""
    request = ListFamilies(project="projects/billing", page_size=10)
    assert TOKENS.read(request) is None
    state = {"position": 812, "last": "é/ção", "now": "2026-01-01T00:00:00.000000Z"}
    request.page_token = TOKENS.issue(request, state)
    request.page_size = 99
    assert PageTokens(b"k" * 32).read(request) == state


def test_a_page_token_fits_only_its_own_arguments() -> None:
    """L18: other arguments, another list or another key refuse the token with its own reason."""
    request = ListFamilies(project="projects/billing")
    token = TOKENS.issue(request, {"position": 1})
    others = [
        (TOKENS, ListFamilies(project="projects/payments", page_token=token)),
        (TOKENS, ledger_service_pb2.ListRelationsRequest(project="projects/billing", page_token=token)),
        (PageTokens(b"j" * 32), ListFamilies(project="projects/billing", page_token=token)),
    ]
    for tokens, other in others:
        with pytest.raises(DomainError) as refused:
            tokens.read(other)
        assert refused.value.reason is Reason.PAGE_TOKEN_MISMATCH
        assert refused.value.metadata == {"field": "page_token"}


def test_an_altered_page_token_is_refused() -> None:
    """L18: no byte of a token can be changed, and rubbish is refused alike."""
    request = ListFamilies(project="projects/billing")
    token = TOKENS.issue(request, {"position": 1})
    raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    altered = []
    for index in range(len(raw)):
        changed = bytearray(raw)
        changed[index] ^= 1
        altered.append(base64.urlsafe_b64encode(changed).decode().rstrip("="))
    for bad in [*altered, "x", "é", "a" * 5_000, token[:-2], token + "\n"]:
        request.page_token = bad
        with pytest.raises(DomainError) as refused:
            TOKENS.read(request)
        assert refused.value.reason is Reason.PAGE_TOKEN_MISMATCH


def test_a_short_key_is_refused() -> None:
    """A key that can be guessed protects nothing."""
    with pytest.raises(ValueError, match="16 bytes"):
        PageTokens(b"short")


# --- Ledger tokens


@given(st.text("abcdef0123456789-", min_size=1, max_size=40), st.integers(0, 2**63 - 1))
def test_a_ledger_token_comes_back_as_it_was(ledger: str, position: int) -> None:
    """R2: ledger, project and position survive the trip through a client."""
    token = ledger_token.encode(ledger, "billing", position)
    point = ledger_token.decode(token, "consistency.at_least_as_fresh", ledger_id=ledger, project="billing")
    assert (point.ledger_id, point.project, point.position) == (ledger, "billing", position)
    assert ledger_token.decode(token, "f") == point


def test_a_foreign_or_damaged_ledger_token_is_refused() -> None:
    """R2: a token of another ledger or project, or one that was cut or altered, names its field."""
    token = ledger_token.encode("ledger-1", "billing", 7)
    for expected in ({"ledger_id": "ledger-2"}, {"project": "payments"}):
        with pytest.raises(InvalidRequest, match="another"):
            ledger_token.decode(token, "consistency.at_least_as_fresh", **expected)
    for value in ("", "x", token.value[:-1], token.value + "A", token.value.swapcase(), "é", "A" * 600):
        with pytest.raises(InvalidRequest) as refused:
            ledger_token.decode(common_pb2.LedgerToken(value=value), "consistency.at_least_as_fresh")
        assert refused.value.fields[0].field == "consistency.at_least_as_fresh"


def test_no_byte_of_a_ledger_token_can_change_unnoticed() -> None:
    """R2: a digit that fell over on the way is found, rather than taken for another position."""
    value = ledger_token.encode("ledger-1", "billing", 7).value
    raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    for index in range(len(raw)):
        altered = bytearray(raw)
        altered[index] ^= 1
        damaged = base64.urlsafe_b64encode(altered).rstrip(b"=").decode()
        with pytest.raises(InvalidRequest):
            ledger_token.decode(common_pb2.LedgerToken(value=damaged), "f")


def test_a_made_up_position_is_refused() -> None:
    """R2: a position that is no number of the ledger never reaches a store."""
    for position in ("-1", "1.5", "９", str(2**63), "", " 1"):
        body = f"1\nledger-1\nbilling\n{position}".encode()
        value = base64.urlsafe_b64encode(ledger_token._sum(body) + body).rstrip(b"=").decode()
        with pytest.raises(InvalidRequest):
            ledger_token.decode(common_pb2.LedgerToken(value=value), "f")
