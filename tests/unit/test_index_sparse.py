"""Sparse ranking: the tokenizer and BM25 against a plain restatement of its formula."""

from __future__ import annotations

import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_svc.sparse import (
    CorpusStatistics,
    fold,
    identifiers,
    point_vector,
    query_terms,
    query_vector,
    sparse_query,
    sparse_scores,
    stem,
    term_hash,
    term_vector,
    tokens,
    words,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The decisions", ["decis"]),
        ("decisão", ["decisao"]),
        ("ﬁle", ["file"]),
        ("see src/a-b.py", ["see", "src/a-b.py", "src", "b", "py"]),
        ("ERR_42 raised", ["err_42", "err", "42", "rais"]),
        ("camelCase", ["camelcase", "camel", "case"]),
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("pkg::mod", ["pkg::mod", "pkg", "mod"]),
        ("PEP 517.", ["pep", "517"]),
        ("決定記録", ["決定", "定記", "記録"]),
        ("это решение", ["это", "решение"]),
        ("😀 !!! ???", []),
        ("", []),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    """R4, R8: words are folded and stemmed, identifiers stay whole beside their parts, CJK becomes bigrams."""
    assert tokens(text) == expected


def test_accents_and_case_do_not_matter() -> None:
    """R8: "decisão" = "decisao" = "DECISÃO", composed or decomposed."""
    forms = ["decisão", "decisao", "DECISÃO", "decisa\u0303o"]
    assert len({tuple(tokens(f)) for f in forms}) == 1
    assert fold("Ação") == "Acao"


def test_stop_words_of_both_languages_go() -> None:
    """Function words of English and Portuguese carry nothing."""
    assert tokens("what is the of and to a não é o que de uma para") == []
    assert words("Why do we use the queue, e por que não a fila?") == ["use", "queue", "fila"]


def test_identifiers_are_found_in_prose() -> None:
    """R4: paths, error codes, dotted names and camel case are identifiers; a sentence's stop is not part of one."""
    text = "Use `src/a-b.py`, raise ERR_42. See HttpClient and foo.bar_baz; version 3.11. And a normal word."
    assert identifiers(text) == ["src/a-b.py", "err_42", "httpclient", "foo.bar_baz", "3.11"]


def test_both_spellings_of_an_identifier_meet() -> None:
    """R4: a question that names only a part, or another case, still shares terms with the whole."""
    document = set(tokens("the helper in src/billing/taxRules.py"))
    assert {"src/billing/taxrules.py"} <= set(tokens("SRC/BILLING/TAXRULES.PY"))
    assert set(tokens("tax rules billing")) <= document | {stem("rules")}
    assert document & set(tokens("billing"))


@given(st.text(max_size=2_000))
def test_any_text_tokenizes(text: str) -> None:
    """R8: any string gives terms without an exception, none empty or too long to store."""
    for token in tokens(text):
        assert token
        assert len(token) <= 256
    counts = term_vector(text)
    assert counts.length == len(tokens(text))
    assert (np.diff(counts.terms) > 0).all()


@pytest.mark.parametrize(
    "text", ["a" * 50_000, "a_" * 25_000, "a." * 25_000, "aB" * 25_000, "/" * 50_000, "é" * 50_000]
)
def test_hostile_text_takes_no_time(text: str) -> None:
    """S4: no text makes the tokenizer quadratic."""
    started = time.process_time()
    tokens(text)
    identifiers(text)
    assert time.process_time() - started < 2.0


def plain_s(query: str, documents: list[str], index: int) -> float:
    """Return ``s`` straight from its definition."""
    split = [tokens(d) for d in documents]
    n = len(split)
    average = sum(map(len, split)) / n
    total, best = 0.0, 0.0
    tf = Counter(split[index])
    for term in set(tokens(query)):
        df = sum(term in d for d in split)
        idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
        best += idf
        total += idf * tf[term] * 2.2 / (tf[term] + 1.2 * (0.25 + 0.75 * len(split[index]) / average))
    return total / best


DOCUMENTS = [
    "the payment queue retries three times",
    "payment payment payment",
    "colours of the logo and its font",
    "retry rules of the queue, see src/queue.py and ERR_42",
    "uma decisão sobre a fila de pagamentos",
]


def corpus() -> CorpusStatistics:
    """Return the statistics of the documents."""
    vectors = [term_vector(d) for d in DOCUMENTS]
    df = Counter(t for v in vectors for t in v.terms.tolist())
    return CorpusStatistics(len(vectors), sum(v.length for v in vectors), df)


@pytest.mark.parametrize("question", ["payment queue", "ERR_42 retry", "unheard payment", "fila", "logo logo logo"])
def test_scores_are_the_formula(question: str) -> None:
    """The vectorised score equals the definition for every document."""
    query = sparse_query(query_terms(question), corpus())
    scores = sparse_scores(query, [term_vector(d) for d in DOCUMENTS])
    assert scores.tolist() == pytest.approx([plain_s(question, DOCUMENTS, i) for i in range(len(DOCUMENTS))])


def test_unknown_words_shrink_the_score() -> None:
    """R6: a term that the corpus does not know counts with the top idf, so a half-understood question scores less."""
    documents = [term_vector(d) for d in DOCUMENTS]
    known = sparse_scores(sparse_query(query_terms("payment queue"), corpus()), documents)
    mixed = sparse_scores(sparse_query(query_terms("payment queue zygote xylem"), corpus()), documents)
    assert mixed.max() < known.max() / 2
    top = math.log(1 + (5 + 0.5) / 0.5)
    assert corpus().idf(term_hash("zygote")) == pytest.approx(top)


def test_a_repeated_query_term_counts_once() -> None:
    """Repeating a word in a question changes nothing."""
    documents = [term_vector(d) for d in DOCUMENTS]
    once = sparse_scores(sparse_query(query_terms("payment queue"), corpus()), documents)
    thrice = sparse_scores(sparse_query(query_terms("payment payment payment queue"), corpus()), documents)
    assert once.tolist() == thrice.tolist()


def test_empty_sides_score_zero() -> None:
    """R8: no terms, no documents, an empty corpus: zeros, never NaN."""
    empty = CorpusStatistics(0, 0, {})
    documents = [term_vector(""), term_vector("payment")]
    assert sparse_scores(sparse_query([], corpus()), documents).tolist() == [0.0, 0.0]
    assert sparse_scores(sparse_query(query_terms("payment"), corpus()), []).tolist() == []
    assert np.isfinite(sparse_scores(sparse_query(query_terms("payment"), empty), documents)).all()
    assert sparse_scores(sparse_query(query_terms("the of"), corpus()), documents).tolist() == [0.0, 0.0]


@given(st.lists(st.sampled_from(DOCUMENTS), min_size=1, max_size=4), st.sampled_from(DOCUMENTS))
def test_the_engine_vectors_rank_like_bm25(parts: list[str], question: str) -> None:
    """I7: the stored vector and the query vector meet in the terms that BM25 counts, and in no others."""
    document = term_vector(" ".join(parts))
    stored, asked = point_vector(document), query_vector(sparse_query(query_terms(question), corpus()))
    dot = sum(w * stored.get(i, 0.0) for i, w in asked.items())
    score = sparse_scores(sparse_query(query_terms(question), corpus()), [document])[0]
    assert (dot > 0) == (score > 0)
    assert all(0 < v < 2.2 for v in stored.values())


def test_a_point_depends_on_its_text_alone() -> None:
    """I2: the stored sparse vector does not know the corpus, so any order of events gives the same points."""
    assert point_vector(term_vector(DOCUMENTS[0])) == point_vector(term_vector(DOCUMENTS[0]))
    assert all(0 <= i < 2**32 for i in point_vector(term_vector(" ".join(DOCUMENTS))))
