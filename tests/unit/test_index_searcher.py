"""The query path on real parts: engine, state and offline model in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from index_svc.calibrator import Calibrator
from index_svc.domain import IndexPoint, PointFilter, Projection, Role, StructuralQuery, search_filter
from index_svc.embedder_offline import DIMENSIONS, MODEL_ID, OfflineEmbedder
from index_svc.features import compute_features
from index_svc.recipe import RECIPE_VERSION, EmbeddingText, MemoryText, embedding_text, sparse_text
from index_svc.search import Searcher, Way
from index_svc.sparse import identifiers, point_vector, query_terms, sparse_query, sparse_scores, term_vector
from index_svc.state import Batch
from index_svc.state_sqlite import SqliteState
from index_svc.vectors import CollectionSpec, Hit, StoredPoint
from index_svc.vectors_edge import EdgeCollection, EdgeVectorStore
from service_kit.errors import DomainError, dependency_unavailable

MEMORIES = {
    "queue": MemoryText(
        "Retry payments through a queue", "A failed payment is retried three times.", "See src/queue.py and ERR_42."
    ),
    "logo": MemoryText("Colours of the logo", "The logo is blue on white.", "Print shops get the vector file."),
    "deploy": MemoryText(
        "Deploy on every green build", "Main is published after each merge.", "Rollback is one click."
    ),
    "keys": MemoryText("Primary keys are UUIDs", "New tables use UUIDv7.", "Integers leak how many rows there are."),
    "backup": MemoryText(
        "Nightly backups", "Backups are encrypted and kept for a month.", "A restore is tried weekly."
    ),
    "review": MemoryText("Two people review", "Every change needs two approvals.", "One of them knows the module."),
    "flags": MemoryText("Feature flags expire", "A flag lives for at most a quarter.", "Old flags break the build."),
}


@dataclass(slots=True)
class Index:
    """The parts under test."""

    store: EdgeVectorStore
    state: SqliteState
    embedder: OfflineEmbedder
    searcher: Searcher

    async def put(self, memories: Mapping[str, MemoryText], project: str = "p", position: int = 1) -> None:
        """Project memories as heads."""
        texts = {name: embedding_text(m) for name, m in memories.items()}
        known = self.state.known_words(project, [])
        computed = await compute_features(self.embedder, list(texts.values()), known)
        by_hash = {t.text_hash: t for t in computed.texts}
        points = [point(name, text, project, position) for name, text in texts.items()]
        await self.store.live.upsert(
            [StoredPoint(p, by_hash[p.text_hash].dense, point_vector(by_hash[p.text_hash].terms)) for p in points]
        )
        projections = tuple(Projection(project, "main", p.family, position, (p,)) for p in points)
        self.state.apply(Batch(projections, {project: computed.texts}, {project: computed.words}, {project: position}))


def point(name: str, text: EmbeddingText, project: str, position: int) -> IndexPoint:
    """Return a head."""
    return IndexPoint(
        project,
        name,
        f"{name}/1",
        "main",
        "SEMANTIC",
        "DESIGN_RULE",
        "ACTIVE",
        "ADOPTED",
        Role.HEAD,
        "c",
        text.text_hash,
        position,
        MODEL_ID,
        RECIPE_VERSION,
        identifiers=tuple(identifiers(sparse_text(text))),
    )


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[Index]:
    """Return an index with the memories of project p."""
    store = EdgeVectorStore(tmp_path / "v")
    live = await store.ensure_collection(CollectionSpec(MODEL_ID, DIMENSIONS, RECIPE_VERSION))
    state, embedder = SqliteState(":memory:"), OfflineEmbedder()
    made = Index(store, state, embedder, Searcher(live, state, embedder))
    await made.put(MEMORIES)
    await made.searcher.prepare()
    yield made
    await embedder.close()
    await store.close()
    state.close()


NOW = search_filter("p", "main", now=0)


async def test_both_scores_of_every_candidate_are_exact(index: Index) -> None:
    """R3: a candidate of one way has the other way's score too, and both are what the definitions say."""
    question = await index.searcher.ask("how often is a failed payment retried?")
    result = await index.searcher.search(question, NOW)
    assert result.failures == ()
    assert result.found[0].point.family == "queue"
    assert set(result.found[0].found_by) == {Way.DENSE, Way.SPARSE}
    assert len(result.found) == len(MEMORIES)
    texts = {name: sparse_text(embedding_text(m)) for name, m in MEMORIES.items()}
    terms = query_terms(question.text)
    expected = sparse_scores(
        sparse_query(terms, index.state.statistics("p", "main", terms)), [term_vector(t) for t in texts.values()]
    )
    vectors = await index.store.live.vectors([f.point.id for f in result.found])
    for found in result.found:
        assert found.scores is not None
        assert question.vector is not None
        assert found.scores.sparse == pytest.approx(expected[list(texts).index(found.point.family)])
        assert found.scores.dense == pytest.approx(float(vectors[found.point.id] @ question.vector), abs=1e-5)
        assert found.scores.centred is not None
    totals = [f.scores.total for f in result.found if f.scores]
    assert totals == sorted(totals, reverse=True)


