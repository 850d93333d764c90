"""Every statement of a request's path, by name. Each finds its nodes by an index: a test asks the planner about all.

``USING INDEX SEEK`` pins the plan: by the statistics of a young database the planner would choose otherwise.
``ORDER BY`` names all properties of an index: only then is the index's own order used, and a page reads no more than
it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger_svc import rows as r
from ledger_svc.audit_scan import LAYOUTS
from ledger_svc.domain.model import OPEN_STATUSES, RecordKind, RelationKind


def _list(alias: str, columns: str) -> str:
    return "[" + ", ".join(f"{alias}.{c}" for c in columns.split(", ")) + "]"


_ROW: Final = _list("t", r.ROW_COLUMNS)
_HEAD: Final = _list("h", r.HEAD_COLUMNS)
_FLAG: Final = _list("g", r.FLAG_COLUMNS)
_RELATION: Final = _list("l", r.RELATION_COLUMNS)


def fenced(query: str) -> str:
    """Return a statement that answers all rows of another one as a list, with the project's version before and after.

    The parts of a statement run in this order: what is looked up last is looked up after all rows are there.
    """
    head, _, tail = query.rpartition("\nRETURN ") if "\nRETURN " in query else query.rpartition(" RETURN ")
    values, _, order = tail.partition(" ORDER BY ")
    distinct = "DISTINCT " if values.startswith("DISTINCT ") else ""
    sorting = f"\nWITH * ORDER BY {order}" if order else ""
    return f"""\
