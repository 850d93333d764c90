"""The pure stages that rank: fusion, composite, succession, exact names, and the profiles that they read."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_svc.composite import compose, rank_key, recency
from retrieval_svc.domain import Branch, Candidate, Fused, LedgerHead, Replacement, Scored, State
from retrieval_svc.exact import exact_families
from retrieval_svc.fusion import MAX_SPARSE, fuse, strength
from retrieval_svc.profiles import Fusion, parse_profile, shipped_profiles
from retrieval_svc.succession import keep_exact, rank, successors

DEFAULT = shipped_profiles()["default"]
ARTICLE = shipped_profiles()["article"]
NOW = 1_700_000_000.0

any_float = st.floats(allow_nan=True, allow_infinity=True)
scores = st.none() | any_float


def candidate(name: str, dense: float | None = None, sparse: float | None = None, **rest: Any) -> Candidate:
    """Return a candidate of a family."""
    return Candidate(family=name, revision=f"{name}/revisions/1", dense=dense, sparse=sparse, **rest)


@st.composite
def candidate_lists(draw: st.DrawFn, elements: st.SearchStrategy[float | None] = scores) -> list[Candidate]:
    """Draw candidates with whatever scores."""
    count = draw(st.integers(0, 8))
    return [
        candidate(
            f"f{i}",
            draw(elements),
            draw(elements),
            importance=draw(any_float),
            valid_from=draw(st.none() | any_float),
            from_ledger=draw(st.booleans()),
            structural=("file:a",) * draw(st.integers(0, 3)),
        )
        for i in range(count)
    ]


# --- Fusion ---------------------------------------------------------------------------------------------------------


@given(candidate_lists(), st.sampled_from([DEFAULT, ARTICLE]))
def test_any_input_gives_finite_scores_within_bounds(candidates: list[Candidate], profile: Any) -> None:
    """R8: whatever the index sends, every score that ranks is finite and bounded, one per candidate, in order."""
    fused = fuse(candidates, profile.fusion)
    scored = compose(fused, profile.composite, profile.tie_break, NOW)
    assert [f.candidate for f in fused] == candidates
    for item in scored:
        assert math.isfinite(item.fused)
        assert math.isfinite(item.final)
        assert -1.0 <= item.fused <= MAX_SPARSE
        assert 0.0 <= item.relevance <= MAX_SPARSE
        assert all(map(math.isfinite, item.tie_break))
        assert strength(item.candidate) >= 0.0
    sorted(scored, key=rank_key)


@given(candidate_lists(), st.sampled_from([DEFAULT, ARTICLE]), st.randoms(use_true_random=False))
def test_fusion_does_not_depend_on_the_order(candidates: list[Candidate], profile: Any, rng: random.Random) -> None:
    """The order in which candidates come decides nothing."""
    shuffled = list(candidates)
    rng.shuffle(shuffled)
    before = {f.candidate.family: f.fused for f in fuse(candidates, profile.fusion)}
    after = {f.candidate.family: f.fused for f in fuse(shuffled, profile.fusion)}
    assert before == pytest.approx(after)


def test_default_is_half_dense_half_sparse() -> None:
    """RANKING: the default score is .5 s + .5 c."""
    (item,) = fuse([candidate("a", 0.6, 0.2)], DEFAULT.fusion)
    assert item.fused == pytest.approx(0.4)


def test_dead_branch_gives_its_weight_to_the_others() -> None:
    """R7: with the dense branch dead, sparse alone ranks on its own scale; in a working branch missing counts as 0."""
    dead = fuse([candidate("a", None, 0.2), candidate("b", None, 0.4)], DEFAULT.fusion)
    assert [f.fused for f in dead] == pytest.approx([0.2, 0.4])
    alive = fuse([candidate("a", None, 0.2), candidate("b", 0.8, 0.4)], DEFAULT.fusion)
    assert [f.fused for f in alive] == pytest.approx([0.1, 0.6])


def test_candidate_of_the_ledger_is_measured_by_what_it_has() -> None:
    """R2: a text that the index does not know has no cosine and is not punished for that."""
    indexed, tail = fuse([candidate("a", 0.4, 0.4), candidate("b", None, 0.8, from_ledger=True)], DEFAULT.fusion)
    assert (indexed.fused, tail.fused) == pytest.approx((0.4, 0.8))


def test_rrf_is_the_published_formula() -> None:
    """RANKING: Σ wᵢ/(k + rank), k = 60; first in both lists is relevance 1; no word in common is not in the list."""
    fusion = Fusion("rrf", {"dense": 1.0, "sparse": 1.0}, 60.0)
    a, b, c = fuse([candidate("a", 0.9, 0.9), candidate("b", 0.8, 0.0), candidate("c", 0.7, 0.5)], fusion)
    assert a.fused == pytest.approx(1 / 61 + 1 / 61)
    assert a.relevance == pytest.approx(1.0)
    assert b.fused == pytest.approx(1 / 62)
    assert c.fused == pytest.approx(1 / 63 + 1 / 62)


def test_rrf_equal_scores_share_a_rank() -> None:
    """R8: equal scores are equal, whatever their names."""
    a, b = fuse([candidate("a", 0.5, 0.5), candidate("b", 0.5, 0.5)], ARTICLE.fusion)
    assert a.fused == b.fused


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 2), st.floats(0, 2))
def test_better_in_every_branch_is_never_worse(c1: float, c2: float, s1: float, s2: float) -> None:
    """Fusion is monotone: what is at least as good in both branches does not end up lower."""
    better = candidate("a", max(c1, c2), max(s1, s2))
    worse = candidate("b", min(c1, c2), min(s1, s2))
    for profile in (DEFAULT, ARTICLE):
        x, y = fuse([better, worse], profile.fusion)
        assert x.fused >= y.fused


# --- Composite ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 2e9), st.integers(0, 5)), max_size=6))
def test_blind_signals_only_break_ties_in_default(rows: list[tuple[float, float, float, int]]) -> None:
    """R3: in the default profile a hit with a higher fused score is never outranked by importance, age or names."""
    fused = [
        Fused(candidate(f"f{i}", importance=imp, valid_from=born, structural=("file:a",) * n), score, score)
        for i, (score, imp, born, n) in enumerate(rows)
    ]
    ranked = sorted(compose(fused, DEFAULT.composite, DEFAULT.tie_break, NOW), key=rank_key)
    for first, second in pairwise(ranked):
        assert round(first.fused, 6) >= round(second.fused, 6)


def test_ties_go_to_structure_then_importance_then_recency() -> None:
    """R3: between equals: what the question names, then importance, then recency, then the name."""
    equal = [
        Fused(candidate("d", importance=0.1, valid_from=NOW - 9e8), 0.5, 0.5),
        Fused(candidate("c", importance=0.1, valid_from=NOW), 0.5, 0.5),
        Fused(candidate("b", importance=0.9), 0.5, 0.5),
        Fused(candidate("a", structural=("file:x",)), 0.5, 0.5),
    ]
    ranked = sorted(compose(equal, DEFAULT.composite, DEFAULT.tie_break, NOW), key=rank_key)
    assert [s.candidate.family for s in ranked] == ["a", "b", "c", "d"]


def test_recency_halves_every_half_life() -> None:
    """RANKING: half-life 90 days; the future and the unknown are bounded."""
    day = 86_400.0
    assert recency(NOW, NOW, 90) == 1.0
    assert recency(NOW - 90 * day, NOW, 90) == pytest.approx(0.5)
    assert recency(NOW - 180 * day, NOW, 90) == pytest.approx(0.25)
    assert recency(NOW + 90 * day, NOW, 90) == 1.0
    assert recency(None, NOW, 90) == recency(math.nan, NOW, 90) == 0.0


def test_article_composite_is_the_published_formula() -> None:
    """RANKING: 0.50 relevance + 0.25 recency + 0.25 importance."""
    fused = [Fused(candidate("a", importance=0.8, valid_from=NOW - 90 * 86_400), 0.01, 0.6)]
    (scored,) = compose(fused, ARTICLE.composite, ARTICLE.tie_break, NOW)
    assert scored.final == pytest.approx(0.5 * 0.6 + 0.25 * 0.5 + 0.25 * 0.8)


# --- Succession -----------------------------------------------------------------------------------------------------


def scored(family: str, final: float, revision: str = "1") -> Scored:
    """Return a scored candidate."""
    return Scored(Candidate(family, f"{family}/revisions/{revision}"), final, final, None, None, final)


def head(family: str, state: State = State.ACTIVE, *replaced_by: str, revision: str = "1") -> LedgerHead:
    """Return a head that others replace."""
    return LedgerHead(
        family=family,
        branch="main",
        state=state,
        revision=f"{family}/revisions/{revision}",
        content_hash="h",
        replaced_by=tuple(Replacement(r) for r in replaced_by),
    )


def run(items: list[Scored], heads: list[LedgerHead]) -> Any:
    """Rank what may be shown."""
    by_family = {h.family: h for h in heads}
    showable = {h.family for h in heads if h.state is State.ACTIVE}
    return rank(items, by_family, showable, {}, NOW)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Scored], list[LedgerHead]]:
    """Draw families with any replacements between them, cycles included, and scores for some."""
    names = [f"f{i}" for i in range(draw(st.integers(1, 7)))]
    heads = [
        head(
            name,
            draw(st.sampled_from([State.ACTIVE, State.SUPERSEDED, State.INVALIDATED])),
            *draw(st.lists(st.sampled_from(names), max_size=3)),
        )
        for name in names
    ]
    items = [scored(n, draw(st.floats(0, 1)), draw(st.sampled_from("012"))) for n in names if draw(st.booleans())]
    return items, heads


def reachable(start: str, heads: dict[str, LedgerHead]) -> set[str]:
    """Return the live families that a dead one leads to: the naive way, by repeated steps."""
    if heads[start].state is State.ACTIVE:
        return set()
    dead, live = {start}, set()
    for _ in range(len(heads) + 1):
        steps = {r.family for d in dead for r in heads[d].replaced_by if r.family in heads}
        live |= {s for s in steps if heads[s].state is State.ACTIVE}
        dead |= {s for s in steps if heads[s].state is not State.ACTIVE}
    return live


@given(graphs())
def test_head_score_is_the_maximum_over_its_predecessors(graph: tuple[list[Scored], list[LedgerHead]]) -> None:
    """Governance: score = max(own, all predecessors), over any graph; only live families come out, each once."""
    items, heads = graph
    by_family = {h.family: h for h in heads}
    ranked, held = run(items, heads)
    expected: dict[str, float] = {}
    for item in items:
        family = item.candidate.family
        for heir in {family} | reachable(family, by_family):
            if by_family[heir].state is State.ACTIVE:
                expected[heir] = max(expected.get(heir, 0.0), item.final)
    assert {r.family: r.best.final for r in ranked} == pytest.approx(expected, abs=1e-6)
    assert len({r.family for r in ranked}) == len(ranked)
    assert {h.family for h in held} == {i.candidate.family for i in items} - {r.family for r in ranked}
    for h in held:
        assert h.succeeded == bool(reachable(h.family, by_family))


@given(graphs(), st.randoms(use_true_random=False))
def test_succession_does_not_depend_on_the_order(
    graph: tuple[list[Scored], list[LedgerHead]], rng: random.Random
) -> None:
    """The order of candidates and heads decides nothing."""
    items, heads = graph
    before = [(r.family, r.best.final) for r in run(items, heads)[0]]
    rng.shuffle(items)
    rng.shuffle(heads)
    assert [(r.family, r.best.final) for r in run(items, heads)[0]] == before


def test_chain_and_cycle() -> None:
    """A to B to C lends along the whole chain, nearest first; a cycle leads nowhere and ends."""
    heads = {
        h.family: h
        for h in (
            head("a", State.SUPERSEDED, "b"),
            head("b", State.SUPERSEDED, "c"),
            head("c"),
            head("x", State.EXPIRED, "x"),
        )
    }
    assert successors("a", heads, NOW) == {"c": ("b", "a")}
    assert successors("x", heads, NOW) == {}
    assert successors("c", heads, NOW) == {}


def test_own_score_is_not_called_lent() -> None:
    """A predecessor with the same score lends nothing: the family's own match is named."""
    (only,), _ = run([scored("old", 0.5), scored("new", 0.5)], [head("old", State.SUPERSEDED, "new"), head("new")])
    assert (only.family, only.lent_by) == ("new", "")


