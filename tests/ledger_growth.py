"""Long histories soon: records as their commits would leave them, stored through the port without the ceremony."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from ledger_svc.domain.model import ChangeSet, Family, Head, Revision, TimelineRow
from ledger_svc.domain.state import State, StateNeeds
from ledger_svc.group import Decided
from ledger_svc.state import BEGINNING, StateQuery, WorkingState
from ledger_svc.store import LedgerStore


@dataclass(frozen=True, slots=True)
class _Write:
    """Stores records without the ceremony of their commits, so that a long history is there soon."""

    project_id: str
    change: Callable[[WorkingState], ChangeSet]
    query: StateQuery

    def needs(self, _working: WorkingState) -> StateQuery:
        """Ask for what the change is made from."""
        return self.query

    def decide(self, working: WorkingState) -> Decided[None]:
        """Make it."""
        return Decided(None, (self.change(working),))


def _state(working: WorkingState) -> State:
    if working.state is None:
        raise LookupError("the project does not exist")
    return working.state


async def grow(store: LedgerStore, family_id: str, first: int, count: int) -> None:
    """Lengthen the history of one family by revisions, each in force from a microsecond after the last one."""
    step = timedelta(microseconds=1)

    def change(working: WorkingState) -> ChangeSet:
        state = _state(working)
        head = state.heads[family_id, "main"]
        last: Revision = state.revisions[head.revision_id]
        before = max(state.rows[family_id, "main"], key=lambda row: row.valid_from)
        position, begins = state.position, before.valid_from
        revisions: list[Revision] = []
        opened: list[TimelineRow] = []
        row = before
        for number in range(first, first + count):
            begins, position = begins + step, position + 1
            ident = f"11111111-0000-7000-8000-{number:012x}"
            last = replace(
                last,
                revision_id=ident,
                number=last.number + 1,
                parents=(last.revision_id,),
                position=position,
                recorded_at=last.recorded_at + step,
                valid_from=begins,
            )
            revisions.append(last)
            known = {"opened_position": position, "recorded_from": last.recorded_at}
            if row is not before:
                opened.append(replace(row, recorded_to=last.recorded_at, closed_position=position))
            opened.append(replace(row, valid_to=begins, **known))
            row = replace(row, revision_id=ident, valid_from=begins, valid_to=None, **known)
        closed = replace(before, recorded_to=revisions[0].recorded_at, closed_position=revisions[0].position)
        changed = Head(family_id, "main", last.revision_id, last.number, position, last.recorded_at)
        return ChangeSet(
            state.project_id,
            last.recorded_at,
            position,
            (),
            revisions=tuple(revisions),
            rows_closed=(closed,),
            rows_opened=(*opened, row),
            heads=(changed,),
        )

    needs = StateNeeds("p1", heads=frozenset({(family_id, "main")}))
    await _store(store, _Write("p1", change, StateQuery(needs, BEGINNING.replace(year=9000))))


async def spread(store: LedgerStore, like: tuple[Family, Revision, TimelineRow], first: int, count: int) -> None:
    """Add families with one revision each."""
    family, revision, row = like

    def change(working: WorkingState) -> ChangeSet:
        state = _state(working)
        position = state.position + 1
        families, revisions, rows, heads = [], [], [], []
        for number in range(first, first + count):
            own, ident = f"22222222-0000-7000-8000-{number:012x}", f"33333333-0000-7000-8000-{number:012x}"
            families.append(replace(family, family_id=own, identity_key="", created_position=position))
            revisions.append(replace(revision, revision_id=ident, family_id=own, position=position))
            rows.append(replace(row, family_id=own, revision_id=ident, opened_position=position))
            heads.append(Head(own, "main", ident, 1, position, revision.recorded_at))
        return ChangeSet(
            state.project_id,
            revision.recorded_at,
            position,
            (),
            families=tuple(families),
            revisions=tuple(revisions),
            rows_opened=tuple(rows),
            heads=tuple(heads),
        )

    await _store(store, _Write("p1", change, StateQuery(StateNeeds("p1"), BEGINNING)))


async def _store(store: LedgerStore, write: _Write) -> None:
    (outcome,) = await store.decide([write])
    if outcome.error is not None:
        raise outcome.error