MATCH (fence:Project {{project_id: $project_id}})
WITH fence.version AS before, fence.position AS position, fence.recorded_at AS recorded_at
CALL (before) {{
{head}{sorting}
RETURN collect({distinct}[{values.removeprefix("DISTINCT ")}]) AS found
}}
MATCH (after:Project {{project_id: $project_id}})
RETURN before, after.version, position, recorded_at, found"""


# --- The ledger, projects ---------------------------------------------------------------------------------------------

VERSION: Final = "MATCH (p:Project {project_id: $project_id}) RETURN p.version"

# A property set to what it is already takes the node's lock and writes nothing.
SETTLE: Final = "MATCH (p:Project {project_id: $project_id}) SET p.lock = 0 RETURN p.version"

LOCK: Final = """\
MATCH (p:Project {project_id: $project_id}) SET p.lock = 0
RETURN p.body, p.policy, p.position, p.recorded_at, p.audit_sequence, p.audit_hash, p.version, p.seq, p.number"""

PROJECT: Final = """\
MATCH (p:Project {project_id: $project_id})
RETURN p.body, p.policy, p.position, p.recorded_at"""

PROJECTS: Final = """\
MATCH (p:Project) USING INDEX SEEK p:Project(project_id) WHERE p.project_id > $after
RETURN p.body, p.policy, p.position, p.recorded_at ORDER BY p.project_id LIMIT $limit"""

PROJECTS_NAMED: Final = """\
UNWIND $ids AS id
MATCH (p:Project {project_id: id})
RETURN p.body, p.policy, p.position, p.recorded_at ORDER BY p.project_id LIMIT $limit"""

POLICY: Final = "MATCH (y:Policy {project_id: $project_id, version: $version}) RETURN y.body"

POSITION: Final = "MATCH (p:Project {project_id: $project_id}) RETURN p.position"

POSITIONS: Final = "UNWIND $ids AS id MATCH (p:Project {project_id: id}) RETURN p.project_id, p.position"

PROJECT_OF_FAMILY: Final = "MATCH (f:Family {family_id: $family_id}) RETURN f.project_id"

# --- Families, revisions, evidence ------------------------------------------------------------------------------------

FAMILIES_BY_ID: Final = """\
UNWIND $ids AS id
MATCH (f:Family {family_id: id}) WHERE f.project_id = $project_id
RETURN f.body"""

OWNERS: Final = """\
UNWIND $keys AS key
MATCH (k:IdentityKey {project_id: $project_id, identity_key: key})
RETURN k.identity_key, k.family_id"""

_FAMILIES: Final = """\
MATCH (f:Family) USING INDEX SEEK f:Family(project_id, {0}page)
WHERE f.project_id = $project_id {1}AND f.page > $after
RETURN f.body ORDER BY f.project_id, {2}f.page LIMIT $limit"""

FAMILIES: Final = _FAMILIES.format("", "", "")
FAMILIES_OF_SCOPE: Final = _FAMILIES.format("scope, ", "AND f.scope = $scope ", "f.scope, ")
FAMILIES_OF_CATEGORY: Final = _FAMILIES.format("category, ", "AND f.category = $category ", "f.category, ")

REVISIONS: Final = """\
UNWIND $ids AS id
MATCH (v:Revision {revision_id: id}) WHERE v.project_id = $project_id
RETURN v.body, v.content"""

HISTORY: Final = f"""\
MATCH (v:Revision) USING INDEX SEEK v:Revision(head, number)
WHERE v.head = $head AND v.number < $before AND v.recorded_at <= $known
WITH v ORDER BY v.head DESC, v.number DESC LIMIT $limit
CALL (v) {{
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(revision_id)
    WHERE t.revision_id = v.revision_id AND t.recorded_from <= $known
    WITH t ORDER BY t.opened_position, t.valid_from
    RETURN collect({_ROW}) AS rows
}}
RETURN v.body, v.content, rows ORDER BY v.number DESC"""

EVIDENCE: Final = """\
UNWIND $ids AS id
MATCH (e:Evidence {evidence_id: id})
CALL (e) {
    MATCH (c:Verification) USING INDEX SEEK c:Verification(evidence_id, number)
    WHERE c.evidence_id = e.evidence_id AND c.number > 0
    WITH c ORDER BY c.evidence_id, c.number
    RETURN collect(c.body) AS checks
}
RETURN e.body, checks"""

EVIDENCE_IDS: Final = """\
UNWIND $fingerprints AS fingerprint
MATCH (e:Evidence {project_id: $project_id, fingerprint: fingerprint})
RETURN e.evidence_id"""

# --- Heads ------------------------------------------------------------------------------------------------------------

_ROWS_NOW: Final = f"""\
CALL (h) {{
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, closed_position, valid_from)
    WHERE t.head = h.head AND t.closed_position = 0 AND t.valid_from <= $valid
    WITH t ORDER BY t.head DESC, t.closed_position DESC, t.valid_from DESC LIMIT 1
    RETURN collect({_ROW}) AS first
}}
CALL (h) {{
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, closed_position, valid_from)
    WHERE t.head = h.head AND t.closed_position = 0 AND t.valid_from > $valid
    WITH t ORDER BY t.head, t.closed_position, t.valid_from
    RETURN collect({_ROW}) AS later
}}"""

_ROWS_KNOWN: Final = f"""\
CALL (h) {{
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, valid_from)
    WHERE t.head = h.head AND t.valid_from <= $valid AND t.recorded_from <= $known AND t.recorded_to > $known
    WITH t ORDER BY t.head DESC, t.valid_from DESC LIMIT 1
    RETURN collect({_ROW}) AS first
}}
CALL (h) {{
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, valid_from)
    WHERE t.head = h.head AND t.valid_from > $valid AND t.recorded_from <= $known AND t.recorded_to > $known
    WITH t ORDER BY t.head, t.valid_from
    RETURN collect({_ROW}) AS later
}}"""

_FLAGS_NOW: Final = f"""\
CALL (h) {{
    MATCH (g:ReviewFlag) USING INDEX SEEK g:ReviewFlag(head, cleared_position)
    WHERE g.head = h.head AND g.cleared_position = 0
    WITH g ORDER BY g.position, g.cause_family_id
    RETURN collect({_FLAG}) AS flags
}}"""

_FLAGS_EVER: Final = f"""\
CALL (h) {{
    MATCH (g:ReviewFlag) USING INDEX SEEK g:ReviewFlag(head, cleared_position)
    WHERE g.head = h.head AND g.cleared_position >= 0
    WITH g ORDER BY g.position, g.cause_family_id
    RETURN collect({_FLAG}) AS flags
}}"""

_RELATIONS: Final = f"""\
CALL (f) {{
    CALL (f) {{
        MATCH (l:Relation) USING INDEX SEEK l:Relation(source_id, kind)
        WHERE l.source_id = f.family_id AND l.kind IN $kinds AND l.branch = $branch
        RETURN l
        UNION
        MATCH (l:Relation) USING INDEX SEEK l:Relation(target_id, kind)
        WHERE l.target_id = f.family_id AND l.kind IN $kinds AND l.branch = $branch
        RETURN l
    }}
    WITH l ORDER BY l.position, l.relation_id
    RETURN collect({_RELATION}) AS relations
}}"""


_KNOWN_POSITION: Final = """\
CALL () {
    MATCH (c:Commit) USING INDEX SEEK c:Commit(project_id, recorded_at)
    WHERE c.project_id = $project_id AND c.recorded_at <= $known
    WITH c ORDER BY c.project_id DESC, c.recorded_at DESC LIMIT 1
    RETURN coalesce(collect(c.position)[0], 0) AS known_position
}
"""

_ROWS_CHANGED: Final = """\
CALL (h, known_position) {
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, opened_position, valid_from)
    WHERE t.head = h.head AND t.opened_position <= known_position AND t.valid_from IS NOT NULL
    WITH t ORDER BY t.head DESC, t.opened_position DESC, t.valid_from DESC LIMIT 1
    RETURN coalesce(collect(t.opened_position)[0], 0) AS opened
}
CALL (h, known_position) {
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, closed_position, valid_from)
    WHERE t.head = h.head AND t.closed_position <= known_position AND t.valid_from IS NOT NULL
    WITH t ORDER BY t.head DESC, t.closed_position DESC, t.valid_from DESC LIMIT 1
    RETURN coalesce(collect(t.closed_position)[0], 0) AS closed
}"""


def _heads(known: str, rows: str, flags: str, changed: str, last_change: str) -> str:
    return f"""\
{known}UNWIND $families AS id
MATCH (f:Family {{family_id: id}}) WHERE f.project_id = $project_id
MATCH (h:Head {{head: f.family_id + '/' + $branch}})
{rows}
{flags}
{changed}
{_RELATIONS}
WITH f, h, first + later AS rows, flags, relations, {last_change}
MATCH (v:Revision {{revision_id: CASE WHEN size(rows) = 0 THEN h.revision_id ELSE rows[0][5] END}})
RETURN f.body, {_HEAD}, rows, flags, relations, v.body, v.title, CASE WHEN $with_content THEN v.content END,
    coalesce(h.flag_position, 0), last_change, known_position"""


HEADS_NOW: Final = _heads("", _ROWS_NOW, _FLAGS_NOW, "WITH *", "0 AS last_change, NULL AS known_position")
HEADS_KNOWN: Final = _heads(
    _KNOWN_POSITION,
    _ROWS_KNOWN,
    _FLAGS_EVER,
    _ROWS_CHANGED,
    "CASE WHEN opened > closed THEN opened ELSE closed END AS last_change, known_position",
)

FIRST_POSITIONS: Final = """\
UNWIND $heads AS head
MATCH (v:Revision {head: head, number: 1})
RETURN v.head, v.position"""

LAST_CHANGE: Final = """\
UNWIND [$head] AS head
CALL (head) {
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, opened_position, valid_from)
    WHERE t.head = head AND t.opened_position <= $known AND t.valid_from IS NOT NULL
    WITH t ORDER BY t.head DESC, t.opened_position DESC, t.valid_from DESC LIMIT 1
    RETURN coalesce(collect(t.opened_position)[0], 0) AS opened
}
CALL (head) {
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, closed_position, valid_from)
    WHERE t.head = head AND 0 < t.closed_position <= $known AND t.valid_from IS NOT NULL
    WITH t ORDER BY t.head DESC, t.closed_position DESC, t.valid_from DESC LIMIT 1
    WITH collect([t.closed_position, t.revision_id])[0] AS last
    RETURN coalesce(last[0], 0) AS closed, coalesce(last[1], '') AS revision_id
}
RETURN CASE WHEN opened > closed THEN opened ELSE closed END, revision_id"""


def _titles(rows: str) -> str:
    return f"""\
UNWIND $families AS id
MATCH (f:Family {{family_id: id}})
WITH f, {{head: f.family_id + '/' + $branch}} AS h
{rows}
WITH f, first + later AS rows
OPTIONAL MATCH (v:Revision {{revision_id: rows[0][5]}})
RETURN f.body, coalesce(v.title, '')"""


TITLES_NOW: Final = _titles(_ROWS_NOW)
TITLES_KNOWN: Final = _titles(_ROWS_KNOWN)


def _past(index: str, known: str, order: str) -> str:
    return f"""\
