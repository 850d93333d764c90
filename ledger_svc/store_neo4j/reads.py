"""Reads of published knowledge: each function is one question within one transaction.

That the transaction sees one snapshot is the store's business (see ``fence``); here statements only follow each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ledger_svc import assembly
from ledger_svc import rows as r
from ledger_svc.domain.model import (
    Commit,
    Content,
    Evidence,
    Family,
    Head,
    Policy,
    Relation,
    RelationKind,
    ReviewFlag,
    Revision,
    TimelineRow,
)
from ledger_svc.instants import FOREVER, from_micros, to_micros
from ledger_svc.records import load
from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.fence import Statements
from ledger_svc.store_neo4j.keys import head_key, page_key
from ledger_svc.views import (
    ChangesView,
    Detail,
    FamilyTitle,
    HeadsPageQuery,
    HeadsQuery,
    HeadsRead,
    HeadView,
    HistoryStep,
    PastView,
    ProjectionKey,
    ProjectionView,
    ProjectView,
    RelationsQuery,
    RevisionView,
)


class Reader:
    """The reads, in one transaction."""

    def __init__(self, transaction: Statements) -> None:
        self._tx = transaction

    # --- Projects ---------------------------------------------------------------------------------------------------

    async def project(self, project_id: str) -> ProjectView | None:
        """Return a project with its policy in force."""
        row = await self._tx.one(q.PROJECT, project_id=project_id)
        return None if row is None else _project_view(row)

    async def policy(self, project_id: str, version: int) -> Policy | None:
        """Return one version of a project's policy."""
        row = await self._tx.one(q.POLICY, project_id=project_id, version=version)
        return None if row is None else load(Policy, row[0])

    async def projects(self, after: str, limit: int, only: frozenset[str] | None) -> list[ProjectView]:
        """Return projects in order of their ids; only some of them, when named."""
        if only is None:
            found = await self._tx.run(q.PROJECTS, after=after, limit=limit)
        else:
            wanted = sorted(i for i in only if i > after)
            found = await self._tx.run(q.PROJECTS_NAMED, ids=wanted, limit=limit)
        return [_project_view(row) for row in found]

    async def position(self, project_id: str) -> int | None:
        """Return the newest position of a project, None when there is no such project."""
        return await self._tx.position(project_id)

    # --- Families, revisions ----------------------------------------------------------------------------------------

    async def family(self, project_id: str, family_id: str) -> Family | None:
        """Return a family of the project."""
        return (await self.families_by_id(project_id, [family_id])).get(family_id)

    async def families_by_id(self, project_id: str, family_ids: Iterable[str]) -> dict[str, Family]:
        """Return families of the project by id."""
        found = await self._tx.run(q.FAMILIES_BY_ID, project_id=project_id, ids=list(dict.fromkeys(family_ids)))
        made = [r.family_of(row[0]) for row in found]
        return {family.family_id: family for family in made}

    async def owners(self, project_id: str, identity_keys: Iterable[str]) -> dict[str, str]:
        """Return the families that identity keys or aliases lead to."""
        found = await self._tx.run(q.OWNERS, project_id=project_id, keys=list(dict.fromkeys(identity_keys)))
        return dict(found)

    async def family_by_key(self, project_id: str, identity_key: str) -> Family | None:
        """Return the family that an identity key or alias leads to."""
        owner = (await self.owners(project_id, [identity_key])).get(identity_key)
        return None if owner is None else await self.family(project_id, owner)

    async def families(
        self, project_id: str, scope: str, category: str, after: tuple[int, str], limit: int
    ) -> list[Family]:
        """Return families in order of creation."""
        page = {"project_id": project_id, "after": page_key(*after), "limit": limit}
        if category:
            found = await self._tx.run(q.FAMILIES_OF_CATEGORY, category=category, **page)
        elif scope:
            found = await self._tx.run(q.FAMILIES_OF_SCOPE, scope=scope, **page)
        else:
            found = await self._tx.run(q.FAMILIES, **page)
        return [r.family_of(row[0]) for row in found]

    async def revision(self, project_id: str, revision_id: str) -> RevisionView | None:
        """Return a revision with its evidence."""
        revision = (await self.revisions(project_id, [revision_id])).get(revision_id)
        if revision is None:
            return None
        return RevisionView(revision, await self.evidence(link.evidence_id for link in revision.evidence_links))

    async def revisions(self, project_id: str, revision_ids: Iterable[str]) -> dict[str, Revision]:
        """Return revisions by id."""
        wanted = list(dict.fromkeys(revision_ids))
        found = await self._tx.run(q.REVISIONS, project_id=project_id, ids=wanted) if wanted else []
        made = [r.revision_of(*row) for row in found]
        return {revision.revision_id: revision for revision in made}

    async def history(
        self, family_id: str, branch: str, known_at: datetime | None, before_number: int, limit: int
    ) -> list[HistoryStep]:
        """Return revisions with their rows, newest first."""
        known = FOREVER if known_at is None else to_micros(known_at)
        found = await self._tx.run(
            q.HISTORY, head=head_key(family_id, branch), before=before_number, known=known, limit=limit
        )
        return [
            HistoryStep(r.revision_of(body, content), assembly.rows_as_known(_rows(rows), known_at))
            for body, content, rows in found
        ]

    # --- Evidence ---------------------------------------------------------------------------------------------------

    async def evidence(self, evidence_ids: Iterable[str]) -> dict[str, Evidence]:
        """Return evidence by id, with all verifications."""
        wanted = list(dict.fromkeys(evidence_ids))
        found = await self._tx.run(q.EVIDENCE, ids=wanted) if wanted else []
        made = {e.evidence_id: e for e in (r.evidence_of(*row) for row in found)}
        return {ident: made[ident] for ident in wanted if ident in made}

    # --- Heads ------------------------------------------------------------------------------------------------------

    async def heads(self, query: HeadsQuery) -> HeadsRead:
        """Return heads at (valid_at, known_at)."""
        owners = await self.owners(query.project_id, query.identity_keys) if query.identity_keys else {}
        gather = _Heads(self, self._tx, query)
        wanted = [*query.family_ids, *(owners[key] for key in query.identity_keys if key in owners)]
        await gather.add(wanted)
        missing_families = tuple(f for f in query.family_ids if f not in gather.found)
        missing_keys = tuple(k for k in query.identity_keys if owners.get(k, "") not in gather.found)
        if query.follow_replacements:
            await gather.follow()
        position = await self.position(query.project_id) or 0
        return HeadsRead(tuple(gather.found.values()), missing_families, missing_keys, position)

    async def heads_page(self, query: HeadsPageQuery) -> tuple[list[HeadView], str, int]:
        """Return heads of a branch in order of family id, the last family looked at, and the position.

        The last family is empty at the end of the list.
        """
        point = HeadsQuery(query.project_id, query.branch, query.valid_at, query.known_at, query.detail)
        gather = _Heads(self, self._tx, point)
        found = await self._tx.run(
            # A flag that was cleared since known_at still counts for that moment, so every flag ever is looked at.
            q.FLAGGED_PAGE if query.flagged_only else q.HEADS_PAGE,
            project_id=query.project_id,
            branch=query.branch,
            after=query.after_family,
            limit=query.limit,
        )
        families = [r.family_of(row[0]) for row in found]
        await gather.add(family.family_id for family in assembly.asked_for(families, query))
        heads, last = assembly.page_of(families, gather.found.values(), query)
        return heads, last, await self.position(query.project_id) or 0

    # --- Relations --------------------------------------------------------------------------------------------------

    async def relations_of(
        self, family_ids: Sequence[str], branch: str, kinds: Iterable[RelationKind]
    ) -> list[Relation]:
        """Return all relations of families on a branch, retired ones included, in order of recording."""
        found = await self._tx.run(
            q.RELATIONS_OF, families=list(family_ids), branch=branch, kinds=sorted(k.value for k in kinds)
        )
        return assembly.in_order(r.relation_of(tuple(row[0])) for row in found)

    async def relation(self, project_id: str, relation_id: str) -> Relation | None:
        """Return one relation."""
        row = await self._tx.one(q.RELATIONS_BY_ID, project_id=project_id, ids=[relation_id])
        return None if row is None else r.relation_of(tuple(row[0]))

    async def relations(self, query: RelationsQuery) -> list[Relation]:
        """Return a page of relations in order of recording."""
        statements = (q.RELATIONS_PAGE_OUT, q.RELATIONS_PAGE_IN) if query.family_id else (q.RELATIONS_PAGE,)
        found: dict[str, Relation] = {}
        for statement in statements:
            for row in await self._tx.run(
                statement,
                project_id=query.project_id,
                family_id=query.family_id,
                after=page_key(*query.after),
                retired=query.include_retired,
                kinds=sorted(k.value for k in query.kinds),
                limit=query.limit,
            ):
                relation = r.relation_of(tuple(row[0]))
                found[relation.relation_id] = relation
        return assembly.in_order(found.values())[: query.limit]

    # --- Changes, projections ---------------------------------------------------------------------------------------

    async def changes(self, project_id: str, after_position: int, limit: int) -> ChangesView:
        """Return commits in order of position."""
        found = await self._tx.run(q.COMMITS, project_id=project_id, after=after_position, limit=limit)
        return ChangesView(tuple(load(Commit, row[0]) for row in found), await self.position(project_id) or 0)

    async def projection_keys(self, project_id: str, after: tuple[str, str], limit: int) -> list[ProjectionKey]:
        """Return the (family, branch) pairs of a project in order."""
        start = head_key(*after) if after[0] else ""
        found = await self._tx.run(q.PROJECTION_KEYS, project_id=project_id, after=start, limit=limit)
        return [ProjectionKey(*row) for row in found]

    async def projections(self, project_id: str, keys: Sequence[ProjectionKey]) -> tuple[list[ProjectionView], int]:
        """Return what an index holds of each key, and the position that this is from."""
        named = {head_key(key.family_id, key.branch): key for key in keys}
        asked = [{"family_id": key.family_id, "head": head} for head, key in named.items()]
        found = {row[0]: row[1:] for row in await self._tx.run(q.PROJECTION_HEADS, project_id=project_id, keys=asked)}
        published = {head: row for head, row in found.items() if row[1][0] is not None}
        wanted = await self._wanted(published, named)
        ids = list(dict.fromkeys(ident for listed in wanted.values() for ident in listed))
        revisions = await self.revisions(project_id, ids)
        rows: dict[str, list[TimelineRow]] = {}
        for (row,) in await self._tx.run(q.ROWS_OF_REVISIONS, ids=ids) if ids else []:
            made = r.timeline_row_of(tuple(row))
            rows.setdefault(made.revision_id, []).append(made)
        views = []
        for key in keys:
            head = head_key(key.family_id, key.branch)
            if head not in published:
                family = r.family_of(found[head][0]) if head in found else None
                views.append(ProjectionView(family, key.branch, ()))
                continue
            body, columns, last_two = published[head]
            views.append(
                assembly.projection_of(
                    r.family_of(body), key, r.head_of(columns), last_two, wanted[head], revisions, rows
                )
            )
        return views, await self.position(project_id) or 0

    async def _wanted(
        self, published: Mapping[str, Sequence[Any]], named: Mapping[str, ProjectionKey]
    ) -> dict[str, list[str]]:
        later = [head for head in published if named[head].since_position > 0]
        since = [{"head": head, "since": named[head].since_position} for head in later]
        whole = [head for head in published if named[head].since_position <= 0]
        wanted: dict[str, list[str]] = {head: [] for head in published}
        for head, revision_id in await self._tx.run(q.PROJECTION_ALL, heads=whole) if whole else []:
            wanted[head].append(revision_id)
        changed: dict[str, list[str]] = {head: [] for head in later}
        for head, revision_id in await self._tx.run(q.PROJECTION_SINCE, keys=since) if since else []:
            changed[head].append(revision_id)
        for head, listed in changed.items():
            _, columns, last_two = published[head]
            wanted[head] = assembly.wanted_since(listed, r.head_of(columns), last_two)
        return wanted


