"""The pipeline: a question through its stages, in the order in which they happen.

1. ``_find``: candidates from the index, fused and weighed; from the ledger alone when the index does not answer.
2. ``_check``: what the ledger says about them, the best first, and what replaced them; the commits that the index has
   not seen when the question asks for them.
3. ``_widen``: more candidates until ``limit`` families may be shown or there are no more.
4. ``_confirm``: the heads that will be shown, whole.
5. ``_conclude``: whether that answers the question.

The stages that decide (fusion, composite, reconcile, succession, exact, abstain, explain) are pure and know nothing of
each other; :mod:`retrieval_svc.findings` holds what they know of one search. On the usual path this makes one call to
the index and one to the ledger; a cheap second one when fewer were found than asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from retrieval_svc import abstain, explain, lexical
from retrieval_svc.domain import (
    ANSWERS,
    Answer,
    Candidate,
    Confidence,
    Hit,
    IndexAnswer,
    LedgerHead,
    Question,
    Ranked,
    State,
    View,
)
from retrieval_svc.findings import Findings, matched_here
from retrieval_svc.index_client import MAX_CANDIDATES, CandidateSource
from retrieval_svc.ledger_client import LedgerReader
from retrieval_svc.profiles import Profile
from retrieval_svc.reconcile import verdict
from service_kit.clock import Clock
from service_kit.errors import DomainError, Reason
from service_kit.logs import get_logger

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
    """One search: the steps that add to what is known."""

    def __init__(self, pipeline: Pipeline, question: Question, profile: Profile, seconds: float) -> None:
        self._ledger, self._index, self._bounds = pipeline.ledger, pipeline.index, pipeline.bounds
        self._question, self._profile = question, profile
        self._deadline = time.monotonic() + seconds
        self._now = pipeline.clock.now()
        self._found = Findings(question, profile, (question.valid_at or self._now).timestamp())
        self._index_answers = True
        self._exhausted = True
        self._scanned = False
        self._tail_read = False
        self._index_lost = False
        self._terms: list[str] | None = None
        self._spelled: Sequence[tuple[str, frozenset[str]]] | None = None

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
        answer = await self._ask_index(limit, in_force_only=False, measure_support=True)
        if answer is None:
            self._index_answers = False
            await self._scan()
            return
        self._found.support = answer.support
        self._found.standing.applied_position = answer.applied_position
        self._found.add(answer.candidates)

    async def _ask_index(self, limit: int, *, in_force_only: bool, measure_support: bool) -> IndexAnswer | None:
        """Return what the index finds; None when it does not answer. Half of the time is kept for the ledger."""
        seconds = min(self._bounds.index_timeout_seconds, self._left() / 2)
        if seconds <= 0:
            self._found.degrade("index", "no time was left to ask it")
            return None
        try:
            answer = await self._index.search(
                self._question,
                self._found.branches,
                limit=limit,
                in_force_only=in_force_only,
                measure_support=measure_support,
                timeout_seconds=seconds,
            )
        except DomainError as error:
            if error.reason in _CALLERS_FAULT:
                raise
            self._found.degrade("index", _why(error))
            return None
        for item in answer.degraded:
            self._found.degrade(item.part, item.reason)
        self._exhausted = answer.exhausted
        return answer

    async def _scan(self) -> None:
        """Match the ledger's own texts, in place of an index that is down or misses something. Bounded in time."""
        self._scanned = True
        heads: dict[str, LedgerHead] = {}
        page, until = "", time.monotonic() + min(self._bounds.scan_seconds, 0.7 * self._left())
        # One token for all pages: a page token belongs to the arguments that it was made for.
        token = self._freshness_token()
        while True:
            answer = await self._ledger.query(
                self._question, _ALL_STATES, View.BASIC, page_size=_SCAN_PAGE, page=page, token=token
            )
            heads.update(answer.by_family)
            self._found.standing.note(answer.token, answer.position)
            page = answer.next_page
            if not page:
                break
            if time.monotonic() > until or len(heads) >= self._bounds.scan_heads:
                self._found.degrade("ledger_scan", f"only the first {len(heads)} memories were looked at")
                break
        self._found.stored = self._found.stored or bool(heads)
        order = list(heads.values())
        texts = [h.detail.text if h.detail else "" for h in order]
        scores = await asyncio.to_thread(lexical.bm25, self._query_terms(), texts)
        best = sorted(zip(scores, order, strict=True), key=lambda pair: (-pair[0], pair[1].family))
        kept = [(score, head) for score, head in best if score > 0.0][: 2 * self._profile.candidates]
        names = lexical.names(self._question.text)
        self._found.add([matched_here(head, score, names) for score, head in kept])

    # --- 2. The ledger's word ---------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Ask the ledger about what was found, the best first, until the order of what will be shown is settled."""
        found = self._found
        found.score()
        families, view = found.next_look()
        await self._ask_ledger(families, view)
        if self._index_answers and found.standing.applied_position > found.standing.ledger_position:
            # From another history of the ledger: its word on what it has seen means nothing.
            found.degrade("index", "it claims commits that the ledger does not have; rebuild it")
            found.standing.applied_position = 0
            self._index_lost = True
        behind = self._question.token_position > found.standing.applied_position
        if behind and not self._scanned and not self._tail_read:
            await self._read_tail()
            found.score()
        found.rank()
        while True:
            families, view = found.next_look()
            if not families:
                break
            await self._ask_ledger(families, view)
            found.rank()
        if found.broken:
            await self._repair()

    async def _ask_ledger(self, families: Sequence[str], view: View) -> None:
        if families:
            answer = await self._ledger.heads(self._question, families, view, token=self._freshness_token())
            self._found.learn(answer.by_family, families)
            self._found.standing.note(answer.token, answer.position)
        elif not self._found.standing.token:
            # Nothing was found: the ledger still says where it stands, and whether there is anything.
            await self._look_for_anything()

    async def _look_for_anything(self) -> None:
        """Tell an empty project from one in which nothing was found."""
        token = self._freshness_token()
        answer = await self._ledger.query(self._question, _ALL_STATES, View.STATE, page_size=1, token=token)
        self._found.standing.note(answer.token, answer.position)
        self._found.stored = self._found.stored or bool(answer.by_family)

    async def _read_tail(self) -> None:
        """Add the memories that commits changed since the index last looked. The question's token asks for them."""
        self._tail_read = True
        project, after = self._question.project, self._found.standing.applied_position
        try:
            async with asyncio.timeout(max(0.0, 0.6 * self._left())):
                tail = await self._ledger.tail(project, after, at_most=self._bounds.tail_commits)
                if not tail.complete:
                    self._found.fresh = False
                    return
                new = await self._match_here(tail.families)
        except TimeoutError:
            self._found.fresh = False
        except DomainError as error:
            if error.reason not in _OUT_OF_TIME:
                raise
            self._found.fresh = False
        else:
            if new:
                reason = f"{new} memories that the index does not hold yet were matched by their words only"
                self._found.degrade("tail", reason)

    async def _repair(self) -> None:
        """Match here what the index holds with a wrong hash: its score there was of something else."""
        broken = self._found.drop_broken()
        self._found.degrade("index", f"{len(broken)} memories are not as the ledger has them; run a repair")
        await self._match_here(broken)
        self._found.score()
        self._found.rank()

    async def _match_here(self, families: Sequence[str]) -> int:
        """Match the present text of families that the index knows otherwise or not at all; return how many."""
        if not families:
            return 0
        view = View.FULL if self._question.min_evidence else View.BASIC
        answer = await self._ledger.heads(self._question, families, view, token=self._freshness_token())
        self._found.learn(answer.by_family, families)
        self._found.standing.note(answer.token, answer.position)
        names, made = lexical.names(self._question.text), list[Candidate]()
        new = [h for f in families if (h := answer.by_family.get(f)) is not None and not self._found.knows_text(h)]
        for head in new:
            score = lexical.coverage(self._query_terms(), head.detail.text if head.detail else "")
            if score > 0.0:
                made.append(matched_here(head, score, names))
        self._found.mend(made)
        return len(new)

    # --- 3. Enough of them ------------------------------------------------------------------------------------------

    async def _widen(self) -> None:
        """Ask for more until there are as many live families as hits were asked for, or no more to find."""
        in_force_only = self._question.states == ANSWERS
        limits = [min(MAX_CANDIDATES, max(100, 4 * self._question.limit)), MAX_CANDIDATES]
        while self._index_answers and not self._exhausted and self._too_few() and limits and not self._found.is_off():
            answer = await self._ask_index(limits.pop(0), in_force_only=in_force_only, measure_support=False)
            if answer is None:
                return
            self._found.add(answer.candidates)
            await self._check()

    def _too_few(self) -> bool:
        return len(self._found.ranked) < self._question.limit

    # --- 4. What will be shown --------------------------------------------------------------------------------------

    async def _confirm(self) -> list[Hit]:
        """Return what will be shown. Where there is room left, see whether the ledger has what the index forgot."""
        if self._found.is_off():
            return []
        # Only the dense branch returns whatever there is; the others leave out what has no word in common.
        if self._too_few() and not self._scanned and self._found.dense_works() and await self._ledger_has_more():
            await self._scan()
            await self._check()
        return await self._read_hits()

    async def _ledger_has_more(self) -> bool:
        """Return whether the ledger has a live family that was not found."""
        question, standing = self._question, self._found.standing
        answer = await self._ledger.query(
            question, question.states, View.STATE, page_size=question.limit, token=standing.token
        )
        missed = answer.by_family.keys() - self._found.known_live_or_held()
        if missed and standing.applied_position >= answer.position:
            self._found.degrade("index", "it misses memories that the ledger has; run a repair")
        return bool(missed)

    async def _read_hits(self) -> list[Hit]:
        found, limit = self._found, self._question.limit
        order = found.shown_order()
        hits: list[Hit] = []
        while order and len(hits) < limit:
            chunk, order = order[: limit - len(hits)], order[limit - len(hits) :]
            named = dict.fromkeys(f for r in chunk for f in (r.family, *r.lenders))
            await self._read_whole([f for f in named if found.heads[f].view is not View.FULL])
            hits += [hit for r in chunk if (hit := self._hit(r)) is not None]
        return hits

    async def _read_whole(self, families: Sequence[str]) -> None:
        if families:
            await self._ask_ledger(families, View.FULL)

    def _hit(self, ranked: Ranked) -> Hit | None:
        """Return the hit, judged by the head that will be shown: it may have changed since it was ranked."""
        found, head = self._found, self._found.heads[ranked.family]
        why_not = verdict(head, self._question)
        if why_not:
            found.set_aside(ranked.family, why_not)
            return None
        newer = not self._scanned and found.newer_than_index(head)
        replaced = explain.replaced_by_hit(ranked, head, found.heads)
        return Hit(
            head=head,
            origin=explain.origin_of(ranked, head),
            ranked=ranked,
            replaced=replaced,
            reasons=explain.reasons(self._query_words(), ranked, head, replaced, newer_than_index=newer),
            newer_than_index=newer,
        )

    # --- 5. The verdict ---------------------------------------------------------------------------------------------

    def _conclude(self, hits: list[Hit]) -> Answer:
        found, standing = self._found, self._found.standing
        # What was read from the ledger itself is seen; an index of another history does not catch up.
        seen = self._scanned or (self._tail_read and found.fresh) or self._index_lost
        behind = 0 if seen else max(0, standing.ledger_position - standing.applied_position)
        evidence = replace(found.evidence(len(hits)), behind=behind)
        decision = abstain.decide(evidence, self._profile.abstention)
        abstains = decision.confidence is Confidence.NONE
        return Answer(
            hits=() if abstains else tuple(hits),
            verdict=decision,
            rejected=tuple(hits) if abstains and self._question.include_rejected else (),
            suppressed=found.suppressed(),
            token=standing.token,
            ledger_position=standing.ledger_position,
            index_position=standing.applied_position,
            support=found.support,
            support_z=evidence.support_z,
            degraded=found.degraded(),
            profile=self._profile.id,
            valid_at=self._question.valid_at or self._now,
            known_at=self._question.known_at or self._now,
        )

    # --- Small things -----------------------------------------------------------------------------------------------

    def _freshness_token(self) -> str:
        return self._found.standing.token or self._question.token

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _query_terms(self) -> list[str]:
        if self._terms is None:
            self._terms = lexical.query_terms(self._question.text)
        return self._terms

    def _query_words(self) -> Sequence[tuple[str, frozenset[str]]]:
        if self._spelled is None:
            self._spelled = lexical.spelled_words(self._question.text)
        return self._spelled


def _why(error: DomainError) -> str:
    if error.reason is Reason.DEADLINE:
        return "it did not answer in time; words were matched against the ledger instead"
    if error.reason is Reason.DEPENDENCY_UNAVAILABLE:
        return "it does not answer; words were matched against the ledger instead"
    get_logger("retrieval").warning("index_refused", reason=error.reason.value, message=error.message)
    return f"it refused ({error.reason.value}); words were matched against the ledger instead"
