"""Sparse ranking: the tokenizer and BM25, pure.

Tokens: NFKD, accents folded, lower case, runs of ``[a-z0-9]``; English and Portuguese stop words out; the Snowball
English stemmer for both languages; identifiers (``src/a-b.py``, ``ERR_42``, ``camelCase``, ``a::b``) kept whole as an
extra token beside their parts; CJK text as bigrams; other scripts as lower-case words.

``s(q, d) = BM25(q, d) / Σ idf(t)`` over the distinct terms of the question, a term that the corpus does not know
counting with the top idf: unknown words make ``s`` smaller instead of making a weak match look perfect.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Final

import numpy as np
import snowballstemmer
from numpy.typing import NDArray

K1: Final = 1.2
B: Final = 0.75
MAX_TOKEN_CHARS: Final = 64
POINT_AVERAGE_LENGTH: Final = 200.0
"""Length that the stored sparse vectors are normalised with. A constant, so that a point depends on its text alone and
a replay in any order gives the same point as a rebuild; the exact score uses the corpus' own average."""

_STOP_TEXT: Final = """
    a about above after again against all also am an and any are as at be because been before being below between
    both but by can could did do does doing down during each few for from further had has have having he her here
    hers him his how i if in into is it its itself just me might more most must my no nor not now of off on once only
    or other our ours out over own same shall she should so some such than that the their theirs them then there
    these they this those through to too under until up us very was we were what when where which while who whom why
    will with would you your yours ao aos aquela aquelas aquele aqueles aquilo as ate com como da das de dela delas
    dele deles depois do dos e ela elas ele eles em entre era eram essa essas esse esses esta estas estava estavam
    este estes eu foi foram ha isso isto ja la lhe lhes mais mas me mesma mesmas mesmo mesmos meu meus minha minhas
    muito na nao nas nem no nos nossa nossas nosso nossos num numa o os ou para pela pelas pelo pelos por porque pra
    qual quais quando quanto que quem sao se seja sem ser sera seu seus so sob sobre sua suas tambem te tem tenho ter
    teu tua um uma umas uns voce voces onde deve pode
"""
STOP_WORDS: Final[frozenset[str]] = frozenset(_STOP_TEXT.split())

_WORD: Final = re.compile(r"[a-z0-9]+")
# Runs that may be an identifier: word characters joined by . _ - / : @ + # (never a bare sentence stop at the end).
_RUN: Final = re.compile(r"[^\W_](?:[\w.\-/:@+#]*[\w+#])?|_[\w.\-/:]*\w", re.ASCII)
_JOINERS: Final = re.compile(r"[._\-/:]")
_CAMEL: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*|[0-9]+")
_HAS_CAMEL: Final = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2,}[a-z]{2,}")
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af]+")
_OTHER_SCRIPT: Final = re.compile(r"[^\W\d_]{2,}")

_STEMMER_LOCK: Final = Lock()


@lru_cache(maxsize=1)
def _stemmer() -> object:
    return snowballstemmer.stemmer("english")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the Snowball English stem of a folded word."""
    with _STEMMER_LOCK:  # the stemmer object keeps the word it works on
        stemmed: str = _stemmer().stemWord(word)  # type: ignore[attr-defined]  # ships without types
    return stemmed


def fold(text: str) -> str:
    """Return the text in NFKD without its accents: ``decisão`` = ``decisao``, ``ﬁ`` = ``fi``. Case stays."""
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(ch for ch in decomposed if not unicodedata.combining(ch))


def words(text: str) -> list[str]:
    """Return the folded lower-case words of a text that are no stop words, in order, repeats kept, not stemmed."""
    return [w for w in _WORD.findall(fold(text).lower()) if w not in STOP_WORDS]


def identifiers(text: str) -> list[str]:
    """Return the identifiers that a text names, folded and in lower case, in order, without repeats."""
    found: dict[str, None] = {}
    for run in _RUN.findall(fold(text)):
        whole = _identifier(run)
        if whole is not None:
            found.setdefault(whole)
    return list(found)


def tokens(text: str) -> list[str]:
    """Return the terms of a text, in order, repeats kept."""
    folded = fold(text)
    result: list[str] = []
    for run in _RUN.findall(folded):
        lowered = run.lower()
        whole = _identifier(run)
        if whole is not None:
            result.append(whole)
            parts: Iterable[str] = _WORD.findall(lowered)
            if _HAS_CAMEL.search(run):
                parts = dict.fromkeys([*parts, *(piece.lower() for piece in _CAMEL.findall(run))])
            result += [stem(part) for part in parts if part not in STOP_WORDS and part != whole and len(part) <= 64]
        else:
            result += [stem(word[:MAX_TOKEN_CHARS]) for word in _WORD.findall(lowered) if word not in STOP_WORDS]
    if not folded.isascii():
        result += _beyond_ascii(text)
    return result


def term_counts(text: str) -> Counter[str]:
    """Return how often each term occurs."""
    return Counter(tokens(text))


def term_hash(term: str) -> int:
    """Return the 63-bit identity of a term in stored counts."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8"), digest_size=8).digest(), "big") >> 1


def sparse_index(term: int) -> int:
    """Return the dimension of a term (by its hash) in the vector engine's 32-bit sparse space.

    Two terms may share one; that can only add a candidate, because every candidate is scored exactly afterwards.
    """
    return term >> 31


