"""Reads of published knowledge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from ledger_svc.domain.diff import FieldOrigin, blame, diff_contents, lineage
from ledger_svc.domain.model import (
    Commit,
    Evidence,
    Family,
    FieldChange,
    MemoryState,
    Relation,
    RelationKind,
    Revision,
)
from ledger_svc.service.context import Ledger
from ledger_svc.service.spreading import Activation, spread
from ledger_svc.service.standing import state_of_head
from ledger_svc.views import (
    ChangesView,
    Detail,
    HeadsPageQuery,
    HeadsQuery,
    HeadsRead,
    HeadView,
    HistoryStep,
    ProjectionKey,
    ProjectionView,
    RelationsQuery,
    RevisionView,
)
from service_kit import names
from service_kit.errors import DomainError, Reason, invalid, not_found
from service_kit.principals import Principal as Caller

MOST_IN_GRAPH: Final = 200
_LINEAGE_KINDS: Final = frozenset(RelationKind)
_SCAN_PAGES: Final = 20
"""How many pages of families are looked through for one page of heads before a short page is returned."""
_HISTORY_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Graph:
    """Families around a family."""

    heads: tuple[HeadView, ...]
    relations: tuple[Relation, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Blamed:
    """Who set which field."""

    origins: tuple[FieldOrigin, ...]
    revisions: dict[str, Revision]
    evidence: dict[str, Evidence]


class ReadService:
    """What is published, was published, and will be."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._store = ledger.store

    async def family(self, caller: Caller, project_id: str, family_id: str, identity_key: str, fresh: int) -> Family:
        """Return a family by id or identity key."""
        await self._enter(caller, project_id, fresh)
        if family_id:
            found = await self._store.family(project_id, family_id)
        else:
            found = await self._store.family_by_key(project_id, identity_key)
        if found is None:
            raise _no_family(project_id, family_id, identity_key)
        return found

    async def families(
        self, caller: Caller, project_id: str, scope: str, category: str, after: tuple[int, str], limit: int
    ) -> list[Family]:
        """Return families in order of creation."""
        await self._enter(caller, project_id)
        return await self._store.families(project_id, scope, category, after, limit)

    async def revision(self, caller: Caller, project_id: str, family_id: str, revision_id: str) -> RevisionView:
        """Return a revision with its evidence."""
        await self._enter(caller, project_id)
        found = await self._store.revision(project_id, revision_id)
        if found is None or found.revision.family_id != family_id:
            raise not_found(names.revision_name(project_id, family_id, revision_id))
        return found

    async def history(
        self,
        caller: Caller,
        project_id: str,
        family_id: str,
        branch: str,
        known_at: datetime | None,
        before_number: int,
        limit: int,
    ) -> list[HistoryStep]:
        """Return the history of a family on a branch, newest first."""
        await self._enter(caller, project_id)
        await self._must_exist(project_id, family_id)
        return await self._store.history(family_id, branch, known_at, before_number, limit)

    async def head(self, caller: Caller, query: HeadsQuery, fresh: int) -> tuple[HeadView, int]:
        """Return one head and the position that it is from."""
        read = await self.heads(caller, query, fresh)
        if not read.heads:
            family_id = query.family_ids[0] if query.family_ids else ""
            raise _no_family(query.project_id, family_id, next(iter(query.identity_keys), ""))
        return read.heads[0], read.position

    async def heads(self, caller: Caller, query: HeadsQuery, fresh: int) -> HeadsRead:
        """Return many heads from one snapshot."""
        await self._enter(caller, query.project_id, fresh)
        return await self._store.heads(query)

    async def heads_page(
        self, caller: Caller, query: HeadsPageQuery, states: frozenset[MemoryState], fresh: int
    ) -> tuple[list[HeadView], str, int]:
        """Return heads in the wanted states, the cursor of the next page (empty at the end), and the position."""
        await self._enter(caller, query.project_id, fresh)
        found: list[HeadView] = []
        position = 0
        for _ in range(_SCAN_PAGES):
            views, cursor, position = await self._store.heads_page(query)
            for view in views:
                if state_of_head(view, query.valid_at).state not in states:
                    continue
                found.append(view)
                if len(found) == query.limit:
                    return found, view.family.family_id, position
            if not cursor:
                return found, "", position
            query = replace(query, after_family=cursor)
        return found, query.after_family, position

    async def snapshot_moment(self, caller: Caller, project_id: str, fresh: int) -> datetime:
        """Return the moment of the ledger's clock that a list of several pages is read at: that of the last commit."""
        await self._enter(caller, project_id, fresh)
        view = await self._store.project(project_id)
        if view is None:
            raise not_found(names.project_name(project_id))
        return view.recorded_at

    async def diff(
        self, caller: Caller, project_id: str, older: tuple[str, str], newer: tuple[str, str]
    ) -> tuple[FieldChange, ...]:
        """Compare the contents of two revisions, each as (family id, revision id)."""
        first = await self.revision(caller, project_id, *older)
        second = await self.revision(caller, project_id, *newer)
        return diff_contents(first.revision.content, second.revision.content)

    async def blame(self, caller: Caller, project_id: str, family_id: str, branch: str, revision_id: str) -> Blamed:
        """Say for each field of a revision (the head when none is named) which revision set it."""
        await self._enter(caller, project_id)
        await self._must_exist(project_id, family_id)
        revisions: dict[str, Revision] = {}
        before = 2**31
        while steps := await self._store.history(family_id, branch, None, before, _HISTORY_PAGE):
            revisions.update({step.revision.revision_id: step.revision for step in steps})
            before = steps[-1].revision.number
            if len(steps) < _HISTORY_PAGE:
                break
        wanted = revision_id or await self._head_revision(project_id, family_id, branch)
        if wanted not in revisions:
            raise not_found(names.revision_name(project_id, family_id, wanted or "-"))
        origins = blame(lineage(wanted, revisions))
        links = {link.evidence_id for origin in origins for link in revisions[origin.revision_id].evidence_links}
        return Blamed(origins, revisions, await self._store.evidence_by_id(sorted(links)))

    async def _head_revision(self, project_id: str, family_id: str, branch: str) -> str:
        query = HeadsQuery(project_id, branch, self._ledger.now(), None, Detail.STATE, family_ids=(family_id,))
        read = await self._store.heads(query)
        return read.heads[0].head.revision_id if read.heads else ""

    # --- Relations --------------------------------------------------------------------------------------------------

    async def relations(self, caller: Caller, query: RelationsQuery) -> list[Relation]:
        """Return a page of relations."""
        await self._enter(caller, query.project_id)
        if query.family_id:
            await self._must_exist(query.project_id, query.family_id)
        return await self._store.relations(query)

    async def lineage(self, caller: Caller, project_id: str, family_id: str, branch: str, depth: int) -> Graph:
        """Return the graph around a family, nearest first."""
        await self._enter(caller, project_id)
        await self._must_exist(project_id, family_id)
        now = self._ledger.now()
        order, relations, truncated = {family_id: 0}, dict[str, Relation](), False
        frontier = [family_id]
        for step in range(1, depth + 1):
            found = await self._store.relations_of(frontier, branch, _LINEAGE_KINDS)
            frontier = []
            for relation in found:
                if relation.is_retired:
                    continue
                for end in (relation.source_id, relation.target_id):
                    if end not in order and len(order) < MOST_IN_GRAPH:
                        order[end] = step
                        frontier.append(end)
                    truncated = truncated or end not in order
                if relation.source_id in order and relation.target_id in order:
                    relations[relation.relation_id] = relation
            if not frontier:
                break
        query = HeadsQuery(project_id, branch, now, None, Detail.BASIC, family_ids=tuple(order))
        read = await self._store.heads(query)
        return Graph(read.heads, tuple(relations.values()), truncated)

    async def expand(
        self,
        caller: Caller,
        project_id: str,
        branch: str,
        seeds: Sequence[Activation],
        kinds: frozenset[RelationKind],
        depth: int,
        decay: float,
        limit: int,
        valid_at: datetime,
        known_at: datetime | None,
    ) -> tuple[list[Activation], bool]:
        """Spread activation over active relations, through families in force only."""
        await self._enter(caller, project_id)
        strongest = {seed.family_id: seed for seed in seeds}
        seed_ids = frozenset(strongest)
        active = await self._active(project_id, branch, seed_ids, valid_at, known_at)
        frontier = [seed for seed in seeds if seed.family_id in active]
        for step in range(1, depth + 1):
            ids = sorted(seed.family_id for seed in frontier)
            found = await self._store.relations_of(ids, branch, kinds)
            moment = known_at or datetime.max.replace(tzinfo=valid_at.tzinfo)
            holding = [relation for relation in found if relation.holds(valid_at, moment)]
            reached = spread(frontier, holding, decay, step)
            active = await self._active(project_id, branch, (a.family_id for a in reached), valid_at, known_at)
            frontier = []
            for activation in reached:
                known = strongest.get(activation.family_id)
                if activation.family_id not in active or (known and known.activation >= activation.activation):
                    continue
                strongest[activation.family_id] = activation
                frontier.append(activation)
            if not frontier:
                break
        others = [a for a in strongest.values() if a.family_id not in seed_ids]
        others.sort(key=lambda a: (-a.activation, a.depth, a.family_id))
        return others[:limit], len(others) > limit

    async def _active(
        self,
        project_id: str,
        branch: str,
        family_ids: Iterable[str],
        valid_at: datetime,
        known_at: datetime | None,
    ) -> frozenset[str]:
        """Return which families of the project are in force."""
        wanted = tuple(sorted(set(family_ids)))
        if not wanted:
            return frozenset()
        query = HeadsQuery(project_id, branch, valid_at, known_at, Detail.STATE, family_ids=wanted)
        read = await self._store.heads(query)
        return frozenset(
            view.family.family_id for view in read.heads if state_of_head(view, valid_at).state is MemoryState.ACTIVE
        )

    # --- Changes ----------------------------------------------------------------------------------------------------

    async def changes(self, caller: Caller, project_id: str, after_position: int, limit: int) -> ChangesView:
        """Return commits in order of position."""
        await self._enter(caller, project_id)
        return await self._store.changes(project_id, after_position, limit)

    async def watch(
        self, caller: Caller, project_id: str, after_position: int, heartbeat_seconds: float
    ) -> AsyncIterator[tuple[Commit | None, int]]:
        """Yield commits in order without a gap, for ever; None with the newest position as a heartbeat."""
        await self._enter(caller, project_id)
        head = await self._store.position(project_id) or 0
        if after_position > head:
            raise DomainError(
                Reason.INVALID_FIELD,
                f"after_position: {after_position} is after the newest position, {head}",
                metadata={"field": "after_position"},
                fields=invalid("after_position", f"the newest position is {head}").fields,
            )
        # At once, so that the reader knows that it is connected, and how far behind it is.
        yield None, head
        while True:
            version = self._store.version(project_id)
            view = await self._store.changes(project_id, after_position, _HISTORY_PAGE)
            for commit in view.commits:
                yield commit, view.position
                after_position = commit.position
            if view.commits:
                continue
            if not await self._store.changed(project_id, version, heartbeat_seconds):
                yield None, view.position

    # --- Projections ------------------------------------------------------------------------------------------------

    async def projections_page(
        self, caller: Caller, project_id: str, after: tuple[str, str], limit: int
    ) -> tuple[list[ProjectionView], tuple[str, str] | None, int]:
        """Return what an index holds, where the next page starts (None at the end), and the position."""
        await self._enter(caller, project_id)
        keys = await self._store.projection_keys(project_id, after, limit)
        views, position = await self._store.projections(project_id, keys)
        last = (keys[-1].family_id, keys[-1].branch) if len(keys) == limit else None
        return views, last, position

    async def projections(
        self, caller: Caller, project_id: str, keys: Sequence[ProjectionKey]
    ) -> tuple[list[ProjectionView], int]:
        """Return what an index holds of each key."""
        await self._enter(caller, project_id)
        return await self._store.projections(project_id, keys)

    # --- Helpers ----------------------------------------------------------------------------------------------------

    async def _enter(self, caller: Caller, project_id: str, fresh: int = 0) -> None:
        await self._ledger.enter(caller, project_id)
        if fresh:
            await self._ledger.wait_until_fresh(project_id, fresh)

    async def _must_exist(self, project_id: str, family_id: str) -> None:
        if await self._store.family(project_id, family_id) is None:
            raise not_found(names.family_name(project_id, family_id))


def _no_family(project_id: str, family_id: str, identity_key: str) -> DomainError:
    if family_id:
        return not_found(names.family_name(project_id, family_id))
    return not_found(f"{names.project_name(project_id)} identity_key {identity_key}")
