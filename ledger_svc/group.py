"""Group commit without input or output: decides waiting decisions one after another against one locked state.

An adapter drives :func:`run_group` within one transaction that holds the project's lock: it answers every ``Load`` by
filling the working state, every ``Persist`` by writing, and commits at the end. So the order of decisions, what a
loser of a race gets and what is written are the same for every store.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ledger_svc.domain.errors import DomainError
from ledger_svc.state import Change, StateQuery, WorkingState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decided(Generic[T]):
    """What a decision came to."""

    result: T
    changes: tuple[Change, ...] = ()


class Refused(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """A decision that refuses, and yet leaves something behind: an audit entry, a STALE proposal."""

    def __init__(self, error: Exception, changes: tuple[Change, ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.changes = changes


class Decision(Protocol[T]):
    """One unit of work on one project: all of its changes are persisted, or none."""

    @property
    def project_id(self) -> str:
        """The project that is locked for it."""

    def needs(self, state: WorkingState) -> StateQuery:
        """Return what it must see. Asked again after each load, until nothing more is missing."""

    def decide(self, state: WorkingState) -> Decided[T]:
        """Decide.

        Raises:
            Refused: The answer is an error, and there is something to persist.
            Exception: The answer is that error; nothing is persisted.
        """


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one decision."""

    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Fill the working state with what the query names."""

    query: StateQuery


@dataclass(frozen=True, slots=True)
class Persist:
    """Write these, in order, within the open transaction."""

    changes: tuple[Change, ...]


def run_group(
    state: WorkingState, decisions: Sequence[Decision[Any]]
) -> Generator[Load | Persist, None, list[Outcome]]:
    """Decide all, in order; yield what the adapter must do in between."""
    # One round for what all of them ask for at first saves a round trip for each.
    yield from _prefetch(state, decisions)
    outcomes: list[Outcome] = []
    waiting: list[Change] = []
    for decision in decisions:
        try:
            while True:
                missing = state.missing(decision.needs(state))
                if missing is None:
                    break
                # What is read must include what was decided before.
                if waiting:
                    yield Persist(tuple(waiting))
                    waiting.clear()
                yield Load(missing)
            decided = decision.decide(state)
        except Refused as refusal:
            outcomes.append(Outcome(error=refusal.error))
            changes = refusal.changes
        except DomainError as error:
            outcomes.append(Outcome(error=error))
            continue
        except Exception as error:  # noqa: BLE001 - a bug in one decision is that one's answer, not its neighbours'
            outcomes.append(Outcome(error=error))
            continue
        else:
            outcomes.append(Outcome(result=decided.result))
            changes = decided.changes
        for change in changes:
            state.put(change)
            waiting.append(change)
    if waiting:
        yield Persist(tuple(waiting))
    return outcomes


def _prefetch(state: WorkingState, decisions: Sequence[Decision[Any]]) -> Generator[Load | Persist, None, None]:
    # Twice: the proposals that decisions name say which heads they need.
    for _ in range(2):
        asked: list[StateQuery] = []
        for decision in decisions:
            try:
                asked.append(decision.needs(state))
            except Exception:  # noqa: BLE001, S112 - it is asked again when its turn comes, and answers then
                continue
        missing = state.missing(StateQuery.union(asked)) if asked else None
        if missing is None:
            return
        yield Load(missing)
