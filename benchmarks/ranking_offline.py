"""Runs the ranking recipe of ``index_svc`` on a question set, without any service, and prints what it earns.

    python benchmarks/ranking_offline.py ../shared/data/peps --cache /tmp/ranking-cache

Rows: MRR@10 and R@5 of plain BM25, the recipe's ``s`` and ``c``, and the default score, with governance (a head takes
the best score of its predecessors; predecessors leave the answers); then how well each signal tells answerable
questions from unanswerable ones (AUROC; the same over pairs whose lengths differ by at most one word; and the AUROC of
the word count, which any signal must beat).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_svc import recipe, sparse, support
from index_svc.embedder_offline import OfflineEmbedder

IN_FORCE = {"Active", "Accepted", "Final", "Provisional"}
MATURITY = {"Draft": 0, "Provisional": 1, "Accepted": 2, "Final": 2, "Active": 2}
DEAD = {"Superseded", "Rejected", "Withdrawn", "Deferred"}


@dataclass(slots=True)
class Corpus:
    """The documents with everything that the scores need."""

    ids: list[str]
    terms: list[sparse.TermVector]
    dense: NDArray[np.float32]
    sentences: list[NDArray[np.float32]]
    words: list[NDArray[np.float32]]
    statistics: sparse.CorpusStatistics
    heads: dict[str, set[str]]
    in_force: set[str]


def load(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def successors(documents: Sequence[dict[str, Any]]) -> dict[str, set[str]]:
    """Return for each document the heads that replaced it (itself when none did)."""
    by_id = {d["id"]: d for d in documents}
    nexts: dict[str, set[str]] = {d["id"]: set() for d in documents}

    def name(value: object) -> str:
        return f"PEP {value}" if isinstance(value, int) else str(value)

    for d in documents:
        for raw in d["superseded_by"]:
            if name(raw) in by_id:
                nexts[d["id"]].add(name(raw))
        for raw in d["replaces"]:
            old = by_id.get(name(raw))
            if old is None:
                continue
            mature = MATURITY.get(d["status"], -1) >= MATURITY.get(old["status"], -1)
            if old["status"] in DEAD or mature:
                nexts[old["id"]].add(d["id"])

    def heads(doc: str, seen: frozenset[str]) -> set[str]:
        further = nexts[doc] - seen
        return set().union(*(heads(n, seen | {n}) for n in further)) if further else {doc}

    return {doc: heads(doc, frozenset({doc})) for doc in nexts}


async def build(documents: Sequence[dict[str, Any]], embedder: OfflineEmbedder, cache: Path | None) -> Corpus:
    """Embed the corpus, or take the vectors from the cache folder."""
    texts = [
        recipe.embedding_text(recipe.MemoryText(title=d["title"], summary=d["abstract"], details=d["motivation"]))
        for d in documents
    ]
    terms = [sparse.term_vector(recipe.sparse_text(t)) for t in texts]
    split = [recipe.sentences(t) for t in texts]
    words = [sorted(set(sparse.words(recipe.sparse_text(t)))) for t in texts]
    vocabulary = sorted(set().union(*words))
    views = [recipe.dense_views(t) for t in texts]
    started = time.perf_counter()

    async def embedded(name: str, flat: list[str]) -> NDArray[np.float32]:
        import hashlib

        key = hashlib.sha256("\x1e".join(flat).encode("utf-8", "replace")).hexdigest()[:16]
        file = cache / f"{name}-{key}.npy" if cache else None
        if file is not None and file.exists():
            return np.asarray(np.load(file), dtype=np.float32)
        vectors = await embedder.embed_documents(flat)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, vectors.astype(np.float32))
        return vectors

    flat_views = await embedded("views", [v for vs in views for v in vs])
    flat_sentences = await embedded("sentences", [s for ss in split for s in ss])
    flat_words = await embedded("words", vocabulary)
    row = {w: i for i, w in enumerate(vocabulary)}
    dense = np.stack([recipe.combine_views(m) for m in _regroup(flat_views, views)])
    df: Counter[int] = Counter(t for v in terms for t in v.terms.tolist())
    print(
        f"{len(documents)} documents, {len(flat_views)} views, {len(flat_sentences)} sentences, {len(vocabulary)} words"
        f" in {time.perf_counter() - started:.1f} s"
    )
    return Corpus(
        ids=[d["id"] for d in documents],
        terms=terms,
        dense=dense,
        sentences=[m.astype(np.float16).astype(np.float32) for m in _regroup(flat_sentences, split)],
        words=[flat_words[[row[w] for w in ws]] for ws in words],
        statistics=sparse.CorpusStatistics(len(documents), sum(t.length for t in terms), df),
        heads=successors(documents),
        in_force={d["id"] for d in documents if d["status"] in IN_FORCE},
    )


def _regroup(flat: NDArray[np.float32], groups: Sequence[Sequence[str]]) -> list[NDArray[np.float32]]:
    ends = np.cumsum([len(g) for g in groups])
    return [flat[end - len(g) : end] for g, end in zip(groups, ends, strict=True)]


class PlainBm25:
    """The baseline: lower-cased words, accents stripped, no stemming, no stop words."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.docs = [Counter(self.split(t)) for t in texts]
        self.lengths = np.array([sum(d.values()) for d in self.docs], dtype=float)
        self.df: Counter[str] = Counter(t for d in self.docs for t in d)

    @staticmethod
    def split(text: str) -> list[str]:
        """Return the words."""
        folded = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
        return re.findall(r"\w+", folded)

    def scores(self, question: str) -> NDArray[np.float64]:
        """Return BM25 of every document."""
        n, average = len(self.docs), self.lengths.mean()
        total = np.zeros(n)
        for term in self.split(question):
            df = self.df.get(term, 0)
            if df:
                idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
                tf = np.array([d.get(term, 0) for d in self.docs], dtype=float)
                total += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * self.lengths / average))
        return total


