"""The query path: candidates by every way, each with its exact scores, and the support that they give an answer.

The engine only proposes; what a candidate reports is computed here from the stored features of its text, so that a hit
of one way has the other way's score too, and the same numbers whichever way found it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from index_svc.domain import IndexPoint, PointFilter, StructuralQuery
from index_svc.embedder import Embedder, Matrix, Vector
from index_svc.recipe import unit_rows
from index_svc.sparse import (
    MAX_TOKEN_CHARS,
    SparseQuery,
    query_terms,
    query_vector,
    sparse_query,
    sparse_scores,
    stem,
    term_hash,
    words,
)
from index_svc.state import StateStore
from index_svc.support import (
    LANGUAGES,
    NO_SUPPORT,
    TOP,
    QueryWords,
    Support,
    centred_signal,
    finite,
    generic_questions,
    language_of,
    late_signal,
    sentence_signal,
)
from index_svc.vectors import Collection, Hit
from service_kit.errors import DomainError

MAX_QUESTION_WORDS: Final = 64
"""Words of a question that the late signal looks at; the first ones."""

_LOG = logging.getLogger(__name__)


class Way(StrEnum):
    """A way of finding candidates."""

    DENSE = "dense"
    SPARSE = "sparse"
    STRUCTURAL = "structural"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question, prepared once for every corpus."""

    text: str
    terms: tuple[int, ...]
    words: tuple[str, ...]
    language: str
    vector: Vector | None
    """None when the embedder does not work now: the search goes on without the dense way."""
    word_vectors: Matrix | None
    named: StructuralQuery = field(default_factory=StructuralQuery)


@dataclass(frozen=True, slots=True)
class Scores:
    """The exact scores of one text for one question."""

    sparse: float
    dense: float | None
    centred: float | None

    @property
    def total(self) -> float:
        """The order of candidates: the sum of what there is."""
        return self.sparse + (self.dense or 0.0)


@dataclass(frozen=True, slots=True)
class FoundPoint:
    """A candidate."""

    point: IndexPoint
    scores: Scores | None
    """None when the features of its text are not stored (yet)."""
    found_by: tuple[Way, ...]
    structural: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A way that did not work, and why, without internals."""

    part: str
    reason: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Candidates, best sum of dense and sparse first."""

    found: tuple[FoundPoint, ...]
    failures: tuple[Failure, ...]


@lru_cache(maxsize=1)
def single_threaded_blas() -> None:
    """Keep numpy's matrix library to one thread in this process.

    The products here are small; handing them to threads that share the cores with everything else takes a hundred
    times longer at worst (measured: 60 ms for 0.4 ms of work), and gains nothing at best.
    """
    threadpool_limits(limits=1, user_api="blas")