UNWIND $heads AS h
CALL (h) {{
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow({index})
    WHERE t.head = h.head AND t.valid_from <= h.valid_from AND {known}
    WITH t ORDER BY {order} LIMIT $limit
    MATCH (v:Revision {{revision_id: t.revision_id}})
    WITH t, v ORDER BY t.valid_from DESC
    RETURN collect([{_ROW}, v.title, v.reason]) AS past
}}
RETURN h.head, past"""


PAST_NOW: Final = _past(
    "head, closed_position, valid_from",
    "t.closed_position = 0",
    "t.head DESC, t.closed_position DESC, t.valid_from DESC",
)
PAST_KNOWN: Final = _past(
    "head, valid_from",
    "t.recorded_from <= $known AND t.recorded_to > $known",
    "t.head DESC, t.valid_from DESC",
)

HEADS_PAGE: Final = """\
MATCH (h:Head) USING INDEX SEEK h:Head(project_id, branch, family_id)
WHERE h.project_id = $project_id AND h.branch = $branch AND h.family_id > $after
WITH h ORDER BY h.project_id, h.branch, h.family_id LIMIT $limit
MATCH (f:Family {family_id: h.family_id})
RETURN f.body ORDER BY f.family_id"""

FLAGGED_PAGE: Final = """\
MATCH (g:ReviewFlag) USING INDEX SEEK g:ReviewFlag(project_id, branch, family_id)
WHERE g.project_id = $project_id AND g.branch = $branch AND g.family_id > $after
WITH DISTINCT g.project_id AS project_id, g.branch AS branch, g.family_id AS family_id
ORDER BY project_id, branch, family_id LIMIT $limit
MATCH (f:Family {family_id: family_id})
RETURN f.body ORDER BY f.family_id"""

# --- Relations --------------------------------------------------------------------------------------------------------

RELATIONS_OF: Final = f"""\
UNWIND $families AS id
WITH {{family_id: id}} AS f
{_RELATIONS}
UNWIND relations AS relation
RETURN DISTINCT relation"""

RELATIONS_BY_ID: Final = f"""\
UNWIND $ids AS id
MATCH (l:Relation {{relation_id: id}}) WHERE l.project_id = $project_id
RETURN {_RELATION}"""


def _relations_page(owner: str, value: str) -> str:
    return f"""\
MATCH (l:Relation) USING INDEX SEEK l:Relation({owner}, page)
WHERE l.{owner} = ${value} AND l.page > $after AND l.project_id = $project_id
    AND ($retired OR l.retired_position = 0) AND (size($kinds) = 0 OR l.kind IN $kinds)