def test_older_revision_lends_to_its_family() -> None:
    """The best text of any revision that was in force counts for the family."""
    (only,), _ = run([scored("f", 0.9, "1"), scored("f", 0.2, "2")], [head("f", revision="2")])
    assert (only.best.final, only.own.final if only.own else None, only.lent_by) == (0.9, 0.2, "")


def test_replacement_of_the_future_does_not_lend() -> None:
    """What replaces a memory only after the moment asked gets nothing from it."""
    old = LedgerHead(
        "old", "main", State.EXPIRED, "old/revisions/1", "h", replaced_by=(Replacement("new", effective=NOW + 1),)
    )
    ranked, held = run([scored("old", 0.9)], [old, head("new")])
    assert ranked == []
    assert [h.succeeded for h in held] == [False]


def test_keep_exact_gives_the_last_place() -> None:
    """R4: the best exact match is among the first k, and nothing else moves."""
    ranked, _ = run([scored(f"f{i}", 1 - i / 10) for i in range(6)], [head(f"f{i}") for i in range(6)])
    names = [r.family for r in keep_exact(ranked, {"f4", "f5"}, 3)]
    assert names == ["f0", "f1", "f4", "f2", "f3", "f5"]
    assert keep_exact(ranked, {"f1"}, 3) == ranked
    assert keep_exact(ranked, set(), 3) == ranked


