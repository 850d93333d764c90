"""Architecture decision records in a folder of Markdown files: MADR, Nygard's form, and their like, in two languages.

**Dates.** In a git repository every committed text of a record is an observation, valid from its commit. A record
that was written down later than it was decided says so with its own date (front matter ``date:`` or a ``Date:``
line), and that counts for its first text. Without git there is one text a record: its own date counts, else the
time of the file.

**A record that is already superseded when it is first seen** was in force until then: it is observed twice, as
accepted from its own date, and as it says now from the date of its successor. Otherwise a question about the time
in between would be answered with nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest_pb2
from decisionssearch.ledger.v1 import ledger_pb2

from dsearch.sources import git
from dsearch.sources.model import SourceError, SourceReading, Supersession, observation, relation_observation

_ADR: Final = ledger_pb2.SOURCE_KIND_ADR
_SUFFIXES: Final = frozenset({".md", ".markdown"})
_NOT_RECORDS: Final = re.compile(
    r"^(readme|index|template|adr-template|0000-template|contributing|.*-template)$", re.IGNORECASE
)
# A file that begins with a date is not numbered.
_NUMBERED: Final = re.compile(r"^(?!\d{4}-\d{2}-\d{2})(?:adr)?[-_ ]?(\d{1,5})(?=[-_. ]|$)", re.IGNORECASE)
_HEADING: Final = re.compile(r"^#\s+(.+?)\s*#*$")
_SECTION: Final = re.compile(r"^#{2,3}\s+(.+?)\s*#*$")
_FIELD: Final = re.compile(r"^\s*(?:[-*+]\s+)?\**([A-Za-zÀ-ÿ][A-Za-zÀ-ÿ _-]{1,30}?)\**\s*:\**\s*(.*)$")
_DATE: Final = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_LINKED: Final = re.compile(r"\((?:[^)\s]*/)?(?:adr)?[-_]?(\d{1,5})[-_.][^)]*\)", re.IGNORECASE)
_NAMED: Final = re.compile(r"\bADR[-_ #/]*(\d{1,5})\b", re.IGNORECASE)
_BARE: Final = re.compile(r"(?<![\w.-])(\d{1,5})(?![\w.-])")
_BY: Final = re.compile(r"\b(?:superseded|replaced|substitu[ií]d[oa])[ _-]*(?:by|por|pel[oa])\b", re.IGNORECASE)
_OLD: Final = re.compile(r"\b(?:supersedes|replaces|substitui)\b", re.IGNORECASE)
_STATUS_NAMES: Final = frozenset({"status", "estado", "situação", "situacao"})
_DATE_NAMES: Final = frozenset({"date", "data", "decided", "decidido em"})
_AUTHOR_NAMES: Final = frozenset({"author", "authors", "deciders", "decision-makers", "autor", "autores", "decisores"})
_DEAD: Final = re.compile(
    r"supersed|replac|substitu|deprecat|obsolet|reject|rejeitad|withdraw|retirad|descontinu", re.IGNORECASE
)
_ALIVE: Final = re.compile(r"accept|aceit|approv|aprovad|adopt|adotad|decid", re.IGNORECASE)
_ENDED: Final = re.compile(r"supersed|replac|substitu", re.IGNORECASE)


class Dates(StrEnum):
    """Where dates come from."""

    AUTO = "auto"
    """git where the records are committed, else the documents."""
    GIT = "git"
    DOCUMENT = "document"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a record's text says about itself."""

    title: str
    status: str
    date: datetime | None
    written_date: str
    """The date as it stands there, which may be none; empty when there is nothing like one."""
    author: str
    superseded_by: tuple[int, ...]
    supersedes: tuple[int, ...]

    @property
    def ended(self) -> bool:
        """Whether it says that another one took its place."""
        return bool(_ENDED.search(self.status)) or bool(self.superseded_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """One text of a record."""

    key: str
    path: str
    text: str
    time: datetime
    locator: str
    sha: str = ""
    author: str = ""
    subject: str = ""
    removed: bool = False
    record: Record = field(default_factory=lambda: parse(""))


def read(folder: Path, dates: Dates = Dates.AUTO) -> SourceReading:
    """Return the observations of a folder of records.

    Raises:
        SourceError: There are none, or git was asked for and there is no history.
    """
    folder = folder.expanduser()
    if not folder.is_dir():
        raise SourceError(f"{folder} is not a folder")
    remarks: list[str] = []
    files = _files(folder, remarks)
    problems = [(path, reason) for path in files if (reason := _unreadable(path))]
    unreadable = {path for path, _ in problems}
    lost = {key_of(path.name) for path in unreadable}
    repository = git.repository_of(folder) if dates is not Dates.DOCUMENT else None
    committed = _from_git(repository, folder) if repository is not None and git.has_commits(repository) else []
    if dates is Dates.GIT and not committed:
        raise SourceError(f"no commit of a git repository touches {folder}; commit it, or use --dates document")
    committed = [version for version in committed if version.key not in lost]
    if not files and not committed:
        raise SourceError(
            f"{folder} holds no decision records: Markdown files with a number in their name or a status in their text"
        )
    versions = [*committed, *_from_files(folder, [p for p in files if p not in unreadable], committed)]
    how = "git, and the records' own dates for their first texts" if committed else "the records' own dates"
    listed = [(path.relative_to(folder).as_posix(), reason) for path, reason in problems]
    dated = {v.key: v for v in versions if not v.removed}
    listed += [
        (version.path, f"{bad} is no date that exists; the time of the commit or of the file counts instead")
        for version in dated.values()
        if (bad := impossible_date(version.text))
    ]
    return replace(_build(versions, remarks, how), problems=listed)


def _unreadable(path: Path) -> str:
    """Return why a file cannot be a record; empty when it can."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 (byte {error.start})"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    lines = text.removeprefix("\ufeff").strip().splitlines()
    if not lines:
        return "it is empty"
    if lines[0].strip() == "---" and not any(line.strip() == "---" for line in lines[1:]):
        return "its front matter has no end (a line with ---)"
    return ""


# --- One text -------------------------------------------------------------------------------------------------------


def key_of(path: str) -> str:
    """Return the natural key of a record: by its number, else by its file's name."""
    stem = path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    match = _NUMBERED.match(stem)
    return f"adr/{int(match[1]):04d}" if match else f"adr/{re.sub(r'[^a-z0-9]+', '-', stem.lower()).strip('-')}"


def parse(text: str) -> Record:
    """Return what a text says about itself; only what an importer needs, the rest is the extractor's work."""
    fields: dict[str, str] = {}
    status_lines: list[str] = []
    title = ""
    section = ""
    front = False
    for number, line in enumerate(text.splitlines()):
        if line.strip() == "---" and (number == 0 or front):
            front = number == 0
            continue
        heading = None if front else _HEADING.match(line)
        if heading and not title:
            title = heading[1]
            continue
        opened = None if front else _SECTION.match(line)
        if opened:
            section = opened[1].strip().lower()
            continue
        if section in _STATUS_NAMES and line.strip():
            status_lines.append(line.strip(" -*"))
        found = _FIELD.match(line)
        # Fields stand in the front matter or above the first section; a colon further down is prose.
        if found and (front or not section):
            fields.setdefault(found[1].strip().lower(), found[2].strip(" \t\"'*"))
        elif section in _DATE_NAMES and _DATE.search(line):
            fields.setdefault("date", line)
    status = next((fields[n] for n in _STATUS_NAMES if fields.get(n)), "") or (status_lines[0] if status_lines else "")
    about = [status, *status_lines, *(f"{k}: {v}" for k, v in fields.items())]
    dated = _DATE.search(next((fields[n] for n in _DATE_NAMES if fields.get(n)), ""))
    return Record(
        written_date=dated[0] if dated else "",
        title=re.sub(r"^(?:ADR[-_ ]*)?\d{1,5}\s*[.:–-]\s*", "", title, flags=re.IGNORECASE),
        status=status,
        date=_date(dated[0]) if dated else None,
        author=next((fields[n].strip("[]") for n in _AUTHOR_NAMES if fields.get(n)), ""),
        superseded_by=_references(about, _BY),
        supersedes=_references(about, _OLD),
    )


def impossible_date(text: str) -> str:
    """Return the date that a record gives for itself when there is no such day."""
    found = parse(text).written_date
    return found if found and _date(found) is None else ""


def _date(text: str) -> datetime | None:
    match = _DATE.search(text)
    if match is None:
        return None
    try:
        return datetime(int(match[1]), int(match[2]), int(match[3]), tzinfo=UTC)
    except ValueError:
        return None


def _references(lines: Iterable[str], claim: re.Pattern[str]) -> tuple[int, ...]:
    """Return the numbers that follow a claim: by link, by name, or bare."""
    found: list[int] = []
    for line in lines:
        match = claim.search(line.replace("-by", " by").replace("_by", " by"))
        if match is None:
            continue
        rest = _DATE.sub(" ", line.replace("-by", " by").replace("_by", " by")[match.end() :])
        for pattern in (_LINKED, _NAMED, _BARE):
            numbers = pattern.findall(rest)
            if numbers:
                found += [int(n) for n in numbers]
                break
    return tuple(dict.fromkeys(found))


# --- Where texts come from ------------------------------------------------------------------------------------------


def _files(folder: Path, remarks: list[str]) -> list[Path]:
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts) or not path.is_file():
            continue
        if path.suffix.lower() not in _SUFFIXES or _NOT_RECORDS.match(path.stem):
            continue
        if _NUMBERED.match(path.stem) or parse(_text_of(path)).status:
            found.append(path)
        else:
            remarks.append(f"{relative} has neither a number in its name nor a status: left out")
    return found