RETURN {_RELATION} ORDER BY l.{owner}, l.page LIMIT $limit"""


RELATIONS_PAGE: Final = _relations_page("project_id", "project_id")
RELATIONS_PAGE_OUT: Final = _relations_page("source_id", "family_id")
RELATIONS_PAGE_IN: Final = _relations_page("target_id", "family_id")

# --- Changes, projections ---------------------------------------------------------------------------------------------

COMMITS: Final = """\
MATCH (c:Commit) USING INDEX SEEK c:Commit(project_id, position)
WHERE c.project_id = $project_id AND c.position > $after
RETURN c.body ORDER BY c.project_id, c.position LIMIT $limit"""

PROJECTION_KEYS: Final = """\
MATCH (h:Head) USING INDEX SEEK h:Head(project_id, head)
WHERE h.project_id = $project_id AND h.head > $after
RETURN h.family_id, h.branch ORDER BY h.project_id, h.head LIMIT $limit"""

PROJECTION_HEADS: Final = f"""\
UNWIND $keys AS key
MATCH (f:Family {{family_id: key.family_id}}) WHERE f.project_id = $project_id
OPTIONAL MATCH (h:Head {{head: key.head}})
CALL (key) {{
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, closed_position, valid_from)
    WHERE t.head = key.head AND t.closed_position = 0 AND t.valid_from IS NOT NULL
    WITH t ORDER BY t.head DESC, t.closed_position DESC, t.valid_from DESC LIMIT 2
    RETURN collect(t.revision_id) AS last_two
}}
RETURN key.head, f.body, {_HEAD}, last_two"""

PROJECTION_ALL: Final = """\
UNWIND $heads AS head
MATCH (v:Revision) USING INDEX SEEK v:Revision(head, number)
WHERE v.head = head AND v.number > 0
RETURN v.head, v.revision_id ORDER BY v.head, v.number"""

PROJECTION_SINCE: Final = """\
UNWIND $keys AS key
CALL (key) {
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, opened_position, valid_from)
    WHERE t.head = key.head AND t.opened_position >= key.since AND t.valid_from IS NOT NULL
    RETURN t.revision_id AS id
    UNION
    MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(head, closed_position, valid_from)
    WHERE t.head = key.head AND t.closed_position >= key.since AND t.valid_from IS NOT NULL
    RETURN t.revision_id AS id
}
RETURN key.head, id"""

ROWS_OF_REVISIONS: Final = f"""\
UNWIND $ids AS id
MATCH (t:TimelineRow) USING INDEX SEEK t:TimelineRow(revision_id) WHERE t.revision_id = id
RETURN {_ROW}"""

# --- Governance -------------------------------------------------------------------------------------------------------

_APPROVALS: Final = """\
CALL (p) {
    MATCH (a:Approval) USING INDEX SEEK a:Approval(proposal_id, seq) WHERE a.proposal_id = p.proposal_id AND a.seq > 0
    WITH a ORDER BY a.proposal_id, a.seq
    RETURN collect([a.body, a.progress]) AS approvals
}"""

PROPOSALS_BY_ID: Final = f"""\
UNWIND $ids AS id
MATCH (p:Proposal {{proposal_id: id}}) WHERE p.project_id = $project_id
{_APPROVALS}
RETURN p.body, p.status, p.progress, p.seq, approvals"""

PROPOSALS_PAGE: Final = f"""\
UNWIND $statuses AS status
CALL (status) {{
    MATCH (p:Proposal) USING INDEX SEEK p:Proposal(project_id, status, seq)
    WHERE p.project_id = $project_id AND p.status = status AND p.seq > $after
    WITH p ORDER BY p.project_id, p.status, p.seq LIMIT $limit
    RETURN p
}}
WITH p ORDER BY p.seq LIMIT $limit
{_APPROVALS}
RETURN p.body, p.status, p.progress, p.seq, approvals ORDER BY p.seq"""

PROPOSALS_OF_FAMILY: Final = f"""\
MATCH (i:ProposalFamily) USING INDEX SEEK i:ProposalFamily(family_id, seq)
WHERE i.family_id = $family_id AND i.seq > $after
WITH i ORDER BY i.family_id, i.seq
MATCH (p:Proposal {{proposal_id: i.proposal_id}}) WHERE p.project_id = $project_id AND p.status IN $statuses
WITH p ORDER BY p.seq LIMIT $limit
{_APPROVALS}
RETURN p.body, p.status, p.progress, p.seq, approvals ORDER BY p.seq"""

_ADMITTED: Final = """\
CALL (o) {
    MATCH (a:Admission) USING INDEX SEEK a:Admission(observation_id, number)
    WHERE a.observation_id = o.observation_id AND a.number > 0
    WITH a ORDER BY a.observation_id DESC, a.number DESC LIMIT 1
    RETURN collect([a.body, a.number])[0] AS admission
}"""

OBSERVATIONS_BY_ID: Final = f"""\
UNWIND $ids AS id
MATCH (o:Observation {{observation_id: id}}) WHERE o.project_id = $project_id
{_ADMITTED}
RETURN o.body, o.seq, admission"""

OBSERVATIONS_AT: Final = """\
UNWIND $keys AS key
MATCH (o:Observation {observation_id: key[0]}) WHERE o.project_id = $project_id
OPTIONAL MATCH (a:Admission {observation_id: key[0], number: key[1]})
RETURN o.body, o.seq, a.body"""

OBSERVATIONS_BY_KEY: Final = """\
UNWIND $keys AS key
MATCH (o:Observation {project_id: $project_id, source_kind: key[0], locator: key[1], source_hash: key[2]})
RETURN o.body"""

OBSERVATIONS_PAGE: Final = f"""\
MATCH (o:Observation) USING INDEX SEEK o:Observation(project_id, seq)
WHERE o.project_id = $project_id AND o.seq > $after
WITH o ORDER BY o.project_id, o.seq LIMIT $limit
{_ADMITTED}
RETURN o.body, o.seq, admission ORDER BY o.seq"""

OBSERVATIONS_OF_OUTCOMES: Final = f"""\
UNWIND $outcomes AS outcome
CALL (outcome) {{
    MATCH (o:Observation) USING INDEX SEEK o:Observation(project_id, outcome, seq)
    WHERE o.project_id = $project_id AND o.outcome = outcome AND o.seq > $after
    WITH o ORDER BY o.project_id, o.outcome, o.seq LIMIT $limit
    RETURN o
}}
WITH o ORDER BY o.seq LIMIT $limit
{_ADMITTED}
RETURN o.body, o.seq, admission ORDER BY o.seq"""

AUDIT: Final = """\
MATCH (a:AuditEntry) USING INDEX SEEK a:AuditEntry(project_id, sequence)
WHERE a.project_id = $project_id AND a.sequence > $after
RETURN a.body ORDER BY a.project_id, a.sequence LIMIT $limit"""

AUDIT_TIP: Final = "MATCH (p:Project {project_id: $project_id}) RETURN p.audit_sequence"

REPLIES: Final = """\
UNWIND $keys AS key
MATCH (y:Reply {project_id: $project_id, caller: key[0], rpc: key[1], request_id: key[2]})
RETURN y.caller, y.rpc, y.request_id, y.request_hash, y.reply, y.recorded_at"""

# --- What only decisions read -----------------------------------------------------------------------------------------

STATE_HEADS: Final = f"""\
UNWIND $heads AS key
MATCH (f:Family {{family_id: key.family_id}}) WHERE f.project_id = $project_id
OPTIONAL MATCH (n:Head {{head: key.head}})
WITH f, n, {{head: key.head}} AS h, key
{_ROWS_NOW}
{_FLAGS_NOW}
OPTIONAL MATCH (v:Revision {{revision_id: n.revision_id}})
RETURN f.body, key.branch, {_list("n", r.HEAD_COLUMNS)}, first + later, flags, v.body, v.content"""

RELATIONS_ACTIVE: Final = f"""\
UNWIND $keys AS key
MATCH (l:Relation {{active_key: key}})
RETURN {_RELATION}"""

RELATIONS_ACTIVE_OUT: Final = f"""\
UNWIND $keys AS key
MATCH (l:Relation) USING INDEX SEEK l:Relation(active_out) WHERE l.active_out = key
RETURN {_RELATION}"""

RELATIONS_ACTIVE_IN: Final = f"""\
UNWIND $keys AS key
MATCH (l:Relation) USING INDEX SEEK l:Relation(active_in) WHERE l.active_in = key
RETURN {_RELATION}"""

# --- Writes: each takes $rows, maps of properties ---------------------------------------------------------------------

ADD_PROJECT: Final = """\
MATCH (g:Ledger {key: 'ledger'}) SET g.projects = g.projects + 1
WITH g.projects AS number
UNWIND $rows AS row
CREATE (p:Project) SET p = row, p.number = number, p.lock = 0
RETURN p.number"""

SET_PROJECT: Final = """\
UNWIND $rows AS row
MATCH (p:Project {project_id: row.project_id}) SET p += row
RETURN count(*)"""

ADD_POLICIES: Final = "UNWIND $rows AS row\nCREATE (y:Policy) SET y = row\nRETURN count(*)"

ADD_FAMILIES: Final = """\
UNWIND $rows AS row
MATCH (p:Project {project_id: row.project_id})
CREATE (f:Family) SET f = row
CREATE (f)-[:IN]->(p)
RETURN count(*)"""

ADD_IDENTITY_KEYS: Final = """\
UNWIND $rows AS row
MATCH (f:Family {family_id: row.family_id})
CREATE (k:IdentityKey) SET k = row
CREATE (k)-[:NAMES]->(f)
RETURN count(*)"""

ADD_REVISIONS: Final = """\
UNWIND $rows AS row
MATCH (f:Family {family_id: row.family_id})
CREATE (v:Revision) SET v = row
CREATE (v)-[:OF]->(f)
SET f.title = row.title
RETURN count(*)"""

ADD_PARENTS: Final = """\
UNWIND $rows AS row
MATCH (v:Revision {revision_id: row.revision_id})
CALL (row) { MATCH (q:Revision {revision_id: row.parent_id}) RETURN q }
CREATE (v)-[:PARENT]->(q)
RETURN count(*)"""

ADD_CITATIONS: Final = """\
UNWIND $rows AS row
MATCH (v:Revision {revision_id: row.revision_id})
CALL (row) { MATCH (e:Evidence {evidence_id: row.evidence_id}) RETURN e }
CREATE (v)-[:CITES {stance: row.stance, claim: row.claim}]->(e)
RETURN count(*)"""

ADD_ROWS: Final = """\
UNWIND $rows AS row
MATCH (v:Revision {revision_id: row.revision_id})
CREATE (t:TimelineRow) SET t = row
CREATE (t)-[:SHOWS]->(v)
RETURN count(*)"""

CLOSE_ROWS: Final = """\
UNWIND $rows AS row
MATCH (t:TimelineRow {head: row.head, opened_position: row.opened_position, valid_from: row.valid_from})
WHERE t.closed_position = 0
SET t.recorded_to = row.recorded_to, t.closed_position = row.closed_position
RETURN count(*)"""

PUT_HEADS: Final = """\
UNWIND $rows AS row
MATCH (f:Family {family_id: row.family_id})
MERGE (h:Head {head: row.head})
ON CREATE SET h = row
ON MATCH SET h += row
WITH f, h, row
MERGE (f)-[:PUBLISHED]->(h)
WITH h, row
MATCH (v:Revision {revision_id: row.revision_id})
OPTIONAL MATCH (h)-[old:AT]->()
DELETE old
CREATE (h)-[:AT]->(v)
RETURN count(*)"""

ADD_FLAGS: Final = """\
UNWIND $rows AS row
MATCH (f:Family {family_id: row.family_id})
CREATE (g:ReviewFlag) SET g = row
CREATE (g)-[:ON]->(f)
WITH row
OPTIONAL MATCH (h:Head {head: row.head}) SET h.flag_position = row.position
RETURN count(*)"""

CLEAR_FLAGS: Final = """\
UNWIND $rows AS row
MATCH (g:ReviewFlag {head: row.head, cause_family_id: row.cause_family_id, position: row.position})
WHERE g.cleared_position = 0
SET g.cleared_position = row.cleared_position
WITH row
OPTIONAL MATCH (h:Head {head: row.head}) SET h.flag_position = row.cleared_position
RETURN count(*)"""


def _add_relations(kind: str) -> str:
    return f"""\
