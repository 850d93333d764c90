"""Reconcile: what the index found against what the ledger says. Pure.

The index is believed in nothing but scores. A family may be shown when its name is of the project asked, the ledger
has a head for it on the branch at the moment asked, the head's state is one that was asked for, and it passes the
filters. Its state, text and validity are always the ledger's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from retrieval_svc.domain import Candidate, HeldBack, LedgerHead, Question, State, View

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sorted:
    """Candidates by what may be done with them."""

    usable: tuple[Candidate, ...]
    """Their scores count: for their own family or for what replaced it."""
    verdicts: Mapping[str, str]
    """For each family that was found: ``""`` when it may be shown, else why not."""
    broken: tuple[str, ...]
    """Families in force that the index holds with a wrong hash: their text must be matched here."""


def own_families(candidates: Iterable[Candidate], question: Question) -> list[str]:
    """Return the families that the ledger may be asked about, each once, in order."""
    return list(dict.fromkeys(c.family for c in candidates if is_own(c.family, question)))


def is_own(family: str, question: Question) -> bool:
    """Return whether a name is well formed and of the project asked."""
    prefix = question.family_prefix
    return family.startswith(prefix) and _UUID.fullmatch(family, len(prefix)) is not None


def verdict(head: LedgerHead | None, question: Question) -> str:
    """Return ``""`` when a head may be shown, else why not."""
    if head is None or head.branch != question.branch or not head.revision:
        return HeldBack.MISSING
    if not head.family.startswith(question.family_prefix) or not head.revision.startswith(f"{head.family}/"):
        return HeldBack.FOREIGN
    if question.scopes and head.scope not in question.scopes:
        return HeldBack.FILTER
    if question.categories and head.category not in question.categories:
        return HeldBack.FILTER
    if head.state not in question.states:
        return head.state.value
    return HeldBack.EVIDENCE if head.view is View.FULL and not _has_evidence(head, question) else ""


def sort_out(
    candidates: Sequence[Candidate], heads: Mapping[str, LedgerHead], question: Question, moment_seconds: float
) -> Sorted:
    """Return which candidates count, and for every family found why it may not be shown, if so.

    A revision that starts after the moment asked is not counted: it neither is in force nor was. A revision that is
    the ledger's own but with another hash is not counted either: what the index scored is not what it says.
    """
    usable: list[Candidate] = []
    verdicts: dict[str, str] = {}
    broken: dict[str, None] = {}
    for candidate in candidates:
        family = candidate.family
        if not is_own(family, question):
            verdicts[family] = HeldBack.FOREIGN
            continue
        head = heads.get(family)
        if family not in verdicts:
            verdicts[family] = verdict(head, question)
        if head is None:
            continue
        is_head = candidate.revision == head.revision
        if not candidate.revision.startswith(f"{family}/") or (is_head and candidate.content_hash != head.content_hash):
            broken[family] = None
        elif is_head or not _starts_later(candidate, moment_seconds):
            usable.append(candidate)
    counted = {c.family for c in usable}
    repair = tuple(f for f in broken if not verdicts[f])
    for family, why_not in verdicts.items():
        if not why_not and family not in counted:
            # What is in force did not match: the index holds it wrongly, or only what is yet to come matched.
            verdicts[family] = HeldBack.HASH if family in broken else State.SCHEDULED.value
    return Sorted(tuple(usable), verdicts, repair)


def _has_evidence(head: LedgerHead, question: Question) -> bool:
    """Return whether enough independent sources support a head; two copies of one source are one."""
    if not question.min_evidence:
        return True
    evidence = head.detail.evidence if head.detail else ()
    sources = {e.source for e in evidence if e.supports and (e.verified or not question.verified_evidence_only)}
    return len(sources) >= question.min_evidence


def _starts_later(candidate: Candidate, moment_seconds: float) -> bool:
    return candidate.valid_from is not None and candidate.valid_from > moment_seconds
