"""Reads of published knowledge: each function is one question, answered from one snapshot of the connection.

Every statement finds its rows by an index; ``tests/contract`` asks the query planner about all of them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

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

_ALWAYS: Final = (FOREVER, FOREVER)
_OF_ROW: Final = ", ".join(f"t.{c}" for c in r.ROW_COLUMNS.split(", "))
_OF_HEAD: Final = ", ".join(f"h.{c}" for c in r.HEAD_COLUMNS.split(", "))
_OF_FLAG: Final = ", ".join(f"g.{c}" for c in r.FLAG_COLUMNS.split(", "))
_OF_RELATION: Final = ", ".join(f"l.{c}" for c in r.RELATION_COLUMNS.split(", "))


class Reader:
    """The reads, on one connection. Not for several threads at once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self._db.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: Any) -> Any:
        return self._db.execute(sql, values).fetchone()

    # --- Projects ---------------------------------------------------------------------------------------------------

    def project(self, project_id: str) -> ProjectView | None:
        """Return a project with its policy in force."""
        row = self._one(
            "SELECT body, position, recorded_at FROM projects WHERE project_id = ? AND importing = 0", project_id
        )
        return None if row is None else self._project_view(row)

    def _project_view(self, row: Any) -> ProjectView:
        project = r.project_of(row[0])
        policy = self._one(
            "SELECT body FROM policies WHERE project_id = ? AND version = ?", project.project_id, project.policy_version
        )
        return ProjectView(project, load(Policy, policy[0]), row[1], from_micros(row[2]))

    def policy(self, project_id: str, version: int) -> Policy | None:
        """Return one version of a project's policy."""
        row = self._one("SELECT body FROM policies WHERE project_id = ? AND version = ?", project_id, version)
        return None if row is None else load(Policy, row[0])

    def projects(self, after: str, limit: int, only: frozenset[str] | None) -> list[ProjectView]:
        """Return projects in order of their ids; only some of them, when named."""
        if only is None:
            found = self._all(
                "SELECT body, position, recorded_at FROM projects WHERE project_id > ? AND importing = 0 "
                "ORDER BY project_id LIMIT ?",
                after,
                limit,
            )
        else:
            found = self._all(
                "SELECT p.body, p.position, p.recorded_at FROM json_each(?) AS j CROSS JOIN projects AS p "
                "ON p.project_id = j.value WHERE p.importing = 0 ORDER BY j.value LIMIT ?",
                json.dumps(sorted(i for i in only if i > after)),
                limit,
            )
        return [self._project_view(row) for row in found]

    def position(self, project_id: str) -> int | None:
        """Return the newest position of a project, None when there is no such project."""
        row = self._one("SELECT position FROM projects WHERE project_id = ? AND importing = 0", project_id)
        return None if row is None else int(row[0])

    # --- Families, revisions ----------------------------------------------------------------------------------------

    def family(self, project_id: str, family_id: str) -> Family | None:
        """Return a family of the project."""
        row = self._one("SELECT body FROM families WHERE family_id = ? AND project_id = ?", family_id, project_id)
        return None if row is None else r.family_of(row[0])

    def family_by_key(self, project_id: str, identity_key: str) -> Family | None:
        """Return the family that an identity key or alias leads to."""
        row = self._one(
            "SELECT f.body FROM identity_keys AS k CROSS JOIN families AS f ON f.family_id = k.family_id "
            "WHERE k.project_id = ? AND k.identity_key = ?",
            project_id,
            identity_key,
        )
        return None if row is None else r.family_of(row[0])

    def families(self, project_id: str, scope: str, category: str, after: tuple[int, str], limit: int) -> list[Family]:
        """Return families in order of creation."""
        where, values = "project_id = ?", [project_id]
        if category:
            where, values = f"{where} AND category = ?", [*values, category]
        elif scope:
            where, values = f"{where} AND scope = ?", [*values, scope]
        found = self._all(
            f"SELECT body FROM families WHERE {where} AND (position, family_id) > (?, ?) "
            "ORDER BY position, family_id LIMIT ?",
            *values,
            *after,
            limit,
        )
        return [r.family_of(row[0]) for row in found]

    def revision(self, project_id: str, revision_id: str) -> RevisionView | None:
        """Return a revision with its evidence."""
        row = self._one(
            "SELECT body, content FROM revisions WHERE revision_id = ? AND project_id = ?", revision_id, project_id
        )
        if row is None:
            return None
        revision = r.revision_of(*row)
        return RevisionView(revision, self.evidence(link.evidence_id for link in revision.evidence_links))

    def revisions(self, project_id: str, revision_ids: Sequence[str]) -> dict[str, Revision]:
        """Return revisions by id."""
        found = self._all(
            "SELECT v.body, v.content FROM json_each(?) AS j CROSS JOIN revisions AS v ON v.revision_id = j.value "
            "WHERE v.project_id = ?",
            json.dumps(list(revision_ids)),
            project_id,
        )
        made = [r.revision_of(*row) for row in found]
        return {revision.revision_id: revision for revision in made}

    def history(
        self, family_id: str, branch: str, known_at: datetime | None, before_number: int, limit: int
    ) -> list[HistoryStep]:
        """Return revisions with their rows, newest first."""
        known = FOREVER if known_at is None else to_micros(known_at)
        found = (
            self._all(
                "SELECT body, content FROM revisions WHERE family_id = ? AND branch = ? AND number < ? "
                "ORDER BY number DESC",
                family_id,
                branch,
                before_number,
            )
            if known_at is not None
            else self._all(
                "SELECT body, content FROM revisions WHERE family_id = ? AND branch = ? AND number < ? "
                "ORDER BY number DESC LIMIT ?",
                family_id,
                branch,
                before_number,
                limit,
            )
        )
        steps: list[HistoryStep] = []
        for body, content in found:
            revision = r.revision_of(body, content)
            if to_micros(revision.recorded_at) > known:
                continue
            rows = assembly.rows_as_known(self._rows_of(revision.revision_id, known), known_at)
            steps.append(HistoryStep(revision, rows))
            if len(steps) == limit:
                break
        return steps

    def _rows_of(self, revision_id: str, known: int) -> tuple[TimelineRow, ...]:
        found = self._all(
            f"SELECT {r.ROW_COLUMNS} FROM timeline_rows WHERE revision_id = ? AND recorded_from <= ? "
            "ORDER BY opened_position, valid_from",
            revision_id,
            known,
        )
        return tuple(r.timeline_row_of(row) for row in found)

    def branches(self, family_id: str) -> list[str]:
        """Return the branches on which a family has a head."""
        return [row[0] for row in self._all("SELECT branch FROM heads WHERE family_id = ? ORDER BY branch", family_id)]

    # --- Evidence ---------------------------------------------------------------------------------------------------

    def evidence(self, evidence_ids: Iterable[str]) -> dict[str, Evidence]:
        """Return evidence by id, with all verifications."""
        wanted = json.dumps(list(dict.fromkeys(evidence_ids)))
        found = self._all(
            "SELECT e.evidence_id, e.body FROM json_each(?) AS j CROSS JOIN evidence AS e ON e.evidence_id = j.value",
            wanted,
        )
        checks: dict[str, list[str]] = {}
        for evidence_id, body in self._all(
            "SELECT v.evidence_id, v.body FROM json_each(?) AS j "
            "CROSS JOIN verifications AS v ON v.evidence_id = j.value ORDER BY v.evidence_id, v.number",
            wanted,
        ):
            checks.setdefault(evidence_id, []).append(body)
        return {evidence_id: r.evidence_of(body, checks.get(evidence_id, [])) for evidence_id, body in found}

    def evidence_of_project(self, project_id: str, evidence_id: str) -> Evidence | None:
        """Return one piece of evidence of a project."""
        found = self.evidence([evidence_id]).get(evidence_id)
        return found if found is not None and found.project_id == project_id else None

    # --- Heads ------------------------------------------------------------------------------------------------------

    def heads(self, query: HeadsQuery) -> HeadsRead:
        """Return heads at (valid_at, known_at)."""
        gather = _Heads(self, query)
        by_key = {key: self.family_by_key(query.project_id, key) for key in query.identity_keys}
        families = self._families_of(query.project_id, query.family_ids)
        gather.add([*families.values(), *(family for family in by_key.values() if family is not None)])
        missing_families = [i for i in query.family_ids if i not in gather.found]
        missing_keys = [k for k, family in by_key.items() if family is None or family.family_id not in gather.found]
        if query.follow_replacements:
            gather.follow(self)
        position = self.position(query.project_id) or 0
        return HeadsRead(tuple(gather.found.values()), tuple(missing_families), tuple(missing_keys), position)

    def _families_of(self, project_id: str, family_ids: Iterable[str]) -> dict[str, Family]:
        found = self._all(
            "SELECT f.body FROM json_each(?) AS j CROSS JOIN families AS f ON f.family_id = j.value "
            "WHERE f.project_id = ? ORDER BY j.key",
            json.dumps(list(family_ids)),
            project_id,
        )
        return {family.family_id: family for family in (r.family_of(row[0]) for row in found)}

    def _heads_of(self, family_ids: Iterable[str], branch: str) -> dict[str, Head]:
        found = self._all(
            f"SELECT {_OF_HEAD} FROM json_each(?) AS j CROSS JOIN heads AS h ON h.family_id = j.value "
            "WHERE h.branch = ?",
            json.dumps(list(family_ids)),
            branch,
        )
        return {head.family_id: head for head in map(r.head_of, found)}

    def heads_page(self, query: HeadsPageQuery) -> tuple[list[HeadView], str, int]:
        """Return heads of a branch in order of family id, the last family looked at, and the position.

        The last family is empty at the end of the list.
        """
        point = HeadsQuery(query.project_id, query.branch, query.valid_at, query.known_at, query.detail)
        gather = _Heads(self, point)
        if query.flagged_only:
            # A flag that was cleared since known_at still counts for that moment, so every flag ever is looked at.
            source = (
                "(SELECT DISTINCT project_id, branch, family_id FROM review_flags INDEXED BY review_flags_by_project "
            )
            source += "WHERE project_id = ?1 AND branch = ?2 AND family_id > ?3 ORDER BY family_id LIMIT ?4)"
        else:
            source = "heads"
        found = self._all(
            f"SELECT f.body FROM {source} AS h "
            "CROSS JOIN families AS f ON f.family_id = h.family_id "
            "WHERE h.project_id = ?1 AND h.branch = ?2 AND h.family_id > ?3 ORDER BY h.family_id LIMIT ?4",
            query.project_id,
            query.branch,
            query.after_family,
            query.limit,
        )
        families = [r.family_of(row[0]) for row in found]
        gather.add(assembly.asked_for(families, query))
        return *assembly.page_of(families, gather.found.values(), query), self.position(query.project_id) or 0

    def known_position(self, project_id: str, known_at: datetime) -> int:
        """Return the newest position that was recorded by a moment."""
        row = self._one(
            "SELECT position FROM commits WHERE project_id = ? AND recorded_at <= ? "
            "ORDER BY recorded_at DESC, position DESC LIMIT 1",
            project_id,
            to_micros(known_at),
        )
        return 0 if row is None else int(row[0])

    def rows_from(self, family_id: str, branch: str, valid: int, known: int | None) -> tuple[TimelineRow, ...]:
        """Return the last known row that starts by a moment, and all later ones."""
        if known is None:
            found = self._all(
                f"SELECT {r.ROW_COLUMNS} FROM timeline_rows INDEXED BY timeline_open "
                "WHERE family_id = ? AND branch = ? AND closed_position = 0 AND valid_from >= coalesce("
                "(SELECT max(valid_from) FROM timeline_rows INDEXED BY timeline_open WHERE family_id = ? "
                "AND branch = ? AND closed_position = 0 AND valid_from <= ?), ?) ORDER BY valid_from",
                family_id,
                branch,
                family_id,
                branch,
                valid,
                -FOREVER,
            )
            return tuple(r.timeline_row_of(row) for row in found)
        first = self._all(
            f"SELECT {r.ROW_COLUMNS} FROM timeline_rows INDEXED BY timeline_valid WHERE family_id = ? "
            "AND branch = ? AND valid_from <= ? AND recorded_from <= ? AND recorded_to > ? "
            "ORDER BY valid_from DESC LIMIT 1",
            family_id,
            branch,
            valid,
            known,
            known,
        )
        later = self._all(
            f"SELECT {r.ROW_COLUMNS} FROM timeline_rows INDEXED BY timeline_valid WHERE family_id = ? "
            "AND branch = ? AND valid_from > ? AND recorded_from <= ? AND recorded_to > ? ORDER BY valid_from",
            family_id,
            branch,
            valid,
            known,
            known,
        )
        return tuple(r.timeline_row_of(row) for row in (*first, *later))

    def last_row_change(self, family_id: str, branch: str, known: int) -> int:
        """Return the last commit up to a position that opened or closed a row."""
        opened = self._one(
            "SELECT max(opened_position) FROM timeline_rows "
            "WHERE family_id = ? AND branch = ? AND opened_position <= ?",
            family_id,
            branch,
            known,
        )
        closed = self._one(
            "SELECT max(closed_position) FROM timeline_rows INDEXED BY timeline_closed "
            "WHERE family_id = ? AND branch = ? AND closed_position <= ? AND closed_position > 0",
            family_id,
            branch,
            known,
        )
        return max(opened[0] or 0, closed[0] or 0)

    def bare_head(self, project_id: str, head: Head, known: int) -> Head:
        """Return a head as known at a position where it had rows before, and has none."""
        at = last = self.last_row_change(head.family_id, head.branch, known)
        commit = None
        while at and (commit is None or not assembly.settles(commit)):
            body = self._one("SELECT body FROM commits WHERE project_id = ? AND position = ?", project_id, at)[0]
            commit = load(Commit, body)
            at = self.last_row_change(head.family_id, head.branch, at - 1)
        proposal = None
        if commit is not None:
            ident = commit.proposal_id
            row = self._one("SELECT body, status, progress FROM proposals WHERE proposal_id = ?", ident)
            proposal = r.proposal_of(*row)
        closed = self._one(
            "SELECT revision_id FROM timeline_rows INDEXED BY timeline_closed "
            "WHERE family_id = ? AND branch = ? AND closed_position = ? AND closed_position > 0 "
            "ORDER BY valid_from DESC LIMIT 1",
            head.family_id,
            head.branch,
            last,
        )
        return assembly.bare_head(head, closed[0], commit, proposal.mutation if proposal is not None else None)

    def _past(self, row: TimelineRow, known: int | None) -> tuple[PastView, ...]:
        """Return the rows before a row, newest first, each with the reason of the revision that took over."""
        closed = "closed_position = 0" if known is None else "recorded_from <= ? AND recorded_to > ?"
        index = "timeline_open" if known is None else "timeline_valid"
        found = self._all(
            f"SELECT {_OF_ROW}, v.title, json_extract(v.body, '$.reason') "
            f"FROM timeline_rows AS t INDEXED BY {index} "
            "CROSS JOIN revisions AS v ON v.revision_id = t.revision_id "
            f"WHERE t.family_id = ? AND t.branch = ? AND t.valid_from <= ? AND {closed} "
            "ORDER BY t.valid_from DESC LIMIT ?",
            row.family_id,
            row.branch,
            to_micros(row.valid_from),
            *(() if known is None else (known, known)),
            assembly.MOST_PAST + 1,
        )
        return assembly.past_of(found)

    def _title(self, family_id: str, branch: str, valid: int, known: int | None) -> FamilyTitle:
        body = self._one("SELECT body FROM families WHERE family_id = ?", family_id)
        family = r.family_of(body[0])
        rows = self.rows_from(family_id, branch, valid, known)
        title = ""
        if rows:
            title = self._one("SELECT title FROM revisions WHERE revision_id = ?", rows[0].revision_id)[0]
        return FamilyTitle(family_id, family.identity_key, title)

    # --- Relations --------------------------------------------------------------------------------------------------

    def relations_of(self, family_ids: Sequence[str], branch: str, kinds: Iterable[RelationKind]) -> list[Relation]:
        """Return all relations of families on a branch, retired ones included, in order of recording."""
        wanted = json.dumps(sorted(k.value for k in kinds))
        families = json.dumps(list(family_ids))
        found: dict[str, Any] = {}
        for end in ("source_id", "target_id"):
            index = "relations_out" if end == "source_id" else "relations_in"
            for row in self._all(
                f"SELECT {_OF_RELATION}, l.relation_id FROM json_each(?) AS j "
                f"CROSS JOIN relations AS l INDEXED BY {index} ON l.{end} = j.value "
                "WHERE l.kind IN (SELECT value FROM json_each(?)) AND l.branch = ?",
                families,
                wanted,
                branch,
            ):
                found[row[4]] = row[:4]
        made = [r.relation_of(row) for row in found.values()]
        return assembly.in_order(made)

    def relation(self, project_id: str, relation_id: str) -> Relation | None:
        """Return one relation."""
        row = self._one(
            f"SELECT {r.RELATION_COLUMNS} FROM relations WHERE relation_id = ? AND project_id = ?",
            relation_id,
            project_id,
        )
        return None if row is None else r.relation_of(row)

    def relations(self, query: RelationsQuery) -> list[Relation]:
        """Return a page of relations in order of recording."""
        retired = "" if query.include_retired else "AND retired_position = 0 "
        kinds = ""
        values: list[Any] = []
        if query.kinds:
            kinds = "AND kind IN (SELECT value FROM json_each(?)) "
            values.append(json.dumps(sorted(k.value for k in query.kinds)))
        ends = ("source_id", "target_id") if query.family_id else ("",)
        found: dict[str, Relation] = {}
        for end in ends:
            index, where = "relations_by_project", "project_id = ?"
            first: list[Any] = [query.project_id]
            if end:
                index = "relations_by_source" if end == "source_id" else "relations_by_target"
                where, first = f"{end} = ? AND project_id = ?", [query.family_id, query.project_id]
            for row in self._all(
                f"SELECT {r.RELATION_COLUMNS} FROM relations INDEXED BY {index} "
                f"WHERE {where} AND (position, relation_id) > (?, ?) {retired}{kinds}"
                "ORDER BY position, relation_id LIMIT ?",
                *first,
                *query.after,
                *values,
                query.limit,
            ):
                relation = r.relation_of(row)
                found[relation.relation_id] = relation
        return assembly.in_order(found.values())[: query.limit]

    # --- Changes, projections ---------------------------------------------------------------------------------------

    def changes(self, project_id: str, after_position: int, limit: int) -> ChangesView:
        """Return commits in order of position."""
        found = self._all(
            "SELECT body FROM commits WHERE project_id = ? AND position > ? ORDER BY position LIMIT ?",
            project_id,
            after_position,
            limit,
        )
        return ChangesView(tuple(load(Commit, row[0]) for row in found), self.position(project_id) or 0)

    def projection_keys(self, project_id: str, after: tuple[str, str], limit: int) -> list[ProjectionKey]:
        """Return the (family, branch) pairs of a project in order."""
        found = self._all(
            "SELECT family_id, branch FROM heads INDEXED BY heads_by_family "
            "WHERE project_id = ? AND (family_id, branch) > (?, ?) ORDER BY family_id, branch LIMIT ?",
            project_id,
            *after,
            limit,
        )
        return [ProjectionKey(*row) for row in found]

    def projections(self, project_id: str, keys: Sequence[ProjectionKey]) -> tuple[list[ProjectionView], int]:
        """Return what an index holds of each key, and the position that this is from."""
        return [self._projection(project_id, key) for key in keys], self.position(project_id) or 0

    def _projection(self, project_id: str, key: ProjectionKey) -> ProjectionView:
        family = self.family(project_id, key.family_id)
        head_row = self._one(
            f"SELECT {r.HEAD_COLUMNS} FROM heads WHERE family_id = ? AND branch = ?",
            key.family_id,
            key.branch,
        )
        if family is None or head_row is None:
            return ProjectionView(family, key.branch, ())
        head = r.head_of(head_row)
        last_two = [
            row[0]
            for row in self._all(
                "SELECT revision_id FROM timeline_rows INDEXED BY timeline_open WHERE family_id = ? AND branch = ? "
                "AND closed_position = 0 ORDER BY valid_from DESC LIMIT 2",
                key.family_id,
                key.branch,
            )
        ]
        if key.since_position > 0:
            wanted = assembly.wanted_since(self._changed_since(key), head, last_two)
        else:
            wanted = [
                row[0]
                for row in self._all(
                    "SELECT revision_id FROM revisions WHERE family_id = ? AND branch = ? ORDER BY number",
                    key.family_id,
                    key.branch,
                )
            ]
        rows = {revision_id: self._rows_of(revision_id, FOREVER) for revision_id in wanted}
        return assembly.projection_of(family, key, head, last_two, wanted, self.revisions(project_id, wanted), rows)

    def _changed_since(self, key: ProjectionKey) -> list[str]:
        found = self._all(
            "SELECT revision_id FROM timeline_rows WHERE family_id = ? AND branch = ? AND opened_position >= ? "
            "UNION SELECT revision_id FROM timeline_rows INDEXED BY timeline_closed "
            "WHERE family_id = ? AND branch = ? AND closed_position >= ? AND closed_position > 0",
            key.family_id,
            key.branch,
            key.since_position,
            key.family_id,
            key.branch,
            key.since_position,
        )
        return [row[0] for row in found]


