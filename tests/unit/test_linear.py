"""The checks of a recorded history find what is wrong with one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.linear import Call, head_problems, order_problems, position_problems, race_problems

LOST = frozenset({"HEAD_MOVED"})
HEADS = {("f0", "main"): "f0-r0", ("f1", "main"): "f1-r0"}


def history() -> list[Call]:
    """Thirty races of three clients for two heads, as a ledger that keeps its promises answers them."""
    chance = random.Random(5)
    heads = dict(HEADS)
    calls: list[Call] = []
    now = 0.0
    for race in range(30):
        head = (f"f{race % 2}", "main")
        winner = chance.randrange(3)
        expected = heads[head]
        heads[head] = f"{head[0]}-r{race + 1}"
        for runner in range(3):
            began = now + chance.random()
            call = Call(race, began, now + 1 + chance.random(), head, expected, reason="HEAD_MOVED")
            if runner == winner:
                call = replace(call, position=race + 5, revision=heads[head], reason="")
            calls.append(call)
        # The next race begins before the last answer is there: only some pairs are ordered in time.
        now += 1.5
    chance.shuffle(calls)
    return calls


def found(calls: list[Call]) -> list[str]:
    """All problems."""
    return [*head_problems(calls, HEADS), *order_problems(calls), *position_problems(calls, 5),
            *race_problems(calls, LOST)]  # fmt: skip


def test_a_history_that_keeps_the_promises_has_no_problem() -> None:
    """L2, L14: no false alarm."""
    assert found(history()) == []


def _winner(calls: list[Call], race: int) -> int:
    return next(index for index, call in enumerate(calls) if call.race == race and call.won)


def _loser(calls: list[Call], race: int) -> int:
    return next(index for index, call in enumerate(calls) if call.race == race and not call.won)


def _lost_update(calls: list[Call]) -> None:
    """A commit on a head that another one had replaced already."""
    at, before = _winner(calls, 12), _winner(calls, 10)
    calls[at] = replace(calls[at], expected=calls[before].expected)


def _two_winners(calls: list[Call]) -> None:
    at = _loser(calls, 29)
    calls[at] = replace(calls[at], position=35, revision="f1-other", reason="")


def _no_winner(calls: list[Call]) -> None:
    at = _winner(calls, 29)
    calls[at] = replace(calls[at], position=0, revision="", reason="HEAD_MOVED")


def _swapped(calls: list[Call]) -> None:
    """Two commits of different heads stand in an order that their clients saw the other way round."""
    one, other = _winner(calls, 3), _winner(calls, 8)
    first, second = calls[one].position, calls[other].position
    calls[one], calls[other] = replace(calls[one], position=second), replace(calls[other], position=first)


def _gap(calls: list[Call]) -> None:
    at = _winner(calls, 29)
    calls[at] = replace(calls[at], position=99)


def _twice(calls: list[Call]) -> None:
    one, other = _winner(calls, 28), _winner(calls, 29)
    calls[other] = replace(calls[other], position=calls[one].position)


def _odd_answer(calls: list[Call]) -> None:
    at = _loser(calls, 4)
    calls[at] = replace(calls[at], reason="INTERNAL")


def _early_loser(calls: list[Call]) -> None:
    winner, loser = _winner(calls, 4), _loser(calls, 4)
    calls[loser] = replace(calls[loser], answered=calls[winner].began - 0.01)


@pytest.mark.parametrize(
    ("doctor", "text"),
    [
        (_lost_update, "was made on"),
        (_two_winners, "2 winners"),
        (_no_winner, "0 winners"),
        (_swapped, "was asked for after"),
        (_gap, "positions [34, 99]"),
        (_twice, "positions [34]"),
        (_odd_answer, "INTERNAL"),
        (_early_loser, "before the winner began"),
    ],
)
def test_a_doctored_history_is_found(doctor: object, text: str) -> None:
    """L2, L14: each promise that is broken once, in one call of ninety, is named."""
    calls = history()
    assert callable(doctor)
    doctor(calls)
    assert any(text in problem for problem in found(calls))
