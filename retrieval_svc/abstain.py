"""Abstain: whether the hits answer the question, and if not, why. Pure.

How well the candidates carry an answer (support, its ``z``) is measured apart from the scores that rank them. First
comes what makes any answer unsafe, then whether anything relevant was found, then whether it may be shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from retrieval_svc.domain import AbstentionReason, Confidence, Held, HeldBack, State, Support, Verdict
from retrieval_svc.profiles import Abstention

_NO_DEVIATION: Final = 1e-6


class Relevance(Enum):
    """How well what was found carries an answer."""

    ANSWER = "answer"
    CLOSEST = "closest"
    BELOW = "below"
    OUT_OF_SCOPE = "out of scope"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the decision rests on."""

    support_z: float | None
    strength: float
    """Strength of the best candidate, live or held back; looked at only without a support."""
    exact: bool
    """A family that may be shown holds exactly what the question names, or is new and has its words."""
    live_best: float | None
    """Final score of the best family that may be shown; None when there is none."""
    held: Sequence[Held]
    """Families held back, best first."""
    hits: int
    evidence_gate: int
    """Families that had too little evidence."""
    anything_stored: bool
    fresh: bool
    """False when commits that the caller asked for could not be looked at."""
    behind: int = 0
    """Commits of the ledger that were not looked at, whether asked for or not."""


def support_z(support: Support | None) -> float | None:
    """Return the distance of the support from the off-topic bank in standard deviations; None when unknown."""
    if support is None:
        return None
    mean, deviation = support.baseline_mean, support.baseline_deviation
    if not all(map(math.isfinite, (support.total, mean, deviation))) or deviation <= _NO_DEVIATION:
        return None
    return (support.total - mean) / deviation


def relevance(evidence: Evidence, thresholds: Abstention) -> Relevance:
    """Return how well what was found carries an answer. An exact match lifts every threshold."""
    if evidence.exact:
        return Relevance.ANSWER
    z = evidence.support_z
    if z is None:
        if evidence.strength >= thresholds.answer_from_strength:
            return Relevance.ANSWER
        return Relevance.CLOSEST if evidence.strength >= thresholds.closest_from_strength else Relevance.BELOW
    if z >= thresholds.answer_from_z:
        return Relevance.ANSWER
    if z >= thresholds.closest_from_z:
        return Relevance.CLOSEST
    return Relevance.BELOW if z >= thresholds.out_of_scope_below_z else Relevance.OUT_OF_SCOPE


_MAY_BE_UNSEEN: Final = frozenset(
    {AbstentionReason.NO_MEMORY, AbstentionReason.BELOW_THRESHOLD, AbstentionReason.OUT_OF_SCOPE}
)
"""Reasons that say that nothing fits; commits that were not looked at may hold what does."""


def decide(evidence: Evidence, thresholds: Abstention) -> Verdict:
    """Return the verdict. Nothing found while commits are unseen is a matter of time, not of what is known."""
    verdict = _decide(evidence, thresholds)
    if evidence.behind <= 0 or verdict.reason not in _MAY_BE_UNSEEN:
        return verdict
    unseen = "1 commit is" if evidence.behind == 1 else f"{evidence.behind} commits are"
    return _abstain(
        AbstentionReason.INDEX_LAGGING,
        f"{unseen} not searchable yet, and nothing before fits; ask again, or with --wait",
    )


def _decide(evidence: Evidence, thresholds: Abstention) -> Verdict:
    if not evidence.fresh:
        return _abstain(
            AbstentionReason.INDEX_LAGGING,
            "the index has not caught up with the write that you named, and there was no time to read the rest from "
            "the ledger; ask again",
        )
    if not evidence.anything_stored:
        return _abstain(
            AbstentionReason.NO_MEMORY, "nothing is stored in this project and branch that the filters let through"
        )
    found = relevance(evidence, thresholds)
    if found is Relevance.OUT_OF_SCOPE:
        return _abstain(
            AbstentionReason.OUT_OF_SCOPE,
            f"the question is no nearer to this memory than one about something else "
            f"({_figure(evidence.support_z)}; an answer needs {thresholds.closest_from_z:g})",
        )
    if found is Relevance.BELOW:
        return _abstain(AbstentionReason.BELOW_THRESHOLD, _below(evidence, thresholds))
    hidden = _hidden(evidence, thresholds)
    if hidden is not None:
        return _held_back(hidden, evidence)
    if evidence.hits == 0:
        return _nothing_left(evidence)
    better_was_held = _best_unsucceeded(evidence.held)
    overshadowed = (
        better_was_held is not None
        and evidence.live_best is not None
        and better_was_held.score.final > evidence.live_best
        and not evidence.exact
    )
    if found is Relevance.CLOSEST or overshadowed:
        return Verdict(Confidence.CLOSEST)
    return Verdict(Confidence.ANSWER)


def _hidden(evidence: Evidence, thresholds: Abstention) -> Held | None:
    """Return the family that the question is about, when it had to be held back and nothing live comes near it."""
    held = _best_unsucceeded(evidence.held)
    if held is None or evidence.exact:
        return None
    if evidence.live_best is None or evidence.live_best < thresholds.held_back_ratio * held.score.final:
        return held
    return None


def _best_unsucceeded(held: Sequence[Held]) -> Held | None:
    names = {HeldBack.MISSING.value, HeldBack.FOREIGN.value, HeldBack.FILTER.value, HeldBack.HASH.value}
    return next((h for h in held if not h.succeeded and h.reason not in names), None)


def _held_back(held: Held, evidence: Evidence) -> Verdict:
    if held.reason == State.CONFLICTED:
        return _abstain(
            AbstentionReason.CONFLICTED, "what matches is in an open conflict; resolve it, or ask for CONFLICTED states"
        )
    if held.reason == HeldBack.EVIDENCE:
        return _too_little_evidence(evidence)
    if held.reason == State.ACTIVE:
        return _abstain(
            AbstentionReason.BELOW_THRESHOLD, "what matches is in force, which the states asked for leave out"
        )
    return _abstain(
        AbstentionReason.ONLY_SUPERSEDED,
        f"what matches is not in force ({held.reason}), and nothing in force replaced it",
    )


def _nothing_left(evidence: Evidence) -> Verdict:
    if evidence.evidence_gate:
        return _too_little_evidence(evidence)
    return _abstain(AbstentionReason.BELOW_THRESHOLD, "nothing that may be shown has to do with the question")


def _too_little_evidence(evidence: Evidence) -> Verdict:
    count = max(1, evidence.evidence_gate)
    what = "1 memory matches but has" if count == 1 else f"{count} memories match but have"
    return _abstain(AbstentionReason.INSUFFICIENT_EVIDENCE, f"{what} less supporting evidence than was asked for")


def _below(evidence: Evidence, thresholds: Abstention) -> str:
    if evidence.support_z is None:
        return (
            f"the best candidate matches too weakly ({evidence.strength:.2f}; an answer needs "
            f"{thresholds.closest_from_strength:g})"
        )
    return (
        f"the best candidates do not carry an answer well enough ({_figure(evidence.support_z)}; an answer needs "
        f"{thresholds.closest_from_z:g})"
    )


def _figure(z: float | None) -> str:
    return "support unknown" if z is None else f"support {z:.2f} deviations above off-topic questions"


def _abstain(reason: AbstentionReason, message: str) -> Verdict:
    return Verdict(Confidence.NONE, reason, message)
