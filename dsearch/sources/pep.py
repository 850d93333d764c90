"""Python Enhancement Proposals: from a clone of their repository, or from a folder with their history as data.

A folder holds ``documents.jsonl`` (the documents as they are now) and ``events.jsonl`` (every change of a header, in
commit order). A clone is read into the same two things, so both ways give the same observations: one for each
document and commit that changed one of its headers, with the headers as of that commit.

Bodies are those of the last commit in every observation: the data folder holds no older ones, and the two ways must
agree. So history and as-of answers are exact in title, status and the other headers, and show today's text.

What the documents say about replacing each other is looked at as a whole, because they do not agree: a
``Superseded-By`` without its ``Replaces``, the other way round, successors that are drafts. See :func:`follow`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest_pb2
from decisionssearch.ledger.v1 import ledger_pb2

from dsearch.sources import git
from dsearch.sources.model import SourceError, SourceReading, Supersession, observation, relation_observation

HEADERS: Final = ("Status", "Title", "Resolution", "Replaces", "Requires", "Superseded-By")
_RENAMED: Final = {"Replaced-By": "Superseded-By"}
_REFERENCES: Final = frozenset({"Replaces", "Requires", "Superseded-By"})
_FILE: Final = re.compile(r"^(?:peps/)?pep-(\d{1,5})\.(?:txt|rst)$")
_HEADER: Final = re.compile(r"([A-Za-z][A-Za-z-]*):[ \t]*(.*)")
_NUMBER: Final = re.compile(r"\d+")
_UNDERLINE: Final = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_PEP: Final = ledger_pb2.SOURCE_KIND_PEP

# How far a decision has come. Two that are equally far may replace each other. Accepted is as far as it gets: Active
# and Final say how far it has been carried out.
_MATURITY: Final[Mapping[str, int]] = {
    "Provisional": 1,
    "Accepted": 2,
    "Active": 2,
    "Final": 2,
}
_UNDECIDED: Final = frozenset({"Draft", "Incomplete", "Open", "Not ready", ""})


@dataclass(frozen=True, slots=True)
class Event:
    """A header of a document that a commit changed; ``new`` is None when it, or the document, is gone."""

    time: datetime
    sha: str
    pep: int
    field: str
    new: str | None
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document as it is now."""

    number: int
    title: str = ""
    kind: str = ""
    authors: tuple[str, ...] = ()
    created: str = ""
    python_version: str = ""
    abstract: str = ""
    motivation: str = ""
    path: str = ""


@dataclass(slots=True)
class _Standing:
    """What is known of a document while the events are played."""

    headers: dict[str, str] = field(default_factory=dict)
    first_said: dict[tuple[str, int], datetime] = field(default_factory=dict)
    """When a header first named another document; what it names now is in the headers."""
    adopted: datetime | None = None
    """When it was first adopted."""
    dead_since: datetime | None = None
    """Since when its own status says that it is out of use."""
    last_sha: str = ""


def key_of(number: int, series: str = "pep") -> str:
    """Return the natural key of a document; ``series`` is another one for a corpus of the same form, e.g. ``kep``."""
    return f"{series}/{number}"


def read(source: Path) -> SourceReading:
    """Return the observations of a clone or of a data folder.

    Raises:
        SourceError: It is neither, or damaged.
    """
    series = "pep"
    if (source / "events.jsonl").is_file() and (source / "documents.jsonl").is_file():
        documents, events = read_folder(source)
        series = _series(source / "documents.jsonl")
        dates = "the commits that changed a header, as recorded in events.jsonl"
    else:
        repository = git.repository_of(source) if source.is_dir() else None
        if repository is None or not git.has_commits(repository):
            raise SourceError(
                f"{source} is neither a clone of the PEP repository nor a folder with documents.jsonl and events.jsonl"
            )
        documents, events = read_clone(repository)
        dates = "the commits that changed a header"
    if not events:
        raise SourceError(f"{source} holds no PEPs")
    return build(documents, events, dates=dates, series=series)


