"""Succession: what replaced a memory answers in its place. Pure.

The score of a family in force is the largest of its own and those of all its predecessors, without decay: a question
phrased in the words of an old rule finds the rule in force. Predecessors are the older revisions of the family and,
in the order of the chain of replacements, the families that are no longer in force and lead here. The chain stops at
the first family in force, ends at one that leads nowhere, and may hold a cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from retrieval_svc.composite import rank_key
from retrieval_svc.domain import ANSWERS, Held, LedgerHead, Ranked, Scored


def successors(family: str, heads: Mapping[str, LedgerHead], moment_seconds: float) -> dict[str, tuple[str, ...]]:
    """Return the families in force that stand in for one that is not, with the chain that leads to each.

    The chain is nearest to the successor first and ends with ``family``. One in force has no successor.
    """
    found: dict[str, tuple[str, ...]] = {}
    head = heads.get(family)
    if head is None or head.state in ANSWERS:
        return found
    seen = {family}
    frontier: list[tuple[str, tuple[str, ...]]] = [(family, (family,))]
    while frontier:
        following: list[tuple[str, tuple[str, ...]]] = []
        for current, chain in frontier:
            for step in heads[current].replaced_by:
                target = heads.get(step.family)
                if step.family in seen or target is None:
                    continue
                if step.effective is not None and step.effective > moment_seconds:
                    continue
                seen.add(step.family)
                if target.state in ANSWERS:
                    found[step.family] = chain
                else:
                    following.append((step.family, (step.family, *chain)))
        frontier = following
    return found


def rank(
    scored: Iterable[Scored],
    heads: Mapping[str, LedgerHead],
    showable: Collection[str],
    verdict_of: Mapping[str, str],
    moment_seconds: float,
) -> tuple[list[Ranked], list[Held]]:
    """Return the families that may be shown, best first, and those held back, best first.

    Args:
        scored: Candidates that count.
        heads: What the ledger says, successors included.
        showable: Families among ``heads`` that pass every gate.
        verdict_of: Why the others do not; ``""`` or nothing for those that do.
        moment_seconds: The moment asked.
    """
    by_family: dict[str, list[Scored]] = {}
    for item in scored:
        by_family.setdefault(item.candidate.family, []).append(item)
    best: dict[str, Scored] = {}
    own: dict[str, Scored] = {}
    lenders: dict[str, dict[str, None]] = {}
    held: list[Held] = []
    for family, items in by_family.items():
        head = heads[family]
        top = items[0] if len(items) == 1 else min(items, key=rank_key)
        current = [i for i in items if i.candidate.revision == head.revision]
        if current:
            own[family] = min(current, key=rank_key)
        _offer(best, family, top)
        if family in showable and head.state in ANSWERS:
            continue
        chains = successors(family, heads, moment_seconds)
        for heir, chain in chains.items():
            _offer(best, heir, top)
            lenders.setdefault(heir, {}).update(dict.fromkeys(chain))
        if family not in showable:
            held.append(
                Held(family, verdict_of.get(family) or head.state.value, top, any(h in showable for h in chains))
            )
    ranked = [
        Ranked(family, score, own.get(family), tuple(lenders.get(family, ())))
        for family, score in best.items()
        if family in showable
    ]
    return _in_order(ranked), sorted(held, key=lambda h: rank_key(h.score))


def keep_exact(ranked: Sequence[Ranked], exact: Collection[str], limit: int) -> list[Ranked]:
    """Return the order in which to take hits: an exact match never falls off the end of the list.

    When none of the families that hold exactly what the question names is among the first ``limit``, the best of them
    takes the last place.
    """
    order = list(ranked)
    if any(r.family in exact for r in order[:limit]):
        return order
    place = next((i for i, r in enumerate(order) if r.family in exact), None)
    if place is not None:
        order.insert(max(0, limit - 1), order.pop(place))
    return order


def _offer(best: dict[str, Scored], family: str, score: Scored) -> None:
    known = best.get(family)
    if known is None or _better(score, known, family):
        best[family] = score


def _better(new: Scored, old: Scored, family: str) -> bool:
    # Between equal scores the family's own counts, so that nothing is said to be lent without need.
    mine, theirs = rank_key(new)[:2], rank_key(old)[:2]
    if mine != theirs:
        return mine < theirs
    new_own, old_own = new.candidate.family == family, old.candidate.family == family
    return new_own if new_own != old_own else rank_key(new) < rank_key(old)


def _in_order(ranked: Iterable[Ranked]) -> list[Ranked]:
    # Two heirs of one predecessor have its score in common; their own then decides, and their names at last.
    def key(item: Ranked) -> tuple[float, float, tuple[float, ...], str]:
        final, ties, _, _ = rank_key(item.best)
        own = rank_key(item.own)[0] if item.own is not None else 0.0
        return (final, own, ties, item.family)

    return sorted(ranked, key=key)
