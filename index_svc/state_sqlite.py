"""The state on SQLite: one file per collection, one writer, cached immutable features.

Counts are kept by difference: a projection takes away what its family's last projection added. Everything in one
transaction, the applied position included, so a crash leaves the statistics of some position, never of half a batch.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from index_svc.domain import Projection, Role, prefer
from index_svc.sparse import CorpusStatistics, TermVector
from index_svc.state import (
    Batch,
    CorpusCentre,
    Matrix,
    RankingFeatures,
    StoredPointState,
    SupportFeatures,
    TextFeatures,
)
from index_svc.support import Calibration
from service_kit.errors import DomainError, Reason

SCHEMA_VERSION: Final = 1
CHUNK: Final = 500
"""Values per IN list, below the limit of every SQLite build."""

_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE applied (project TEXT PRIMARY KEY, position INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE families (
    project TEXT NOT NULL, branch TEXT NOT NULL, family TEXT NOT NULL, position INTEGER NOT NULL,
    PRIMARY KEY (project, branch, family)
) STRICT, WITHOUT ROWID;
CREATE TABLE points (
    project TEXT NOT NULL, branch TEXT NOT NULL, family TEXT NOT NULL, point_id TEXT NOT NULL, revision TEXT NOT NULL,
    role TEXT NOT NULL, text_hash TEXT NOT NULL, content_hash TEXT NOT NULL, position INTEGER NOT NULL,
    PRIMARY KEY (project, branch, family, point_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX points_by_text ON points (project, text_hash);
CREATE TABLE texts (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, text_hash TEXT NOT NULL, length INTEGER NOT NULL,
    terms BLOB NOT NULL, counts BLOB NOT NULL, dense BLOB NOT NULL,
    UNIQUE (project, text_hash)
) STRICT;
CREATE TABLE text_details (
    id INTEGER PRIMARY KEY REFERENCES texts (id) ON DELETE CASCADE, sentences BLOB NOT NULL, words BLOB NOT NULL,
    spoken TEXT NOT NULL, digest BLOB NOT NULL
) STRICT;
CREATE TABLE words (  -- ids are never used twice: memory keeps vectors by id
    id INTEGER PRIMARY KEY AUTOINCREMENT, project TEXT NOT NULL, word TEXT NOT NULL, vector BLOB NOT NULL,
    UNIQUE (project, word)
) STRICT;
CREATE TABLE corpora (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, branch TEXT NOT NULL, documents INTEGER NOT NULL,
    total_length INTEGER NOT NULL, vector_sum BLOB, UNIQUE (project, branch)
) STRICT;
CREATE TABLE terms (
    corpus INTEGER NOT NULL REFERENCES corpora (id) ON DELETE CASCADE, term INTEGER NOT NULL, df INTEGER NOT NULL,
    PRIMARY KEY (corpus, term)
) STRICT, WITHOUT ROWID;
CREATE TABLE calibrations (
    project TEXT NOT NULL, branch TEXT NOT NULL, mean REAL NOT NULL, deviation REAL NOT NULL, size INTEGER NOT NULL,
    documents INTEGER NOT NULL, bank TEXT NOT NULL, PRIMARY KEY (project, branch)
) STRICT, WITHOUT ROWID;
"""

_LOG = logging.getLogger(__name__)

V = TypeVar("V")