UNWIND $rows AS row
MATCH (s:Family {{family_id: row.source_id}})
CALL (row) {{ MATCH (t:Family {{family_id: row.target_id}}) RETURN t }}
CREATE (l:Relation) SET l = row
CREATE (l)-[:SOURCE]->(s)
CREATE (l)-[:TARGET]->(t)
CREATE (s)-[:{kind} {{relation_id: row.relation_id, branch: row.branch}}]->(t)
RETURN count(*)"""


ADD_RELATIONS: Final = {kind: _add_relations(kind.value) for kind in RelationKind}
"""By kind: the direct edge between two families has the kind as its type."""


def _retire_relations(kind: str) -> str:
    return f"""\
UNWIND $rows AS row
MATCH (l:Relation {{relation_id: row.relation_id}}) WHERE l.retired_position = 0
MATCH (s:Family {{family_id: l.source_id}})-[e:{kind} {{relation_id: row.relation_id}}]->()
DELETE e
SET l.retired_from = row.retired_from, l.retired_recorded_at = row.retired_recorded_at,
    l.retired_position = row.retired_position
REMOVE l.active_key, l.active_out, l.active_in
RETURN count(*)"""


RETIRE_RELATIONS: Final = {kind: _retire_relations(kind.value) for kind in RelationKind}

ADD_EVIDENCE: Final = "UNWIND $rows AS row\nCREATE (e:Evidence) SET e = row\nRETURN count(*)"

ADD_VERIFICATIONS: Final = """\
UNWIND $rows AS row
MATCH (e:Evidence {evidence_id: row.evidence_id})
CREATE (c:Verification) SET c = row
CREATE (c)-[:CHECKS]->(e)
RETURN count(*)"""

ADD_PROPOSALS: Final = "UNWIND $rows AS row\nCREATE (p:Proposal) SET p = row\nRETURN count(*)"

SET_PROPOSALS: Final = f"""\
UNWIND $rows AS row
MATCH (p:Proposal {{proposal_id: row.proposal_id}}) WHERE p.status IN {sorted(status.value for status in OPEN_STATUSES)}
SET p.status = row.status, p.progress = row.progress
RETURN count(*)"""

ADD_PROPOSAL_FAMILIES: Final = """\
UNWIND $rows AS row
MATCH (p:Proposal {proposal_id: row.proposal_id})
CALL (row) { MATCH (f:Family {family_id: row.family_id}) RETURN f }
MERGE (i:ProposalFamily {family_id: row.family_id, seq: p.seq})
ON CREATE SET i.proposal_id = p.proposal_id
MERGE (p)-[:ABOUT]->(f)
RETURN count(*)"""

ADD_APPROVALS: Final = """\
UNWIND $rows AS row
MATCH (p:Proposal {proposal_id: row.proposal_id})
CREATE (a:Approval) SET a = row
CREATE (a)-[:APPROVES]->(p)
RETURN count(*)"""

SET_APPROVALS: Final = """\
UNWIND $rows AS row
MATCH (a:Approval {approval_id: row.approval_id}) SET a.progress = row.progress
RETURN count(*)"""

ADD_COMMITS: Final = "UNWIND $rows AS row\nCREATE (c:Commit) SET c = row\nRETURN count(*)"

ADD_AUDIT: Final = "UNWIND $rows AS row\nCREATE (a:AuditEntry) SET a = row\nRETURN count(*)"

ADD_EVENTS: Final = "UNWIND $rows AS row\nCREATE (o:OutboxEvent) SET o = row\nRETURN count(*)"

ADD_REPLIES: Final = "UNWIND $rows AS row\nCREATE (y:Reply) SET y = row\nRETURN count(*)"

ADD_OBSERVATIONS: Final = "UNWIND $rows AS row\nCREATE (o:Observation) SET o = row\nRETURN count(*)"

ADD_ADMISSIONS: Final = """\
UNWIND $rows AS row
MATCH (o:Observation {observation_id: row.observation_id})
CREATE (a:Admission) SET a = row
CREATE (a)-[:OUTCOME_OF]->(o)
SET o.outcome = row.outcome
RETURN count(*)"""

ADD_SIGNALS: Final = """\
UNWIND $rows AS row
MATCH (f:Family {family_id: row.family_id})
CREATE (s:Signal) SET s = row
CREATE (s)-[:ABOUT]->(f)
RETURN count(*)"""


def _together(statements: Mapping[str, str], name: str, ending: str) -> str:
    """Return one statement for many, each with its own part of a parameter: one round trip for all of them.

    Parts are subqueries of one row, so they run in this order, each seeing what those before it wrote.
    """
    calls = []
    for part, statement in statements.items():
        body, _, result = statement.rpartition("\nRETURN ")
        own = body.replace(f"UNWIND ${name} AS", f"UNWIND parts.{part} AS", 1)
        calls.append(f"CALL (parts) {{\n{own}\nRETURN {ending.format(result)} AS {part}\n}}")
    return "\n".join(["WITH $parts AS parts", *calls, f"RETURN {', '.join(statements)}"])


PERSIST_PARTS: Final = {
    "policies": ADD_POLICIES,
    "families": ADD_FAMILIES,
    "identity_keys": ADD_IDENTITY_KEYS,
    "evidence": ADD_EVIDENCE,
    "verifications": ADD_VERIFICATIONS,
    "revisions": ADD_REVISIONS,
    "parents": ADD_PARENTS,
    "citations": ADD_CITATIONS,
    "rows_opened": ADD_ROWS,
    "rows_closed": CLOSE_ROWS,
    "heads": PUT_HEADS,
    "flags_raised": ADD_FLAGS,
    "flags_cleared": CLEAR_FLAGS,
    "proposals_added": ADD_PROPOSALS,
    "proposals_changed": SET_PROPOSALS,
    "proposal_families": ADD_PROPOSAL_FAMILIES,
    "approvals_added": ADD_APPROVALS,
    "approvals_changed": SET_APPROVALS,
    "commits": ADD_COMMITS,
    "audit": ADD_AUDIT,
    "events": ADD_EVENTS,
    "replies": ADD_REPLIES,
    "observations": ADD_OBSERVATIONS,
    "admissions": ADD_ADMISSIONS,
    "signals": ADD_SIGNALS,
    "projects": SET_PROJECT,
}
"""What a group writes, in an order in which all of it can be: everything but relations, whose edges have types."""

PERSIST: Final = _together(PERSIST_PARTS, "rows", "{}")

# --- Outbox -----------------------------------------------------------------------------------------------------------

_EVENT: Final = (
    "[o.event_id, o.project_id, o.position, o.family_id, o.branch, o.recorded_at, o.attempts, o.fencing, "
    "coalesce(o.leased_until, 0), o.last_error]"
)

LOCK_OUTBOX: Final = "MATCH (g:Ledger {key: 'outbox'}) SET g.lock = 0 RETURN g.key"

EVENT_IS_DUE: Final = """\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(due_since)
WHERE o.due_since >= 0 AND coalesce(o.rests_until, 0) <= $now
RETURN 1 LIMIT 1"""

EVENT_IS_FRESH: Final = """\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(due_since)
WHERE o.due_since >= 0 AND o.rests_until IS NULL
RETURN 1 LIMIT 1"""

BURY_SPENT: Final = """\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(leased_until)
WHERE o.leased_until <= $now AND o.attempts >= $most
SET o:DeadLetter, o.last_error = 'the lease ran out on the last attempt'
REMOVE o.due_since, o.rests_until, o.leased_until
RETURN count(*)"""

CLAIM: Final = f"""\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(due_since)
WHERE o.due_since >= 0 AND coalesce(o.rests_until, 0) <= $now
WITH o ORDER BY o.due_since
CALL (o) {{
    MATCH (b:OutboxEvent) USING INDEX SEEK b:OutboxEvent(head, leased_until)
    WHERE b.head = o.head AND b.leased_until > $now
    WITH b LIMIT 1
    RETURN count(b) AS busy
}}
WITH o WHERE busy = 0
WITH o LIMIT $limit
SET o.leased_until = $until, o.rests_until = $until, o.worker = $worker, o.attempts = o.attempts + 1,
    o.fencing = o.fencing + 1
