"""The contract of the index's state, on SQLite: statistics by difference, positions, features, isolation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index_svc.domain import IndexPoint, Projection, Role
from index_svc.sparse import CorpusStatistics, term_hash, term_vector, tokens
from index_svc.state import Batch, StateStore, TextFeatures
from index_svc.state_sqlite import SqliteState
from index_svc.support import Calibration
from service_kit.errors import DomainError, Reason

DIMENSIONS = 8
TEXTS = ["payment queue retries", "colours of the logo", "queue rules", "fila de pagamentos", "retries of retries"]


@pytest.fixture(params=["file", "memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    """Return an empty state."""
    made = SqliteState(tmp_path / "state.db" if request.param == "file" else ":memory:")
    yield made
    made.close()


def features(text: str) -> TextFeatures:
    """Return the features of a text, its vectors decided by it."""
    rng = np.random.default_rng(term_hash(text) % 2**31)
    dense = rng.normal(size=DIMENSIONS).astype(np.float32)
    sentences = rng.normal(size=(2, DIMENSIONS)).astype(np.float16)
    return TextFeatures(
        text, term_vector(text), dense / np.linalg.norm(dense), sentences, tuple(dict.fromkeys(tokens(text)))
    )


def word_vectors(text: str) -> dict[str, np.ndarray]:
    """Return a vector for every word of a text."""
    return {
        w: np.random.default_rng(term_hash(w) % 2**31).normal(size=DIMENSIONS).astype(np.float32) for w in tokens(text)
    }


def point(
    family: str, text: str, *, project: str = "p", branch: str = "main", role: Role = Role.HEAD, n: int = 1
) -> IndexPoint:
    """Return a point whose text hash is its text."""
    return IndexPoint(
        project,
        family,
        f"{family}/{n}",
        branch,
        "SEMANTIC",
        "DESIGN_RULE",
        "ACTIVE",
        "ADOPTED",
        role,
        "c",
        text,
        n,
        "m",
        "r1",
    )


def projection(family: str, position: int, *points: IndexPoint, project: str = "p", branch: str = "main") -> Projection:
    """Return a family's projection."""
    return Projection(project, branch, family, position, points)


def batch(*projections: Projection, applied: dict[str, int] | None = None) -> Batch:
    """Return a batch with the features of every text in it."""
    texts: dict[str, list[TextFeatures]] = {}
    words: dict[str, dict[str, np.ndarray]] = {}
    for p in projections:
        for t in dict.fromkeys(x.text_hash for x in p.points):
            texts.setdefault(p.project, []).append(features(t))
            words.setdefault(p.project, {}).update(word_vectors(t))
    return Batch(projections, texts, words, applied or {})


def statistics(texts: list[str], terms: list[int]) -> CorpusStatistics:
    """Return the statistics of texts, counted afresh."""
    vectors = [term_vector(t) for t in texts]
    df = Counter(t for v in vectors for t in v.terms.tolist() if t in set(terms))
    return CorpusStatistics(len(texts), sum(v.length for v in vectors), dict(df))


ALL_TERMS = sorted({term_hash(t) for text in TEXTS for t in tokens(text)})


def test_statistics_cover_current_heads_only(state: StateStore) -> None:
    """Past revisions do not count; a head that changes takes its old words with it; an empty corpus has no centre."""
    assert state.statistics("p", "main", ALL_TERMS) == CorpusStatistics(0, 0, {})
    assert state.centre("p", "main") is None
    state.apply(batch(projection("f", 1, point("f", TEXTS[0])), projection("g", 2, point("g", TEXTS[1]))))
    assert state.statistics("p", "main", ALL_TERMS) == statistics(TEXTS[:2], ALL_TERMS)
    new, old = point("f", TEXTS[2], n=3), point("f", TEXTS[0], role=Role.PAST)
    state.apply(batch(projection("f", 3, new, old)))
    assert state.statistics("p", "main", ALL_TERMS) == statistics([TEXTS[1], TEXTS[2]], ALL_TERMS)
    centre = state.centre("p", "main")
    assert centre is not None
    assert centre.documents == 2
    assert np.allclose(centre.mean, (features(TEXTS[1]).dense + features(TEXTS[2]).dense) / 2, atol=1e-6)
    state.apply(batch(projection("f", 4), projection("g", 5)))
    assert state.statistics("p", "main", ALL_TERMS) == CorpusStatistics(0, 0, {})
    assert state.centre("p", "main") is None
    assert state.branches("p") == ()


def test_one_project_never_changes_the_statistics_of_another(state: StateStore) -> None:
    """S2: numbers, frequencies, lengths and centre of a project and branch depend on nothing else."""
    state.apply(batch(projection("f", 1, point("f", TEXTS[0]))))
    before = (state.statistics("p", "main", ALL_TERMS), state.centre("p", "main"))
    for project, branch in (("q", "main"), ("p", "release")):
        for i, text in enumerate(TEXTS):
            name = f"h{i}"
            state.apply(
                batch(
                    projection(
                        name, 1, point(name, text, project=project, branch=branch), project=project, branch=branch
                    )
                )
            )
    after = (state.statistics("p", "main", ALL_TERMS), state.centre("p", "main"))
    assert after[0] == before[0]
    assert before[1] is not None
    assert after[1] is not None
    assert np.array_equal(after[1].mean, before[1].mean)
    assert state.branches("p") == ("main", "release")
    state.delete_project("q")
    assert state.statistics("q", "main", ALL_TERMS).documents == 0
    assert state.statistics("p", "release", ALL_TERMS) == statistics(TEXTS, ALL_TERMS)


