"""The contract of the vector store port, on Qdrant Edge."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index_svc.domain import FAR_FUTURE, FAR_PAST, IndexPoint, PointFilter, Role, StructuralQuery
from index_svc.sparse import point_vector, sparse_index, term_hash, term_vector, tokens
from index_svc.vectors import Collection, CollectionSpec, StoredPoint, Tombstone, VectorStore
from index_svc.vectors_edge import EdgeVectorStore
from service_kit.errors import DomainError, Reason

SPEC = CollectionSpec("test-model", 16, "r1")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[VectorStore]:
    """Return an open store with an empty live collection."""
    made = EdgeVectorStore(tmp_path / "index")
    await made.ensure_collection(SPEC)
    yield made
    await made.close()


def point(number: int, project: str = "p", **changes: object) -> IndexPoint:
    """Return a point."""
    values: dict[str, object] = {
        "project": project,
        "family": f"projects/{project}/families/{number}",
        "revision": f"projects/{project}/families/{number}/revisions/1",
        "branch": "main",
        "scope": "SEMANTIC",
        "category": "DESIGN_RULE",
        "state": "ACTIVE",
        "standing": "ADOPTED",
        "role": Role.HEAD,
        "content_hash": f"sha256:{number}",
        "text_hash": f"t{number}",
        "position": 1,
        "model": SPEC.model,
        "recipe": SPEC.recipe,
        **changes,
    }
    return IndexPoint(**values)  # type: ignore[arg-type]  # a dict of the right values


def stored(p: IndexPoint, text: str = "a rule", seed: int | None = None) -> StoredPoint:
    """Return a point with vectors that its number decides."""
    rng = np.random.default_rng(hash_of(p.family) if seed is None else seed)
    return StoredPoint(p, rng.normal(size=SPEC.dimensions).astype(np.float32), point_vector(term_vector(text)))


def hash_of(text: str) -> int:
    """Return a stable seed."""
    return term_hash(text) % (1 << 31)


def weights(text: str) -> dict[int, float]:
    """Return a sparse query of equal weights."""
    return {sparse_index(term_hash(t)): 1.0 for t in tokens(text)}


async def all_points(collection: Collection, where: PointFilter) -> dict[str, IndexPoint]:
    """Return everything that a filter sees."""
    return {p.id: p async for page in collection.scroll(where, page=7) for p in page}


async def test_a_point_comes_back_as_it_went_in(store: VectorStore) -> None:
    """Every payload field survives, sentinels and Portuguese included; the vector is the same direction."""
    full = point(
        1,
        valid_from=1_700_000_000_000_001,
        valid_to=FAR_FUTURE,
        recorded_from=FAR_PAST,
        shadowed=True,
        role=Role.PAST,
        domain="cobrança",
        modules=("a", "b"),
        files=("src/a-b.py",),
        identifiers=("err_42",),
        importance=0.25,
    )
    item = stored(full)
    assert await store.live.upsert([item]) == 1
    assert await store.live.get([full.id]) == {full.id: full}
    vector = (await store.live.vectors([full.id]))[full.id]
    assert float(vector @ item.dense / np.linalg.norm(item.dense)) == pytest.approx(1.0, abs=1e-5)


async def test_dense_search_is_exact(store: VectorStore) -> None:
    """The nearest points by cosine come first, as numpy says."""
    items = [stored(point(i)) for i in range(300)]
    await store.live.upsert(items)
    query = np.random.default_rng(7).normal(size=SPEC.dimensions).astype(np.float32)
    matrix = np.stack([s.dense / np.linalg.norm(s.dense) for s in items])
    expected = np.argsort(-(matrix @ query))[:20]
    hits = await store.live.search_dense(query, PointFilter("p"), 20)
    assert [h.point_id for h in hits] == [items[i].point.id for i in expected]
    assert hits[0].score == pytest.approx(float((matrix @ query).max() / np.linalg.norm(query)), abs=1e-5)


async def test_sparse_search_is_the_dot_product(store: VectorStore) -> None:
    """I7: shared terms decide; a point that shares nothing is no hit."""
    texts = {1: "the retry limit of the payment queue", 2: "payment rules", 3: "colours of the logo", 4: "queue queue"}
    await store.live.upsert([stored(point(n), text) for n, text in texts.items()])
    hits = await store.live.search_sparse(weights("payment queue"), PointFilter("p"), 10)
    assert {h.point.family[-1] for h in hits} == {"1", "2", "4"}
    assert all(a.score >= b.score > 0 for a, b in itertools.pairwise(hits))
    assert await store.live.search_sparse({}, PointFilter("p"), 10) == []


async def test_structural_search_finds_what_is_named(store: VectorStore) -> None:
    """R4: files, modules, identifiers and domains are matched exactly, most matches first."""
    await store.live.upsert(
        [
            stored(point(1, files=("src/a-b.py",), identifiers=("err_42",))),
            stored(point(2, identifiers=("err_42",), importance=0.9)),
            stored(point(3, modules=("billing",), domain="tax")),
            stored(point(4)),
        ]
    )
    named = StructuralQuery(files=("src/a-b.py",), identifiers=("err_42",), domains=("tax",))
    hits = await store.live.search_structural(named, PointFilter("p"), 10)
    assert [h.point.family[-1] for h in hits] == ["1", "2", "3"]
    assert hits[0].score == 2.0
    assert named.matched_by(hits[0].point) == ("file:src/a-b.py", "identifier:err_42")
    assert await store.live.search_structural(StructuralQuery(), PointFilter("p"), 10) == []


async def test_filters_mean_what_the_domain_says(store: VectorStore) -> None:
    """R1: over random points, every search sees exactly the points that ``PointFilter.matches``."""
    rng = random.Random(5)
    items = [
        stored(
            point(
                i,
                project=rng.choice(["p", "q"]),
                branch=rng.choice(["main", "release/1"]),
                role=rng.choice(list(Role)),
                shadowed=rng.random() < 0.3,
                scope=rng.choice(["SEMANTIC", "EPISODIC"]),
                category=rng.choice(["DESIGN_RULE", "EPISODE"]),
                standing=rng.choice(["ADOPTED", "REJECTED", "PROPOSED"]),
                valid_from=rng.choice([FAR_PAST, 100, 200]),
                valid_to=rng.choice([FAR_FUTURE, 200, 300]),
                recorded_from=rng.choice([50, 150, 250]),
            )
        )
        for i in range(200)
    ]
    await store.live.upsert(items)
    filters = [
        PointFilter("p"),
        PointFilter("q", "main"),
        PointFilter("p", roles=frozenset({Role.HEAD})),
        PointFilter("p", with_shadowed=False),
        *(PointFilter("p", valid_at=t) for t in (99, 100, 199, 200, 299, 300, 1_700_000_000_000_000)),
        *(PointFilter("p", recorded_until=t) for t in (49, 50, 200)),
        PointFilter("p", scopes=("SEMANTIC",), categories=("EPISODE",), standings=("ADOPTED", "PROPOSED")),
        PointFilter("p", family="projects/p/families/3"),
        PointFilter("nobody"),
    ]
    query = np.ones(SPEC.dimensions, dtype=np.float32)
    for where in filters:
        expected = {s.point.id for s in items if where.matches(s.point)}
        assert set(await all_points(store.live, where)) == expected
        assert await store.live.count(where) == len(expected)
        assert {h.point_id for h in await store.live.search_dense(query, where, 500)} == expected
        assert {h.point_id for h in await store.live.search_sparse(weights("rule"), where, 500)} == expected


def test_there_is_no_filter_for_all() -> None:
    """S1: a filter without a project, or one that allows nothing, is an error and never means everything."""
    with pytest.raises(ValueError, match="project"):
        PointFilter("")
    with pytest.raises(ValueError, match="role"):
        PointFilter("p", roles=frozenset())


@pytest.mark.slow
async def test_small_project_in_a_big_collection(store: VectorStore) -> None:
    """I6: each search returns every live hit of a 5-memory project among 100,000 points of others."""
    spec_rng = np.random.default_rng(11)
    other = point(0, project="big")
    sparse = point_vector(term_vector("a rule for everything"))
    for start in range(0, 100_000, 5_000):
        block = spec_rng.normal(size=(5_000, SPEC.dimensions)).astype(np.float32)
        names = [f"projects/big/families/{start + i}" for i in range(5_000)]
        await store.live.upsert(
            [
                StoredPoint(replace(other, family=n, revision=f"{n}/revisions/1"), v, sparse)
                for n, v in zip(names, block, strict=True)
            ]
        )
    small = [stored(point(i, project="small", identifiers=("err_42",)), "a rule for few") for i in range(5)]
    await store.live.upsert(small)
    wanted = {s.point.id for s in small}
    where = PointFilter("small", "main")
    query = -small[0].dense  # as far away as can be: nearness must not be needed
    assert {h.point_id for h in await store.live.search_dense(query, where, 50)} == wanted
    assert {h.point_id for h in await store.live.search_sparse(weights("rule"), where, 50)} == wanted
    named = StructuralQuery(identifiers=("err_42",))
    assert {h.point_id for h in await store.live.search_structural(named, where, 50)} == wanted
    assert await store.live.count(where) == 5


# --- Conditional writes ---------------------------------------------------------------------------------------------


async def test_an_older_position_never_overwrites_a_newer_one(store: VectorStore) -> None:
    """I2: a slow worker with an old projection changes nothing; a replay of the same position is written again."""
    new, old = point(1, position=7, state="ACTIVE"), point(1, position=5, state="SCHEDULED")
    assert await store.live.upsert([stored(new)]) == 1
    assert await store.live.upsert([stored(old, seed=99)]) == 0
    assert (await store.live.get([new.id]))[new.id] == new
    again = replace(new, state="SUPERSEDED")
    assert await store.live.upsert([stored(again)]) == 1
    assert (await store.live.get([new.id]))[new.id] == again


async def test_in_one_batch_the_newest_wins(store: VectorStore) -> None:
    """I2: two positions of one point in one batch, in any order."""
    a, b = point(1, position=3, state="X"), point(1, position=2, state="Y")
    await store.live.upsert([stored(a), stored(b)])
    assert (await store.live.get([a.id]))[a.id].state == "X"


async def test_a_removed_point_is_not_resurrected(store: VectorStore) -> None:
    """I2: a removal leaves its position; replays from before it do nothing, a newer publication returns the point."""
    p = point(1, position=4)
    await store.live.upsert([stored(p)])
    assert await store.live.remove([Tombstone("p", p.id, 6)]) == 1
    assert await store.live.remove([Tombstone("p", p.id, 6)]) == 0
    assert await store.live.upsert([stored(p), stored(replace(p, position=5))]) == 0
    where = PointFilter("p")
    assert await store.live.get([p.id]) == {}
    assert await store.live.vectors([p.id]) == {}
    assert await all_points(store.live, where) == {}
    assert await store.live.count(where) == 0
    assert await store.live.search_dense(np.ones(16, dtype=np.float32), where, 10) == []
    assert await store.live.search_sparse(weights("rule"), where, 10) == []
    assert await store.live.upsert([stored(replace(p, position=8))]) == 1
    assert await store.live.count(where) == 1


async def test_a_late_removal_does_not_hit_a_newer_point(store: VectorStore) -> None:
    """I2: a removal from before the stored position changes nothing; a removal of the unknown keeps its position."""
    p = point(1, position=9)
    await store.live.upsert([stored(p)])
    assert await store.live.remove([Tombstone("p", p.id, 8)]) == 0
    assert await store.live.count(PointFilter("p")) == 1
    q = point(2, position=3)
    assert await store.live.remove([Tombstone("p", q.id, 4)]) == 0
    assert await store.live.upsert([stored(q)]) == 0


async def test_any_order_of_writes_gives_the_same_points(store: VectorStore) -> None:
    """I2: random shuffles and repeats of one history, from two workers at once, end in the same points."""
    rng = random.Random(3)
    history: list[StoredPoint | Tombstone] = []
    for position in range(1, 60):
        p = point(rng.randrange(8), position=position, state=f"S{position}")
        history.append(Tombstone("p", p.id, position) if rng.random() < 0.3 else stored(p))
    expected: dict[str, IndexPoint] = {}
    for step in history:
        if isinstance(step, Tombstone):
            expected.pop(step.point_id, None)
        else:
            expected[step.point.id] = step.point

    async def play(steps: list[StoredPoint | Tombstone], collection: Collection) -> None:
        for step in steps:
            await (collection.remove([step]) if isinstance(step, Tombstone) else collection.upsert([step]))

    for round_ in range(3):
        collection = await store.begin_rebuild(SPEC)
        a, b = list(history), list(history)
        random.Random(round_).shuffle(a)
        random.Random(round_ + 100).shuffle(b)
        await asyncio.gather(play(a, collection), play(b[:30], collection))
        assert await all_points(collection, PointFilter("p")) == expected


async def test_deleting_a_project_leaves_the_others(store: VectorStore) -> None:
    """S2: a deleted project leaves no point and no tombstone; others keep theirs."""
    await store.live.upsert([stored(point(1)), stored(point(2, project="q"))])
    gone = point(3)
    await store.live.remove([Tombstone("p", gone.id, 9)])
    await store.live.delete_project("p")
    assert await store.live.count(PointFilter("p")) == 0
    assert await store.live.count(PointFilter("q")) == 1
    assert await store.live.upsert([stored(gone)]) == 1, "its tombstone is gone too"


# --- Vectors that are none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
async def test_vectors_that_are_not_finite_are_refused(store: VectorStore, value: float) -> None:
    """I8: the engine would take NaN silently, so nothing of the batch is written."""
    bad = stored(point(2))
    bad.dense[3] = value
    with pytest.raises(ValueError, match="finite"):
        await store.live.upsert([stored(point(1)), bad])
    bad_sparse = StoredPoint(point(3), np.ones(16, dtype=np.float32), {1: value})
    with pytest.raises(ValueError, match="finite"):
        await store.live.upsert([bad_sparse])
    assert await store.live.count(PointFilter("p")) == 0


async def test_wrong_dimensions_and_models_are_refused(store: VectorStore) -> None:
    """I8: another dimension, model or recipe never enters the collection, nor searches it."""
    wrong = [
        StoredPoint(point(1), np.ones(8, dtype=np.float32), {}),
        stored(point(1, model="other")),
        stored(point(1, recipe="r0")),
    ]
    for item in wrong:
        with pytest.raises(DomainError) as caught:
            await store.live.upsert([item])
        assert caught.value.reason is Reason.MODEL_MISMATCH
    with pytest.raises(DomainError):
        await store.live.search_dense(np.ones(8, dtype=np.float32), PointFilter("p"), 1)
    with pytest.raises(ValueError, match="zero"):
        await store.live.search_dense(np.zeros(16, dtype=np.float32), PointFilter("p"), 1)


# --- Collections ----------------------------------------------------------------------------------------------------


async def test_same_dimensions_other_model_is_refused_at_the_start(tmp_path: Path) -> None:
    """I8: a restart with another model, recipe or size is refused with the remedy; the data is still there after."""
    store = EdgeVectorStore(tmp_path)
    await store.ensure_collection(SPEC)
    await store.live.upsert([stored(point(1))])
    await store.close()
    for other in (replace(SPEC, model="x"), replace(SPEC, recipe="r2"), replace(SPEC, dimensions=8)):
        store = EdgeVectorStore(tmp_path)
        with pytest.raises(DomainError) as caught:
            await store.ensure_collection(other)
        assert caught.value.reason is Reason.MODEL_MISMATCH
        assert "rebuild" in caught.value.message
        await store.close()
    store = EdgeVectorStore(tmp_path)
    await store.ensure_collection(SPEC)
    assert await store.live.count(PointFilter("p")) == 1
    await store.close()


async def test_a_second_opener_is_refused_and_harms_nothing(store: VectorStore, tmp_path: Path) -> None:
    """A second process on the folder is refused before it touches the engine's files; the first goes on writing."""
    await store.live.upsert([stored(point(1))])
    with pytest.raises(DomainError) as caught:
        EdgeVectorStore(tmp_path / "index")
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    code = "import pathlib, sys; from index_svc import vectors_edge as v; v.EdgeVectorStore(pathlib.Path(sys.argv[1]))"
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path / "index"), stderr=subprocess.DEVNULL
    )
    assert await other.wait() != 0
    await store.live.upsert([stored(point(2))])
    await store.live.flush()
    assert await store.live.count(PointFilter("p")) == 2


