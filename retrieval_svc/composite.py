"""Composite: relevance, recency and importance become the score that a candidate is ranked by. Pure.

In the default profile only relevance counts; signals that know nothing of the question decide between equals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from retrieval_svc.domain import Candidate, Fused, Scored
from retrieval_svc.profiles import Composite

SECONDS_PER_DAY: Final = 86_400.0
_DIGITS: Final = 6
"""Scores that are equal to the last digits of single precision are equal."""


def compose(
    fused: Sequence[Fused], composite: Composite, tie_break: Sequence[str], moment_seconds: float
) -> list[Scored]:
    """Return the candidates with their final scores, in the order given."""
    return [_score(item, composite, tie_break, moment_seconds) for item in fused]


def rank_key(scored: Scored) -> tuple[float, tuple[float, ...], str, str]:
    """Return what to sort by, best first: final score, tie-breaks, and names so that the order is always the same."""
    ties = tuple([-value for value in scored.tie_break])
    return (-round(scored.final, _DIGITS), ties, scored.candidate.family, scored.candidate.revision)


def recency(valid_from_seconds: float | None, moment_seconds: float, half_life_days: float) -> float:
    """Return 1 for what became valid at the moment of the question, half of it every half-life before."""
    if valid_from_seconds is None or not math.isfinite(valid_from_seconds):
        return 0.0
    age_days = max(0.0, moment_seconds - valid_from_seconds) / SECONDS_PER_DAY
    return float(0.5 ** (age_days / half_life_days))


def importance(candidate: Candidate) -> float:
    """Return the importance of a candidate, 0 to 1."""
    return min(max(candidate.importance, 0.0), 1.0) if math.isfinite(candidate.importance) else 0.0


def _score(item: Fused, composite: Composite, tie_break: Sequence[str], moment_seconds: float) -> Scored:
    candidate = item.candidate
    signals = {
        "structural": float(len(candidate.structural)),
        "importance": importance(candidate),
        "recency": recency(candidate.valid_from, moment_seconds, composite.half_life_days),
    }
    blind = composite.recency * signals["recency"] + composite.importance * signals["importance"]
    # With relevance alone the fused score is kept as it is, so that a negative cosine still ranks.
    relevance_only = composite.recency == 0.0 and composite.importance == 0.0
    relevance = item.fused if relevance_only else item.relevance
    return Scored(
        candidate=candidate,
        fused=item.fused,
        relevance=item.relevance,
        recency=signals["recency"] if composite.recency else None,
        importance=signals["importance"] if composite.importance else None,
        final=composite.relevance * relevance + blind,
        tie_break=tuple(signals[name] for name in tie_break),
    )
