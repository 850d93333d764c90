"""The file that a project travels in: every byte of it counts."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_svc import export_file
from ledger_svc.domain import errors
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import Approval, Proposal
from ledger_svc.domain.moving import ImportCheck, MovedTip, MovingRecord
from ledger_svc.export_file import ExportReader, Spool, check
from tests.golden.make import EXPORT_FILE, PROJECT

WHOLE = EXPORT_FILE.read_bytes()
CHUNK_BYTES = 24 * 1024
"""Smaller chunks than usual, so that the golden project has several."""


def _records(data: bytes) -> list[MovingRecord]:
    return [record for chunk in ExportReader(io.BytesIO(data)).chunks() for record in chunk.records]


def _write(records: list[MovingRecord]) -> bytes:
    """A file of these records, with checksums that fit."""
    spool = Spool(io.BytesIO())
    for record in records:
        spool.put(record)
    return b"".join(part.data for part in spool.parts())


RECORDS = _records(WHOLE)


@pytest.fixture(scope="module")
def chunked() -> bytes:
    """The golden project in small chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_file, "CHUNK_BYTES", CHUNK_BYTES)
        return _write(RECORDS)


def _refusal(data: bytes, project: str = PROJECT) -> DomainError:
    with pytest.raises(DomainError) as refused:
        check(io.BytesIO(data), project)
    return refused.value


def _chunk_of(data: bytes, offset: int) -> int:
    """Which chunk a byte is in, counted by the lines that end chunks; the last line is after all of them."""
    return 1 + sum(line.startswith(b'{"chunk"') for line in data[:offset].split(b"\n")[:-1])


def test_what_is_written_is_read() -> None:
    """S6: the records of a file make the same file again, and all of them are found right."""
    assert _write(RECORDS) == WHOLE
    summary = check(io.BytesIO(WHOLE), PROJECT)
    assert summary.header.total == len(RECORDS)
    assert summary.digest == f"sha256:{hashlib.sha256(WHOLE).hexdigest()}"


def test_the_file_describes_itself() -> None:
    """S6: the first line says format, version, project and what is in it; the last says how it ends."""
    lines = [json.loads(line) for line in WHOLE.splitlines()]
    assert (lines[0]["format"], lines[0]["version"]) == ("decisionssearch-export", 1)
    assert lines[0]["project"] == f"projects/{PROJECT}"
    assert lines[0]["total"] == lines[-1]["records"] == sum(lines[0]["records"].values())
    kinds = [next(iter(line)) for line in lines[1:] if not {"chunk", "end"} & line.keys()]
    assert {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} == {
        kind: count for kind, count in lines[0]["records"].items() if count
    }
    body = WHOLE[: WHOLE.rindex(b'{"end"')]
    assert lines[-1]["sha256"] == f"sha256:{hashlib.sha256(body).hexdigest()}"


@settings(max_examples=150)
@given(place=st.integers(0, 10**9), flip=st.integers(1, 255))
def test_any_changed_byte_is_refused(place: int, flip: int, chunked: bytes) -> None:
    """S6: whichever byte is changed in whichever way, the file is refused, and its chunk is named."""
    at = place % len(chunked)
    changed = bytearray(chunked)
    changed[at] ^= flip
    error = _refusal(bytes(changed))
    chunk = _chunk_of(chunked, at)
    last = _chunk_of(chunked, len(chunked))
    if error.reason == errors.INTEGRITY:
        # A line break that is made or lost may move the damage to the line after it.
        named = {f"chunk {chunk}", f"chunk {chunk + 1}", *(["the end"] if chunk + 1 >= last else [])}
        assert error.metadata["entry"] in named
    else:
        assert error.reason in {errors.INVALID_FIELD, errors.STATE_CONFLICT}
        assert chunk == 1
        assert at < 400, "only the first line is looked at before its checksum"


@settings(max_examples=60)
@given(cut=st.integers(0, 10**9))
def test_a_file_that_ends_early_is_refused(cut: int, chunked: bytes) -> None:
    """S6: a copy that was cut off anywhere is refused."""
    error = _refusal(chunked[: cut % len(chunked)])
    assert error.reason in {errors.INTEGRITY, errors.INVALID_FIELD}


def _lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def _swap_chunks(data: bytes) -> bytes:
    lines = _lines(data)
    ends = [0, *(n + 1 for n, line in enumerate(lines) if line.startswith(b'{"chunk"'))]
    lines[ends[1] : ends[3]] = [*lines[ends[2] : ends[3]], *lines[ends[1] : ends[2]]]
    return b"".join(lines)


