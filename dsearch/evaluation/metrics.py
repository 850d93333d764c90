"""Measures of ranking and abstention, as pure functions.

Ranking: a question has a set of right answers and a ranked list of document ids. Abstention: every question has a
score, answerable ones should have the higher. Intervals: paired bootstrap over questions (Efron and Tibshirani 1993).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BOOTSTRAP_SAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """Means over questions; all between 0 and 1."""

    questions: int
    mrr: float
    ndcg10: float
    p1: float
    r5: float
    r10: float


def reciprocal_rank(ranked: Sequence[str], expected: frozenset[str], depth: int = 10) -> float:
    """Return 1 / rank of the first right answer among the first ``depth``, 0 when there is none."""
    return next((1 / rank for rank, name in enumerate(ranked[:depth], 1) if name in expected), 0.0)


def hit(ranked: Sequence[str], expected: frozenset[str], depth: int) -> float:
    """Return 1 when a right answer is among the first ``depth``: any one answers the question."""
    return float(any(name in expected for name in ranked[:depth]))


def ndcg(ranked: Sequence[str], expected: frozenset[str], depth: int = 10) -> float:
    """Return the normalised discounted cumulative gain with gain 1 per right answer (Järvelin and Kekäläinen 2002)."""
    gain = sum(1 / math.log2(rank + 1) for rank, name in enumerate(ranked[:depth], 1) if name in expected)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(expected), depth) + 1))
    return gain / ideal if ideal else 0.0


def rank_metrics(lists: Sequence[tuple[Sequence[str], frozenset[str]]]) -> RankMetrics:
    """Return the means over (ranked ids, right answers)."""
    if not lists:
        return RankMetrics(0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return RankMetrics(
        questions=len(lists),
        mrr=mean([reciprocal_rank(ranked, expected) for ranked, expected in lists]),
        ndcg10=mean([ndcg(ranked, expected) for ranked, expected in lists]),
        p1=mean([hit(ranked, expected, 1) for ranked, expected in lists]),
        r5=mean([hit(ranked, expected, 5) for ranked, expected in lists]),
        r10=mean([hit(ranked, expected, 10) for ranked, expected in lists]),
    )


def paired_bootstrap(
    ours: Sequence[float], theirs: Sequence[float], seed: int = 20_260_822
) -> tuple[float, float, float]:
    """Return (mean difference, low, high) of ``ours - theirs``: the 95 % interval over resampled questions."""
    if len(ours) != len(theirs):
        raise ValueError("paired values are needed: one of each per question")
    if not ours:
        return 0.0, 0.0, 0.0
    difference = np.asarray(ours) - np.asarray(theirs)
    picks = np.random.default_rng(seed).integers(0, len(difference), (BOOTSTRAP_SAMPLES, len(difference)))
    low, high = np.quantile(difference[picks].mean(axis=1), (0.025, 0.975))
    return float(difference.mean()), float(low), float(high)


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the share of (positive, negative) pairs in which the positive has the higher score; ties count half."""
    return _pair_share(np.asarray(positive, float), np.asarray(negative, float), None)


def matched_auroc(
    positive: Sequence[tuple[float, int]], negative: Sequence[tuple[float, int]], tolerance: int = 1
) -> float:
    """Return the AUROC over pairs (score, words) whose word counts differ by at most ``tolerance``."""
    if not positive or not negative:
        return math.nan
    p_score, p_words = (np.asarray(column, float) for column in zip(*positive, strict=True))
    n_score, n_words = (np.asarray(column, float) for column in zip(*negative, strict=True))
    return _pair_share(p_score, n_score, np.abs(p_words[:, None] - n_words[None, :]) <= tolerance)


def _pair_share(positive: np.ndarray, negative: np.ndarray, keep: np.ndarray | None) -> float:
    wins = (positive[:, None] > negative[None, :]) + 0.5 * (positive[:, None] == negative[None, :])
    chosen = wins if keep is None else wins[keep]
    return float(chosen.mean()) if chosen.size else math.nan


def coverage_at_precision(
    answerable: Sequence[tuple[float, bool]], unanswerable: Sequence[float], precision: float = 0.95
) -> float:
    """Return the largest share of answerable questions answered at a threshold where answers are right that often.

    An answer is right when the question is answerable and its first hit is a right one.
    """
    scored = [(score, right, True) for score, right in answerable] + [(score, False, False) for score in unanswerable]
    scored.sort(key=lambda item: -item[0])
    best, right_so_far, answered = 0.0, 0, 0
    for index, (score, right, is_answerable) in enumerate(scored, 1):
        right_so_far += right
        answered += is_answerable
        at_threshold = index == len(scored) or scored[index][0] < score
        if at_threshold and right_so_far / index >= precision:
            best = max(best, answered / max(1, len(answerable)))
    return best


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie; 0 for none."""
    return float(np.quantile(np.asarray(values), share)) if values else 0.0