@dataclass(frozen=True, slots=True, eq=False)
class TermVector:
    """The terms of one text: sorted term hashes with their counts."""

    terms: NDArray[np.int64]
    counts: NDArray[np.uint32]
    length: int = field(init=False)
    """Number of tokens of the text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", int(self.counts.sum()))


def term_vector(text: str) -> TermVector:
    """Return the terms of a text with their counts, ready to be stored."""
    counts: Counter[int] = Counter()
    for term, n in term_counts(text).items():
        counts[term_hash(term)] += n
    ordered = sorted(counts.items())
    return TermVector(
        terms=np.array([t for t, _ in ordered], dtype=np.int64),
        counts=np.array([n for _, n in ordered], dtype=np.uint32),
    )


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """What BM25 knows of one corpus (a project's heads on a branch), for the terms that were asked for."""

    documents: int
    total_length: int
    document_frequency: Mapping[int, int]

    @property
    def average_length(self) -> float:
        """Mean number of tokens; 1 for an empty corpus, so that nothing divides by zero."""
        return self.total_length / self.documents if self.documents and self.total_length else 1.0

    def idf(self, term: int) -> float:
        """Return ln(1 + (N - df + .5) / (df + .5)); a term that the corpus does not know has the top value."""
        df = min(self.document_frequency.get(term, 0), self.documents)
        return math.log(1.0 + (self.documents - df + 0.5) / (df + 0.5))


@dataclass(frozen=True, slots=True, eq=False)
class SparseQuery:
    """A question against one corpus: its distinct terms and their weights."""

    terms: NDArray[np.int64]
    idf: NDArray[np.float64]
    average_length: float

    @property
    def total_idf(self) -> float:
        """Σ idf over the distinct terms: what a perfect match is measured against."""
        return float(self.idf.sum())


def sparse_query(terms: Sequence[int], corpus: CorpusStatistics) -> SparseQuery:
    """Return the question weighted by a corpus; each distinct term counts once."""
    distinct = list(dict.fromkeys(terms))
    return SparseQuery(
        terms=np.array(distinct, dtype=np.int64),
        idf=np.array([corpus.idf(t) for t in distinct], dtype=np.float64),
        average_length=corpus.average_length,
    )


def query_terms(text: str) -> list[int]:
    """Return the distinct term hashes of a question, in order."""
    return [term_hash(term) for term in dict.fromkeys(tokens(text))]


def sparse_scores(query: SparseQuery, documents: Sequence[TermVector]) -> NDArray[np.float64]:
    """Return ``s`` of every document: its BM25 over what the question's terms could give at most per unit of tf.

    The scale is 0 to ``K1 + 1``, in practice to about 1; 0 means that no term is shared.
    """
    if not documents or query.total_idf <= 0.0:
        return np.zeros(len(documents))
    tf = _term_frequencies(query.terms, documents)
    lengths = np.array([d.length for d in documents], dtype=np.float64)
    norm = K1 * (1.0 - B + B * lengths / query.average_length)
    gain = tf * (K1 + 1.0) / (tf + norm[:, None])
    return np.asarray(gain @ query.idf / query.total_idf)


def _term_frequencies(terms: NDArray[np.int64], documents: Sequence[TermVector]) -> NDArray[np.float64]:
    """Return ``[documents, terms]``: all documents in one pass, because one at a time costs more than the search."""
    order = np.argsort(terms)
    ordered = terms[order]
    stored = np.concatenate([d.terms for d in documents])
    counts = np.concatenate([d.counts for d in documents])
    owner = np.repeat(np.arange(len(documents)), [len(d.terms) for d in documents])
    at = np.minimum(np.searchsorted(ordered, stored), len(ordered) - 1)
    hit = ordered[at] == stored
    tf = np.zeros((len(documents), len(terms)))
    tf[owner[hit], order[at[hit]]] = counts[hit]
    return tf


def point_vector(document: TermVector) -> dict[int, float]:
    """Return the stored sparse vector of a text: its saturated term frequencies, without idf."""
    norm = K1 * (1.0 - B + B * document.length / POINT_AVERAGE_LENGTH)
    result: dict[int, float] = {}
    for term, count in zip(document.terms.tolist(), document.counts.tolist(), strict=True):
        index = sparse_index(term)
        gain = count * (K1 + 1.0) / (count + norm)
        result[index] = max(gain, result.get(index, 0.0))
    return result


def query_vector(query: SparseQuery) -> dict[int, float]:
    """Return the sparse vector to search with: idf of each term, so that the dot product is BM25."""
    result: dict[int, float] = {}
    for term, idf in zip(query.terms.tolist(), query.idf.tolist(), strict=True):
        index = sparse_index(term)
        result[index] = max(idf, result.get(index, 0.0))
    return result


def _identifier(run: str) -> str | None:
    """Return the whole token of an identifier; None for an ordinary word."""
    if len(run) > MAX_TOKEN_CHARS * 4:
        return None
    if _HAS_CAMEL.search(run):
        return run.lower()
    inner = run.strip("._-/:@+#")
    if _JOINERS.search(inner) and any(ch.isalnum() for ch in inner):
        return run.lower().strip(".-:")
    return run.lower() if run[0] == "_" else None


def _beyond_ascii(text: str) -> list[str]:
    """Return CJK bigrams and the words of other scripts (Greek, Cyrillic, Arabic, ...)."""
    normal = unicodedata.normalize("NFKC", text).lower()
    result: list[str] = []
    for run in _CJK.findall(normal):
        result += [run[i : i + 2] for i in range(len(run) - 1)] if len(run) > 1 else [run]
    rest = _CJK.sub(" ", normal)
    result += [w[:MAX_TOKEN_CHARS] for w in _OTHER_SCRIPT.findall(rest) if not fold(w).isascii()]
    return result
