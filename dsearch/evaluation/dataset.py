"""The evaluation data set: a folder of JSON lines.

``documents.jsonl`` (id, title, status, ...), ``queries.jsonl`` (id, text, lang, kind, expected, stale, date, today)
and, optionally, ``asof.jsonl`` (date, pep, status) and ``events.jsonl`` (time, pep, field, new). The kinds of questions
are ``current``, ``superseded``, ``as_of`` and ``unanswerable``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

KINDS = ("current", "superseded", "as_of", "unanswerable")
IN_FORCE_STATUSES = frozenset({"Active", "Accepted", "Final", "Provisional"})


class DatasetError(ValueError):
    """The folder is not a data set; the message names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of the corpus, as far as evaluation needs it."""

    id: str
    title: str
    text: str
    status: str

    @property
    def in_force(self) -> bool:
        """Whether the source says that it is in use today."""
        return self.status in IN_FORCE_STATUSES


@dataclass(frozen=True, slots=True)
class Question:
    """One question with the answers that count as right."""

    id: str
    text: str
    lang: str
    kind: str
    expected: frozenset[str]
    stale: frozenset[str] = frozenset()
    valid_at: datetime | None = None
    near_miss: bool = False

    @property
    def words(self) -> int:
        """Number of words: what a length-matched comparison pairs on."""
        return len(re.findall(r"\w+", self.text))


@dataclass(frozen=True, slots=True)
class AsOf:
    """What the status of a document was at 00:00 UTC of a day; None when it did not exist."""

    document: str
    valid_at: datetime
    status: str | None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A loaded data set."""

    name: str
    documents: tuple[Document, ...]
    questions: tuple[Question, ...]
    as_of: tuple[AsOf, ...] = ()
    folder: Path = field(default=Path())
    statuses: Mapping[str, Sequence[tuple[datetime, str]]] = field(default_factory=dict)
    """Every change of status by document, in order, when the data set knows them."""

    def in_force_at(self, document: str, moment: datetime) -> bool:
        """Whether the source itself said at a moment that a document was in use; False when that is not known."""
        before = [status for time, status in self.statuses.get(document, ()) if time <= moment]
        return bool(before) and before[-1] in IN_FORCE_STATUSES


def identity_key(document_id: str) -> str:
    """Return the ledger's identity_key of a document id, e.g. ``PEP 517`` -> ``pep/517``."""
    head, _, number = document_id.partition(" ")
    return f"{head.lower()}/{int(number)}" if number.isdigit() else document_id.lower()


def load(folder: Path) -> Dataset:
    """Read a data set.

    Raises:
        DatasetError: A file is missing or a line is not what the format says.
    """
    documents = tuple(
        Document(
            id=row["id"],
            title=row["title"],
            text="\n".join(filter(None, (row.get("abstract"), row.get("motivation")))),
            status=row.get("status", ""),
        )
        for row in _rows(folder / "documents.jsonl", ("id", "title"))
    )
    questions = tuple(
        _question(row) for row in _rows(folder / "queries.jsonl", ("id", "text", "lang", "kind", "expected"))
    )
    as_of_file = folder / "asof.jsonl"
    as_of = (
        tuple(
            AsOf(row["pep"], _day(row["date"]), row["status"]) for row in _rows(as_of_file, ("pep", "date", "status"))
        )
        if as_of_file.exists()
        else ()
    )
    return Dataset(folder.resolve().name, documents, questions, as_of, folder, _statuses(folder / "events.jsonl"))


def _statuses(path: Path) -> dict[str, list[tuple[datetime, str]]]:
    found: dict[str, list[tuple[datetime, str]]] = {}
    if path.exists():
        for row in _rows(path, ("time", "pep", "field", "new")):
            if row["field"] == "Status":
                found.setdefault(row["pep"], []).append((datetime.fromisoformat(row["time"]), row["new"] or ""))
    return found


def _question(row: dict[str, Any]) -> Question:
    if row["kind"] not in KINDS:
        raise DatasetError(f"question {row['id']}: kind {row['kind']!r} is not one of {', '.join(KINDS)}")
    return Question(
        id=row["id"],
        text=row["text"],
        lang=row["lang"],
        kind=row["kind"],
        expected=frozenset(row["expected"]),
        stale=frozenset(row.get("stale", ())),
        valid_at=_day(row["date"]) if row.get("date") else None,
        near_miss=bool(row.get("near_miss", False)),
    )


def _day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if not path.exists():
        raise DatasetError(f"{path} is missing: a data set folder holds documents.jsonl and queries.jsonl")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DatasetError(f"{path.name}:{number}: not JSON: {error.msg}") from error
            missing = [name for name in needed if name not in row]
            if missing:
                raise DatasetError(f"{path.name}:{number}: {', '.join(missing)} missing")
            yield row
