"""The pipeline: a question through its stages, in the order in which they happen.

1. ``_find``: candidates from the index; from the ledger alone when the index does not answer.
2. ``_check``: what the ledger says about every family found and what replaced it, and the commits that the index has
   not seen when the question asks for them.
3. ``_widen``: more candidates until ``limit`` families may be shown or there are no more.
4. ``_confirm``: the heads that will be shown, read whole and judged once more.
5. ``_conclude``: whether that answers the question.

The stages that decide (fusion, composite, reconcile, succession, exact, abstain, explain) are pure and know nothing of
each other. On the usual path this makes one call to the index and two to the ledger, plus a cheap third beside the
second when there are fewer hits than asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from retrieval_svc import abstain, explain, lexical
from retrieval_svc.composite import compose
from retrieval_svc.domain import (
    ANSWERS,
    Answer,
    Branch,
    Candidate,
    Confidence,
    Degradation,
    HeadDetail,
    Held,
    HeldBack,
    Hit,
    IndexAnswer,
    LedgerHead,
    Question,
    Ranked,
    State,
    Support,
    View,
)
from retrieval_svc.exact import exact_families
from retrieval_svc.fusion import fuse, strength
from retrieval_svc.index_client import MAX_CANDIDATES, CandidateSource
from retrieval_svc.ledger_client import LedgerReader
from retrieval_svc.profiles import Profile
from retrieval_svc.reconcile import own_families, sort_out, verdict
from retrieval_svc.succession import keep_exact, rank
from service_kit.clock import Clock
from service_kit.errors import DomainError, Reason
from service_kit.logs import get_logger

TAIL_MATCH: Final = 0.5
"""A memory that the index does not hold yet counts as found when it has this share of the question's words."""