class _Cache(Generic[V]):
    """Immutable values by (project, text), within a budget of bytes."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._items: OrderedDict[tuple[str, str], tuple[V, int]] = OrderedDict()
        self._used = 0
        self._lock = Lock()

    def get(self, project: str, keys: Sequence[str]) -> tuple[dict[str, V], list[str]]:
        """Return what is there, and which keys are not."""
        found: dict[str, V] = {}
        missing: list[str] = []
        with self._lock:
            for key in keys:
                item = self._items.get((project, key))
                if item is None:
                    missing.append(key)
                else:
                    self._items.move_to_end((project, key))
                    found[key] = item[0]
        return found, missing

    def put(self, project: str, key: str, value: V, size: int) -> None:
        """Keep a value; those unused for longest go when the budget is spent."""
        with self._lock:
            old = self._items.pop((project, key), None)
            self._used += size - (old[1] if old else 0)
            self._items[project, key] = (value, size)
            while self._used > self._budget and len(self._items) > 1:
                _, (_, gone) = self._items.popitem(last=False)
                self._used -= gone

    def drop_project(self, project: str) -> None:
        """Forget everything of a project."""
        with self._lock:
            for key in [k for k in self._items if k[0] == project]:
                self._used -= self._items.pop(key)[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Details:
    """Sentence vectors of a text, and the ids of its words."""

    sentences: Matrix
    words: NDArray[np.int32]


class _WordTable:
    """Word vectors by id in one matrix, so that the words of a text are one indexing away."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._row_of = np.full(1024, -1, dtype=np.int32)
        self._matrix: Matrix | None = None
        self._used = 0

    def rows(self, ids: NDArray[np.int32]) -> Matrix | None:
        """Return the vectors of words; None when one is not here."""
        if self._matrix is None or (len(ids) and int(ids.max()) >= len(self._row_of)):
            return None
        at = self._row_of[ids]
        return None if (at < 0).any() else self._matrix[at]

    def missing(self, ids: NDArray[np.int32]) -> list[int]:
        """Return which words are not here."""
        known = len(self._row_of)
        return [i for i in ids.tolist() if i >= known or self._row_of[i] < 0]

    def add(self, vectors: Mapping[int, NDArray[np.float16]]) -> None:
        """Keep vectors; a full table starts again with them, because the words of a corpus mostly fit."""
        if not vectors:
            return
        if self._matrix is None or self._used + len(vectors) > self._capacity:
            self._row_of[:] = -1
            self._used = 0
            self._matrix = None
        top = max(vectors)
        if top >= len(self._row_of):
            self._row_of = np.concatenate([self._row_of, np.full(top + 1024, -1, dtype=np.int32)])
        needed = self._used + len(vectors)
        if self._matrix is None or needed > len(self._matrix):
            wider = np.empty((max(256, needed * 2), len(next(iter(vectors.values())))), dtype=np.float32)
            if self._matrix is not None:
                wider[: self._used] = self._matrix[: self._used]
            self._matrix = wider
        for i, vector in vectors.items():
            if self._row_of[i] < 0:
                self._matrix[self._used] = vector
                self._row_of[i] = self._used
                self._used += 1


