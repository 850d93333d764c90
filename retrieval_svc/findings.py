"""Findings: what one search knows so far, and what follows from it. Without input or output.

The pipeline adds candidates and heads; the stages run over them here. The order of the candidates' scores says whom to
ask the ledger about: as soon as enough families may be shown, and nobody who has not been asked about can come before
them (an heir never gets more than its lender has), the rest need not be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from retrieval_svc import abstain, lexical
from retrieval_svc.composite import compose, rank_key
from retrieval_svc.domain import (
    Branch,
    Candidate,
    Degradation,
    Held,
    HeldBack,
    LedgerHead,
    Question,
    Ranked,
    Scored,
    Support,
    View,
)
from retrieval_svc.exact import exact_families
from retrieval_svc.fusion import fuse, strength
from retrieval_svc.ledger_client import MAX_FAMILIES
from retrieval_svc.profiles import Profile
from retrieval_svc.reconcile import is_own, sort_out, verdict
from retrieval_svc.succession import keep_exact, rank

NEW_MATCH: Final = 0.5
"""A memory that the index does not hold yet counts as found when it has this share of the question's words."""

_LATER_LOOKS: Final = (24, 100)
"""Families that the second and third look ask about; those after that ask about as many as one call may."""


@dataclass(slots=True)
class Standing:
    """Where ledger and index stand."""

    token: str = ""
    """Of the oldest read that the answer rests on."""
    checked_position: int = 0
    ledger_position: int = 0
    """Newest that was seen."""
    applied_position: int = 0
    """What the index has taken in."""

    def note(self, token: str, position: int) -> None:
        """Note where a read of the ledger came from."""
        if not self.token or position < self.checked_position:
            self.token, self.checked_position = token, position
        self.ledger_position = max(self.ledger_position, position)