# --- Exact names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "question", "found"),
    [
        ("file:src/a.py", "who owns src/a.py?", True),
        ("identifier:err_42", "what is ERR_42?", True),
        ("identifier:paymentgateway", "why PaymentGateway", True),
        ("identifier:built-in", "is it built-in?", False),
        ("identifier:3.8", "python 3.8", False),
        ("domain:tax_rules", "tax_rules", False),
        ("module:billing", "billing rules", False),
        ("module:billing.core", "billing.core rules", True),
    ],
)
def test_exact_names_are_code_like(label: str, question: str, found: bool) -> None:
    """R4, R6: a file, code or class name lifts thresholds; an ordinary or hyphenated word does not."""
    assert bool(exact_families([candidate("f", structural=(label,))], question)) is found


def test_name_that_everybody_has_is_not_exact() -> None:
    """R6: a name that singles nothing out does not lift thresholds."""
    many = [candidate(f"f{i}", structural=("file:setup.py",)) for i in range(11)]
    assert exact_families(many, "setup.py") == frozenset()
    assert len(exact_families(many[:10], "setup.py")) == 10


# --- Profiles -------------------------------------------------------------------------------------------------------


def test_shipped_profiles_are_those_of_the_study() -> None:
    """docs/ranking.md: default is half and half, label from z 1.8, answer from 2.8; article is RRF 60, then its own."""
    assert {"default", "article"} <= set(shipped_profiles())
    assert dict(DEFAULT.fusion.weights) == {"dense": 0.5, "sparse": 0.5}
    assert (DEFAULT.abstention.closest_from_z, DEFAULT.abstention.answer_from_z) == (1.8, 2.8)
    assert (ARTICLE.fusion.kind, ARTICLE.fusion.k) == ("rrf", 60)
    assert DEFAULT.branches == (Branch.DENSE, Branch.SPARSE, Branch.STRUCTURAL)
    assert json.loads(ARTICLE.settings)["composite"]["half_life_days"] == 90.0


