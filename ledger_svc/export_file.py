"""The file that a project travels in: JSON lines in chunks, each with its checksum. See docs/export-format.md.

Every byte of it is checked when it is read: the lines of records by the checksum of their chunk, everything that is no
record by being exactly what would be written there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final

from ledger_svc.domain import errors, model
from ledger_svc.domain.audit import tip_after
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import AuditEntry, AuditTip, Commit, Project
from ledger_svc.domain.moving import SECTIONS, ImportCheck, MovedTip, MovingRecord
from ledger_svc.records import dump, dump_plain, from_plain

FORMAT: Final = "decisionssearch-export"
FORMAT_VERSION: Final = 1

CHUNK_BYTES: Final = 256 * 1024
CHUNK_RECORDS: Final = 1_000
"""A chunk ends with the record that brings it to either."""
MOST_PART_BYTES: Final = 1024 * 1024
_MOST_LINE_BYTES: Final = 64 * 1024 * 1024
_START: Final = f'{{"format":"{FORMAT}"'.encode()

KINDS: Final[dict[str, type[Any]]] = {
    "project": model.Project,
    "policy": model.Policy,
    "audit": model.AuditEntry,
    "family": model.Family,
    "evidence": model.Evidence,
    "revision": model.Revision,
    "row": model.TimelineRow,
    "head": model.Head,
    "relation": model.Relation,
    "flag": model.ReviewFlag,
    "proposal": model.Proposal,
    "approval": model.Approval,
    "commit": model.Commit,
    "observation": model.Observation,
    "admission": model.Admission,
    "signal": model.Signal,
    "reply": model.StoredReply,
}
"""Name of each kind of record in the file, in the order of the file."""

_NAMES: Final = {kind: name for name, kind in KINDS.items()}
if {kind for kinds in SECTIONS for kind in kinds} != set(_NAMES):
    raise AssertionError("every kind of record that travels has a name in the file")


def _line(value: Any) -> bytes:
    return dump_plain(value).encode() + b"\n"


def record_line(record: MovingRecord) -> bytes:
    """Return the line of a record."""
    return f'{{"{_NAMES[type(record)]}":{dump(record)}}}\n'.encode()


def _digest(hasher: Any) -> str:
    return f"sha256:{hasher.hexdigest()}"


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of the file, and how far it is with them."""

    data: bytes
    chunks_done: int
    records_done: int
    records_total: int