class Searcher:
    """Searches one collection with its state. Made anew when a rebuild swaps both."""

    def __init__(self, collection: Collection, state: StateStore, embedder: Embedder) -> None:
        single_threaded_blas()
        self._collection = collection
        self._state = state
        self._embedder = embedder
        self._generic: dict[str, Vector] = {}
        self._preparing = asyncio.Lock()

    async def prepare(self) -> None:
        """Compute the mean vectors of the generic questions; without them there is no centred score."""
        if len(self._generic) == len(LANGUAGES):
            return
        async with self._preparing:  # the questions that wait for it do not each do it again
            for language, texts in generic_questions().items():
                if language not in self._generic:
                    self._generic[language] = (await self._embedder.embed_queries(texts)).mean(axis=0)

    async def ask(
        self, text: str, *, vector: Vector | None = None, named: StructuralQuery | None = None, with_words: bool = True
    ) -> Question:
        """Prepare a question. An embedder that fails leaves the vector out instead of failing the search."""
        spoken = _spoken(text)
        word_vectors: Matrix | None = None
        try:
            if vector is None:
                vector = await self._embedder.embed_query(text)
            else:
                vector = unit_rows(np.asarray(vector, dtype=np.float32)[None, :])[0]
            if with_words and spoken and self._embedder.has_word_vectors:
                word_vectors = await self._embedder.word_vectors(spoken)
            if with_words:
                # After a start they may not be there yet; without them the support would be too low.
                await self.prepare()
        except DomainError as error:
            _LOG.warning("the embedder failed: %s", error.reason)
        return Question(
            text=text,
            terms=tuple(query_terms(text)),
            words=spoken,
            language=language_of(text),
            vector=vector,
            word_vectors=word_vectors,
            named=named or StructuralQuery(),
        )

    async def ask_many(self, texts: Sequence[str]) -> list[Question]:
        """Prepare many questions at once, where bulk embedding happens; none when the embedder fails."""
        try:
            vectors = await self._embedder.embed_queries(texts)
            if self._embedder.has_word_vectors:
                # Fills the cache that the questions then read.
                await self._embedder.word_vectors(list(dict.fromkeys(w for t in texts for w in _spoken(t))))
        except DomainError as error:
            _LOG.warning("the embedder failed: %s", error.reason)
            return []
        return [await self.ask(t, vector=v) for t, v in zip(texts, vectors, strict=True)]

    async def search(
        self, question: Question, where: PointFilter, *, limit: int = 50, ways: Iterable[Way] = tuple(Way)
    ) -> SearchResult:
        """Return the candidates of all ways; a way that fails is reported and the others answer."""
        branch = where.branch or "main"
        weighted = self._weighted(where.project, branch, question)
        wanted = set(ways)
        failures: list[Failure] = []
        jobs: dict[Way, Awaitable[list[Hit]]] = {}
        if Way.DENSE in wanted:
            if question.vector is None:
                failures.append(Failure(Way.DENSE, "the embedder did not answer"))
            else:
                jobs[Way.DENSE] = self._collection.search_dense(question.vector, where, limit)
        if Way.SPARSE in wanted:
            jobs[Way.SPARSE] = self._collection.search_sparse(query_vector(weighted), where, limit)
        if Way.STRUCTURAL in wanted and not question.named.is_empty:
            jobs[Way.STRUCTURAL] = self._collection.search_structural(question.named, where, limit)
        points: dict[str, IndexPoint] = {}
        found_by: dict[str, list[Way]] = {}
        for way, hits in zip(jobs, await asyncio.gather(*jobs.values(), return_exceptions=True), strict=True):
            if isinstance(hits, Exception):
                _LOG.warning("the %s way failed", way, exc_info=hits)
                failures.append(Failure(way, "the vector engine did not answer"))
            elif isinstance(hits, BaseException):
                raise hits
            else:
                for hit in hits:
                    points[hit.point_id] = hit.point
                    found_by.setdefault(hit.point_id, []).append(way)
        scores = self.score(where.project, branch, question, {p.text_hash for p in points.values()}, weighted)
        found = [
            FoundPoint(p, scores.get(p.text_hash), tuple(found_by[i]), question.named.matched_by(p))
            for i, p in points.items()
        ]
        found.sort(key=lambda f: (-(f.scores.total if f.scores else 0.0), f.point.revision))
        return SearchResult(tuple(found), tuple(failures))

    def score(
        self,
        project: str,
        branch: str,
        question: Question,
        text_hashes: Iterable[str],
        weighted: SparseQuery | None = None,
    ) -> dict[str, Scores]:
        """Return the exact scores of texts, by text hash; texts without stored features are left out."""
        features = self._state.ranking_features(project, sorted(text_hashes))
        if not features:
            return {}
        weighted = weighted or self._weighted(project, branch, question)
        hashes = list(features)
        sparse = sparse_scores(weighted, [features[h].terms for h in hashes])
        if question.vector is None:
            return {h: Scores(finite(float(s)), None, None) for h, s in zip(hashes, sparse, strict=True)}
        matrix = np.stack([features[h].dense for h in hashes])
        dense = matrix @ question.vector
        centred: Sequence[float | None] = [None] * len(hashes)
        centre = self._state.centre(project, branch)
        generic = self._generic.get(question.language)
        if centre is not None and centre.documents > 1 and generic is not None:
            centred = centred_signal(question.vector, generic, matrix, centre.mean).tolist()
        return {
            h: Scores(finite(float(s)), finite(float(c)), cc if cc is None else finite(cc))
            for h, s, c, cc in zip(hashes, sparse, dense, centred, strict=True)
        }

    def support(self, project: str, branch: str, question: Question, scores: Mapping[str, Scores]) -> Support:
        """Return the support of the candidates' texts for an answer; nothing without a question vector."""
        if question.vector is None or not scores:
            return NO_SUPPORT
        top = sorted(scores, key=lambda h: (-scores[h].total, h))[:TOP]
        details = self._state.support_features(project, top)
        ordered = [details[h] for h in top if h in details]
        late = 0.0
        if question.word_vectors is not None:
            stems = [term_hash(stem(w)) for w in question.words]
            corpus = self._state.statistics(project, branch, list(set(stems)))
            idf = np.array([corpus.idf(t) for t in stems])
            late = late_signal(QueryWords(idf, question.word_vectors), [d.words for d in ordered])
        return Support(
            sent=finite(sentence_signal(question.vector, [d.sentences for d in ordered])),
            cc=max((s.centred for s in scores.values() if s.centred is not None), default=0.0),
            late=finite(late),
        )

    def _weighted(self, project: str, branch: str, question: Question) -> SparseQuery:
        return sparse_query(question.terms, self._state.statistics(project, branch, question.terms))


def _spoken(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(w for w in words(text) if len(w) <= MAX_TOKEN_CHARS))[:MAX_QUESTION_WORDS]
