"""Fusion: the scores of the branches become one relevance per candidate. Pure.

Whatever the index sends, a score that leaves here is a finite number: NaN and infinities count as missing, the rest is
brought into the range that the score can have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from retrieval_svc.domain import Candidate, Fused
from retrieval_svc.profiles import Fusion

MAX_SPARSE: Final = 2.2
"""BM25 over the sum of idf cannot exceed k1 + 1."""


def sane(value: float | None, low: float, high: float) -> float | None:
    """Return the score within its range; None when it is missing or no number."""
    if value is None:
        return None
    if low <= value <= high:  # the usual case first; NaN is not in any range
        return value
    return min(max(value, low), high) if math.isfinite(value) else None


def scores_of(candidate: Candidate) -> dict[str, float]:
    """Return the scores of a candidate that can be used, by name."""
    found = {}
    if (dense := sane(candidate.dense, -1.0, 1.0)) is not None:
        found["dense"] = dense
    if (sparse := sane(candidate.sparse, 0.0, MAX_SPARSE)) is not None:
        found["sparse"] = sparse
    return found


def strength(candidate: Candidate) -> float:
    """Return the mean of the scores that a candidate has, whatever the profile: 0 for none."""
    found = scores_of(candidate)
    return max(0.0, sum(found.values()) / len(found)) if found else 0.0


def fuse(candidates: Sequence[Candidate], fusion: Fusion) -> list[Fused]:
    """Return the candidates with one relevance each, in the order given."""
    return _rrf(candidates, fusion) if fusion.kind == "rrf" else _weighted(candidates, fusion.weights)


def _weighted(candidates: Sequence[Candidate], weights: Mapping[str, float]) -> list[Fused]:
    """Σ wᵢ·scoreᵢ / Σ wᵢ over the branches that work.

    A branch that gave nobody a score is dead and its weight goes to the others. In a branch that works a missing score
    is 0. A candidate out of the ledger has only the score that was made here and is measured by that alone.
    """
    all_scores = [scores_of(c) for c in candidates]
    alive = {n for c, found in zip(candidates, all_scores, strict=True) if not c.from_ledger for n in found}
    parts = [(name, weight) for name, weight in weights.items() if name in alive]
    usual_total = sum([weight for _, weight in parts])
    result = []
    for candidate, found in zip(candidates, all_scores, strict=True):
        counted, total = parts, usual_total
        if candidate.from_ledger:
            counted = [(name, weight) for name, weight in weights.items() if name in found]
            total = sum([weight for _, weight in counted])
        fused = 0.0
        if total > 0:
            for name, weight in counted:
                fused += weight * found.get(name, 0.0)
            fused /= total
        result.append(Fused(candidate, fused, max(0.0, fused)))
    return result


def _rrf(candidates: Sequence[Candidate], fusion: Fusion) -> list[Fused]:
    """Σ wᵢ / (k + rankᵢ), relevance as the share of what first place everywhere would give.

    Equal scores share a rank, so that the order in which the candidates came decides nothing. Who is not in a list
    (no score, or a sparse score of 0: no term in common) gets nothing from it.
    """
    all_scores = [scores_of(c) for c in candidates]
    fused = [0.0] * len(candidates)
    best = 0.0
    for name, weight in fusion.weights.items():
        listed = [(found[name], i) for i, found in enumerate(all_scores) if name in found]
        if name == "sparse":
            listed = [(score, i) for score, i in listed if score > 0.0]
        if not listed:
            continue
        best += weight / (fusion.k + 1.0)
        listed.sort(key=lambda pair: -pair[0])
        rank, previous = 0, math.nan
        for place, (score, i) in enumerate(listed, start=1):
            if score != previous:
                rank, previous = place, score
            fused[i] += weight / (fusion.k + rank)
    return [
        Fused(candidate, score, score / best if best > 0 else 0.0)
        for candidate, score in zip(candidates, fused, strict=True)
    ]