def _without_chunk(data: bytes) -> bytes:
    lines = _lines(data)
    ends = [n + 1 for n, line in enumerate(lines) if line.startswith(b'{"chunk"')]
    del lines[ends[0] : ends[1]]
    return b"".join(lines)


@pytest.mark.parametrize(
    "spoil",
    [
        _swap_chunks,
        _without_chunk,
        lambda data: data + b"\n",
        lambda data: data + data,
        lambda data: data[: data.rindex(b'{"end"')],
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: b"",
        lambda data: b"{}\n",
    ],
)
def test_a_file_that_was_rearranged_is_refused(spoil: Callable[[bytes], bytes], chunked: bytes) -> None:
    """S6: chunks swapped or left out, anything added, other line ends, a byte order mark: refused."""
    assert _refusal(spoil(chunked)).reason in {errors.INTEGRITY, errors.INVALID_FIELD}


def test_a_newer_format_is_refused() -> None:
    """S6: a file of a format that this program does not know is refused as such, with both versions."""
    newer = WHOLE.replace(b'"version":1,', b'"version":2,', 1)
    error = _refusal(newer)
    assert error.reason == errors.STATE_CONFLICT
    assert (error.metadata["version"], error.metadata["known"]) == ("2", "1")


def test_another_project_is_refused() -> None:
    """S2: a file is taken for the project that it holds, and for no other: the hashes cover the name."""
    assert _refusal(WHOLE, "p2").reason == errors.INVALID_FIELD
    renamed = WHOLE.replace(b"projects/p1", b"projects/p2").replace(b'"project_id":"p1"', b'"project_id":"p2"')
    assert _refusal(renamed, "p2").reason == errors.INTEGRITY


@settings(max_examples=80)
@given(data=st.data())
def test_records_that_were_made_up_are_refused_though_checksums_fit(data: st.DataObject) -> None:
    """L15, S6: who changes a record and every checksum of the file still does not get past the audit chain."""
    lines = [export_file.record_line(record) for record in RECORDS]
    covered = [
        n
        for n, line in enumerate(lines)
        if not line.startswith((b'{"observation"', b'{"admission"', b'{"signal"', b'{"reply"'))
    ]
    what = data.draw(st.sampled_from(["change", "remove", "repeat", "swap"]))
    at = data.draw(st.sampled_from(covered))
    other = list(RECORDS)
    if what == "change":
        changed = _with_another_text(lines[at], data.draw(st.integers(0, 40)))
        if changed is None:
            return
        other[at] = changed
    elif what == "remove":
        del other[at]
    elif what == "repeat":
        other.insert(at, other[at])
    else:
        at = min(at, len(other) - 2)
        if type(other[at]) is type(other[at + 1]) and isinstance(other[at], Proposal | Approval):
            return  # The order in which they were made is the file's own to say.
        other[at], other[at + 1] = other[at + 1], other[at]
    try:
        made = _write(other)
    except (AttributeError, KeyError):
        return
    error = _refusal(made)
    assert error.reason in {errors.INTEGRITY, errors.INVALID_FIELD}


def _with_another_text(line: bytes, number: int) -> MovingRecord | None:
    """The record with one of its texts changed; None when it has none that many."""
    ((name, value),) = json.loads(line).items()
    places = [key for key, item in value.items() if isinstance(item, str) and item and key != "project_id"]
    if not places:
        return None
    key = places[number % len(places)]
    value[key] += "x"
    try:
        return export_file._read_record(
            1, json.dumps({name: value}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        )
    except DomainError:
        return None  # An enum, or a time: it cannot even be read.


def test_an_empty_export_is_no_project() -> None:
    """S6: what says nothing of a project is refused."""
    looker = ImportCheck(PROJECT)
    problems = looker.finish(MovedTip(0, export_file.AuditTip()))
    assert [p.problem for p in problems] == ["is not there"]


def test_a_line_longer_than_a_part_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: no message is larger than its limit, however long a record is; the chunk counts when it is complete."""
    monkeypatch.setattr(export_file, "MOST_PART_BYTES", 700)
    spool = Spool(io.BytesIO())
    for record in RECORDS:
        spool.put(record)
    parts = list(spool.parts())
    assert max(len(part.data) for part in parts[:-1]) <= 700
    assert b"".join(part.data for part in parts) == WHOLE
    assert [part.chunks_done for part in parts[:-2]] == [0] * (len(parts) - 2)
    assert (parts[-1].chunks_done, parts[-1].records_done) == (1, len(RECORDS))
