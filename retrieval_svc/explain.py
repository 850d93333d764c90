"""Explain: why a hit is here and what it took the place of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from retrieval_svc.domain import (
    ANSWERS,
    HeadDetail,
    LedgerHead,
    Origin,
    Ranked,
    Replaced,
)
from retrieval_svc.lexical import shared_words

MAX_WORDS: Final = 6
LOOKED_AT_CHARS: Final = 500
"""How much of a memory (its title first) is looked at for words to name."""
NEAR_MEANING: Final = 0.3
"""Least cosine that is called near in meaning."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def day(seconds: float | None) -> str:
    """Return the date of an instant, empty for none."""
    if seconds is None:
        return ""
    try:
        return (_EPOCH + timedelta(seconds=seconds)).date().isoformat()
    except (OverflowError, ValueError):
        return ""


def origin_of(ranked: Ranked, head: LedgerHead) -> Origin:
    """Return how a hit came in."""
    candidate = ranked.best.candidate
    if ranked.lent_by or candidate.revision != head.revision:
        return Origin.SUCCESSOR
    return Origin.LEDGER_TAIL if candidate.from_ledger else Origin.MATCH


def replaced_by_hit(ranked: Ranked, head: LedgerHead, heads: Mapping[str, LedgerHead]) -> tuple[Replaced, ...]:
    """Return what a hit took the place of, the latest first: families over the whole chain, and its own past."""
    detail = head.detail or HeadDetail("", "")
    matched = ranked.best.candidate
    found: dict[str, Replaced] = {}
    for step in detail.replaces:
        old = heads.get(step.family)
        found[step.family] = Replaced(
            family=step.family,
            identity_key=step.identity_key or (old.identity_key if old else ""),
            revision=old.revision if old else "",
            title=step.title or _title(old),
            time=step.effective,
            reason=step.reason,
            matched=step.family == matched.family,
        )
    for family in ranked.lenders:
        old = heads.get(family)
        if family in found or old is None:
            continue
        steps = [s for s in old.replaced_by if s.family == head.family or s.family in ranked.lenders]
        found[family] = Replaced(
            family=family,
            identity_key=old.identity_key,
            revision=old.revision,
            title=_title(old),
            time=steps[0].effective if steps else None,
            reason=steps[0].reason if steps else "",
            matched=family == matched.family,
        )
    past = [
        Replaced(
            family=head.family,
            identity_key=head.identity_key,
            revision=p.revision,
            title=p.title,
            time=p.valid_to,
            reason=p.reason,
            matched=p.revision == matched.revision,
        )
        for p in detail.past
    ]
    own_past_matched = matched.family == head.family and matched.revision != head.revision
    if own_past_matched and not any(p.matched for p in past):
        # Older than what the head lists: the revision is named, so that its history can be asked for.
        past.append(Replaced(head.family, head.identity_key, matched.revision, "", None, "", matched=True))
    return tuple(sorted([*found.values(), *past], key=lambda r: (r.time is None, -(r.time or 0.0))))


def reasons(
    question: Sequence[tuple[str, frozenset[str]]],
    ranked: Ranked,
    head: LedgerHead,
    replaced: Sequence[Replaced],
    *,
    newer_than_index: bool,
) -> tuple[str, ...]:
    """Return why a hit is here, a sentence each; ``question`` is its words with their terms."""
    detail = head.detail or HeadDetail("", "")
    candidate, origin = ranked.best.candidate, origin_of(ranked, head)
    sentences: list[str] = []
    if origin is Origin.SUCCESSOR:
        old = next((r for r in replaced if r.matched), None)
        sentences.append(_succession(old, same_family=not ranked.lent_by))
    if origin is Origin.LEDGER_TAIL:
        sentences.append("read from the ledger, because the index does not hold it yet")
    words = shared_words(question, detail.text[:LOOKED_AT_CHARS], MAX_WORDS)
    if words:
        sentences.append(f"matches the words: {', '.join(words)}")
    if candidate.structural:
        sentences.append(f"has what the question names: {', '.join(candidate.structural[:MAX_WORDS])}")
    dense = candidate.dense
    if dense is not None and dense >= NEAR_MEANING:
        sentences.append(f"is near in meaning (cosine {dense:.2f})")
    if newer_than_index:
        sentences.append("changed since it was indexed: this is the ledger's version")
    if head.state not in ANSWERS:
        sentences.append(f"is not in force: {head.state.value.replace('_', ' ').lower()}")
    if detail.conflicts:
        count = len(detail.conflicts)
        sentences.append(f"is in conflict with {count} other {'memory' if count == 1 else 'memories'}")
    if detail.review:
        sentences.append(f"needs review: something it rests on was {', '.join(c.lower() for c in detail.review)}")
    return tuple(sentences) or ("is among the nearest memories",)


def _succession(old: Replaced | None, *, same_family: bool) -> str:
    if old is None:
        return "replaced what matches best"
    if same_family:
        what = "an earlier revision of it matches best"
        when = f", replaced on {day(old.time)}" if old.time is not None else ""
    else:
        name = " ".join(part for part in (old.identity_key, f'"{old.title}"' if old.title else "") if part)
        what = f"replaced {name or 'a memory'}, which matches best"
        when = f", on {day(old.time)}" if old.time is not None else ""
    because = f": {old.reason}" if old.reason else ""
    return f"{what}{when}{because}"


def _title(head: LedgerHead | None) -> str:
    return head.detail.title if head is not None and head.detail is not None else ""