def test_an_older_projection_is_refused(state: StateStore) -> None:
    """I2: an older position changes neither points nor statistics; the same one may be written again."""
    new = projection("f", 7, point("f", TEXTS[0]))
    assert state.apply(batch(new)) == (True,)
    assert state.apply(batch(projection("f", 6, point("f", TEXTS[1])))) == (False,)
    assert state.apply(batch(new)) == (True,)
    assert state.statistics("p", "main", ALL_TERMS) == statistics(TEXTS[:1], ALL_TERMS)
    assert [p.text_hash for p in state.family_points("p", "main", "f")] == [TEXTS[0]]
    assert state.family_position("p", "main", "f") == 7


def test_a_removed_family_stays_removed(state: StateStore) -> None:
    """I2: a removal keeps its position; a replay from before it brings nothing back."""
    state.apply(batch(projection("f", 5, point("f", TEXTS[0]))))
    state.apply(batch(projection("f", 9)))
    assert state.apply(batch(projection("f", 5, point("f", TEXTS[0])))) == (False,)
    assert state.family_points("p", "main", "f") == ()
    assert state.family_position("p", "main", "f") == 9
    assert state.known_texts("p", TEXTS) == frozenset()


def test_any_order_ends_in_the_same_statistics(state: StateStore) -> None:
    """I2: random histories, shuffled and repeated, give the statistics of their final heads."""
    rng = random.Random(1)
    for round_ in range(20):
        project = f"p{round_}"
        history = [
            projection(
                f"f{rng.randrange(4)}",
                position,
                *([] if rng.random() < 0.2 else [point("", rng.choice(TEXTS), project=project)]),
                project=project,
            )
            for position in range(1, 30)
        ]
        history = [replace(h, points=tuple(replace(p, family=h.family) for p in h.points)) for h in history]
        last = {h.family: h for h in history}
        played = history + rng.sample(history, 15)
        rng.shuffle(played)
        while played:
            size = rng.randrange(1, 6)
            state.apply(batch(*played[:size]))
            played = played[size:]
        final = [p.text_hash for h in last.values() for p in h.points]
        assert state.statistics(project, "main", ALL_TERMS) == statistics(final, ALL_TERMS)
        centre = state.centre(project, "main")
        if final:
            assert centre is not None
            assert np.allclose(centre.mean, np.mean([features(t).dense for t in final], axis=0), atol=1e-5)
        assert state.known_texts(project, TEXTS) == frozenset(final)


def test_a_batch_is_all_or_nothing(state: StateStore) -> None:
    """L1: a projection whose features are missing fails the whole batch, the applied position included."""
    good, bad = projection("f", 1, point("f", TEXTS[0])), projection("g", 2, point("g", "never computed"))
    whole = batch(good, applied={"p": 2})
    with pytest.raises(ValueError, match="not stored"):
        state.apply(replace(whole, projections=(good, bad)))
    assert state.applied_position("p") == 0
    assert state.statistics("p", "main", ALL_TERMS).documents == 0
    assert state.family_position("p", "main", "f") is None
    assert state.known_texts("p", TEXTS) == frozenset()
    with pytest.raises(ValueError, match="no vector"):
        state.apply(replace(whole, words={}))
    assert state.apply(whole) == (True,)
    assert state.applied_position("p") == 2


def test_the_applied_position_never_goes_back(state: StateStore) -> None:
    """I2: a late batch does not make the index claim less than it holds."""
    state.apply(Batch(applied={"p": 5, "q": 1}))
    state.apply(Batch(applied={"p": 3}))
    assert state.applied_position("p") == 5
    assert state.applied_position("unknown") == 0
    assert state.projects() == ("p", "q")


def test_features_come_back_as_they_went_in(state: StateStore) -> None:
    """Terms and dense vectors exactly, sentences and words in half precision; unknown texts are simply not there."""
    state.apply(batch(projection("f", 1, point("f", TEXTS[0])), projection("g", 1, point("g", TEXTS[1]))))
    for _ in range(2):  # cold, then from the cache
        ranking = state.ranking_features("p", [TEXTS[0], TEXTS[1], "unknown"])
        assert set(ranking) == set(TEXTS[:2])
        want = features(TEXTS[0])
        assert np.array_equal(ranking[TEXTS[0]].terms.terms, want.terms.terms)
        assert np.array_equal(ranking[TEXTS[0]].terms.counts, want.terms.counts)
        assert ranking[TEXTS[0]].terms.length == want.terms.length
        assert np.array_equal(ranking[TEXTS[0]].dense, want.dense)
        support = state.support_features("p", [TEXTS[0], TEXTS[1], "unknown"])
        assert set(support) == set(TEXTS[:2])
        assert np.array_equal(support[TEXTS[0]].sentences.astype(np.float16), want.sentences)
        vectors = word_vectors(TEXTS[0])
        assert np.allclose(support[TEXTS[0]].words, np.stack([vectors[w] for w in want.words]), atol=2e-3)
    assert state.known_words("p", ["queue", "nothing"]) == {"queue"} & set(word_vectors(TEXTS[0]))
    assert state.ranking_features("q", TEXTS) == {}, "S2: features are reached through their own project only"