def _text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _from_git(repository: Path, folder: Path) -> list[_Version]:
    top = repository.resolve()
    inside = folder.resolve().relative_to(top).as_posix()
    changed = [c for c in git.changes(repository, [] if inside == "." else [inside]) if _is_record(c.path)]
    texts = git.read_blobs(repository, (c.blob for c in changed))
    versions = []
    present: dict[str, dict[str, str]] = {}
    groups: dict[tuple[str, str], list[git.FileChange]] = {}
    for change in changed:
        groups.setdefault((change.sha, key_of(change.path)), []).append(change)
    for (sha, key), group in groups.items():
        here = present.setdefault(key, {})
        for change in group:
            if change.blob:
                here[change.path] = change.blob
            else:
                here.pop(change.path, None)
        last = group[-1]
        # A renamed record is one file gone and one come: what counts is what is there after the commit.
        path, blob = list(here.items())[-1] if here else (last.path, "")
        text = texts.get(blob, "")
        if text and not _NUMBERED.match(Path(path).stem) and not parse(text).status:
            continue
        versions.append(
            _Version(
                key=key,
                path=path,
                text=text,
                time=last.time,
                locator=f"git:{sha}:{path}",
                sha=sha,
                author=last.author,
                subject=last.subject,
                removed=not blob,
                record=parse(text),
            )
        )
    return versions


