"""Asks the off-topic bank of a corpus, so that the support of a question can be compared with that of nonsense.

Runs in the background after a corpus changed noticeably; searches meanwhile use the calibration before.
"""

from __future__ import annotations

import asyncio
from typing import Final

from index_svc.domain import search_filter
from index_svc.search import Question, Searcher, Way
from index_svc.state import StateStore
from index_svc.support import Calibration, calibrate, offtopic_questions

CANDIDATES: Final = 50


class Calibrator:
    """Keeps the calibrations of one state up to date.

    The bank's questions are embedded once per process; asking all of them takes about a third of a second at 10,000
    memories, in steps of a few milliseconds between which the event loop serves others.
    """

    def __init__(self, searcher: Searcher, state: StateStore) -> None:
        self._searcher = searcher
        self._state = state
        self._questions: list[Question] = []

    def outdated(self, project: str) -> tuple[str, ...]:
        """Return the branches whose corpus changed noticeably since their calibration."""
        found: list[str] = []
        for branch in self._state.branches(project):
            centre = self._state.centre(project, branch)
            known = self._state.calibration(project, branch)
            if centre is not None and (known is None or known.is_outdated(centre.documents)):
                found.append(branch)
        return tuple(found)

    async def calibrate(self, project: str, branch: str, *, now: int) -> Calibration | None:
        """Ask the bank and keep the result; None when the corpus is empty or the embedder does not work."""
        await self._searcher.prepare()
        centre = self._state.centre(project, branch)
        questions = await self._bank()
        if centre is None or not questions:
            return None
        where = search_filter(project, branch, now=now)
        totals: list[float] = []
        for question in questions:
            result = await self._searcher.search(question, where, limit=CANDIDATES, ways=(Way.DENSE, Way.SPARSE))
            scores = {f.point.text_hash: f.scores for f in result.found if f.scores is not None}
            totals.append(self._searcher.support(project, branch, question, scores).total)
            await asyncio.sleep(0)  # the engine's calls are short, but a hundred in a row are not
        calibration = calibrate(totals, centre.documents)
        if calibration is not None:
            self._state.save_calibration(project, branch, calibration)
        return calibration

    async def _bank(self) -> list[Question]:
        if not self._questions:
            self._questions = await self._searcher.ask_many([text for _, text in offtopic_questions()])
        return self._questions