def test_stored_texts_are_whole_or_left_out(state: StateStore) -> None:
    """I4: a rebuild may take features as they are, but never damaged ones: those are computed again."""
    state.apply(batch(projection("f", 1, point("f", TEXTS[0])), projection("g", 1, point("g", TEXTS[1]))))
    found = state.stored_texts("p", [*TEXTS, "unknown"])
    assert set(found) == set(TEXTS[:2])
    want, got = features(TEXTS[0]), found[TEXTS[0]]
    assert (got.text_hash, got.words, got.terms.length) == (want.text_hash, want.words, want.terms.length)
    assert np.array_equal(got.dense, want.dense)
    assert np.array_equal(got.sentences, want.sentences)
    assert np.array_equal(got.terms.counts, want.terms.counts)
    assert isinstance(state, SqliteState)
    flipped = bytearray(want.dense.tobytes())
    flipped[5] ^= 1
    state._write.execute("UPDATE texts SET dense = ? WHERE text_hash = ?", (bytes(flipped), TEXTS[0]))
    assert set(state.stored_texts("p", TEXTS)) == {TEXTS[1]}
    assert state.stored_texts("q", TEXTS) == {}


def test_more_words_than_the_table_holds(tmp_path: Path) -> None:
    """A corpus with more words than memory keeps still gets each text's own vectors."""
    state = SqliteState(tmp_path / "s.db", word_cache=5, support_cache_bytes=1, ranking_cache_bytes=1)
    for i, text in enumerate(TEXTS):
        state.apply(batch(projection(f"f{i}", 1, point(f"f{i}", text))))
    for _ in range(3):
        for text in TEXTS:
            found = state.support_features("p", [text])[text]
            vectors = word_vectors(text)
            assert np.allclose(found.words, np.stack([vectors[w] for w in features(text).words]), atol=2e-3)
            assert np.array_equal(state.ranking_features("p", [text])[text].dense, features(text).dense)
    state.close()


def test_calibration_is_kept_by_project_and_branch(state: StateStore) -> None:
    """The calibration survives, is replaced by a newer one, and goes with its project."""
    first, second = Calibration(0.9, 0.1, 100, 50), Calibration(1.0, 0.2, 100, 80)
    assert state.calibration("p", "main") is None
    state.save_calibration("p", "main", first)
    state.save_calibration("q", "main", first)
    state.save_calibration("p", "main", second)
    assert state.calibration("p", "main") == second
    assert state.calibration("p", "other") is None
    state.delete_project("p")
    assert state.calibration("p", "main") is None
    assert state.calibration("q", "main") == first


def test_a_deleted_project_leaves_nothing(state: StateStore) -> None:
    """S2: after deletion nothing of the project is stored or cached, its words included."""
    state.apply(batch(projection("f", 1, point("f", TEXTS[0])), applied={"p": 1}))
    state.support_features("p", [TEXTS[0]])
    state.delete_project("p")
    assert state.applied_position("p") == 0
    assert state.known_texts("p", TEXTS) == state.known_words("p", ["queue", "payment"]) == frozenset()
    assert state.ranking_features("p", TEXTS) == state.support_features("p", TEXTS) == {}
    assert state.family_position("p", "main", "f") is None
    state.apply(batch(projection("g", 1, point("g", TEXTS[1], project="q"), project="q")))
    vectors = word_vectors(TEXTS[1])
    found = state.support_features("q", [TEXTS[1]])[TEXTS[1]]
    expected = np.stack([vectors[w] for w in features(TEXTS[1]).words])
    assert np.allclose(found.words, expected, atol=2e-3), "never the vectors of the project before"


def test_a_restart_finds_everything(tmp_path: Path) -> None:
    """S5: what a batch returned for is there when the file is opened again."""
    state = SqliteState(tmp_path / "s.db")
    state.apply(batch(projection("f", 4, point("f", TEXTS[0])), applied={"p": 4}))
    state.close()
    state.close()
    state = SqliteState(tmp_path / "s.db")
    assert state.applied_position("p") == 4
    assert state.statistics("p", "main", ALL_TERMS) == statistics(TEXTS[:1], ALL_TERMS)
    state.close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """An older program does not touch a newer file."""
    state = SqliteState(tmp_path / "s.db")
    state._write.execute("PRAGMA user_version = 99")
    state.close()
    with pytest.raises(DomainError) as caught:
        SqliteState(tmp_path / "s.db")
    assert caught.value.reason is Reason.INTEGRITY
