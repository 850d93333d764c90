"""The token file: secrets stay secret, and a change counts at once."""

from __future__ import annotations

import json
import multiprocessing
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service_kit.clock import ManualClock
from service_kit.errors import DomainError, Reason
from service_kit.principals import Kind, Principal, grant
from service_kit.tokens import TokenFile, TokenFileError

ANA = Principal("local", "ana", Kind.HUMAN, grants=(grant("billing", ["reviewer", "proposer"]), grant("*", ["reader"])))
BOT = Principal("local", "bot", Kind.AGENT, on_behalf_of="ana", grants=(grant("billing", ["proposer"]),))
START = datetime(2026, 1, 1, tzinfo=UTC)


def mode(path: Path) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still."""
    return ManualClock(START)


@pytest.fixture
def tokens(tmp_path: Path, clock: ManualClock) -> TokenFile:
    """An empty token file."""
    return TokenFile(tmp_path / "auth" / "tokens.json", clock)


async def test_a_token_finds_its_principal(tokens: TokenFile) -> None:
    """S1: the principal comes back whole, grants included; any other text is UNAUTHENTICATED."""
    token = tokens.issue(ANA)
    other = tokens.issue(BOT)
    assert token != other
    assert await tokens.authenticate(token) == ANA
    assert await tokens.authenticate(other) == BOT
    for wrong in ("", token[:-1], token + "x", token.upper(), "é" * 40, "x" * 10_000, "\udcff"):
        with pytest.raises(DomainError) as refused:
            await tokens.authenticate(wrong)
        assert refused.value.reason is Reason.UNAUTHENTICATED


def test_no_file_holds_a_token_in_clear_but_the_text_files(tokens: TokenFile) -> None:
    """The store keeps digests: who reads it cannot act as anybody."""
    token = tokens.issue(ANA)
    text = tokens.path.read_text(encoding="utf-8")
    assert token not in text
    assert token.removeprefix("dst_") not in text
    assert token not in repr(tokens.entries())


def test_every_file_has_mode_0600(tokens: TokenFile) -> None:
    """Nobody else on the machine reads tokens, whatever the umask; the folder made for them is closed too."""
    text_file = tokens.path.parent / "admin.token"
    tokens.ensure(text_file, ANA)
    assert [mode(p) for p in sorted(tokens.path.parent.iterdir())] == [0o600] * 3
    assert mode(tokens.path.parent) == 0o700


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620])
def test_a_token_file_open_to_others_is_refused(tokens: TokenFile, bits: int) -> None:
    """A file that others may read or write is not trusted; the message has the remedy."""
    token = tokens.issue(ANA)
    tokens.path.chmod(bits)
    with pytest.raises(TokenFileError, match="chmod 600"):
        TokenFile(tokens.path).find(token)
    text_file = tokens.path.with_name("x.token")
    tokens.path.chmod(0o600)
    tokens.ensure(text_file, ANA)
    text_file.chmod(bits)
    with pytest.raises(TokenFileError, match="chmod 600"):
        tokens.ensure(text_file, ANA)


def test_expiry_and_revocation_count_at_once(tokens: TokenFile, clock: ManualClock) -> None:
    """S1: a token ends at its instant, exactly; a revoked one with the next call, in every process."""
    token = tokens.issue(ANA, expires_at=START + timedelta(hours=1))
    elsewhere = TokenFile(tokens.path, clock)
    clock.set(START + timedelta(hours=1) - timedelta(microseconds=1))
    assert elsewhere.find(token) == ANA
    clock.advance(timedelta(microseconds=1))
    assert elsewhere.find(token) is None
    lasting = tokens.issue(ANA)
    assert elsewhere.find(lasting) == ANA
    last = tokens.entries()[-1]
    assert tokens.revoke(last.id)
    assert not tokens.revoke(last.id)
    assert elsewhere.find(lasting) is None


def test_the_first_start_is_repeatable(tokens: TokenFile) -> None:
    """Starting again gives the same token; one that was revoked, or whose rights changed, is replaced."""
    text_file = tokens.path.parent / "admin.token"
    first = tokens.ensure(text_file, ANA)
    assert tokens.ensure(text_file, ANA) == first
    assert text_file.read_text(encoding="ascii") == f"{first}\n"
    tokens.revoke(tokens.entries()[0].id)
    second = tokens.ensure(text_file, ANA)
    assert second != first
    assert tokens.ensure(text_file, BOT) not in {first, second}


def test_a_damaged_file_lets_nobody_in(tokens: TokenFile) -> None:
    """S1: damage or a newer format fails closed, and the message shows none of the content."""
    token = tokens.issue(ANA)
    good = json.loads(tokens.path.read_text(encoding="utf-8"))
    damaged = [
        "{",
        "[]",
        json.dumps({**good, "format": 2}),
        json.dumps({**good, "tokens": [{**good["tokens"][0], "kind": "SECRET_KIND"}]}),
        json.dumps({**good, "tokens": [{**good["tokens"][0], "issued_at": "SECRET_KIND"}]}),
        json.dumps({**good, "tokens": [{**good["tokens"][0], "subject": ""}]}),
    ]
    for text in damaged:
        tokens.path.write_text(text, encoding="utf-8")
        with pytest.raises(TokenFileError) as refused:
            TokenFile(tokens.path).find(token)
        assert "SECRET_KIND" not in str(refused.value)


def test_without_a_file_nobody_is_known(tokens: TokenFile) -> None:
    """S1: a missing file knows no token, also when it goes missing later."""
    assert tokens.find("dst_x") is None
    token = tokens.issue(ANA)
    tokens.path.unlink()
    assert tokens.find(token) is None


def _issue(path: Path) -> None:
    for _ in range(5):
        TokenFile(path).issue(BOT)


def test_two_processes_may_issue_at_once(tokens: TokenFile) -> None:
    """No token is lost when several processes write the file."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_issue, args=(tokens.path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert len(tokens.entries()) == 10
