"""A naive oracle of one timeline: a table of every moment of a little world, repainted by hand at every change."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

FOREVER = 10_000
"""No end; later than every tick of every table."""
ENDED_FOR_GOOD = {"INVALIDATED", "DEPRECATED"}


@dataclass
class Table:
    """Knows which revision covers each tick, how far each revision may reach by itself, and why it ends there."""

    ticks: int
    cells: list[str | None] = field(default_factory=list)
    """What covers each tick; the last cell is all the time after the last tick."""
    own_end: dict[str, int] = field(default_factory=dict)
    own_reason: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cells = self.cells or [None] * (self.ticks + 1)

    def copy(self) -> Table:
        """Return another table that says the same."""
        return Table(self.ticks, copy.copy(self.cells), dict(self.own_end), dict(self.own_reason))

    def paint(self, start: int, stop: int, revision: str | None) -> None:
        """Let one revision cover [start, stop)."""
        for index in range(start, min(stop, self.ticks + 1)):
            self.cells[index] = revision

    def span(self, revision: str) -> tuple[int, int] | None:
        """Where a revision holds."""
        if revision not in self.cells:
            return None
        start = self.cells.index(revision)
        length = self.cells.count(revision)
        return start, FOREVER if start + length > self.ticks else start + length

    def runs(self) -> list[tuple[str, int, int, str]]:
        """Every revision that holds at all, in order of time: start, end, and why it ends there."""
        found = []
        for revision in dict.fromkeys(cell for cell in self.cells if cell is not None):
            span = self.span(revision)
            assert span is not None
            by_itself = span[1] == self.own_end[revision]
            found.append((revision, *span, self.own_reason[revision] if by_itself else "REPLACED"))
        return found

    def publish(self, revision: str, start: int, stop: int) -> None:
        """Everything after the start goes; the revision holds until its end."""
        self.paint(start, FOREVER, None)
        self.paint(start, stop, revision)
        self._own(revision, stop)

    def end(self, at: int, reason: str = "INVALIDATED") -> bool:
        """Everything from here on goes, for good; says whether that changed anything."""
        changed = any(cell is not None for cell in self.cells[at:])
        before = self.cells[at - 1] if at else None
        self.paint(at, FOREVER, None)
        if before is not None and (changed or self.own_end[before] > at) and self.own_end[before] != at:
            self.own_end[before] = at
            self.own_reason[before] = reason
            changed = True
        return changed

    def expire(self, revision: str, stop: int) -> bool:
        """The revision's own end moves; says whether that is allowed."""
        span = self.span(revision)
        if span is None or self.own_reason[revision] in ENDED_FOR_GOOD:
            return False
        if stop <= span[0] or self.own_end[revision] == stop:
            return False
        after = range(span[1], self.ticks + 1)
        following = next((index for index in after if self.cells[index] is not None), FOREVER)
        self.paint(span[0], following, None)
        self.paint(span[0], min(stop, following), revision)
        self._own(revision, stop)
        return True

    def cancel(self, revision: str, now: int) -> bool:
        """The revision goes, and the one before it reaches as far as both ends allow; says whether it is allowed."""
        span = self.span(revision)
        if span is None or span[0] <= now:
            return False
        start, stop = span
        before = self.cells[start - 1] if start else None
        self.paint(start, stop, None)
        if before is not None and self.own_end[before] > start:
            self.paint(start, min(self.own_end[before], stop), before)
            if stop == self.own_end[revision] and stop < self.own_end[before]:
                self.own_end[before] = stop
                self.own_reason[before] = self.own_reason[revision]
        return True

    def _own(self, revision: str, stop: int) -> None:
        self.own_end[revision] = stop
        self.own_reason[revision] = "OPEN" if stop == FOREVER else "EXPIRED"