class _Heads:
    """Gathers the heads of one question: a few statements for all of them together."""

    def __init__(self, reader: Reader, transaction: Statements, query: HeadsQuery) -> None:
        self._reader = reader
        self._tx = transaction
        self._query = query
        self._known_position: int | None = None
        self._point: dict[str, Any] = {"branch": query.branch, "valid": to_micros(query.valid_at)}
        if query.known_at is not None:
            self._point["known"] = to_micros(query.known_at)
        self._titles: dict[str, FamilyTitle] = {}
        self.found: dict[str, HeadView] = {}

    async def add(self, family_ids: Iterable[str]) -> list[HeadView]:
        """Read heads, those that are published; return the new ones."""
        query = self._query
        wanted = [f for f in dict.fromkeys(family_ids) if f not in self.found]
        if not wanted:
            return []
        rows = await self._tx.run(
            q.HEADS_NOW if query.known_at is None else q.HEADS_KNOWN,
            project_id=query.project_id,
            families=wanted,
            kinds=sorted(kind.value for kind in assembly.kinds_for(query.detail)),
            with_content=query.detail is not Detail.STATE,
            **self._point,
        )
        parts = [_Part(*row) for row in rows]
        if parts:
            self._known_position = parts[0].known_position
        parts = await self._published(parts)
        for part in parts:
            if self._known_position is not None and not part.rows:
                await self._make_bare(part, self._known_position)
        await self._name([end for p in parts for end in assembly.other_ends(p.family_id, p.holding(query))])
        evidence, past = await self._more(parts)
        views = {p.family_id: self._view(p, evidence, past) for p in parts}
        self.found.update({f: views[f] for f in wanted if f in views})
        return [views[f] for f in wanted if f in views]

    async def follow(self) -> None:
        """Read the heads of all families that replace those found, and so on, step by step."""
        queue = list(self.found.values())
        while queue:
            queue = await self.add(assembly.replacements_of(queue))

    async def _published(self, parts: list[_Part]) -> list[_Part]:
        if self._known_position is None:
            return parts
        bare = [p.head_key for p in parts if not p.rows]
        found = await self._tx.run(q.FIRST_POSITIONS, heads=bare) if bare else []
        first: dict[str, int] = dict(found)
        return [p for p in parts if assembly.is_published(p.rows, first.get(p.head_key), self._known_position)]

    async def _make_bare(self, part: _Part, known: int) -> None:
        """Give a head that has no row any more what was known of it then."""
        project_id = self._query.project_id
        commit = None
        at, gone = (await self._tx.run(q.LAST_CHANGE, head=part.head_key, known=known))[0]
        while at and (commit is None or not assembly.settles(commit)):
            found = await self._tx.run(q.COMMITS, project_id=project_id, after=at - 1, limit=1)
            commit = load(Commit, found[0][0])
            at = (await self._tx.run(q.LAST_CHANGE, head=part.head_key, known=at - 1))[0][0]
        mutation = None
        if commit is not None:
            found = await self._tx.run(q.PROPOSALS_BY_ID, project_id=project_id, ids=[commit.proposal_id])
            mutation = r.proposal_of(*found[0][:3]).mutation
        part.head = assembly.bare_head(part.head, gone, commit, mutation)
        body, content = (await self._tx.run(q.REVISIONS, project_id=project_id, ids=[gone]))[0]
        part.revision = r.revision_of(body, content)
        if self._query.detail is Detail.STATE:
            part.revision = replace(part.revision, content=Content(title=part.revision.content.title))

    async def _name(self, families: Iterable[str]) -> None:
        wanted = sorted(set(families) - self._titles.keys())
        if not wanted:
            return
        statement = q.TITLES_NOW if self._query.known_at is None else q.TITLES_KNOWN
        for body, title in await self._tx.run(statement, families=wanted, **self._point):
            family = r.family_of(body)
            self._titles[family.family_id] = FamilyTitle(family.family_id, family.identity_key, title)

    async def _more(self, parts: list[_Part]) -> tuple[dict[str, Evidence], dict[str, tuple[PastView, ...]]]:
        """Read what only full heads show."""
        if self._query.detail is not Detail.FULL:
            return {}, {}
        links = [link.evidence_id for p in parts for link in p.links(self._query)]
        evidence = await self._reader.evidence(links)
        starts = [{"head": p.head_key, "valid_from": to_micros(p.rows[0].valid_from)} for p in parts if p.rows]
        if not starts:
            return evidence, {}
        statement = q.PAST_NOW if self._query.known_at is None else q.PAST_KNOWN
        point = {k: v for k, v in self._point.items() if k == "known"}
        found = await self._tx.run(statement, heads=starts, limit=assembly.MOST_PAST + 1, **point)
        views = {str(row[0]): assembly.past_of([(*one, *more) for one, *more in row[1]]) for row in found}
        return evidence, views

    def _view(
        self,
        part: _Part,
        evidence: Mapping[str, Evidence],
        past: Mapping[str, tuple[PastView, ...]],
    ) -> HeadView:
        query = self._query
        relations = part.holding(query)
        flags = assembly.flags_at(part.flags, self._known_position)
        return HeadView(
            family=part.family,
            branch=query.branch,
            rows=assembly.rows_as_known(part.rows, query.known_at),
            head=part.head,
            revision=part.revision,
            relations=relations,
            titles={end: self._titles[end] for end in assembly.other_ends(part.family_id, relations)},
            flags=flags,
            known_at=query.known_at,
            position=assembly.changed_position(
                part.head,
                flags,
                self._known_position,
                last_row_change=part.last_row_change,
                last_flag_change=part.last_flag_change(self._known_position),
            ),
            evidence={link.evidence_id: evidence[link.evidence_id] for link in part.links(query)} if evidence else {},
            past=past.get(part.head_key, ()),
        )