async def test_swap_is_atomic_and_survives_a_restart(tmp_path: Path) -> None:
    """I4: readers see the old collection until the swap and the new one after; so does the next start."""
    store = EdgeVectorStore(tmp_path)
    await store.ensure_collection(SPEC)
    await store.live.upsert([stored(point(1))])
    other = replace(SPEC, model="new-model")
    filling = await store.begin_rebuild(other)
    fresh = [stored(point(i, model="new-model")) for i in (1, 2)]
    await filling.upsert(fresh)
    await store.live.upsert([stored(point(3))])
    held = store.live
    assert await held.count(PointFilter("p")) == 2
    before = await store.swap(filling)
    assert before is held
    assert store.live is filling
    assert await held.count(PointFilter("p")) == 2, "a request that took the old collection finishes on it"
    await store.discard(before)
    with pytest.raises(ValueError, match="live"):
        await store.discard(store.live)
    await store.close()
    store = EdgeVectorStore(tmp_path)
    live = await store.ensure_collection(other)
    assert live.name == filling.name
    assert await live.count(PointFilter("p")) == 2
    assert len(list((tmp_path / "collections").iterdir())) == 1
    await store.close()


async def test_an_abandoned_rebuild_leaves_nothing(tmp_path: Path) -> None:
    """I4: a rebuild that died is forgotten by the next one; the live collection never noticed."""
    store = EdgeVectorStore(tmp_path)
    live = await store.ensure_collection(SPEC)
    await live.upsert([stored(point(1))])
    await (await store.begin_rebuild(SPEC)).upsert([stored(point(2))])
    await store.close()
    store = EdgeVectorStore(tmp_path)
    live = await store.ensure_collection(SPEC)
    assert await live.count(PointFilter("p")) == 1
    filling = await store.begin_rebuild(SPEC)
    assert await filling.count(PointFilter("p")) == 0
    assert len(list((tmp_path / "collections").iterdir())) == 2
    await store.close()


async def test_writes_survive_kill_9(tmp_path: Path) -> None:
    """L1 for the projection: what an upsert returned for is there after the process is killed."""
    code = (
        "import asyncio, os, signal, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from test_vectors_contract import EdgeVectorStore, SPEC, point, stored\n"
        "async def main():\n"
        "    s = EdgeVectorStore(Path(sys.argv[1]))\n"
        "    c = await s.ensure_collection(SPEC)\n"
        "    for i in range(50): await c.upsert([stored(point(i))])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)
    )
    assert await process.wait() == -9
    store = EdgeVectorStore(tmp_path)
    live = await store.ensure_collection(SPEC)
    assert await live.count(PointFilter("p")) == 50
    await store.close()


async def test_use_after_close_is_a_typed_refusal(tmp_path: Path) -> None:
    """S5: a request that meets a closed store gets SHUTTING_DOWN, not a crash; closing twice is harmless."""
    store = EdgeVectorStore(tmp_path)
    live = await store.ensure_collection(SPEC)
    await store.close()
    await store.close()
    with pytest.raises(DomainError) as caught:
        await live.count(PointFilter("p"))
    assert caught.value.reason is Reason.SHUTTING_DOWN