class Findings:
    """The state of one search."""

    def __init__(self, question: Question, profile: Profile, moment_seconds: float) -> None:
        self.question, self.profile = question, profile
        self.moment_seconds = moment_seconds
        self.branches: Sequence[Branch] = question.branches or profile.branches
        self.standing = Standing()
        self.heads: dict[str, LedgerHead] = {}
        self.support: Support | None = None
        self.fresh = True
        """False when commits that the caller asked for could not be looked at."""
        self.stored = False
        """True when the ledger has anything in any state that the filters let through."""
        self.ranked: list[Ranked] = []
        self.held: list[Held] = []
        self.broken: tuple[str, ...] = ()
        """Families in force whose text the index holds wrongly."""
        self.exact: frozenset[str] = frozenset()
        """Families that hold exactly what the question names."""

        self._candidates: dict[tuple[str, str], Candidate] = {}
        self._scored: dict[tuple[str, str], Scored] = {}
        self._order: list[Scored] = []
        self._asked: set[str] = set()
        self._looks = 0
        self._verdicts: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        self._degraded: dict[str, str] = {}
        self._indexed: frozenset[str] = frozenset()

    # --- What comes in ----------------------------------------------------------------------------------------------

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Add candidates; a revision that is known stays as it is."""
        for candidate in candidates:
            self._candidates.setdefault((candidate.family, candidate.revision), self._by_branches_asked(candidate))

    def mend(self, candidates: Iterable[Candidate]) -> None:
        """Put candidates whose text was matched here in the place of what the index sent for them."""
        for candidate in candidates:
            self._candidates[candidate.family, candidate.revision] = candidate

    def drop_broken(self) -> Sequence[str]:
        """Forget what the index holds wrongly of the broken families, and return them."""
        broken = set(self.broken)
        for key, candidate in list(self._candidates.items()):
            if candidate.family not in broken or candidate.from_ledger:
                continue
            head = self.heads[candidate.family]
            if candidate.revision == head.revision or not candidate.revision.startswith(f"{candidate.family}/"):
                del self._candidates[key]
        self._gone.update(dict.fromkeys(broken, HeldBack.HASH))
        return self.broken

    def learn(self, heads: Mapping[str, LedgerHead], asked: Iterable[str]) -> None:
        """Note heads and whom the ledger was asked about. A whole head is kept while nothing newer is known."""
        self._asked.update(asked)
        for family, head in heads.items():
            known = self.heads.get(family)
            same = known is not None and (known.revision, known.state, known.position) == (
                head.revision,
                head.state,
                head.position,
            )
            if not (same and known is not None and known.view is View.FULL):
                self.heads[family] = head

    def degrade(self, part: str, reason: str) -> None:
        """Note that something did not work; the first reason of a part stays."""
        self._degraded.setdefault(part, reason)

    def set_aside(self, family: str, reason: str) -> None:
        """Note that a ranked family may not be shown after all."""
        self._gone[family] = reason

    # --- What follows -----------------------------------------------------------------------------------------------

    def score(self) -> None:
        """Fuse and weigh all candidates of the project."""
        own = [c for c in self._candidates.values() if is_own(c.family, self.question)]
        fused = fuse(own, self.profile.fusion)
        scored = compose(fused, self.profile.composite, self.profile.tie_break, self.moment_seconds)
        self._scored = {(s.candidate.family, s.candidate.revision): s for s in scored}
        self._order = sorted(scored, key=rank_key)
        self.exact = exact_families(own, self.question.text)

    def rank(self) -> None:
        """Reconcile the families that the ledger was asked about, and let what was replaced lend its score."""
        known = [
            c for c in self._candidates.values() if self._is_known(c.family) or not is_own(c.family, self.question)
        ]
        found = sort_out(known, self.heads, self.question, self.moment_seconds)
        showable = {f for f, head in self.heads.items() if not verdict(head, self.question)}
        self._verdicts, self.broken = dict(found.verdicts), found.broken
        usable = [self._scored[c.family, c.revision] for c in found.usable]
        self.ranked, self.held = rank(usable, self.heads, showable, self._verdicts, self.moment_seconds)
        self._indexed = frozenset(c.revision for c in found.usable if not c.from_ledger)
        unseen = {HeldBack.FOREIGN, HeldBack.MISSING}
        self.stored = self.stored or any(reason not in unseen for reason in self._verdicts.values())

    def next_look(self) -> tuple[list[str], View]:
        """Return whom to ask the ledger about next, best first, and how much to read; nobody when it is settled."""
        off = self.is_off()
        if off and self._looks:
            return [], View.STATE
        waiting = dict.fromkeys(s.candidate.family for s in self._order if not self._is_known(s.candidate.family))
        if not waiting or self._settled():
            return [], View.STATE
        limit = self.question.limit
        # The first look reads whole heads, because those that hold are then ready to be shown. Where many do not
        # hold, the next looks only sift.
        first = self._looks == 0
        sizes = (limit + max(6, limit // 2), *(max(limit, size) for size in _LATER_LOOKS))
        size = sizes[self._looks] if self._looks < len(sizes) else MAX_FAMILIES
        self._looks += 1
        named = [f for f in waiting if f in self.exact]
        families = list(dict.fromkeys([*list(waiting)[:size], *named]))
        whole = (first or self.question.min_evidence > 0) and not off
        return families, View.FULL if whole else View.STATE

    def is_off(self) -> bool:
        """Return whether the question will not be answered, whatever the ledger says of the candidates."""
        if self.question.include_rejected:
            return False
        return not self.fresh or not self._relevant(exact=bool(self.exact) or any(map(is_new_match, self._order)))

    def shown_order(self) -> list[Ranked]:
        """Return the order in which hits are taken."""
        order = keep_exact(self.ranked, self.exact, self.question.limit)
        if self.question.include_rejected or self._relevant(exact=False):
            return order
        # All else is below the threshold: what the question names is the answer.
        return [r for r in order if self._is_exact(r)]

    def newer_than_index(self, head: LedgerHead) -> bool:
        """Return whether the index knows only something older of a head."""
        return head.position > self.standing.applied_position and head.revision not in self._indexed

    def known_live_or_held(self) -> set[str]:
        """Return the families that were found."""
        return {r.family for r in self.ranked} | {h.family for h in self.held}

    def evidence(self, hits: int) -> abstain.Evidence:
        """Return what the verdict rests on."""
        live = [r for r in self.ranked if r.family not in self._gone or self._gone[r.family] == HeldBack.HASH]
        lacking = sum(h.reason == HeldBack.EVIDENCE for h in self.held)
        return abstain.Evidence(
            support_z=abstain.support_z(self.support),
            strength=self._strength(),
            exact=any(map(self._is_exact, live)),
            live_best=live[0].best.final if live else None,
            held=self.held,
            hits=hits,
            evidence_gate=lacking,
            anything_stored=self.stored,
            fresh=self.fresh,
        )

    def suppressed(self) -> dict[str, int]:
        """Return how many families were held back, by reason."""
        reasons = {family: reason for family, reason in self._verdicts.items() if reason} | self._gone
        counts: dict[str, int] = {}
        for reason in reasons.values():
            counts[str(reason)] = counts.get(str(reason), 0) + 1
        return dict(sorted(counts.items()))

    def degraded(self) -> tuple[Degradation, ...]:
        """Return what did not work."""
        return tuple(Degradation(part, reason) for part, reason in self._degraded.items())

    def dense_works(self) -> bool:
        """Return whether the dense branch took part: it alone returns whatever there is."""
        return Branch.DENSE in self.branches and "dense" not in self._degraded

    def knows_text(self, head: LedgerHead) -> bool:
        """Return whether the index sent just this text."""
        known = self._candidates.get((head.family, head.revision))
        return known is not None and known.content_hash == head.content_hash

    # --- Parts ------------------------------------------------------------------------------------------------------

    def _settled(self) -> bool:
        limit = self.question.limit
        if len(self.ranked) < limit:
            return False
        rest = next((s for s in self._order if not self._is_known(s.candidate.family)), None)
        # Only a clear lead settles it: between equal scores, what is not known yet may still decide.
        return rest is None or rank_key(self.ranked[limit - 1].best)[0] < rank_key(rest)[0]

    def _is_known(self, family: str) -> bool:
        # What replaced a family comes with the answer about it, without having been asked for.
        return family in self._asked or family in self.heads

    def _relevant(self, *, exact: bool) -> bool:
        seen = abstain.Evidence(
            support_z=abstain.support_z(self.support),
            strength=self._strength(),
            exact=exact,
            live_best=None,
            held=(),
            hits=0,
            evidence_gate=0,
            anything_stored=True,
            fresh=True,
        )
        found = abstain.relevance(seen, self.profile.abstention)
        return found in {abstain.Relevance.ANSWER, abstain.Relevance.CLOSEST}

    def _strength(self) -> float:
        if abstain.support_z(self.support) is not None:
            return 0.0  # Not looked at.
        return max((strength(s.candidate) for s in self._order), default=0.0)

    def _is_exact(self, ranked: Ranked) -> bool:
        return ranked.family in self.exact or (ranked.own is not None and is_new_match(ranked.own))

    def _by_branches_asked(self, candidate: Candidate) -> Candidate:
        """Return the candidate without the scores of branches that were not asked for: the index sends all it has."""
        if candidate.from_ledger or len(set(self.branches)) == len(Branch):
            return candidate
        return replace(
            candidate,
            dense=candidate.dense if Branch.DENSE in self.branches else None,
            sparse=candidate.sparse if Branch.SPARSE in self.branches else None,
            structural=candidate.structural if Branch.STRUCTURAL in self.branches else (),
        )


def is_new_match(scored: Scored) -> bool:
    """Return whether a text that the index does not hold has enough of the question's words."""
    candidate = scored.candidate
    return candidate.from_ledger and (candidate.sparse or 0.0) >= NEW_MATCH


def matched_here(head: LedgerHead, score: float, names: Sequence[str]) -> Candidate:
    """Return the candidate for a head whose text was matched here."""
    detail = head.detail
    has = set(lexical.terms(detail.text)) if detail and names else set[str]()
    return Candidate(
        family=head.family,
        revision=head.revision,
        content_hash=head.content_hash,
        sparse=score,
        structural=tuple(f"identifier:{name}" for name in names if name in has),
        importance=detail.importance if detail else 0.0,
        valid_from=detail.valid_from if detail else None,
        from_ledger=True,
    )