def build(
    documents: Mapping[int, Document], events: Sequence[Event], *, dates: str = "", series: str = "pep"
) -> SourceReading:
    """Play the events and return the observations, in order of time."""
    standings: dict[int, _Standing] = {}
    observations = []
    for group in _groups(events):
        first = group[0]
        standing = standings.setdefault(first.pep, _Standing())
        for event in group:
            _play(standing, event)
        document = documents.get(first.pep, Document(number=first.pep))
        observations.append(_observation(document, standing.headers, first, series))
    supersessions = follow(standings, series)
    relations = [
        relation_observation(
            _PEP,
            s,
            locator=f"git:{standings[_number(s.new)].last_sha}:{_path(documents, s.new)}#supersedes={s.old}",
            attributes={"path": _path(documents, s.new)},
        )
        for s in supersessions
        if s.followed
    ]
    return SourceReading(
        documents=observations,
        relations=relations,
        supersessions=supersessions,
        families=len(standings),
        dates=dates,
        facts={"documents": len(documents), "header changes": len(events)},
    )


def _groups(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield the events of one (document, commit) together; a commit's events may be mixed, its order is kept."""
    groups: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        groups.setdefault((event.pep, event.sha), []).append(event)
    yield from sorted(groups.values(), key=lambda group: group[0].time)


def _play(standing: _Standing, event: Event) -> None:
    standing.last_sha = event.sha
    if event.new is None:
        standing.headers.pop(event.field, None)
    else:
        standing.headers[event.field] = event.new
    if event.field in _REFERENCES:
        for number in _numbers(event.new or ""):
            standing.first_said.setdefault((event.field, number), event.time)
    if event.field == "Status":
        if event.new in _MATURITY and standing.adopted is None:
            standing.adopted = event.time
        if not _is_dead(event.new or ""):
            standing.dead_since = None
        elif standing.dead_since is None:
            standing.dead_since = event.time


def _observation(
    document: Document, headers: Mapping[str, str], event: Event, series: str
) -> ingest_pb2.RawObservation:
    removed = not headers
    number = document.number
    title = headers.get("Title", document.title)
    path = document.path or f"pep-{number:04d}"
    shown = {
        "PEP": str(number),
        "Title": title,
        "Status": headers.get("Status", ""),
        "Type": document.kind,
        "Created": document.created,
        "Python-Version": document.python_version,
        **{name: headers.get(name, "") for name in HEADERS[2:]},
    }
    if removed:
        text = f"PEP {number} was removed: {event.subject}"
    else:
        head = "\n".join(f"{name}: {value}" for name, value in shown.items() if value)
        parts = [head, _section("Abstract", document.abstract), _section("Motivation", document.motivation)]
        text = "\n\n".join(part for part in parts if part) + "\n"
    facts = {name.lower().replace("-", "_"): value for name, value in shown.items() if name not in {"PEP", "Title"}}
    return observation(
        kind=_PEP,
        locator=f"git:{event.sha}:{path}",
        text=text,
        title=title or f"PEP {number}",
        author=", ".join(document.authors),
        occurred_at=event.time,
        files=[document.path] if document.path else [],
        attributes={
            "identity_key": key_of(number, series),
            "sha": event.sha,
            "path": path,
            "subject": event.subject,
            **({"removed": "true"} if removed else {"title": title, **facts}),
        },
    )


def _section(title: str, body: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n{body.strip()}" if body.strip() else ""


# --- Who replaces whom ----------------------------------------------------------------------------------------------


def follow(standings: Mapping[int, _Standing], series: str = "pep") -> list[Supersession]:
    """Return every supersession that a document claims at the end of the events, and whether to believe it.

    Both say so: believed. Only one says so: believed when the old document is dead by its own status, or when the
    new one has come at least as far; otherwise a draft could take a standard out of force by naming it.
    """
    claims: dict[tuple[int, int], dict[str, datetime]] = {}
    for number, standing in standings.items():
        for name, side in (("Superseded-By", "old"), ("Replaces", "new")):
            for other in _numbers(standing.headers.get(name, "")):
                pair = (number, other) if side == "old" else (other, number)
                claims.setdefault(pair, {})[side] = standing.first_said[name, other]
    found = []
    for (old, new), said in sorted(claims.items()):
        followed, why = _believe(standings, old, new, series, both=len(said) == 2)
        found.append(
            Supersession(
                old=key_of(old, series),
                new=key_of(new, series),
                since=_since(standings, old, new, min(said.values())),
                said_by_old="old" in said,
                said_by_new="new" in said,
                followed=followed,
                why=why,
            )
        )
    return found


def _since(standings: Mapping[int, _Standing], old: int, new: int, first_said: datetime) -> datetime:
    """Return when a supersession took effect: it was announced, and the new one adopted or the old one out of use.

    A draft announces for years what it is going to replace. Headers are also tidied up years later; a claim that was
    dropped and made again counts from the first time.
    """
    moments = [
        moment
        for moment in (
            standings[new].adopted if new in standings else None,
            standings[old].dead_since if old in standings else None,
        )
        if moment is not None
    ]
    return max(first_said, min(moments, default=first_said))


def _is_dead(status: str) -> bool:
    return status not in _MATURITY and status not in _UNDECIDED


def _believe(standings: Mapping[int, _Standing], old: int, new: int, series: str, *, both: bool) -> tuple[bool, str]:
    if old == new:
        return False, "it names itself"
    for number in (old, new):
        if number not in standings or not standings[number].headers:
            return False, f"{key_of(number, series)} does not exist"
    if both:
        return True, ""
    before, old_key = standings[old].headers.get("Status", ""), key_of(old, series)
    after, new_key = standings[new].headers.get("Status", ""), key_of(new, series)
    if _is_dead(before):
        return True, f"{old_key} is {before}"
    if after in _MATURITY and _MATURITY[after] >= _MATURITY.get(before, 0):
        return True, f"{new_key} is {after}, {old_key} {before or 'without a status'}"
    return False, f"{old_key} is {before}, {new_key} only {after or 'without a status'}"


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])