class SqliteState:
    """The state port on one SQLite file, or in memory.

    Args:
        path: The file, or ``:memory:``.
        ranking_cache_bytes: Memory for the features that score candidates (about 4 kB a text).
        support_cache_bytes: Memory for sentence vectors (about 25 kB a text; three texts are read per question).
        word_cache: Words whose vectors are kept in memory (2 kB each at 512 dimensions).
    """

    def __init__(
        self,
        path: Path | str,
        *,
        ranking_cache_bytes: int = 128 << 20,
        support_cache_bytes: int = 64 << 20,
        word_cache: int = 32_000,
    ) -> None:
        self._writing = Lock()
        self._reading = Lock()
        self._closed = False
        memory = str(path) == ":memory:"
        self._write = _connect(path)
        self._migrate()
        # Readers see the last commit while a batch is being written. In memory there is only the one connection.
        self._read = self._write if memory else _connect(path)
        if memory:
            self._reading = self._writing
        self._ranking: _Cache[RankingFeatures] = _Cache(ranking_cache_bytes)
        self._details: _Cache[_Details] = _Cache(support_cache_bytes)
        self._words = _WordTable(word_cache)
        self._words_lock = Lock()
        self._centres: dict[tuple[str, str], CorpusCentre] = {}
        self._version = 0

    # --- Writing ----------------------------------------------------------------------------------------------------

    def apply(self, batch: Batch) -> tuple[bool, ...]:
        """Write a batch atomically."""
        with self._writing, self._transaction() as db:
            for project, vectors in batch.words.items():
                rows = [(project, word, v.astype(np.float16).tobytes()) for word, v in vectors.items()]
                db.executemany("INSERT OR IGNORE INTO words (project, word, vector) VALUES (?, ?, ?)", rows)
            for project, texts in batch.texts.items():
                self._insert_texts(db, project, texts)
            given = {(project, t.text_hash) for project, texts in batch.texts.items() for t in texts}
            taken = self._apply_projections(db, batch.projections, given)
            for project, position in batch.applied.items():
                db.execute(
                    "INSERT INTO applied VALUES (?, ?) ON CONFLICT (project) DO UPDATE"
                    " SET position = max(position, excluded.position)",
                    (project, position),
                )
        self._centres.clear()
        return taken

    def save_calibration(self, project: str, branch: str, calibration: Calibration) -> None:
        """Keep a calibration."""
        c = calibration
        with self._writing, self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO calibrations VALUES (?, ?, ?, ?, ?, ?, ?)",
                (project, branch, c.mean, c.deviation, c.size, c.documents, c.bank),
            )

    def delete_project(self, project: str) -> None:
        """Remove every trace of a project."""
        with self._writing, self._transaction() as db:
            for table in ("points", "families", "texts", "words", "corpora", "calibrations", "applied"):
                db.execute(f"DELETE FROM {table} WHERE project = ?", (project,))  # noqa: S608 - names are ours
        self._ranking.drop_project(project)
        self._details.drop_project(project)
        self._centres.clear()

    def close(self) -> None:
        """Close the files."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
            if self._read is not self._write:
                with self._reading:
                    self._read.close()
            self._write.close()

    # --- Reading ----------------------------------------------------------------------------------------------------

    def known_texts(self, project: str, text_hashes: Sequence[str]) -> frozenset[str]:
        """Return which texts have their features stored."""
        sql = "SELECT text_hash FROM texts WHERE project = ? AND text_hash IN ({})"
        return frozenset(row[0] for row in self._in(sql, project, text_hashes))

    def known_words(self, project: str, words: Sequence[str]) -> frozenset[str]:
        """Return which words have their vectors stored."""
        sql = "SELECT word FROM words WHERE project = ? AND word IN ({})"
        return frozenset(row[0] for row in self._in(sql, project, words))

    def family_points(self, project: str, branch: str, family: str) -> tuple[StoredPointState, ...]:
        """Return the points last written for a family on a branch."""
        rows = self._all(
            "SELECT point_id, revision, role, text_hash, content_hash, position FROM points"
            " WHERE project = ? AND branch = ? AND family = ? ORDER BY point_id",
            (project, branch, family),
        )
        return tuple(StoredPointState(*row) for row in rows)

    def family_position(self, project: str, branch: str, family: str) -> int | None:
        """Return the position of the projection last written."""
        rows = self._all(
            "SELECT position FROM families WHERE project = ? AND branch = ? AND family = ?", (project, branch, family)
        )
        return int(rows[0][0]) if rows else None

    def applied_position(self, project: str) -> int:
        """Return the position up to which every commit of the project is in the index."""
        rows = self._all("SELECT position FROM applied WHERE project = ?", (project,))
        return int(rows[0][0]) if rows else 0

    def statistics(self, project: str, branch: str, terms: Sequence[int]) -> CorpusStatistics:
        """Return the statistics of the heads, for the given terms."""
        rows = self._all(
            "SELECT id, documents, total_length FROM corpora WHERE project = ? AND branch = ?", (project, branch)
        )
        if not rows:
            return CorpusStatistics(0, 0, {})
        corpus, documents, total_length = rows[0]
        sql = "SELECT term, df FROM terms WHERE corpus = ? AND term IN ({})"
        return CorpusStatistics(documents, total_length, dict(self._in(sql, corpus, terms)))

    def centre(self, project: str, branch: str) -> CorpusCentre | None:
        """Return the mean vector of the heads."""
        found = self._centres.get((project, branch))
        if found is None:
            version = self._version
            rows = self._all(
                "SELECT documents, vector_sum FROM corpora WHERE project = ? AND branch = ?", (project, branch)
            )
            if not rows or not rows[0][0] or rows[0][1] is None:
                return None
            documents, blob = rows[0]
            mean = (np.frombuffer(blob, dtype=np.float64) / documents).astype(np.float32)
            found = CorpusCentre(int(documents), mean)
            if version == self._version:  # else a batch was written meanwhile: answer with it, do not keep it
                self._centres[project, branch] = found
        return found

    def ranking_features(self, project: str, text_hashes: Sequence[str]) -> dict[str, RankingFeatures]:
        """Return the features that scoring needs."""
        found, missing = self._ranking.get(project, text_hashes)
        sql = "SELECT text_hash, terms, counts, dense FROM texts WHERE project = ? AND text_hash IN ({})"
        for text_hash, terms, counts, dense in self._in(sql, project, missing):
            features = RankingFeatures(
                TermVector(np.frombuffer(terms, dtype=np.int64), np.frombuffer(counts, dtype=np.uint32)),
                np.frombuffer(dense, dtype=np.float32),
            )
            self._ranking.put(project, text_hash, features, len(terms) + len(counts) + len(dense) + 400)
            found[text_hash] = features
        return found

    def support_features(self, project: str, text_hashes: Sequence[str]) -> dict[str, SupportFeatures]:
        """Return the features that the support signals need."""
        found, missing = self._details.get(project, text_hashes)
        sql = (
            "SELECT text_hash, length(dense) / 4, sentences, words FROM texts JOIN text_details USING (id)"
            " WHERE project = ? AND text_hash IN ({})"
        )
        for text_hash, dimensions, sentences, words in list(self._in(sql, project, missing)):
            details = _Details(
                np.frombuffer(sentences, dtype=np.float16).astype(np.float32).reshape(-1, dimensions),
                np.frombuffer(words, dtype=np.int32),
            )
            self._details.put(project, text_hash, details, len(sentences) * 2 + len(words) + 400)
            found[text_hash] = details
        return {h: SupportFeatures(d.sentences, self._word_rows(d)) for h, d in found.items()}

    def stored_texts(self, project: str, text_hashes: Sequence[str]) -> dict[str, TextFeatures]:
        """Return the whole features of texts; damaged ones are left out."""
        sql = (
            "SELECT text_hash, terms, counts, dense, sentences, spoken, digest FROM texts JOIN text_details USING (id)"
            " WHERE project = ? AND text_hash IN ({})"
        )
        found: dict[str, TextFeatures] = {}
        for text_hash, terms, counts, dense, sentences, spoken, digest in self._in(sql, project, text_hashes):
            if _digest(text_hash, terms, counts, dense, sentences, spoken) != digest:
                _LOG.warning("the stored features of a text are damaged; they are computed again")
                continue
            vector = np.frombuffer(dense, dtype=np.float32)
            found[text_hash] = TextFeatures(
                text_hash=text_hash,
                terms=TermVector(np.frombuffer(terms, dtype=np.int64), np.frombuffer(counts, dtype=np.uint32)),
                dense=vector,
                sentences=np.frombuffer(sentences, dtype=np.float16).reshape(-1, len(vector)),
                words=tuple(spoken.split()),
            )
        return found

    def branches(self, project: str) -> tuple[str, ...]:
        """Return the branches of a project that have heads."""
        sql = "SELECT branch FROM corpora WHERE project = ? AND documents > 0 ORDER BY branch"
        return tuple(row[0] for row in self._all(sql, (project,)))

    def projects(self) -> tuple[str, ...]:
        """Return the projects that have an applied position."""
        return tuple(row[0] for row in self._all("SELECT project FROM applied ORDER BY project", ()))

    def calibration(self, project: str, branch: str) -> Calibration | None:
        """Return the last calibration."""
        rows = self._all(
            "SELECT mean, deviation, size, documents, bank FROM calibrations WHERE project = ? AND branch = ?",
            (project, branch),
        )
        return Calibration(*rows[0]) if rows else None

    # --- Inside -----------------------------------------------------------------------------------------------------

    def _migrate(self) -> None:
        db = self._write
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            db.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
        elif version > SCHEMA_VERSION:
            db.close()
            raise DomainError(
                Reason.INTEGRITY,
                f"the index state has schema {version}, this program knows {SCHEMA_VERSION}; use the newer program",
                metadata={"entry": "state"},
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._write
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        self._version += 1

    def _insert_texts(self, db: sqlite3.Connection, project: str, texts: Sequence[TextFeatures]) -> None:
        for text in texts:
            terms = text.terms.terms.astype(np.int64).tobytes()
            counts = text.terms.counts.astype(np.uint32).tobytes()
            dense = text.dense.astype(np.float32).tobytes()
            row = db.execute(
                "INSERT OR IGNORE INTO texts (project, text_hash, length, terms, counts, dense)"
                " VALUES (?, ?, ?, ?, ?, ?) RETURNING id",
                (project, text.text_hash, text.terms.length, terms, counts, dense),
            ).fetchone()
            if row is None:
                continue
            sentences = text.sentences.astype(np.float16).tobytes()
            spoken = " ".join(text.words)
            ids = np.array(_word_ids(db, project, text.words), dtype=np.int32).tobytes()
            digest = _digest(text.text_hash, terms, counts, dense, sentences, spoken)
            db.execute("INSERT INTO text_details VALUES (?, ?, ?, ?, ?)", (row[0], sentences, ids, spoken, digest))

    def _apply_projections(
        self, db: sqlite3.Connection, projections: Sequence[Projection], given: set[tuple[str, str]]
    ) -> tuple[bool, ...]:
        taken: list[bool] = []
        changes: dict[tuple[str, str], list[tuple[str, int]]] = {}
        dropped = set(given)  # a refused projection must not leave its texts behind
        for projection in projections:
            key = (projection.project, projection.branch, projection.family)
            stored = db.execute(
                "SELECT position FROM families WHERE project = ? AND branch = ? AND family = ?", key
            ).fetchone()
            if not prefer(stored[0] if stored else None, projection.position):
                taken.append(False)
                continue
            taken.append(True)
            corpus = changes.setdefault(key[:2], [])
            for role, text_hash in db.execute(
                "SELECT role, text_hash FROM points WHERE project = ? AND branch = ? AND family = ?", key
            ).fetchall():
                dropped.add((projection.project, text_hash))
                if role == Role.HEAD:
                    corpus.append((text_hash, -1))
            db.execute("DELETE FROM points WHERE project = ? AND branch = ? AND family = ?", key)
            db.execute("INSERT OR REPLACE INTO families VALUES (?, ?, ?, ?)", (*key, projection.position))
            for p in projection.points:
                db.execute(
                    "INSERT INTO points VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*key, p.id, p.revision, p.role.value, p.text_hash, p.content_hash, p.position),
                )
                corpus.append((p.text_hash, 1 if p.role is Role.HEAD else 0))
        for (project, branch), deltas in changes.items():
            _change_corpus(db, project, branch, deltas)
        db.executemany(
            "DELETE FROM texts WHERE project = ?1 AND text_hash = ?2"
            " AND NOT EXISTS (SELECT 1 FROM points WHERE project = ?1 AND text_hash = ?2)",
            sorted(dropped),
        )
        return tuple(taken)

    def _word_rows(self, details: _Details) -> Matrix:
        with self._words_lock:
            rows = self._words.rows(details.words)
            if rows is None:
                self._words.add(self._load_words(self._words.missing(details.words)))
                rows = self._words.rows(details.words)
            if rows is None:  # the table was full and started again without the words that were there
                self._words.add(self._load_words(details.words.tolist()))
                rows = self._words.rows(details.words)
            if rows is None:  # a word that is named but not stored: the project was deleted meanwhile
                return np.empty((0, details.sentences.shape[1]), dtype=np.float32)
            return rows

    def _load_words(self, ids: Sequence[int]) -> dict[int, NDArray[np.float16]]:
        vectors: dict[int, NDArray[np.float16]] = {}
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            sql = f"SELECT id, vector FROM words WHERE id IN ({','.join('?' * len(part))})"  # noqa: S608 - marks only
            vectors.update((i, np.frombuffer(blob, dtype=np.float16)) for i, blob in self._all(sql, part))
        return vectors

    def _all(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        with self._reading:
            return self._read.execute(sql, parameters).fetchall()

    def _in(self, sql: str, first: Any, values: Sequence[Any]) -> Iterable[Any]:
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK]
            yield from self._all(sql.format(",".join("?" * len(part))), [first, *part])


def _connect(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    db.execute("PRAGMA journal_mode = WAL")
    # A lost last transaction costs nothing: the outbox delivers it again and the points refuse older positions.
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA busy_timeout = 5000")
    db.execute("PRAGMA mmap_size = 268435456")
    return db


def _digest(text_hash: str, terms: bytes, counts: bytes, dense: bytes, sentences: bytes, spoken: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in (text_hash.encode("utf-8"), terms, counts, dense, sentences, spoken.encode("utf-8")):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _word_ids(db: sqlite3.Connection, project: str, words: Sequence[str]) -> list[int]:
    found: dict[str, int] = {}
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        marks = ",".join("?" * len(part))
        sql = f"SELECT word, id FROM words WHERE project = ? AND word IN ({marks})"  # noqa: S608 - marks only
        found.update(db.execute(sql, [project, *part]).fetchall())
    if len(found) < len(set(words)):
        raise ValueError(f"{len(set(words)) - len(found)} words of a text have no vector")
    return [found[w] for w in words]


def _change_corpus(db: sqlite3.Connection, project: str, branch: str, deltas: Sequence[tuple[str, int]]) -> None:
    """Add and take away head texts; several changes of one text are added up first."""
    net: Counter[str] = Counter()
    for text_hash, by in deltas:
        net[text_hash] += by
    db.execute(
        "INSERT OR IGNORE INTO corpora (project, branch, documents, total_length) VALUES (?, ?, 0, 0)",
        (project, branch),
    )
    corpus, documents, length, blob = db.execute(
        "SELECT id, documents, total_length, vector_sum FROM corpora WHERE project = ? AND branch = ?",
        (project, branch),
    ).fetchone()
    total = None if blob is None else np.frombuffer(blob, dtype=np.float64).copy()
    frequency: Counter[int] = Counter()
    for text_hash, by in net.items():
        row = db.execute(
            "SELECT length, terms, dense FROM texts WHERE project = ? AND text_hash = ?", (project, text_hash)
        ).fetchone()
        if row is None:
            raise ValueError(f"the features of text {text_hash} are not stored")
        if by == 0:
            continue
        documents += by
        length += by * row[0]
        dense = np.frombuffer(row[2], dtype=np.float32).astype(np.float64) * by
        total = dense if total is None else total + dense
        for term in np.frombuffer(row[1], dtype=np.int64).tolist():
            frequency[term] += by
    if documents == 0:
        total = None  # no rounding error outlives the last head
    changed = [(corpus, term, by) for term, by in frequency.items() if by]
    db.executemany(
        "INSERT INTO terms VALUES (?, ?, ?) ON CONFLICT (corpus, term) DO UPDATE SET df = df + excluded.df", changed
    )
    db.executemany(
        "DELETE FROM terms WHERE corpus = ? AND term = ? AND df <= 0", [(c, term) for c, term, by in changed if by < 0]
    )
    db.execute(
        "UPDATE corpora SET documents = ?, total_length = ?, vector_sum = ? WHERE id = ?",
        (documents, length, None if total is None else total.tobytes(), corpus),
    )
