"""LedgerService: reads of what is published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio
from decisionssearch.ledger.v1 import ledger_service_pb2 as pb
from decisionssearch.ledger.v1 import ledger_service_pb2_grpc

from ledger_svc.domain import model as m
from ledger_svc.domain import names
from ledger_svc.domain.timeline import state_of
from ledger_svc.instants import from_micros, to_micros
from ledger_svc.service.reads import ReadService
from ledger_svc.service.spreading import Activation
from ledger_svc.servicer import incoming, outgoing
from ledger_svc.servicer.base import Desk
from ledger_svc.views import Detail, HeadsPageQuery, HeadsQuery, ProjectionKey, RelationsQuery
from service_kit.checks import FieldChecks
from service_kit.context import current_principal
from service_kit.names import NameKind
from service_kit.serving import until_stopping

Context = grpc.aio.ServicerContext[Any, Any]

HEARTBEAT_SECONDS: Final = 15.0
_MOST_HEADS: Final = 500
_MOST_SEEDS: Final = 100
_DETAILS: Final = {
    pb.HEAD_VIEW_UNSPECIFIED: Detail.BASIC,
    pb.HEAD_VIEW_BASIC: Detail.BASIC,
    pb.HEAD_VIEW_FULL: Detail.FULL,
    pb.HEAD_VIEW_STATE: Detail.STATE,
}
_SPREADING: Final = frozenset(
    {m.RelationKind.RELATED_TO, m.RelationKind.DEPENDS_ON, m.RelationKind.REFINES, m.RelationKind.EVOLVES_FROM}
)
_NEVER_SPREADING: Final = frozenset({m.RelationKind.DEPRECATES, m.RelationKind.CONFLICTS_WITH})


class LedgerServicer(ledger_service_pb2_grpc.LedgerServiceServicer):
    """Reads of what is published."""

    def __init__(self, desk: Desk, stopping: asyncio.Event, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> None:
        self._desk = desk
        self._service = ReadService(desk.ledger)
        self._stopping = stopping
        self._heartbeat_seconds = heartbeat_seconds

    def _detail(self, checks: FieldChecks, number: int) -> Detail:
        found: Detail | None = _DETAILS.get(number)  # type: ignore[call-overload]  # an unknown number is refused
        if found is None:
            checks.add("view", f"{number} is not a value that this version knows")
            return Detail.BASIC
        return found

    def _fresh(self, checks: FieldChecks, request: Any, project_id: str) -> int:
        return incoming.freshness(checks, request, self._desk.ledger_id, project_id)

    def _family_or_key(
        self, checks: FieldChecks, field: str, name: str, project: str, key: str
    ) -> tuple[str, str, str]:
        """Return project, family id and identity key of a request that names a family either way."""
        if name:
            checks.must(not project, "project", f"is not given together with {field}")
            checks.must(not key, "identity_key", f"is not given together with {field}")
            found = incoming.name(checks, field, name, NameKind.FAMILY)
            return found.project, found.id, ""
        if not project and not key:
            checks.add(field, "is required, or project and identity_key")
            return "", "", ""
        return incoming.project(checks, project), "", incoming.identity_key(checks, key)

    # --- Families, revisions ----------------------------------------------------------------------------------------

    async def GetFamily(  # noqa: N802 - gRPC's name
        self, request: pb.GetFamilyRequest, context: Context
    ) -> pb.GetFamilyResponse:
        """Return one family."""
        del context
        checks = FieldChecks()
        where = self._family_or_key(checks, "name", request.name, request.project, request.identity_key)
        fresh = self._fresh(checks, request, where[0])
        checks.raise_if_any()
        found = await self._service.family(current_principal(), *where, fresh)
        return pb.GetFamilyResponse(family=outgoing.family(found))

    async def ListFamilies(  # noqa: N802 - gRPC's name
        self, request: pb.ListFamiliesRequest, context: Context
    ) -> pb.ListFamiliesResponse:
        """List families in order of creation."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        scopes = incoming.choices(checks, "scope", [request.scope] if request.scope else [], incoming.SCOPE)
        categories = incoming.choices(
            checks, "category", [request.category] if request.category else [], incoming.CATEGORY
        )
        size = incoming.page_size(checks, request.page_size)
        for category in categories:
            fits = not scopes or m.SCOPE_OF[category] in scopes
            checks.must(fits, "category", "belongs to another scope than the one asked for")
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        after = (int(state["position"]), str(state["family"])) if state else (0, "")
        scope = next((s.value for s in scopes), "")
        category_text = next((c.value for c in categories), "")
        found = await self._service.families(current_principal(), project_id, scope, category_text, after, size)
        token = ""
        if len(found) == size:
            last = found[-1]
            token = self._desk.pages.issue(request, {"position": last.created_position, "family": last.family_id})
        return pb.ListFamiliesResponse(families=[outgoing.family(f) for f in found], next_page_token=token)

    async def GetRevision(  # noqa: N802 - gRPC's name
        self, request: pb.GetRevisionRequest, context: Context
    ) -> pb.GetRevisionResponse:
        """Return one revision with its evidence."""
        del context
        checks = FieldChecks()
        name = incoming.name(checks, "name", request.name, NameKind.REVISION)
        checks.raise_if_any()
        view = await self._service.revision(current_principal(), name.project, name.ids[0], name.id)
        return pb.GetRevisionResponse(
            revision=outgoing.revision(view.revision),
            evidence=outgoing.linked(name.project, view.revision.evidence_links, view.evidence),
        )

    async def ListRevisions(  # noqa: N802 - gRPC's name
        self, request: pb.ListRevisionsRequest, context: Context
    ) -> pb.ListRevisionsResponse:
        """List the history of a family on a branch, newest first."""
        del context
        checks = FieldChecks()
        name = incoming.name(checks, "family", request.family, NameKind.FAMILY)
        branch = incoming.branch(checks, request.branch)
        known_at = checks.timestamp(request, "known_at")
        size = incoming.page_size(checks, request.page_size)
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        before = int(state["before"]) if state else 2**31
        steps = await self._service.history(current_principal(), name.project, name.id, branch, known_at, before, size)
        token = ""
        if len(steps) == size:
            token = self._desk.pages.issue(request, {"before": steps[-1].revision.number})
        now = self._desk.ledger.now()
        return pb.ListRevisionsResponse(
            history=[outgoing.history(step, now, state_of) for step in steps], next_page_token=token
        )

    # --- Heads ------------------------------------------------------------------------------------------------------

    async def GetHead(  # noqa: N802 - gRPC's name
        self, request: pb.GetHeadRequest, context: Context
    ) -> pb.GetHeadResponse:
        """Return one head at a point of the two axes."""
        del context
        checks = FieldChecks()
        project_id, family_id, key = self._family_or_key(
            checks, "family", request.family, request.project, request.identity_key
        )
        query = HeadsQuery(
            project_id=project_id,
            branch=incoming.branch(checks, request.branch),
            valid_at=checks.timestamp(request, "valid_at") or self._desk.ledger.now(),
            known_at=checks.timestamp(request, "known_at"),
            detail=self._detail(checks, request.view),
            family_ids=(family_id,) if family_id else (),
            identity_keys=(key,) if key else (),
        )
        fresh = self._fresh(checks, request, project_id)
        checks.raise_if_any()
        view, position = await self._service.head(current_principal(), query, fresh)
        return pb.GetHeadResponse(
            head=outgoing.head(view, query.valid_at, query.detail), token=self._desk.token(project_id, position)
        )

    async def QueryHeads(  # noqa: N802 - gRPC's name
        self, request: pb.QueryHeadsRequest, context: Context
    ) -> pb.QueryHeadsResponse:
        """List heads of a branch; the pages of one query are one snapshot."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        branch = incoming.branch(checks, request.branch)
        scopes = incoming.choices(checks, "scopes", request.scopes, incoming.SCOPE)
        categories = incoming.choices(checks, "categories", request.categories, incoming.CATEGORY)
        states = incoming.choices(checks, "states", request.states, incoming.STATE)
        valid_at, known_at = checks.timestamp(request, "valid_at"), checks.timestamp(request, "known_at")
        detail = self._detail(checks, request.view)
        size = incoming.page_size(checks, request.page_size)
        fresh = self._fresh(checks, request, project_id)
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        caller = current_principal()
        if state:
            valid_at, known_at = from_micros(int(state["valid"])), from_micros(int(state["known"]))
            after, first_position = str(state["after"]), int(state["position"])
        else:
            known_at = known_at or await self._service.snapshot_moment(caller, project_id, fresh)
            valid_at = valid_at or self._desk.ledger.now()
            after, first_position = "", 0
        query = HeadsPageQuery(
            project_id=project_id,
            branch=branch,
            valid_at=valid_at,
            known_at=known_at,
            detail=detail,
            scopes=scopes,
            categories=categories,
            flagged_only=request.needs_review_only,
            after_family=after,
            limit=size,
        )
        wanted = states or frozenset({m.MemoryState.ACTIVE})
        views, cursor, position = await self._service.heads_page(caller, query, wanted, fresh)
        position = first_position or position
        token = ""
        if cursor:
            token = self._desk.pages.issue(
                request,
                {
                    "valid": to_micros(valid_at),
                    "known": to_micros(known_at),
                    "after": cursor,
                    "position": position,
                },
            )
        return pb.QueryHeadsResponse(
            heads=[outgoing.head(view, valid_at, detail) for view in views],
            next_page_token=token,
            token=self._desk.token(project_id, position),
        )

    async def BatchGetHeads(  # noqa: N802 - gRPC's name
        self, request: pb.BatchGetHeadsRequest, context: Context
    ) -> pb.BatchGetHeadsResponse:
        """Return many heads from one snapshot."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        total = len(request.families) + len(request.identity_keys)
        checks.must(1 <= total <= _MOST_HEADS, "families", f"1 to {_MOST_HEADS} are allowed, with identity_keys")
        query = HeadsQuery(
            project_id=project_id,
            branch=incoming.branch(checks, request.branch),
            valid_at=checks.timestamp(request, "valid_at") or self._desk.ledger.now(),
            known_at=checks.timestamp(request, "known_at"),
            detail=self._detail(checks, request.view),
            family_ids=tuple(
                dict.fromkeys(
                    incoming.ident(checks, f"families[{i}]", text, NameKind.FAMILY, project_id)
                    for i, text in enumerate(request.families)
                )
            ),
            identity_keys=tuple(
                dict.fromkeys(
                    incoming.identity_key(checks, text, f"identity_keys[{i}]")
                    for i, text in enumerate(request.identity_keys)
                )
            ),
            follow_replacements=request.follow_replacements,
        )
        fresh = self._fresh(checks, request, project_id)
        checks.raise_if_any()
        read = await self._service.heads(current_principal(), query, fresh)
        return pb.BatchGetHeadsResponse(
            heads=[outgoing.head(view, query.valid_at, query.detail) for view in read.heads],
            missing_families=[names.family(project_id, family_id) for family_id in read.missing_families],
            missing_identity_keys=read.missing_keys,
            token=self._desk.token(project_id, read.position),
        )

    # --- Readings of history ----------------------------------------------------------------------------------------

    async def DiffRevisions(  # noqa: N802 - gRPC's name
        self, request: pb.DiffRevisionsRequest, context: Context
    ) -> pb.DiffRevisionsResponse:
        """Compare two revisions."""
        del context
        checks = FieldChecks()
        older = incoming.name(checks, "from_revision", request.from_revision, NameKind.REVISION)
        newer = incoming.name(checks, "to_revision", request.to_revision, NameKind.REVISION, older.project)
        checks.raise_if_any()
        found = await self._service.diff(
            current_principal(), older.project, (older.ids[0], older.id), (newer.ids[0], newer.id)
        )
        return pb.DiffRevisionsResponse(changes=[outgoing.field_change(one) for one in found])

    async def Blame(self, request: pb.BlameRequest, context: Context) -> pb.BlameResponse:  # noqa: N802 - gRPC's name
        """Say who set which field."""
        del context
        checks = FieldChecks()
        name = incoming.name(checks, "family", request.family, NameKind.FAMILY)
        branch = incoming.branch(checks, request.branch)
        revision = incoming.name(checks, "revision", request.revision, NameKind.REVISION, name.project, optional=True)
        if request.revision and revision.project:
            checks.must(revision.ids[0] == name.id, "revision", "must be a revision of the family")
        checks.raise_if_any()
        found = await self._service.blame(current_principal(), name.project, name.id, branch, revision.id)
        fields = []
        for origin in found.origins:
            source = found.revisions[origin.revision_id]
            fields.append(
                pb.FieldBlame(
                    field=origin.field,
                    value=origin.value,
                    revision=outgoing.revision_name(source),
                    author=outgoing.principal(source.author),
                    approvers=[outgoing.principal(who) for who in source.approved_by],
                    record_time=outgoing.time(source.recorded_at),
                    reason=source.reason,
                    evidence=outgoing.linked(name.project, source.evidence_links, found.evidence),
                )
            )
        return pb.BlameResponse(fields=fields)

    # --- Relations --------------------------------------------------------------------------------------------------

    async def GetLineage(  # noqa: N802 - gRPC's name
        self, request: pb.GetLineageRequest, context: Context
    ) -> pb.GetLineageResponse:
        """Return the graph around a family."""
        del context
        checks = FieldChecks()
        name = incoming.name(checks, "family", request.family, NameKind.FAMILY)
        branch = incoming.branch(checks, request.branch)
        checks.must(0 <= request.depth <= 5, "depth", "must be 1 to 5, or 0 for 2")
        checks.raise_if_any()
        graph = await self._service.lineage(current_principal(), name.project, name.id, branch, request.depth or 2)
        now = self._desk.ledger.now()
        return pb.GetLineageResponse(
            heads=[outgoing.head(view, now, Detail.BASIC) for view in graph.heads],
            relations=[outgoing.relation(one) for one in graph.relations],
            truncated=graph.truncated,
        )

    async def ListRelations(  # noqa: N802 - gRPC's name
        self, request: pb.ListRelationsRequest, context: Context
    ) -> pb.ListRelationsResponse:
        """List relations in order of recording."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        family_id = incoming.ident(checks, "family", request.family, NameKind.FAMILY, project_id, optional=True)
        kinds = incoming.choices(checks, "kinds", request.kinds, incoming.KIND)
        size = incoming.page_size(checks, request.page_size)
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        after = (int(state["position"]), str(state["relation"])) if state else (0, "")
        query = RelationsQuery(project_id, family_id, kinds, request.include_retired, after, size)
        found = await self._service.relations(current_principal(), query)
        token = ""
        if len(found) == size:
            last = found[-1]
            token = self._desk.pages.issue(request, {"position": last.position, "relation": last.relation_id})
        return pb.ListRelationsResponse(relations=[outgoing.relation(one) for one in found], next_page_token=token)

    async def ExpandRelations(  # noqa: N802 - gRPC's name
        self, request: pb.ExpandRelationsRequest, context: Context
    ) -> pb.ExpandRelationsResponse:
        """Spread activation over relations."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        branch = incoming.branch(checks, request.branch)
        checks.count("seeds", request.seeds, at_least=1, at_most=_MOST_SEEDS)
        seeds = []
        for index, seed in enumerate(request.seeds):
            field = f"seeds[{index}]"
            family_id = incoming.ident(checks, f"{field}.family", seed.family, NameKind.FAMILY, project_id)
            checks.in_range(f"{field}.activation", seed.activation, 0.0, 1.0)
            seeds.append(Activation(family_id, seed.activation))
        kinds = incoming.choices(checks, "kinds", request.kinds, incoming.KIND)
        checks.must(not kinds & _NEVER_SPREADING, "kinds", "DEPRECATES and CONFLICTS_WITH carry no activation")
        checks.must(0 <= request.max_depth <= 2, "max_depth", "must be 1 or 2, or 0 for 2")
        checks.in_range("decay", request.decay, 0.0, 1.0)
        checks.must(0 <= request.limit <= _MOST_HEADS, "limit", f"must be 1 to {_MOST_HEADS}, or 0 for 100")
        valid_at = checks.timestamp(request, "valid_at") or self._desk.ledger.now()
        known_at = checks.timestamp(request, "known_at")
        checks.raise_if_any()
        reached, truncated = await self._service.expand(
            current_principal(),
            project_id,
            branch,
            seeds,
            kinds or _SPREADING,
            request.max_depth or 2,
            request.decay or 0.5,
            request.limit or 100,
            valid_at,
            known_at,
        )
        return pb.ExpandRelationsResponse(
            reached=[
                pb.Activation(
                    family=names.family(project_id, one.family_id),
                    activation=one.activation,
                    depth=one.depth,
                    via_relation=names.relation(project_id, one.via_relation),
                )
                for one in reached
            ],
            truncated=truncated,
        )

    # --- Changes ----------------------------------------------------------------------------------------------------

    async def ListChanges(  # noqa: N802 - gRPC's name
        self, request: pb.ListChangesRequest, context: Context
    ) -> pb.ListChangesResponse:
        """List commits in order of position."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        checks.must(request.after_position >= 0, "after_position", "must not be negative")
        size = incoming.page_size(checks, request.page_size)
        checks.raise_if_any()
        view = await self._service.changes(current_principal(), project_id, request.after_position, size)
        return pb.ListChangesResponse(
            changes=[outgoing.change(commit) for commit in view.commits], head_position=view.position
        )

    async def WatchChanges(  # noqa: N802 - gRPC's name
        self, request: pb.WatchChangesRequest, context: Context
    ) -> AsyncIterator[pb.WatchChangesResponse]:
        """Stream commits in order of position."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        checks.must(request.after_position >= 0, "after_position", "must not be negative")
        checks.raise_if_any()
        source = self._service.watch(current_principal(), project_id, request.after_position, self._heartbeat_seconds)
        async for commit, position in until_stopping(self._stopping, source):
            yield pb.WatchChangesResponse(
                change=None if commit is None else outgoing.change(commit), head_position=position
            )

    # --- Projections ------------------------------------------------------------------------------------------------

    async def ListProjections(  # noqa: N802 - gRPC's name
        self, request: pb.ListProjectionsRequest, context: Context
    ) -> pb.ListProjectionsResponse:
        """List what an index needs to hold."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        size = incoming.page_size(checks, request.page_size)
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        after = (str(state["family"]), str(state["branch"])) if state else ("", "")
        views, last, position = await self._service.projections_page(current_principal(), project_id, after, size)
        token = "" if last is None else self._desk.pages.issue(request, {"family": last[0], "branch": last[1]})
        return pb.ListProjectionsResponse(
            projections=[outgoing.projection(view, position) for view in views],
            next_page_token=token,
            as_of_position=position,
        )

    async def BatchGetProjections(  # noqa: N802 - gRPC's name
        self, request: pb.BatchGetProjectionsRequest, context: Context
    ) -> pb.BatchGetProjectionsResponse:
        """Return what an index needs to hold of the named families."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        checks.count("keys", request.keys, at_least=1, at_most=_MOST_HEADS)
        keys = []
        for index, key in enumerate(request.keys):
            own = checks.below(f"keys[{index}]")
            family_id = incoming.ident(own, "family", key.family, NameKind.FAMILY, project_id)
            own.must(key.since_position >= 0, "since_position", "must not be negative")
            keys.append(ProjectionKey(family_id, incoming.branch(own, key.branch), key.since_position))
        checks.raise_if_any()
        views, position = await self._service.projections(current_principal(), project_id, keys)
        return pb.BatchGetProjectionsResponse(projections=[outgoing.projection(view, position) for view in views])