def _path(documents: Mapping[int, Document], key: str) -> str:
    number = _number(key)
    document = documents.get(number)
    return document.path if document and document.path else f"pep-{number:04d}"


def _numbers(text: str) -> list[int]:
    """Return the numbers that a header names, each once: ``426, 566 566`` gives 426 and 566."""
    return list(dict.fromkeys(int(number) for number in _NUMBER.findall(text)))


# --- A data folder --------------------------------------------------------------------------------------------------


def read_folder(folder: Path) -> tuple[Mapping[int, Document], Sequence[Event]]:
    """Return the documents and events of a data folder.

    Raises:
        SourceError: A line cannot be read; the message names it.
    """
    documents = {}
    for line, row in _rows(folder / "documents.jsonl"):
        with _line(folder / "documents.jsonl", line):
            number = int(row["number"])
            documents[number] = Document(
                number=number,
                title=row.get("title", ""),
                kind=row.get("type", ""),
                authors=tuple(row.get("authors", ())),
                created=row.get("created", ""),
                python_version=row.get("python_version", ""),
                abstract=row.get("abstract", ""),
                motivation=row.get("motivation", ""),
                path=row.get("path", ""),
            )
    events = []
    for line, row in _rows(folder / "events.jsonl"):
        with _line(folder / "events.jsonl", line):
            events.append(
                Event(
                    time=datetime.fromisoformat(row["time"]).astimezone(UTC),
                    sha=row["sha"],
                    pep=_numbers(row["pep"])[0],
                    field=row["field"],
                    new=row["new"],
                    subject=row.get("subject", ""),
                )
            )
    return documents, events


def _series(path: Path) -> str:
    """Return the series that the documents of a folder belong to, by the id of the first one: ``PEP 8`` -> ``pep``."""
    first = next((row for _, row in _rows(path)), {})
    word = str(first.get("id", "")).partition(" ")[0].lower()
    return word if re.fullmatch(r"[a-z][a-z0-9-]{0,19}", word) else "pep"


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                with _line(path, number):
                    row = json.loads(text)
                yield number, row


class _line:  # noqa: N801 - used as a statement
    """Turns a failure to read a line into one that names the file and the line."""

    def __init__(self, path: Path, number: int) -> None:
        self._where = f"{path.name}, line {number}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | KeyError | TypeError | IndexError | AttributeError):
            raise SourceError(f"{self._where}: {type(error).__name__}: {error}") from None


# --- A clone --------------------------------------------------------------------------------------------------------