RETURN {_EVENT} ORDER BY o.due_since, o.event_id"""

_HELD: Final = """\
UNWIND $refs AS ref
MATCH (o:OutboxEvent {event_id: ref[0]}) WHERE o.fencing = ref[1] AND o.leased_until > $now"""

HELD: Final = f"{_HELD}\nRETURN o.event_id, o.attempts"

ACK: Final = f"{_HELD}\nWITH o, o.event_id AS id\nDELETE o\nRETURN id"

RENEW: Final = f"{_HELD}\nSET o.leased_until = $until, o.rests_until = $until\nRETURN o.event_id"

REST: Final = """\
UNWIND $rows AS row
MATCH (o:OutboxEvent {event_id: row.event_id})
SET o.rests_until = row.rests_until, o.worker = '', o.last_error = row.last_error
REMOVE o.leased_until
RETURN count(*)"""

BURY: Final = """\
UNWIND $rows AS row
MATCH (o:OutboxEvent {event_id: row.event_id})
SET o:DeadLetter, o.worker = '', o.last_error = row.last_error
REMOVE o.due_since, o.rests_until, o.leased_until
RETURN count(*)"""

_REDRIVE: Final = """\
SET o.due_since = o.recorded_at, o.rests_until = $now, o.attempts = 0, o.worker = ''
REMOVE o:DeadLetter
RETURN count(*)"""

REDRIVE: Final = f"""\
UNWIND $ids AS id
MATCH (o:DeadLetter) USING INDEX SEEK o:DeadLetter(event_id)
WHERE o.event_id = id AND ($project_id = '' OR o.project_id = $project_id)
{_REDRIVE}"""

REDRIVE_PROJECT: Final = f"""\
MATCH (o:DeadLetter) USING INDEX SEEK o:DeadLetter(project_id, event_id)
WHERE o.project_id = $project_id AND o.event_id > 0
{_REDRIVE}"""

NEXT_EVENT_DUE: Final = """\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(rests_until) WHERE o.rests_until > $now
RETURN o.rests_until ORDER BY o.rests_until LIMIT 1"""

DEAD_LETTERS: Final = f"""\
MATCH (o:DeadLetter) USING INDEX SEEK o:DeadLetter(event_id) WHERE o.event_id > $after
RETURN {_EVENT} ORDER BY o.event_id LIMIT $limit"""

DEAD_LETTERS_OF_PROJECT: Final = f"""\
MATCH (o:DeadLetter) USING INDEX SEEK o:DeadLetter(project_id, event_id)
WHERE o.project_id = $project_id AND o.event_id > $after
RETURN {_EVENT} ORDER BY o.project_id, o.event_id LIMIT $limit"""

EVENTS_PENDING: Final = """\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(due_since) WHERE o.due_since >= 0
RETURN count(*), min(o.due_since)"""

EVENTS_LEASED: Final = """\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(leased_until) WHERE o.leased_until > $now
RETURN count(*)"""

EVENTS_DEAD: Final = """\
MATCH (o:DeadLetter) USING INDEX SEEK o:DeadLetter(event_id) WHERE o.event_id > 0
RETURN count(*)"""

NEWEST_EVENT: Final = """\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(event_id) WHERE o.event_id > 0
RETURN o.event_id ORDER BY o.event_id DESC LIMIT 1"""

EVENTS_OF_PROJECT: Final = """\
MATCH (o:OutboxEvent) USING INDEX SEEK o:OutboxEvent(project_id, position)
WHERE o.project_id = $project_id AND o.position > 0
WITH count(o.due_since) AS pending, sum(CASE WHEN o.leased_until > $now THEN 1 ELSE 0 END) AS leased,
    count(*) - count(o.due_since) AS dead, min(o.due_since) AS oldest, max(o.event_id) AS newest,
    min(o.position) AS first
