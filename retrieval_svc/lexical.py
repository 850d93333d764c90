"""Matching words here, for texts that the index does not have: the ledger's tail, or everything while it is down. Pure.

Simpler than the index's ranking and on the same scale (BM25 over the sum of idf), so that both can stand in one list.
Accents are folded, English and Portuguese stop words left out, identifiers kept whole, CJK text cut into bigrams.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import Final

import snowballstemmer

K1: Final = 1.2
B: Final = 0.75
MAX_QUERY_TERMS: Final = 400

_STOP_TEXT: Final = """
    a about after all also an and any are as at be been before but by can could did do does for from had has have how
    i if in into is it its may more most must my no not now of on one only or other our out over shall should so some
    such than that the their them then there these they this those to under up us use used was we were what when where
    which while who why will with would you your
    ao aos as ate com como da das de dela dele do dos e ela ele em entre era essa esse esta estao este eu foi foram ha
    isso isto ja lhe mais mas me mesmo meu minha muito na nao nas nem no nos nossa nosso num numa o os ou para pela
    pelas pelo pelos por porque qual quais quando que quem sao se seja sem ser sera seu seus sobre sua suas tambem tem
    ter um uma umas uns voce
"""
STOP_WORDS: Final[frozenset[str]] = frozenset(_STOP_TEXT.split())

_TERM: Final = re.compile(r"[a-z0-9_]+(?:[._\-/:]+[a-z0-9_]+)*")
_PART: Final = re.compile(r"[a-z0-9]+")
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af]+")
_OTHER: Final = re.compile(r"[^\W\d_a-z]{2,}")

_STEMMER: Final = Lock()


@lru_cache(maxsize=1)
def _stemmer() -> object:
    return snowballstemmer.stemmer("english")


@lru_cache(maxsize=32_768)
def stem(word: str) -> str:
    """Return the stem of a folded word; one stemmer serves both languages."""
    with _STEMMER:  # the stemmer keeps the word that it works on
        stemmed: str = _stemmer().stemWord(word)  # type: ignore[attr-defined]  # ships without types
    return stemmed


def fold(text: str) -> str:
    """Return the text in lower case and without accents: ``Decisão`` = ``decisao``."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(ch for ch in decomposed if not unicodedata.combining(ch)).lower()


def terms(text: str) -> list[str]:
    """Return the terms of a text, in order, repeats kept."""
    folded = fold(text)
    found: list[str] = []
    for run in _TERM.findall(folded):
        parts = _PART.findall(run)
        if len(parts) > 1 or "_" in run:
            found.append(run)
        found += [stem(part) for part in parts if part not in STOP_WORDS]
    if not folded.isascii():
        for run in _CJK.findall(folded):
            found += [run[i : i + 2] for i in range(len(run) - 1)] or [run]
        found += [word for word in _OTHER.findall(_CJK.sub(" ", folded)) if not word.isascii()]
    return found


def names(text: str) -> list[str]:
    """Return the identifiers that a question spells out: runs of several parts, like ``src/a.py`` or ``ERR_42``."""
    return list(dict.fromkeys(run for run in _TERM.findall(fold(text)) if "_" in run or len(_PART.findall(run)) > 1))


def query_terms(text: str) -> list[str]:
    """Return the distinct terms of a question, in order, at most some hundreds."""
    return list(dict.fromkeys(terms(text)))[:MAX_QUERY_TERMS]


def coverage(query: Sequence[str], text: str) -> float:
    """Return the share of the question's terms that a text has; 0 for a question without any."""
    if not query:
        return 0.0
    has = set(terms(text))
    return sum(term in has for term in query) / len(query)


def bm25(query: Sequence[str], texts: Sequence[str]) -> list[float]:
    """Return BM25 over the sum of idf for each text of a whole corpus."""
    counts = [Counter(terms(text)) for text in texts]
    if not query or not counts:
        return [0.0] * len(texts)
    lengths = [c.total() for c in counts]
    average = sum(lengths) / len(lengths) or 1.0
    idf = {}
    for term in query:
        df = sum(term in c for c in counts)
        idf[term] = math.log(1.0 + (len(counts) - df + 0.5) / (df + 0.5))
    total = sum(idf.values())
    scores = []
    for count, length in zip(counts, lengths, strict=True):
        norm = K1 * (1.0 - B + B * length / average)
        gain = sum(weight * count[t] * (K1 + 1.0) / (count[t] + norm) for t, weight in idf.items() if t in count)
        scores.append(gain / total if total > 0 else 0.0)
    return scores


def spelled_words(question: str) -> list[tuple[str, frozenset[str]]]:
    """Return the distinct words of a question as it spells them, each with its terms; those without are left out."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for raw in question.split():
        word = raw.strip(".,;:!?\"'`()[]{}<>*")
        own = frozenset(terms(word))
        if own:
            found.setdefault(fold(word), (word, own))
    return list(found.values())[:MAX_QUERY_TERMS]


def shared_words(words: Sequence[tuple[str, frozenset[str]]], text: str, at_most: int) -> list[str]:
    """Return the words (of :func:`spelled_words`) that a text has too, in order."""
    has = frozenset(terms(text))
    return [word for word, own in words if not own.isdisjoint(has)][:at_most]