class _Heads:
    """Gathers the heads of one question."""

    def __init__(self, reader: Reader, query: HeadsQuery) -> None:
        self._reader = reader
        self._query = query
        self._valid = to_micros(query.valid_at)
        self._known = None if query.known_at is None else to_micros(query.known_at)
        self._position = None if query.known_at is None else reader.known_position(query.project_id, query.known_at)
        self._titles: dict[str, FamilyTitle] = {}
        self.found: dict[str, HeadView] = {}

    def add(self, families: Iterable[Family]) -> None:
        """Read the heads of families, with few statements for all of them; what is not published has none."""
        reader, query = self._reader, self._query
        wanted = {family.family_id: family for family in families if family.family_id not in self.found}
        heads = reader._heads_of(wanted, query.branch)  # noqa: SLF001 - one module, two classes
        rows: dict[str, tuple[TimelineRow, ...]] = {}
        for family_id in filter(heads.__contains__, wanted):
            found = reader.rows_from(family_id, query.branch, self._valid, self._known)
            first = None if found or self._known is None else self._first_position(wanted[family_id], query.branch)
            if assembly.is_published(found, first, self._position):
                rows[family_id] = found
                if self._position is not None and not found:
                    heads[family_id] = reader.bare_head(query.project_id, heads[family_id], self._position)
        shown = {i: found[0].revision_id if found else heads[i].revision_id for i, found in rows.items()}
        revisions = self._revisions(shown.values())
        relations, flags = self._relations(rows.keys()), self._flags(rows.keys())
        evidence: Mapping[str, Evidence] = {}
        if query.detail is Detail.FULL:
            links = [link for one in revisions.values() for link in one.evidence_links]
            links += [link for found in relations.values() for one in found for link in one.evidence_links]
            evidence = reader.evidence(link.evidence_id for link in links)
        for family_id, family in wanted.items():
            if family_id in rows:
                self.found[family_id] = self._view(
                    family,
                    heads[family_id],
                    rows[family_id],
                    revisions[shown[family_id]],
                    relations.get(family_id, ()),
                    flags.get(family_id, ()),
                    evidence,
                )

    def follow(self, reader: Reader) -> None:
        """Read the heads of all families that replace those found, and so on."""
        looked_at: set[str] = set()
        while found := [view for family_id, view in self.found.items() if family_id not in looked_at]:
            looked_at.update(view.family.family_id for view in found)
            others = set(assembly.replacements_of(found))
            self.add(reader._families_of(self._query.project_id, sorted(others - looked_at)).values())  # noqa: SLF001

    def _view(
        self,
        family: Family,
        head: Head,
        rows: tuple[TimelineRow, ...],
        revision: Revision,
        relations: tuple[Relation, ...],
        all_flags: Sequence[ReviewFlag],
        evidence: Mapping[str, Evidence],
    ) -> HeadView:
        flags = assembly.flags_at(all_flags, self._position)
        full = self._query.detail is Detail.FULL
        links = [*revision.evidence_links, *(link for one in relations for link in one.evidence_links)] if full else []
        return HeadView(
            family=family,
            branch=self._query.branch,
            rows=assembly.rows_as_known(rows, self._query.known_at),
            head=head,
            revision=revision,
            relations=relations,
            titles=self._titles_of(family, relations),
            flags=flags,
            known_at=self._query.known_at,
            position=self._changed(head, flags, assembly.last_flag_change(all_flags, self._position)),
            evidence={i: evidence[i] for i in dict.fromkeys(one.evidence_id for one in links) if i in evidence},
            past=self._reader._past(rows[0], self._known) if full and rows else (),  # noqa: SLF001
        )

    def _changed(self, head: Head, flags: tuple[ReviewFlag, ...], last_flag_change: int) -> int:
        known = self._position
        return assembly.changed_position(
            head,
            flags,
            known,
            last_row_change=0 if known is None else self._reader.last_row_change(head.family_id, head.branch, known),
            last_flag_change=last_flag_change,
        )

    def _first_position(self, family: Family, branch: str) -> int | None:
        row = self._reader._one(  # noqa: SLF001
            "SELECT position FROM revisions WHERE family_id = ? AND branch = ? AND number = 1", family.family_id, branch
        )
        return None if row is None else int(row[0])

    def _revisions(self, revision_ids: Iterable[str]) -> dict[str, Revision]:
        bare = self._query.detail is Detail.STATE
        found = self._reader._all(  # noqa: SLF001
            f"SELECT v.body, v.{'title' if bare else 'content'} FROM json_each(?) AS j "
            "CROSS JOIN revisions AS v ON v.revision_id = j.value",
            json.dumps(list(revision_ids)),
        )
        made = [
            r.revision_with(body, Content(title=text)) if bare else r.revision_of(body, text) for body, text in found
        ]
        return {revision.revision_id: revision for revision in made}

    def _relations(self, family_ids: Iterable[str]) -> dict[str, tuple[Relation, ...]]:
        wanted = list(family_ids)
        found: dict[str, list[Relation]] = {family_id: [] for family_id in wanted}
        for relation in self._reader.relations_of(wanted, self._query.branch, assembly.kinds_for(self._query.detail)):
            for end in {relation.source_id, relation.target_id}:
                if end in found:
                    found[end].append(relation)
        return {family_id: assembly.holding(some, self._query) for family_id, some in found.items()}

    def _titles_of(self, family: Family, relations: Iterable[Relation]) -> dict[str, FamilyTitle]:
        made = {}
        for other in assembly.other_ends(family.family_id, relations):
            if other not in self._titles:
                self._titles[other] = self._reader._title(  # noqa: SLF001
                    other, self._query.branch, self._valid, self._known
                )
            made[other] = self._titles[other]
        return made

    def _flags(self, family_ids: Iterable[str]) -> dict[str, list[ReviewFlag]]:
        found = self._reader._all(  # noqa: SLF001
            f"SELECT {_OF_FLAG} FROM json_each(?) AS j CROSS JOIN review_flags AS g ON g.family_id = j.value "
            "WHERE g.branch = ? ORDER BY g.family_id, g.position, g.cause_family_id",
            json.dumps(list(family_ids)),
            self._query.branch,
        )
        flags: dict[str, list[ReviewFlag]] = {}
        for flag in map(r.flag_of, found):
            flags.setdefault(flag.family_id, []).append(flag)
        return flags