def test_ablations_differ_in_what_they_name_alone() -> None:
    """R3: a profile such as article-no-recency is article without that part; abstention is never part of it."""
    for profile in shipped_profiles().values():
        whole = shipped_profiles()[profile.name.split("-")[0]]
        assert profile.abstention == whole.abstention
        assert profile.fusion == whole.fusion
        assert profile.name == whole.name or profile.settings != whole.settings
    assert shipped_profiles()["article-no-recency"].composite == replace(ARTICLE.composite, recency=0.0)
    assert shipped_profiles()["article-no-importance"].composite == replace(ARTICLE.composite, importance=0.0)
    assert Branch.STRUCTURAL not in shipped_profiles()["default-no-structural"].branches


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        (("fusion", "kind"), "magic", "fusion.kind"),
        (("fusion", "weights"), {"dense": -1.0}, "weights"),
        (("fusion", "weights"), {}, "fusion.weights"),
        (("composite", "half_life_days"), 0.0, "half_life_days"),
        (("candidates",), 0, "candidates"),
        (("tie_break",), ["luck"], "tie_break"),
        (("abstention", "answer_from_z"), 0.0, "thresholds"),
    ],
)
def test_broken_profile_is_refused(path: tuple[str, ...], value: Any, rule: str) -> None:
    """A profile that makes no sense stops the start and says what is wrong."""
    data = json.loads(DEFAULT.settings) | {"name": "p", "version": 1, "description": ""}
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=rule):
        parse_profile(json.dumps(data))