class _Part:
    """One row of the statement that reads heads."""

    def __init__(
        self,
        family: str,
        head: list[Any],
        rows: list[list[Any]],
        flags: list[list[Any]],
        relations: list[list[Any]],
        body: str,
        title: str,
        content: str | None,
        flag_position: int,
        last_row_change: int,
        known_position: int | None,
    ) -> None:
        self.family: Family = r.family_of(family)
        self.family_id = self.family.family_id
        self.head: Head = r.head_of(tuple(head))
        self.head_key = head_key(self.family_id, self.head.branch)
        self.rows = _rows(rows)
        self.flags: list[ReviewFlag] = [r.flag_of(tuple(row)) for row in flags]
        self._relations = [r.relation_of(tuple(row)) for row in relations]
        self.revision = r.revision_with(body, Content(title=title)) if content is None else r.revision_of(body, content)
        self._flag_position = flag_position
        self.last_row_change = last_row_change
        self.known_position = known_position
        self._holding: tuple[Relation, ...] | None = None

    def holding(self, query: HeadsQuery) -> tuple[Relation, ...]:
        """Return the relations that hold at the query's point."""
        if self._holding is None:
            self._holding = assembly.holding(self._relations, query)
        return self._holding

    def links(self, query: HeadsQuery) -> list[Any]:
        """Return the links to evidence of the revision and of the relations."""
        return [*self.revision.evidence_links, *(link for one in self.holding(query) for link in one.evidence_links)]

    def last_flag_change(self, known: int | None) -> int:
        """Return the last commit up to a position that raised or cleared a flag."""
        if known is None:
            return self._flag_position
        return assembly.last_flag_change(self.flags, known)


def _project_view(row: Sequence[Any]) -> ProjectView:
    body, policy, position, recorded_at = row
    return ProjectView(r.project_of(body), load(Policy, policy), position, from_micros(recorded_at))


def _rows(found: Iterable[Sequence[Any]]) -> tuple[TimelineRow, ...]:
    return tuple(r.timeline_row_of(tuple(row)) for row in found)