_SCAN_PAGE: Final = 100
_CALLERS_FAULT: Final = frozenset({Reason.INVALID_FIELD, Reason.LIMIT_EXCEEDED, Reason.MODEL_MISMATCH})
_OUT_OF_TIME: Final = frozenset({Reason.DEADLINE, Reason.NOT_FRESH_ENOUGH})
_ALL_STATES: Final = tuple(s for s in State if s is not State.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a search goes, in time and in amount."""

    index_timeout_seconds: float = 5.0
    scan_seconds: float = 3.0
    """How long the ledger is read in the index's place."""
    scan_heads: int = 5_000
    tail_commits: int = 2_000
    """Commits that the ledger is asked for when the index lags; beyond that the answer is INDEX_LAGGING."""


class Pipeline:
    """Runs searches. Stateless: nothing of one search is kept for the next."""

    def __init__(
        self, ledger: LedgerReader, index: CandidateSource, clock: Clock, bounds: Bounds | None = None
    ) -> None:
        self.ledger = ledger
        self.index = index
        self.clock = clock
        self.bounds = bounds or Bounds()

    async def run(self, question: Question, profile: Profile, *, seconds: float) -> Answer:
        """Return the answer to a question; ``seconds`` is the time there is.

        Raises:
            DomainError: The ledger did not answer (nothing may be shown unchecked), or refused.
        """
        return await _Search(self, question, profile, seconds).answer()


class _Search:
    """One search: what is known so far, and the steps that add to it."""

    def __init__(self, pipeline: Pipeline, question: Question, profile: Profile, seconds: float) -> None:
        self._ledger, self._index, self._bounds = pipeline.ledger, pipeline.index, pipeline.bounds
        self._question, self._profile = question, profile
        self._deadline = time.monotonic() + seconds
        self._now = pipeline.clock.now()
        self._moment = (question.valid_at or self._now).timestamp()
        self._branches = question.branches or profile.branches
        self._all_scores = set(Branch) <= set(self._branches)
        self._terms: list[str] | None = None
        self._spelled: Sequence[tuple[str, frozenset[str]]] | None = None

        self._candidates: dict[tuple[str, str], Candidate] = {}
        self._heads: dict[str, LedgerHead] = {}
        self._token, self._position = "", 0
        self._support: Support | None = None
        self._applied = 0
        self._degraded: dict[str, str] = {}
        self._exhausted = True
        self._index_answers = True
        self._scanned = False
        self._fresh = True
        self._stored = False

        self._ranked: list[Ranked] = []
        self._held: list[Held] = []
        self._verdicts: dict[str, str] = {}
        self._suppressed_late: dict[str, str] = {}
        self._exact: frozenset[str] = frozenset()
        self._indexed_revisions: frozenset[str] = frozenset()
        self._broken: tuple[str, ...] = ()

    async def answer(self) -> Answer:
        """Run the steps."""
        await self._find()
        await self._check()
        await self._widen()
        hits = await self._confirm()
        return self._conclude(hits)

    # --- 1. Candidates ----------------------------------------------------------------------------------------------

    async def _find(self) -> None:
        limit = min(MAX_CANDIDATES, max(self._profile.candidates, 2 * self._question.limit))
        found = await self._ask_index(limit, in_force_only=False, measure_support=True)
        if found is None:
            self._index_answers = False
            await self._scan()
            return
        self._support, self._applied = found.support, found.applied_position
        self._add(found.candidates)

    async def _ask_index(self, limit: int, *, in_force_only: bool, measure_support: bool) -> IndexAnswer | None:
        """Return what the index finds; None when it does not answer. Half of the time is kept for the ledger."""
        seconds = min(self._bounds.index_timeout_seconds, self._left() / 2)
        if seconds <= 0:
            self._degrade("index", "no time was left to ask it")
            return None
        try:
            found = await self._index.search(
                self._question,
                self._branches,
                limit=limit,
                in_force_only=in_force_only,
                measure_support=measure_support,
                timeout_seconds=seconds,
            )
        except DomainError as error:
            if error.reason in _CALLERS_FAULT:
                raise
            self._degrade("index", _why(error))
            return None
        for item in found.degraded:
            self._degrade(item.part, item.reason)
        self._exhausted = found.exhausted
        return found

    async def _scan(self) -> None:
        """Match the ledger's own texts, in place of an index that is down or misses something. Bounded in time."""
        self._scanned = True
        heads: dict[str, LedgerHead] = {}
        page, until = "", time.monotonic() + min(self._bounds.scan_seconds, 0.7 * self._left())
        # One token for all pages: a page token belongs to the arguments that it was made for.
        token = self._freshness_token()
        while True:
            found = await self._ledger.query(
                self._question, _ALL_STATES, View.BASIC, page_size=_SCAN_PAGE, page=page, token=token
            )
            heads.update(found.by_family)
            self._note(found.token, found.position)
            page = found.next_page
            if not page:
                break
            if time.monotonic() > until or len(heads) >= self._bounds.scan_heads:
                self._degrade("ledger_scan", f"only the first {len(heads)} memories were looked at")
                break
        self._stored = self._stored or bool(heads)
        order = list(heads.values())
        texts = [h.detail.text if h.detail else "" for h in order]
        scores = await asyncio.to_thread(lexical.bm25, self._query_terms(), texts)
        best = sorted(zip(scores, order, strict=True), key=lambda pair: (-pair[0], pair[1].family))
        kept = [(score, head) for score, head in best if score > 0.0][: 2 * self._profile.candidates]
        names = lexical.names(self._question.text)
        self._add([_from_ledger(head, score, names) for score, head in kept])

    # --- 2. The ledger's word ---------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Read the heads of every family found, with what replaced them; and rank."""
        unknown = [f for f in own_families(self._candidates.values(), self._question) if f not in self._heads]
        if unknown:
            found = await self._ledger.heads(self._question, unknown, View.STATE, token=self._freshness_token())
            self._learn(found.by_family, found.token, found.position)
        elif not self._token:
            # Nothing was found: the ledger still says where it stands, and whether there is anything.
            await self._look_for_anything()
        if self._applied > self._position and self._index_answers:
            # From another history of the ledger: its word on what it has seen means nothing.
            self._degrade("index", "it claims commits that the ledger does not have; rebuild it")
            self._applied = 0
        if self._question.token_position > self._applied and not self._scanned:
            await self._read_tail()
        self._rank()

    async def _read_tail(self) -> None:
        """Add the memories that commits changed since the index last looked. The question's token asks for them."""
        try:
            async with asyncio.timeout(max(0.0, 0.6 * self._left())):
                tail = await self._ledger.tail(self._question.project, self._applied, at_most=self._bounds.tail_commits)
                if not tail.complete:
                    self._fresh = False
                    return
                await self._match_here(tail.families)
        except TimeoutError:
            self._fresh = False
        except DomainError as error:
            if error.reason not in _OUT_OF_TIME:
                raise
            self._fresh = False

    async def _match_here(self, families: Sequence[str]) -> None:
        """Read families from the ledger and match their present text, unless the index knows just that text."""
        if not families:
            return
        found = await self._ledger.heads(self._question, families, View.BASIC, token=self._token)
        self._learn(found.by_family, found.token, found.position)
        wanted, new = set(families), 0
        for head in found.by_family.values():
            known = self._candidates.get((head.family, head.revision))
            if head.family not in wanted or (known is not None and known.content_hash == head.content_hash):
                continue
            new += 1
            score = lexical.coverage(self._query_terms(), head.detail.text if head.detail else "")
            if score > 0.0:
                names = lexical.names(self._question.text)
                self._candidates[head.family, head.revision] = _from_ledger(head, score, names)
        if new:
            self._degrade("tail", f"{new} memories that the index does not hold yet were matched by their words only")

    def _rank(self) -> None:
        """Run the pure stages over what is known."""
        candidates = list(self._candidates.values())
        self._exact = exact_families(candidates, self._question.text)
        sorted_out = sort_out(candidates, self._heads, self._question, self._moment)
        scored = compose(
            fuse(sorted_out.usable, self._profile.fusion),
            self._profile.composite,
            self._profile.tie_break,
            self._moment,
        )
        showable = {f for f, head in self._heads.items() if not verdict(head, self._question)}
        self._verdicts, self._broken = dict(sorted_out.verdicts), sorted_out.broken
        self._ranked, self._held = rank(scored, self._heads, showable, self._verdicts, self._moment)
        self._indexed_revisions = frozenset(c.revision for c in sorted_out.usable if not c.from_ledger)
        self._stored = self._stored or any(
            v not in {HeldBack.FOREIGN, HeldBack.MISSING} for v in self._verdicts.values()
        )

    # --- 3. Enough of them ------------------------------------------------------------------------------------------

    async def _widen(self) -> None:
        """Ask for more until there are as many live families as hits were asked for, or no more to find."""
        await self._repair()
        in_force_only = self._question.states == ANSWERS
        steps = [min(MAX_CANDIDATES, max(100, 4 * self._question.limit)), MAX_CANDIDATES]
        while self._index_answers and not self._exhausted and len(self._ranked) < self._question.limit and steps:
            found = await self._ask_index(steps.pop(0), in_force_only=in_force_only, measure_support=False)
            if found is None:
                break
            self._add(found.candidates)
            await self._check()
            await self._repair()

    async def _repair(self) -> None:
        """Match here what the index holds with a wrong hash: its score there was of something else."""
        broken = self._broken
        if not broken:
            return
        self._degrade("index", f"{len(broken)} memories are not as the ledger has them; run a repair")
        for family in broken:
            for key in [k for k in self._candidates if k[0] == family]:
                candidate = self._candidates[key]
                head = self._heads[family]
                wrong = candidate.revision == head.revision or not candidate.revision.startswith(f"{family}/")
                if wrong and not candidate.from_ledger:
                    del self._candidates[key]
            self._suppressed_late[family] = HeldBack.HASH
        await self._match_here(broken)
        self._rank()

    # --- 4. What will be shown --------------------------------------------------------------------------------------

    async def _confirm(self) -> list[Hit]:
        """Read whole what will be shown. Beside it, see whether the ledger has more than the index knew."""
        if not self._needs_hits():
            return []
        if self._has_enough():
            return await self._read_hits()
        async with asyncio.TaskGroup() as both:
            hits, missed = both.create_task(self._read_hits()), both.create_task(self._ledger_has_more())
        if not missed.result():
            return hits.result()
        await self._scan()
        await self._check()
        return await self._read_hits()

    def _needs_hits(self) -> bool:
        """Return whether anything would be done with hits: not when the question is off anyway."""
        if not self._fresh:
            return self._question.include_rejected
        if self._question.include_rejected or not self._ranked:
            return True
        relevance = abstain.relevance(self._evidence(0, 0), self._profile.abstention)
        return relevance in {abstain.Relevance.ANSWER, abstain.Relevance.CLOSEST}

    def _has_enough(self) -> bool:
        """Return whether the index cannot have kept anything back that there was room for.

        Only the dense branch returns whatever there is; the others leave out what has no word in common.
        """
        complete = Branch.DENSE in self._branches and "dense" not in self._degraded
        return self._scanned or len(self._ranked) >= self._question.limit or not complete

    async def _ledger_has_more(self) -> bool:
        """Return whether the ledger has a live family that the index did not find."""
        question = self._question
        found = await self._ledger.query(
            question, question.states, View.STATE, page_size=question.limit, token=self._token
        )
        known = {r.family for r in self._ranked} | {h.family for h in self._held}
        missed = [f for f in found.by_family if f not in known]
        self._stored = self._stored or bool(found.by_family)
        if not self._stored:
            await self._look_for_anything()
        if missed and self._applied >= found.position:
            self._degrade("index", "it misses memories that the ledger has; run a repair")
        return bool(missed)

    async def _look_for_anything(self) -> None:
        """Tell an empty project from one in which nothing was found."""
        token = self._freshness_token()
        found = await self._ledger.query(self._question, _ALL_STATES, View.STATE, page_size=1, token=token)
        self._note(found.token, found.position)
        self._stored = self._stored or bool(found.by_family)

    async def _read_hits(self) -> list[Hit]:
        question = self._question
        order = keep_exact(self._ranked, self._exact, question.limit)
        if self._only_exact():
            order = [r for r in order if r.family in self._exact or _new_and_matching(r)]
        hits: list[Hit] = []
        at = 0
        while len(hits) < question.limit and at < len(order):
            wanted = question.limit - len(hits)
            # Some will lack the evidence asked for: a few more in one call save another call.
            chunk = order[at : at + (wanted if not question.min_evidence else max(2 * wanted, 20))]
            at += len(chunk)
            families = list(dict.fromkeys(f for r in chunk for f in (r.family, *r.lenders)))
            found = await self._ledger.heads(question, families, View.FULL, token=self._token)
            self._learn(found.by_family, found.token, found.position)
            for item in chunk:
                hit = self._hit(item, found.by_family)
                if hit is not None and len(hits) < question.limit:
                    hits.append(hit)
        return hits

    def _hit(self, ranked: Ranked, heads: Mapping[str, LedgerHead]) -> Hit | None:
        """Return the hit, judged by the head that will be shown: it may have changed since it was ranked."""
        question = self._question
        head = heads.get(ranked.family)
        why_not = verdict(head, question)
        if head is None or why_not:
            self._suppressed_late[ranked.family] = why_not
            return None
        detail = head.detail or HeadDetail("", "")
        if question.min_evidence:
            counted = {
                e.source for e in detail.evidence if e.supports and (e.verified or not question.verified_evidence_only)
            }
            if len(counted) < question.min_evidence:
                self._suppressed_late[ranked.family] = HeldBack.EVIDENCE
                return None
        newer = not self._scanned and head.position > self._applied and head.revision not in self._indexed_revisions
        replaced = explain.replaced_by_hit(ranked, head, heads)
        return Hit(
            head=head,
            origin=explain.origin_of(ranked, head),
            ranked=ranked,
            replaced=replaced,
            reasons=explain.reasons(self._words(), ranked, head, replaced, newer_than_index=newer),
            newer_than_index=newer,
        )

    # --- 5. The verdict ---------------------------------------------------------------------------------------------

    def _conclude(self, hits: list[Hit]) -> Answer:
        evidence_gate = sum(reason == HeldBack.EVIDENCE for reason in self._suppressed_late.values())
        evidence = self._evidence(len(hits), evidence_gate)
        decision = abstain.decide(evidence, self._profile.abstention)
        abstains = decision.confidence is Confidence.NONE
        return Answer(
            hits=() if abstains else tuple(hits),
            verdict=decision,
            rejected=tuple(hits) if abstains and self._question.include_rejected else (),
            suppressed=self._suppressed(),
            token=self._token,
            ledger_position=self._position,
            index_position=self._applied,
            support=self._support,
            support_z=evidence.support_z,
            degraded=tuple(Degradation(part, reason) for part, reason in self._degraded.items()),
            profile=self._profile.id,
            valid_at=self._question.valid_at or self._now,
            known_at=self._question.known_at or self._now,
        )

    def _evidence(self, hits: int, evidence_gate: int) -> abstain.Evidence:
        gone = self._suppressed_late
        live = [r for r in self._ranked if r.family not in gone]
        held = list(self._held)
        held += [
            Held(r.family, gone[r.family], r.best) for r in self._ranked if gone.get(r.family) == HeldBack.EVIDENCE
        ]
        held.sort(key=lambda h: -h.score.final)
        z = abstain.support_z(self._support)
        pool = [*(r.best for r in self._ranked), *(h.score for h in self._held)] if z is None else []
        return abstain.Evidence(
            support_z=z,
            strength=max((strength(s.candidate) for s in pool), default=0.0),
            exact=any(r.family in self._exact or _new_and_matching(r) for r in live),
            live_best=live[0].best.final if live else None,
            held=held,
            hits=hits,
            evidence_gate=evidence_gate,
            anything_stored=self._stored,
            fresh=self._fresh,
        )

    def _only_exact(self) -> bool:
        """Return whether the exact matches alone are the answer: all else is below the threshold."""
        evidence = self._evidence(0, 0)
        if not evidence.exact or self._question.include_rejected:
            return False
        without = abstain.relevance(replace(evidence, exact=False), self._profile.abstention)
        return without in {abstain.Relevance.BELOW, abstain.Relevance.OUT_OF_SCOPE}

    def _suppressed(self) -> dict[str, int]:
        reasons = {family: reason for family, reason in self._verdicts.items() if reason}
        reasons.update(self._suppressed_late)
        counts: dict[str, int] = {}
        for reason in reasons.values():
            counts[str(reason)] = counts.get(str(reason), 0) + 1
        return dict(sorted(counts.items()))

    # --- Small things -----------------------------------------------------------------------------------------------

    def _add(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            self._candidates.setdefault((candidate.family, candidate.revision), self._by_ways_asked(candidate))

    def _by_ways_asked(self, candidate: Candidate) -> Candidate:
        """Return the candidate without the scores of ways that were not asked for: the index sends all it has."""
        if candidate.from_ledger or self._all_scores:
            return candidate
        return replace(
            candidate,
            dense=candidate.dense if Branch.DENSE in self._branches else None,
            sparse=candidate.sparse if Branch.SPARSE in self._branches else None,
            structural=candidate.structural if Branch.STRUCTURAL in self._branches else (),
        )

    def _learn(self, heads: Mapping[str, LedgerHead], token: str, position: int) -> None:
        self._heads.update(heads)
        self._note(token, position)

    def _note(self, token: str, position: int) -> None:
        # The answer names the newest state that its hits were checked against.
        if position >= self._position:
            self._token, self._position = token, position

    def _freshness_token(self) -> str:
        return self._token or self._question.token

    def _degrade(self, part: str, reason: str) -> None:
        self._degraded.setdefault(part, reason)

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _words(self) -> Sequence[tuple[str, frozenset[str]]]:
        if self._spelled is None:
            self._spelled = lexical.spelled_words(self._question.text)
        return self._spelled

    def _query_terms(self) -> list[str]:
        if self._terms is None:
            self._terms = lexical.query_terms(self._question.text)
        return self._terms


def _from_ledger(head: LedgerHead, score: float, names: Sequence[str]) -> Candidate:
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


def _new_and_matching(ranked: Ranked) -> bool:
    own = ranked.own
    if own is None or not own.candidate.from_ledger:
        return False
    return (own.candidate.sparse or 0.0) >= TAIL_MATCH


def _why(error: DomainError) -> str:
    if error.reason is Reason.DEADLINE:
        return "it did not answer in time; words were matched against the ledger instead"
    if error.reason is Reason.DEPENDENCY_UNAVAILABLE:
        return "it does not answer; words were matched against the ledger instead"
    get_logger("retrieval").warning("index_refused", reason=error.reason.value, message=error.message)
    return f"it refused ({error.reason.value}); words were matched against the ledger instead"