async def test_one_way_alone_still_gives_both_scores(index: Index) -> None:
    """R3: with the sparse way off a hit still knows its sparse score, and the other way round."""
    question = await index.searcher.ask("payment retries")
    dense = await index.searcher.search(question, NOW, ways=[Way.DENSE], limit=1)
    sparse = await index.searcher.search(question, NOW, ways=[Way.SPARSE], limit=1)
    assert [f.point.family for f in (*dense.found, *sparse.found)] == ["queue", "queue"]
    assert dense.found[0].scores == sparse.found[0].scores
    assert dense.found[0].found_by == (Way.DENSE,)


async def test_portuguese_questions_find_english_memories(index: Index) -> None:
    """R8: the dense way crosses languages where no word is shared."""
    question = await index.searcher.ask("por quanto tempo guardamos as cópias de segurança?")
    assert question.language == "pt"
    assert (await index.searcher.search(question, NOW)).found[0].point.family == "backup"


async def test_an_exact_identifier_is_found_structurally(index: Index) -> None:
    """R4: a path that the question names finds its memory, and the candidate says why."""
    question = await index.searcher.ask(
        "what about src/queue.py?", named=StructuralQuery(identifiers=("src/queue.py",))
    )
    found = {f.point.family: f for f in (await index.searcher.search(question, NOW, ways=[Way.STRUCTURAL])).found}
    assert set(found) == {"queue"}
    assert found["queue"].structural == ("identifier:src/queue.py",)
    assert found["queue"].found_by == (Way.STRUCTURAL,)
    assert found["queue"].scores is not None


