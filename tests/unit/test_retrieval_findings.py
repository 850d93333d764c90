"""Findings: the order in which the ledger is asked, and that stopping early changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retrieval_svc.domain import Candidate, LedgerHead, Question, Replacement, State, View
from retrieval_svc.findings import Findings
from retrieval_svc.profiles import shipped_profiles

DEFAULT = shipped_profiles()["default"]
NOW = 1_700_000_000.0


def name(number: int) -> str:
    """Return the name of a family."""
    return f"projects/billing/families/00000000-0000-7000-8000-{number:012x}"


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, LedgerHead]]:
    """Draw families in any state, replacing each other in any way, with scores that often tie."""
    count = draw(st.integers(0, 60))
    candidates, heads = [], {}
    for i in range(count):
        family = name(i)
        score = draw(st.integers(0, 10)) / 10
        if draw(st.integers(0, 9)):
            candidates.append(Candidate(family, f"{family}/revisions/1", "h", dense=score, sparse=score))
        live = draw(st.integers(0, 3)) > 0
        later = draw(st.lists(st.integers(0, count - 1), max_size=2))
        heads[family] = LedgerHead(
            family=family,
            branch="main",
            state=State.ACTIVE if live else State.SUPERSEDED,
            revision=f"{family}/revisions/1",
            content_hash="h",
            replaced_by=() if live else tuple(Replacement(name(n)) for n in later),
        )
    return candidates, heads


def ask(found: Findings, heads: dict[str, LedgerHead], families: list[str]) -> None:
    """Answer as the ledger would: the families asked for and all that replaced them."""
    answer: dict[str, LedgerHead] = {}
    waiting = list(families)
    while waiting:
        family = waiting.pop()
        if family not in answer:
            answer[family] = heads[family]
            waiting += [r.family for r in heads[family].replaced_by]
    found.learn(answer, families)
    found.rank()


@given(worlds(), st.integers(1, 12))
def test_stopping_early_changes_nothing(world: tuple[list[Candidate], dict[str, LedgerHead]], limit: int) -> None:
    """R1: what is shown is the same whether the ledger was asked about the best candidates or about all of them."""
    candidates, heads = world
    question = Question("billing", "x", limit=limit, include_rejected=True)
    early, whole = Findings(question, DEFAULT, NOW), Findings(question, DEFAULT, NOW)
    for found in (early, whole):
        found.add(candidates)
        found.score()
        found.rank()
    ask(whole, heads, list(heads))
    asked: list[str] = []
    while (look := early.next_look())[0]:
        asked += look[0]
        ask(early, heads, look[0])
    assert len(asked) == len(set(asked))
    assert [(r.family, r.best.final) for r in early.ranked[:limit]] == [
        (r.family, r.best.final) for r in whole.ranked[:limit]
    ]


def test_first_look_reads_whole_heads_and_stops_when_settled() -> None:
    """With enough in force among the best, the ledger is asked once, for little more than will be shown."""
    candidates = [Candidate(name(i), f"{name(i)}/revisions/1", "h", dense=1 - i / 100, sparse=0.5) for i in range(80)]
    heads = {c.family: LedgerHead(c.family, "main", State.ACTIVE, c.revision, "h") for c in candidates}
    found = Findings(Question("billing", "x", limit=10, include_rejected=True), DEFAULT, NOW)
    found.add(candidates)
    found.score()
    families, view = found.next_look()
    assert (len(families), view) == (16, View.FULL)
    ask(found, heads, families)
    assert found.next_look()[0] == []


def test_question_that_is_off_gets_one_cheap_look() -> None:
    """A question that will not be answered anyway costs one look at states."""
    family = name(1)
    found = Findings(Question("billing", "x"), DEFAULT, NOW)
    found.add([Candidate(family, f"{family}/revisions/1", "h", dense=0.01, sparse=0.01)])
    found.score()
    assert found.is_off()
    assert found.next_look() == ([family], View.STATE)
    assert found.next_look() == ([], View.STATE)