def _is_record(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    stem, _, suffix = name.rpartition(".")
    return f".{suffix.lower()}" in _SUFFIXES and not _NOT_RECORDS.match(stem)


def _from_files(folder: Path, files: Sequence[Path], committed: Sequence[_Version]) -> list[_Version]:
    """Return the texts of the work tree that no commit has."""
    known = {v.key: v for v in committed}
    versions = []
    for path in files:
        text = _text_of(path)
        relative = path.relative_to(folder).as_posix()
        key = key_of(relative)
        before = known.get(key)
        if before is not None and before.text == text:
            continue
        record = parse(text)
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        time = max(written, before.time) if before is not None else (record.date or written)
        versions.append(
            _Version(key=key, path=relative, text=text, time=time, locator=f"file:{relative}", author="", record=record)
        )
    return versions


# --- Observations ---------------------------------------------------------------------------------------------------


def _build(versions: Sequence[_Version], remarks: list[str], how: str) -> SourceReading:
    first: dict[str, datetime] = {}
    latest: dict[str, _Version] = {}
    paths: dict[str, set[str]] = {}
    for version in versions:
        own = version.record.date
        start = min(own, version.time) if own is not None else version.time
        first.setdefault(version.key, start)
        latest[version.key] = version
        paths.setdefault(version.key, set()).add(version.path.rsplit("/", 1)[0])
    remarks += [
        f"{key} is the number of records in {len(folders)} folders: they are taken as one"
        for key, folders in sorted(paths.items())
        if len(folders) > 1
    ]
    seen: set[str] = set()
    observations: list[tuple[datetime, ingest_pb2.RawObservation]] = []
    for version in versions:
        fresh = version.key not in seen
        seen.add(version.key)
        for time, item in _observe(version, fresh=fresh, first=first):
            observations.append((time, item))
    # Stable: texts of one record keep their order when they have one time.
    observations.sort(key=lambda pair: pair[0])
    supersessions = follow(latest, versions, first)
    relations = [
        relation_observation(
            _ADR,
            s,
            locator=f"{latest[s.new].locator}#supersedes={s.old}",
            attributes={"path": latest[s.new].path, "sha": latest[s.new].sha},
        )
        for s in supersessions
        if s.followed
    ]
    return SourceReading(
        documents=[item for _, item in observations],
        relations=relations,
        supersessions=supersessions,
        remarks=remarks,
        families=len(first),
        dates=how,
        facts={"records": len(first), "texts": len(versions)},
    )


def _observe(
    version: _Version, *, fresh: bool, first: Mapping[str, datetime]
) -> Iterator[tuple[datetime, ingest_pb2.RawObservation]]:
    record = version.record
    start = first[version.key] if fresh else version.time
    if fresh and record.ended and not version.removed:
        successors = [first[key] for n in record.superseded_by if (key := f"adr/{n:04d}") in first]
        ended = min(successors, default=version.time)
        if ended > start:
            yield start, _observation(version, start, status="Accepted", locator=f"{version.locator}#accepted")
            start = ended
    # Otherwise the text says it, and the extractor reads it there.
    yield start, _observation(version, start, status="", locator=version.locator)


def _observation(version: _Version, time: datetime, *, status: str, locator: str) -> ingest_pb2.RawObservation:
    record = version.record
    return observation(
        kind=_ADR,
        locator=locator,
        text=version.text or f"{version.key} was removed: {version.subject}",
        title=record.title,
        author=record.author or version.author,
        occurred_at=time,
        files=[version.path],
        attributes={
            "identity_key": version.key,
            "path": version.path,
            "sha": version.sha,
            "subject": version.subject,
            **({"removed": "true"} if version.removed else {"status": status}),
        },
    )


def follow(
    latest: Mapping[str, _Version], versions: Sequence[_Version], first: Mapping[str, datetime]
) -> list[Supersession]:
    """Return what records say about replacing each other, and whether to believe it.

    Both say so: believed. Only one: believed when the old one is dead by its own status or the new one is accepted.
    """
    claims: dict[tuple[str, str], set[str]] = {}
    for key, version in latest.items():
        for number in version.record.superseded_by:
            claims.setdefault((key, f"adr/{number:04d}"), set()).add("old")
        for number in version.record.supersedes:
            claims.setdefault((f"adr/{number:04d}", key), set()).add("new")
    found = []
    for (old, new), said in sorted(claims.items()):
        followed, why = _believe(latest, old, new, both=len(said) == 2)
        ended = [v.time for v in versions if v.key == old and v.record.ended and v.sha]
        texts = [v for v in versions if v.key == old]
        # A record that was first seen as superseded ended when its successor began.
        at_first = bool(texts) and texts[0].record.ended
        start = first.get(new, datetime.now(UTC))
        found.append(
            Supersession(
                old=old,
                new=new,
                since=start if at_first or not ended else ended[0],
                said_by_old="old" in said,
                said_by_new="new" in said,
                followed=followed,
                why=why,
            )
        )
    return found


def _believe(latest: Mapping[str, _Version], old: str, new: str, *, both: bool) -> tuple[bool, str]:
    if old == new:
        return False, "it names itself"
    for key in (old, new):
        if key not in latest or latest[key].removed:
            return False, f"{key} does not exist"
    if both:
        return True, ""
    before, after = latest[old].record.status, latest[new].record.status
    if _DEAD.search(before):
        return True, f"{old} is {before}"
    if _ALIVE.search(after) and not _DEAD.search(after):
        return True, f"{new} is {after}"
    return False, f"{old} is {before or 'without a status'}, {new} only {after or 'without a status'}"
