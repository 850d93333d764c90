"""Checks of a recorded concurrent history of applies: is there one order that explains every answer?

A ledger says which order it was: the positions. So the check is linear: each commit must have been made on the head
that the commit before it left, and whoever was answered before another began must come before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FamilyBranch = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """One apply as its client saw it."""

    race: int
    """Calls of one race are made on the same heads: exactly one of them can win."""
    began: float
    answered: float
    """On the same clock as ``began``."""
    head: FamilyBranch
    expected: str
    """The revision that was the head when it was proposed; empty when there was none."""
    position: int = 0
    """Of its commit; 0 for a refusal."""
    revision: str = ""
    """That it published; empty for a refusal."""
    reason: str = ""
    """Of a refusal."""

    @property
    def won(self) -> bool:
        """Whether it was a commit."""
        return self.position > 0


def head_problems(calls: Iterable[Call], heads: Mapping[FamilyBranch, str]) -> list[str]:
    """Name every commit whose expected head is not what the commit before it, in order of position, had published.

    Args:
        calls: The history.
        heads: The heads before it; a (family, branch) that is not named had none.
    """
    now = dict(heads)
    problems = []
    for call in sorted((one for one in calls if one.won), key=lambda one: one.position):
        if call.expected != now.get(call.head, ""):
            problems.append(f"commit {call.position} was made on {call.expected}, the head was {now.get(call.head)}")
        now[call.head] = call.revision
    return problems


def order_problems(calls: Sequence[Call]) -> list[str]:
    """Name every commit that comes before one whose client had its answer before this one was asked for."""
    won = [call for call in calls if call.won]
    by_answer = sorted(won, key=lambda call: call.answered)
    problems = []
    highest, index = 0, 0
    for call in sorted(won, key=lambda call: call.began):
        while index < len(by_answer) and by_answer[index].answered < call.began:
            highest = max(highest, by_answer[index].position)
            index += 1
        if call.position < highest:
            problems.append(f"commit {call.position} was asked for after commit {highest} was answered")
    return problems


def position_problems(calls: Iterable[Call], first: int) -> list[str]:
    """Name positions that are missing or given twice; the history's first one is given."""
    found = sorted(call.position for call in calls if call.won)
    wanted = list(range(first, first + len(found)))
    return [] if found == wanted else [f"positions {sorted(set(found) ^ set(wanted))} are missing, too many or twice"]


def race_problems(calls: Iterable[Call], losers: frozenset[str]) -> list[str]:
    """Name every race without exactly one winner, and every loser that had another answer than that it lost.

    A loser that was answered before its winner began lost against nobody.
    """
    races: dict[int, list[Call]] = {}
    for call in calls:
        races.setdefault(call.race, []).append(call)
    problems = []
    for race, runners in races.items():
        won = [call for call in runners if call.won]
        if len(won) != 1:
            problems.append(f"race {race} has {len(won)} winners")
            continue
        for call in runners:
            if call.won:
                continue
            if call.reason not in losers:
                problems.append(f"race {race}: a loser was told {call.reason}")
            if call.answered < won[0].began:
                problems.append(f"race {race}: a loser was answered before the winner began")
    return problems