def govern(corpus: Corpus, scores: NDArray[np.float64], *, only_in_force: bool) -> list[tuple[str, float]]:
    """Return the heads by the best score of themselves and their predecessors."""
    best: dict[str, float] = {}
    for doc, score in zip(corpus.ids, scores.tolist(), strict=True):
        for head in corpus.heads[doc]:
            if not only_in_force or head in corpus.in_force:
                best[head] = max(score, best.get(head, -1e9))
    return sorted(best.items(), key=lambda kv: -kv[1])


def ranks(answers: Sequence[tuple[str, float]], expected: Iterable[str]) -> int | None:
    """Return the rank of the first right answer."""
    wanted = set(expected)
    return next((i for i, (doc, _) in enumerate(answers, 1) if doc in wanted), None)


def report(name: str, found: Sequence[int | None]) -> str:
    """Return one row: MRR@10 and R@5."""
    mrr = sum(1 / r for r in found if r and r <= 10) / len(found)
    recall = sum(1 for r in found if r and r <= 5) / len(found)
    return f"{name} {mrr:.3f}/{recall:.3f}"


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the chance that an answerable question scores above an unanswerable one."""
    p, n = np.asarray(positive)[:, None], np.asarray(negative)[None, :]
    return float(((p > n) + 0.5 * (p == n)).mean())


def matched_auroc(positive: Sequence[tuple[float, int]], negative: Sequence[tuple[float, int]]) -> float:
    """Return the same over pairs whose numbers of words differ by at most one."""
    wins = [(1.0 if a > b else 0.5 if a == b else 0.0) for a, la in positive for b, lb in negative if abs(la - lb) <= 1]
    return float(np.mean(wins)) if wins else float("nan")


async def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, nargs="?", default=Path("../shared/data/peps"))
    parser.add_argument("--cache", type=Path, help="folder that keeps the vectors between runs")
    args = parser.parse_args()
    documents, queries = load(args.data / "documents.jsonl"), load(args.data / "queries.jsonl")
    embedder = OfflineEmbedder()
    try:
        corpus = await build(documents, embedder, args.cache)
        await evaluate(corpus, documents, queries, embedder)
    finally:
        await embedder.close()


async def evaluate(
    corpus: Corpus, documents: Sequence[dict[str, Any]], queries: Sequence[dict[str, Any]], embedder: OfflineEmbedder
) -> None:
    """Print ranking and abstention figures."""
    plain = PlainBm25([f"{d['title']} {d['abstract']} {d['motivation']}" for d in documents])
    generic = {
        lang: (await embedder.embed_queries(texts)).mean(axis=0) for lang, texts in support.generic_questions().items()
    }
    mean = corpus.dense.mean(axis=0)

    async def scored(text: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float32]]:
        query = sparse.sparse_query(sparse.query_terms(text), corpus.statistics)
        vector = await embedder.embed_query(text)
        return sparse.sparse_scores(query, corpus.terms), (corpus.dense @ vector).astype(float), vector

    async def signals(text: str) -> dict[str, float]:
        s, c, vector = await scored(text)
        order = np.argsort(-(0.5 * s + 0.5 * c))
        top = order[:3]
        candidates = sorted(set(np.argsort(-s)[:50]) | set(np.argsort(-c)[:50]))
        words = list(dict.fromkeys(sparse.words(text)))
        weights = np.array([corpus.statistics.idf(sparse.term_hash(sparse.stem(w))) for w in words])
        word_vectors = await embedder.word_vectors(words)
        found = support.Support(
            sent=support.sentence_signal(vector, [corpus.sentences[i] for i in top]),
            cc=float(
                support.centred_signal(vector, generic[support.language_of(text)], corpus.dense[candidates], mean).max()
            ),
            late=support.late_signal(support.QueryWords(weights, word_vectors), [corpus.words[i] for i in top]),
        )
        return {
            "words": float(len(text.split())),
            "s": float(s.max()),
            "c": float(c.max()),
            "fused": float((0.5 * s + 0.5 * c).max()),
            "sent": found.sent,
            "cc": found.cc,
            "late": found.late,
            "sent+cc": found.sent + found.cc,
            "total": found.total,
        }

    rankers: dict[str, Callable[[str, Any], NDArray[np.float64]]] = {
        "plain BM25": lambda text, _: plain.scores(text),
        "s": lambda _, sc: sc[0],
        "c": lambda _, sc: sc[1],
        "default": lambda _, sc: 0.5 * sc[0] + 0.5 * sc[1],
    }
    kinds = [("current", "en"), ("current", "pt"), ("superseded", "en")]
    all_scores = {q["id"]: await scored(q["text"]) for q in queries}
    for strict in (False, True):
        print(f"\nMRR@10/R@5, governance on, {'in force only' if strict else 'every head answers'}")
        for name, ranker in rankers.items():
            cells = []
            for kind, lang in kinds:
                chosen = [q for q in queries if q["kind"] == kind and q["lang"] == lang]
                found = [
                    ranks(govern(corpus, ranker(q["text"], all_scores[q["id"]]), only_in_force=strict), q["expected"])
                    for q in chosen
                ]
                if (kind, lang) == ("current", "en"):
                    half = len(found) // 2
                    cells += [report("en½", found[:half]), report("en½", found[half:])]
                    cells += [report("even", found[::2]), report("odd", found[1::2])]
                cells.append(report(f"{kind} {lang}", found))
            print(f"{name:11s} | " + " | ".join(cells))

    answerable = [q for q in queries if q["kind"] in {"current", "superseded"}]
    nothing = [q for q in queries if q["kind"] == "unanswerable"]
    measured = {q["id"]: await signals(q["text"]) for q in [*answerable, *nothing]}
    print("\nAUROC / length-matched, answerable against: first 45 (short) | last 45 (long) | all")
    for signal in next(iter(measured.values())):
        cells = []
        for group in (nothing[:45], nothing[45:], nothing):
            p = [(measured[q["id"]][signal], len(q["text"].split())) for q in answerable]
            n = [(measured[q["id"]][signal], len(q["text"].split())) for q in group]
            cells.append(f"{auroc([v for v, _ in p], [v for v, _ in n]):.3f} / {matched_auroc(p, n):.3f}")
        print(f"{signal:8s} | " + " | ".join(cells))

    bank = [(await signals(text))["total"] for _, text in support.offtopic_questions()]
    calibration = support.calibrate(bank, len(corpus.ids))
    if calibration is None:
        return
    z_good = np.array([calibration.z(measured[q["id"]]["total"]) for q in answerable])
    z_none = np.array([calibration.z(measured[q["id"]]["total"]) for q in nothing])
    print(f"\noff-topic bank: mean {calibration.mean:.3f}, deviation {calibration.deviation:.3f}")
    for threshold in (0.5, 1.0, 1.3, 1.8, 2.3, 2.8):
        precision = (z_good >= threshold).sum() / max(1, (z_good >= threshold).sum() + (z_none >= threshold).sum())
        print(
            f"z >= {threshold}: {np.mean(z_good >= threshold):.2f} of the answerable and "
            f"{np.mean(z_none >= threshold):.2f} of the unanswerable are answered; precision {precision:.3f}"
        )


if __name__ == "__main__":
    asyncio.run(main())