def read_clone(repository: Path) -> tuple[Mapping[int, Document], Sequence[Event]]:
    """Return the documents and events of a clone, read from its history.

    Raises:
        SourceError: The history is cut off.
    """
    if git.is_shallow(repository):
        raise SourceError(f"{repository} is a shallow clone, without the history; run: git fetch --unshallow")
    changed = [(match, c) for c in git.changes(repository) if (match := _FILE.search(c.path))]
    texts = git.read_blobs(repository, (c.blob for _, c in changed))
    present: dict[int, dict[str, str]] = {}
    headers: dict[int, dict[str, str]] = {}
    last: dict[int, git.FileChange] = {}
    events: list[Event] = []
    for sha, group in _by_commit(changed):
        for number, files in group.items():
            here = present.setdefault(number, {})
            for change in files:
                if change.blob:
                    here[change.path] = change.blob
                    last[number] = change
                else:
                    here.pop(change.path, None)
            # A rename is one file gone and one come in the same commit: what counts is what is there after it.
            now = _headers(texts.get(list(here.values())[-1], "")) if here else {}
            kept = {name: now[name] for name in HEADERS if now.get(name)}
            before = headers.get(number, {})
            for name in HEADERS:
                if before.get(name) != kept.get(name):
                    one = files[-1]
                    events.append(Event(one.time, sha, number, name, kept.get(name), one.subject))
            headers[number] = kept
    documents = {
        number: _document(number, change.path, texts.get(change.blob, ""))
        for number, change in sorted(last.items())
        if headers.get(number)
    }
    return documents, events


def _by_commit(
    changed: Iterable[tuple[re.Match[str], git.FileChange]],
) -> Iterator[tuple[str, dict[int, list[git.FileChange]]]]:
    sha, group = "", dict[int, list[git.FileChange]]()
    for match, change in changed:
        if change.sha != sha and group:
            yield sha, group
            group = {}
        sha = change.sha
        group.setdefault(int(match[1]), []).append(change)
    if group:
        yield sha, group


def _headers(text: str) -> dict[str, str]:
    """Return the header block of a document; continued lines are joined, references normalised."""
    found: dict[str, str] = {}
    name = ""
    for line in text.lstrip("\ufeff\n\r ").splitlines():
        if not line.strip():
            break
        if line[0] in " \t" and name:
            found[name] = f"{found[name]} {line.strip()}".strip()
            continue
        match = _HEADER.match(line)
        if match:
            name = _RENAMED.get(match[1], match[1])
            if name in found:
                # Given twice: the first counts, and what continues the second is not its continuation.
                name = ""
            else:
                found[name] = match[2].strip()
    for reference in _REFERENCES & found.keys():
        found[reference] = ", ".join(f"PEP {number}" for number in _numbers(found[reference]))
    return found


def _document(number: int, path: str, text: str) -> Document:
    headers = _headers(text)
    sections = _sections(text)
    return Document(
        number=number,
        title=headers.get("Title", ""),
        kind=headers.get("Type", ""),
        authors=tuple(
            name for part in headers.get("Author", "").split(",") if (name := re.sub(r"<[^>]*>", "", part).strip())
        ),
        created=headers.get("Created", ""),
        python_version=headers.get("Python-Version", ""),
        abstract=sections.get("abstract", ""),
        motivation=sections.get("motivation", ""),
        path=path,
    )


def _sections(text: str) -> dict[str, str]:
    """Return the bodies of the top sections by title in lower case."""
    lines = text.splitlines()
    marks: list[tuple[int, str]] = []
    for number, line in enumerate(lines[1:], 1):
        title = lines[number - 1].strip()
        if title and _UNDERLINE.match(line) and len(line.rstrip()) >= len(title) and not lines[number - 1][0].isspace():
            marks.append((number, title))
    if not marks:
        return _plain_sections(lines)
    level = lines[marks[0][0]].strip()[0]
    tops = [(number, title) for number, title in marks if lines[number].strip()[0] == level]
    ends = [number - 1 for number, _ in tops[1:]] + [len(lines)]
    return {
        title.lower(): "\n".join(lines[number + 1 : end]).strip()
        for (number, title), end in zip(tops, ends, strict=True)
    }


def _plain_sections(lines: Sequence[str]) -> dict[str, str]:
    """The oldest documents indent their text and leave titles at the margin."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in lines[lines.index("") if "" in lines else 0 :]:
        if line and not line[0].isspace():
            title = line.strip().lower()
            found.setdefault(title, [])
        elif title:
            found[title].append(line.strip())
    return {title: "\n".join(body).strip() for title, body in found.items()}