async def test_an_embedder_that_fails_leaves_the_sparse_way(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7, R7: without vectors the sparse way answers, the failure is reported, and there is no support."""

    async def broken(text: str) -> np.ndarray:
        raise dependency_unavailable("embedder")

    monkeypatch.setattr(index.embedder, "embed_query", broken)
    question = await index.searcher.ask("failed payment")
    result = await index.searcher.search(question, NOW)
    assert [f.part for f in result.failures] == [Way.DENSE]
    assert result.found[0].point.family == "queue"
    assert result.found[0].scores is not None
    assert result.found[0].scores.dense is None
    scores = {f.point.text_hash: f.scores for f in result.found if f.scores}
    assert index.searcher.support("p", "main", question, scores).total == 0.0


async def test_an_engine_way_that_fails_is_reported(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7, R7: when one way of the engine fails the other answers; nothing of the fault's text gets out."""

    async def broken(self: EdgeCollection, weights: Mapping[int, float], where: PointFilter, limit: int) -> list[Hit]:
        raise RuntimeError("internal path /x/y")

    monkeypatch.setattr(EdgeCollection, "search_sparse", broken)
    result = await index.searcher.search(await index.searcher.ask("failed payment"), NOW)
    assert [(f.part, "/x/y" in f.reason) for f in result.failures] == [(Way.SPARSE, False)]
    assert result.found[0].point.family == "queue"


async def test_support_tells_an_answer_from_nonsense(index: Index) -> None:
    """R6: a question that the memories answer has more support than the bank's mean; nonsense does not."""

    async def total(text: str) -> float:
        question = await index.searcher.ask(text)
        result = await index.searcher.search(question, NOW)
        scores = {f.point.text_hash: f.scores for f in result.found if f.scores}
        return index.searcher.support("p", "main", question, scores).total

    calibration = await Calibrator(index.searcher, index.state).calibrate("p", "main", now=0)
    assert calibration is not None
    assert calibration.documents == len(MEMORIES)
    assert calibration.z(await total("how often is a failed payment retried?")) > 2.0
    assert calibration.z(await total("quantas vezes um pagamento que falhou é tentado de novo?")) > 1.0
    assert calibration.z(await total("which dog breed sheds the least hair?")) < 1.0
    assert await total("") == 0.0 or calibration.z(await total("")) < 1.0


async def test_calibration_follows_the_corpus(index: Index) -> None:
    """R6: a corpus that changed noticeably is asked again; a small change is not worth it; empty ones have none."""
    calibrator = Calibrator(index.searcher, index.state)
    assert calibrator.outdated("p") == ("main",)
    await calibrator.calibrate("p", "main", now=0)
    assert calibrator.outdated("p") == ()
    await index.put({"one": MemoryText("One more rule about linting")}, position=2)
    assert calibrator.outdated("p") == ()
    await index.put({f"m{i}": MemoryText(f"Rule number {i} of the style guide") for i in range(9)}, position=3)
    assert calibrator.outdated("p") == ("main",)
    assert await calibrator.calibrate("q", "main", now=0) is None


async def test_projects_do_not_see_each_other(index: Index) -> None:
    """S2: a foreign project's memories are no candidates and change no score, no statistic and no support."""
    question = await index.searcher.ask("how often is a failed payment retried?")
    before = await index.searcher.search(question, NOW)
    foreign = {f"x{i}": MemoryText(f"Payment retries {i}", "A failed payment is retried often.") for i in range(20)}
    await index.put(foreign, project="q")
    after = await index.searcher.search(question, NOW)
    assert after == before
    assert {f.point.project for f in after.found} == {"p"}


@pytest.mark.parametrize("text", ["", "   ", "?!", "😀", "決定", "x" * 10_000, "decisão " * 1_000, "\ud800"])
async def test_odd_questions_get_an_answer(index: Index, text: str) -> None:
    """R8: any text gives finite scores and no exception."""
    question = await index.searcher.ask(text)
    result = await index.searcher.search(question, NOW)
    scores = {f.point.text_hash: f.scores for f in result.found if f.scores}
    for s in scores.values():
        assert np.isfinite([s.sparse, s.dense or 0.0, s.centred or 0.0]).all()
    assert np.isfinite(index.searcher.support("p", "main", question, scores).total)


async def test_a_given_vector_is_used_as_it_is(index: Index) -> None:
    """The caller's vector saves the embedding; its length does not matter, its direction does."""
    vector = await index.embedder.embed_query("failed payment")
    first = await index.searcher.ask("failed payment", vector=vector * 7)
    second = await index.searcher.ask("failed payment")
    assert first.vector is not None
    assert second.vector is not None
    assert np.allclose(first.vector, second.vector, atol=1e-6)


async def test_a_candidate_without_features_is_still_one(index: Index) -> None:
    """I2: a point whose state is not written yet (a crash between the two) is found, without scores."""
    lost = replace(point("lost", embedding_text(MemoryText("Lost")), "p", 9), text_hash="nowhere")
    vector = await index.embedder.embed_query("failed payment")
    await index.store.live.upsert([StoredPoint(lost, vector, point_vector(term_vector("failed payment")))])
    result = await index.searcher.search(await index.searcher.ask("failed payment"), NOW)
    assert {f.point.family: f.scores for f in result.found}["lost"] is None


async def test_equal_texts_are_computed_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal texts, sentences and known words cost one embedding between them."""
    seen: list[str] = []
    embed = index.embedder.embed_documents

    async def counting(texts: Sequence[str]) -> np.ndarray:
        seen.extend(texts)
        return await embed(texts)

    monkeypatch.setattr(index.embedder, "embed_documents", counting)
    text = embedding_text(MEMORIES["queue"])
    computed = await compute_features(index.embedder, [text, text], frozenset({"payment"}))
    assert len(computed.texts) == 1
    assert len(seen) == len(set(seen))
    assert "payment" in computed.texts[0].words
    assert "payment" not in computed.words
    assert np.linalg.norm(computed.texts[0].dense) == pytest.approx(1.0, abs=1e-5)
    assert computed.texts[0].sentences.dtype == np.float16
    seen.clear()
    again = await compute_features(index.embedder, [text], stored={text.text_hash: computed.texts[0]})
    assert again.texts == (computed.texts[0],)
    assert {"payment", "queue"} <= again.words.keys()
    assert seen == [] or set(seen) <= again.words.keys(), "I4: what the same model made before is not made again"


async def test_a_dead_worker_fails_the_features_as_a_whole(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: features are all there or the batch fails with a typed fault, to be tried again."""

    async def broken(texts: Sequence[str]) -> np.ndarray:
        raise dependency_unavailable("embedder")

    monkeypatch.setattr(index.embedder, "embed_documents", broken)
    with pytest.raises(DomainError):
        await compute_features(index.embedder, [embedding_text(MEMORIES["queue"])])