RETURN pending, leased, dead, oldest, newest, first"""

# --- Verifying the audit: everything of a project, in pages -----------------------------------------------------------

ENTRIES_AS_STORED: Final = """\
MATCH (a:AuditEntry) USING INDEX SEEK a:AuditEntry(project_id, sequence)
WHERE a.project_id = $project_id AND a.sequence IS NOT NULL
RETURN a.sequence, a.body ORDER BY a.project_id, a.sequence"""

PROJECT_AS_STORED: Final = """\
MATCH (p:Project {project_id: $project_id})
RETURN p.body, p.position, p.audit_sequence, p.audit_hash"""

LAST_COMMIT: Final = """\
MATCH (c:Commit) USING INDEX SEEK c:Commit(project_id, position)
WHERE c.project_id = $project_id AND c.position > 0
RETURN c.position ORDER BY c.project_id DESC, c.position DESC LIMIT 1"""

KEYS_AS_STORED: Final = """\
MATCH (k:IdentityKey) USING INDEX SEEK k:IdentityKey(project_id, identity_key)
WHERE k.project_id = $project_id AND k.identity_key > ''
RETURN k.identity_key, k.family_id"""

FAMILIES_AS_STORED: Final = """\
MATCH (f:Family) USING INDEX SEEK f:Family(project_id, page)
WHERE f.project_id = $project_id AND f.page > ''
RETURN f.body"""

_IN_FAMILY: Final = (
    "MATCH (f:Family) USING INDEX SEEK f:Family(project_id, page) WHERE f.project_id = $project_id AND f.page > '' "
)

_STORED: Final = {
    RecordKind.POLICY: (
        "MATCH (x:Policy) USING INDEX SEEK x:Policy(project_id, version) "
        "WHERE x.project_id = $project_id AND x.version > 0 "
    ),
    RecordKind.COMMIT: (
        "MATCH (x:Commit) USING INDEX SEEK x:Commit(project_id, position) "
        "WHERE x.project_id = $project_id AND x.position > 0 "
    ),
    RecordKind.FAMILY: (
        "MATCH (x:Family) USING INDEX SEEK x:Family(project_id, page) WHERE x.project_id = $project_id AND x.page > '' "
    ),
    RecordKind.REVISION: _IN_FAMILY + "MATCH (x:Revision)-[:OF]->(f) ",
    RecordKind.TIMELINE_ROW: _IN_FAMILY + "MATCH (x:TimelineRow)-[:SHOWS]->(:Revision)-[:OF]->(f) ",
    RecordKind.HEAD: _IN_FAMILY + "MATCH (f)-[:PUBLISHED]->(x:Head) ",
    RecordKind.REVIEW_FLAG: _IN_FAMILY + "MATCH (x:ReviewFlag)-[:ON]->(f) ",
    RecordKind.RELATION: (
        "MATCH (x:Relation) USING INDEX SEEK x:Relation(project_id, page) "
        "WHERE x.project_id = $project_id AND x.page > '' "
    ),
    RecordKind.EVIDENCE: (
        "MATCH (x:Evidence) USING INDEX SEEK x:Evidence(project_id, fingerprint) "
        "WHERE x.project_id = $project_id AND x.fingerprint > '' "
    ),
    RecordKind.VERIFICATION: (
        "MATCH (e:Evidence) USING INDEX SEEK e:Evidence(project_id, fingerprint) "
        "WHERE e.project_id = $project_id AND e.fingerprint > '' MATCH (x:Verification)-[:CHECKS]->(e) "
    ),
    RecordKind.PROPOSAL: (
        "MATCH (x:Proposal) USING INDEX SEEK x:Proposal(project_id, status, seq) "
        "WHERE x.project_id = $project_id AND x.status > '' AND x.seq IS NOT NULL "
    ),
    RecordKind.APPROVAL: (
        "MATCH (p:Proposal) USING INDEX SEEK p:Proposal(project_id, status, seq) "
        "WHERE p.project_id = $project_id AND p.status > '' AND p.seq IS NOT NULL "
        "MATCH (x:Approval)-[:APPROVES]->(p) "
    ),
}
"""Where the records of a project are found. What leads to them is what reads use: a lost edge is a lost record."""

AS_STORED: Final = {
    layout.kind: f"{_STORED[layout.kind]}RETURN {', '.join(f'x.{c}' for c in layout.columns.split(', '))}"
    for layout in LAYOUTS
}
"""Every record of a project, kind by kind: the columns of its layout."""

# --- Moving house: everything of a project in order, and a project that nobody sees yet -------------------------------

MOVE_POLICIES: Final = """\
MATCH (y:Policy) USING INDEX SEEK y:Policy(project_id, version)
WHERE y.project_id = $project_id AND y.version > 0
RETURN y.body ORDER BY y.project_id, y.version"""

MOVE_FAMILIES: Final = """\
MATCH (f:Family) USING INDEX SEEK f:Family(project_id, page)
WHERE f.project_id = $project_id AND f.page > ''
RETURN f.body ORDER BY f.project_id, f.page"""

MOVE_FAMILY_IDS: Final = """\
MATCH (f:Family) USING INDEX SEEK f:Family(project_id, page)
WHERE f.project_id = $project_id AND f.page > ''
RETURN f.family_id ORDER BY f.project_id, f.page"""

MOVE_EVIDENCE: Final = """\
MATCH (e:Evidence) USING INDEX SEEK e:Evidence(project_id, fingerprint)
WHERE e.project_id = $project_id AND e.fingerprint > ''
CALL (e) {
    MATCH (c:Verification) USING INDEX SEEK c:Verification(evidence_id, number)
    WHERE c.evidence_id = e.evidence_id AND c.number > 0
    WITH c ORDER BY c.evidence_id, c.number
    RETURN collect(c.body) AS checks
}
RETURN e.body, checks ORDER BY e.project_id, e.fingerprint"""

_MOVE_FAMILY: Final = "UNWIND $ids AS id\nMATCH (f:Family {family_id: id}) WHERE f.project_id = $project_id\n"

MOVE_REVISIONS: Final = f"""\
{_MOVE_FAMILY}MATCH (v:Revision)-[:OF]->(f)
RETURN v.body, v.content ORDER BY f.page, v.branch, v.number"""

MOVE_ROWS: Final = f"""\
{_MOVE_FAMILY}MATCH (t:TimelineRow)-[:SHOWS]->(:Revision)-[:OF]->(f)
RETURN {_ROW} ORDER BY f.page, t.branch, t.opened_position, t.valid_from"""

MOVE_HEADS: Final = f"""\
{_MOVE_FAMILY}MATCH (f)-[:PUBLISHED]->(h:Head)
RETURN {_HEAD} ORDER BY f.page, h.branch"""

MOVE_FLAGS: Final = f"""\
{_MOVE_FAMILY}MATCH (g:ReviewFlag)-[:ON]->(f)
RETURN {_FLAG} ORDER BY f.page, g.branch, g.cause_family_id, g.position"""

MOVE_RELATIONS: Final = f"""\
MATCH (l:Relation) USING INDEX SEEK l:Relation(project_id, page)
WHERE l.project_id = $project_id AND l.page > ''
RETURN {_RELATION} ORDER BY l.project_id, l.page"""

MOVE_COMMITS: Final = """\
MATCH (c:Commit) USING INDEX SEEK c:Commit(project_id, position)
WHERE c.project_id = $project_id AND c.position > 0
RETURN c.body ORDER BY c.project_id, c.position"""

MOVE_OBSERVATIONS: Final = """\
MATCH (o:Observation) USING INDEX SEEK o:Observation(project_id, seq)
WHERE o.project_id = $project_id AND o.seq > $after
WITH o ORDER BY o.project_id, o.seq LIMIT $limit
CALL (o) {
    MATCH (a:Admission) USING INDEX SEEK a:Admission(observation_id, number)
    WHERE a.observation_id = o.observation_id AND a.number > 0
    WITH a ORDER BY a.observation_id, a.number
    RETURN collect(a.body) AS admissions
}
RETURN o.body, o.seq, admissions ORDER BY o.seq"""

MOVE_SIGNALS: Final = f"""\
{_MOVE_FAMILY}CALL (f) {{
    MATCH (s:Signal) USING INDEX SEEK s:Signal(family_id) WHERE s.family_id = f.family_id
    RETURN collect(s.body) AS signals
}}
RETURN signals ORDER BY f.page"""

MOVE_REPLIES: Final = """\
MATCH (y:Reply) USING INDEX SEEK y:Reply(project_id, caller, rpc, request_id)
WHERE y.project_id = $project_id AND y.caller > '' AND y.rpc IS NOT NULL AND y.request_id IS NOT NULL
RETURN y.caller, y.request_id, y.rpc, y.request_hash, y.reply, y.recorded_at
ORDER BY y.project_id, y.caller, y.rpc, y.request_id"""

MOVE_HEAD_KEYS: Final = """\
MATCH (h:Head) USING INDEX SEEK h:Head(project_id, head)
WHERE h.project_id = $project_id AND h.head > ''
RETURN h.family_id, h.branch ORDER BY h.project_id, h.head"""

LOCK_PROJECTS: Final = "MATCH (g:Ledger {key: 'ledger'}) SET g.lock = 0 RETURN g.key"

IMPORTED: Final = """\
MATCH (p:Project {project_id: $project_id})
RETURN coalesce(p.import_digest, ''), coalesce(p.import_records, 0)"""

IMPORTING: Final = """\
MATCH (p:Importing {project_id: $project_id})
RETURN p.import_digest, p.import_records"""

IMPORT_LOCK: Final = """\
MATCH (p:Importing {project_id: $project_id}) SET p.lock = 0
RETURN p.version, p.seq, p.number"""

ADD_IMPORT: Final = """\
MATCH (g:Ledger {key: 'ledger'}) SET g.projects = g.projects + 1
WITH g.projects AS number
UNWIND $rows AS row
CREATE (p:Importing) SET p = row, p.number = number, p.lock = 0
RETURN p.version, p.seq, p.number"""

IMPORT_NOTE: Final = """\
MATCH (p:Importing {project_id: $project_id}) SET p.import_records = $records
RETURN p.position"""

IMPORT_SHOW: Final = """\
MATCH (p:Importing {project_id: $project_id})
SET p:Project
REMOVE p:Importing
RETURN p.project_id"""

MOVE_FLAGGED: Final = """\
UNWIND $heads AS head
CALL (head) {
    MATCH (g:ReviewFlag) USING INDEX SEEK g:ReviewFlag(head, cleared_position)
    WHERE g.head = head AND g.cleared_position >= 0
    RETURN max(CASE WHEN g.position > g.cleared_position THEN g.position ELSE g.cleared_position END) AS last
}
MATCH (h:Head {head: head}) SET h.flag_position = last
RETURN count(*)"""

PERSIST_IMPORT: Final = PERSIST.replace("(p:Project {", "(p:Importing {")
"""The same as PERSIST, below the node of a project that nobody sees yet."""