class Spool:
    """Takes the records of a project in order, from a store, into a temporary file. Not for several threads at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.begin()

    def begin(self) -> None:
        """Forget what was put: the store starts over."""
        self._file.seek(0)
        self._file.truncate()
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.project_id = ""
        self.position = 0
        self.tip = AuditTip()

    def put(self, record: MovingRecord) -> None:
        """Take a record."""
        self.counts[_NAMES[type(record)]] += 1
        if isinstance(record, Project):
            self.project_id = record.project_id
        elif isinstance(record, AuditEntry):
            self.tip = tip_after(record)
        elif isinstance(record, Commit):
            self.position = record.position
        self._file.write(record_line(record))

    def parts(self) -> Iterator[Part]:
        """Yield the file, from its start."""
        whole = hashlib.sha256()
        total = sum(self.counts.values())
        chunks = done = 0
        buffer = bytearray(_line(self._header(total)))
        in_chunk = 0

        def close_chunk() -> Iterator[Part]:
            nonlocal chunks, done, in_chunk
            chunks, done = chunks + 1, done + in_chunk
            checksum = _digest(hashlib.sha256(buffer))
            buffer.extend(_line({"chunk": chunks, "records": in_chunk, "sha256": checksum}))
            whole.update(buffer)
            data = bytes(buffer)
            buffer.clear()
            in_chunk = 0
            *pieces, last = [data[at : at + MOST_PART_BYTES] for at in range(0, len(data), MOST_PART_BYTES)]
            for piece in pieces:
                yield Part(piece, chunks - 1, done, total)
            yield Part(last, chunks, done, total)

        self._file.seek(0)
        for line in self._file:
            buffer += line
            in_chunk += 1
            if len(buffer) >= CHUNK_BYTES or in_chunk >= CHUNK_RECORDS:
                yield from close_chunk()
        if buffer:
            yield from close_chunk()
        end = {"end": True, "chunks": chunks, "records": done, "sha256": _digest(whole)}
        yield Part(_line(end), chunks, done, total)

    def _header(self, total: int) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "project": f"projects/{self.project_id}",
            "position": self.position,
            "audit_sequence": self.tip.sequence,
            "chain_head": self.tip.entry_hash,
            "total": total,
            "records": self.counts,
        }


@dataclass(frozen=True, slots=True)
class Header:
    """The first line."""

    project_id: str
    tip: MovedTip
    total: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records of one chunk, checked against its checksum."""

    number: int
    records: tuple[MovingRecord, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a whole file turned out to be."""

    header: Header
    project: Project
    digest: str
    """``sha256:<hex>`` of all of its bytes."""


@dataclass(slots=True)
class ExportReader:
    """Reads a file chunk by chunk; holds one chunk in memory."""

    file: IO[bytes]
    header: Header | None = None
    digest: str = ""
    """Known at the end."""
    _whole: Any = field(default_factory=hashlib.sha256)
    _done: int = 0

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks.

        Raises:
            DomainError: INVALID_FIELD when it is no export; STATE_CONFLICT when it is of a newer format; INTEGRITY,
                naming the chunk, when a byte of it is not what was written.
        """
        self.file.seek(0)
        number = 1
        while True:
            lines, trailer = self._chunk_lines(number)
            if trailer.startswith(b'{"end"'):
                self._end(number - 1, lines, trailer)
                return
            if number == 1:
                self.header = _read_header(lines[0] if lines else trailer)
            body = b"".join(lines)
            records = len(lines) - (1 if number == 1 else 0)
            checksum = _digest(hashlib.sha256(body))
            if trailer != _line({"chunk": number, "records": records, "sha256": checksum}):
                raise _changed(number, "its bytes do not match its checksum")
            self._whole.update(body)
            self._whole.update(trailer)
            self._done += records
            yield Chunk(number, tuple(_read_record(number, line) for line in lines[len(lines) - records :]))
            number += 1

    def _chunk_lines(self, number: int) -> tuple[list[bytes], bytes]:
        """Return the lines of a chunk, and the line that ends it."""
        lines: list[bytes] = []
        size = 0
        while True:
            line = self.file.readline(_MOST_LINE_BYTES)
            if number == 1 and not lines and not line.startswith(_START):
                raise errors.invalid_field("data", "is not an export of a project: chunk 1 does not begin like one")
            if not line.endswith(b"\n"):
                raise _changed(number, "the file ends in it")
            if line.startswith((b'{"chunk"', b'{"end"')):
                return lines, line
            lines.append(line)
            size += len(line)
            # What a writer of this format never exceeds: so a file cannot fill the memory before it is refused.
            if len(lines) > CHUNK_RECORDS + 1 or size > CHUNK_BYTES + _MOST_LINE_BYTES:
                raise _changed(number, "it is longer than a chunk can be")

    def _end(self, chunks: int, lines: list[bytes], trailer: bytes) -> None:
        expected = {"end": True, "chunks": chunks, "records": self._done, "sha256": _digest(self._whole)}
        if lines or self.header is None or trailer != _line(expected) or self._done != self.header.total:
            raise _changed(chunks + 1, "the last line does not match what comes before it", last=True)
        if self.file.read(1):
            raise _changed(chunks + 1, "something follows the last line", last=True)
        self._whole.update(trailer)
        self.digest = _digest(self._whole)


def check(file: IO[bytes], project_id: str) -> Summary:
    """Read a whole file and look at everything in it: bytes, order, references, the audit chain and all it covers.

    Raises:
        DomainError: As :meth:`ExportReader.chunks`; INVALID_FIELD for a file of another project; INTEGRITY.
    """
    reader = ExportReader(file)
    looker = ImportCheck(project_id)
    counts = dict.fromkeys(KINDS, 0)
    project: Project | None = None
    for chunk in reader.chunks():
        header = reader.header
        if header is not None and header.project_id != project_id:
            raise errors.invalid_field("project", f"the file holds projects/{header.project_id}")
        for record in chunk.records:
            counts[_NAMES[type(record)]] += 1
            project = record if isinstance(record, Project) else project
            problem = looker.record(record)
            if problem:
                raise _changed(chunk.number, f"{_NAMES[type(record)]}: {problem}")
    header = reader.header
    if header is None or project is None or counts != header.counts:
        raise _changed(1, "the first line counts other records than there are")
    problems = looker.finish(header.tip)
    if problems:
        first = problems[0]
        raise errors.integrity(f"entry {first.sequence}", f"{first.subject} {first.problem}".strip())
    return Summary(header, project, reader.digest)


def _read_header(line: bytes) -> Header:
    try:
        value = json.loads(line)
        version = value["version"]
    except (ValueError, KeyError, TypeError):
        raise _changed(1, "the first line cannot be read") from None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise DomainError(
            errors.STATE_CONFLICT,
            f"the file has format version {version}, this program knows {FORMAT_VERSION}: import it with a newer one",
            {"rule": "export_format", "version": str(version), "known": str(FORMAT_VERSION)},
        )
    try:
        tip = MovedTip(value["position"], AuditTip(value["audit_sequence"], value["chain_head"]))
        kind, _, project_id = value["project"].partition("/")
        header = Header(project_id, tip, value["total"], dict(value["records"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _changed(1, "the first line cannot be read") from None
    if version != FORMAT_VERSION or kind != "projects" or _line(value) != line:
        raise _changed(1, "the first line is not as it would be written")
    return header


def _read_record(number: int, line: bytes) -> MovingRecord:
    try:
        ((name, value),) = json.loads(line).items()
        record: MovingRecord = from_plain(KINDS[name], value)
        same = record_line(record) == line
    except Exception:  # noqa: BLE001 - bytes that somebody made up may fail anywhere; that is the finding
        raise _changed(number, "a record in it cannot be read") from None
    if not same:
        raise _changed(number, "a record in it is not as it would be written")
    return record


def _changed(number: int, what: str, *, last: bool = False) -> DomainError:
    where = "the end" if last else f"chunk {number}"
    return errors.integrity(where, f"{where} of the file was changed: {what}")


def resume(parts: Iterator[Part], after_chunk: int, digest: str) -> Iterator[Part]:
    """Skip the chunks that a caller has.

    Raises:
        DomainError: STATE_CONFLICT when they are not what is written now: the project has changed since.
    """
    hasher = hashlib.sha256()
    for part in parts:
        if after_chunk and part.chunks_done <= after_chunk and not part.data.startswith(b'{"end"'):
            hasher.update(part.data)
            if part.chunks_done == after_chunk:
                if _digest(hasher) != digest:
                    break
                after_chunk = 0
            continue
        if after_chunk:
            break
        yield part
    if after_chunk:
        raise DomainError(
            errors.STATE_CONFLICT,
            "the project has changed since this export began: start it again",
            {"rule": "export_resume"},
        )
