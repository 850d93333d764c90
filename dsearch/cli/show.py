"""How things look on a terminal. Every function takes a message and returns something to print; none of them calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from decisionssearch.common.v1 import common_pb2
from decisionssearch.index.v1 import index_service_pb2 as index_pb2
from decisionssearch.ledger.v1 import ledger_pb2, ledger_service_pb2, proposal_pb2, proposal_service_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as retrieval_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from service_kit.clock import from_timestamp

_CLIP: Final = 280
_SHORT_ID: Final = 8
_MOST_REPLACED: Final = 3

STATE_STYLES: Final = {
    "ACTIVE": "bold green",
    "SCHEDULED": "bold cyan",
    "SUPERSEDED": "yellow",
    "INVALIDATED": "red",
    "EXPIRED": "red",
    "ARCHIVED": "dim",
    "CONFLICTED": "bold magenta",
    "NOT_IN_FORCE": "yellow",
}
STATE_WORDS: Final = {
    "ACTIVE": "in force",
    "SCHEDULED": "scheduled",
    "SUPERSEDED": "superseded",
    "INVALIDATED": "invalidated",
    "EXPIRED": "expired",
    "ARCHIVED": "archived",
    "CONFLICTED": "in conflict",
    "NOT_IN_FORCE": "not in force",
}
STATUS_STYLES: Final = {
    "PENDING": "bold yellow",
    "APPROVED": "bold green",
    "APPLIED": "green",
    "REJECTED": "red",
    "WITHDRAWN": "dim",
    "STALE": "magenta",
}
VERIFICATION_WORDS: Final = {
    "UNVERIFIED": "not verified",
    "VERIFIED": "verified",
    "CONTRADICTED": "contradicted at its source",
    "UNAVAILABLE": "source unavailable",
}
ABSTENTIONS: Final = {
    "NO_MEMORY": "Nothing is stored here that your filters let through.",
    "BELOW_THRESHOLD": "What is stored comes near, but nothing carries an answer well enough.",
    "ONLY_SUPERSEDED": "What matches is no longer in force, and nothing in force replaced it.",
    "CONFLICTED": "What matches is in an open conflict; somebody has to decide first.",
    "INSUFFICIENT_EVIDENCE": "What matches does not have the evidence that you asked for.",
    "OUT_OF_SCOPE": "The question is about something else than this project's memory.",
    "INDEX_LAGGING": "The index has not caught up with what was written last.",
}


# --- Words ----------------------------------------------------------------------------------------------------------


def enum_word(enum: Any, value: int, prefix: str) -> str:
    """Return the name of an enum's value without its prefix, e.g. ``ACTIVE``."""
    try:
        return str(enum.Name(value)).removeprefix(prefix)
    except ValueError:
        return str(value)


def state_of(value: int) -> str:
    """Return ``ACTIVE`` and the like."""
    return enum_word(ledger_pb2.State, value, "STATE_")


def category_of(value: int) -> str:
    """Return ``DESIGN_RULE`` as ``design rule``."""
    return enum_word(ledger_pb2.Category, value, "CATEGORY_").lower().replace("_", " ")


def standing_of(value: int) -> str:
    """Return ``adopted`` and the like."""
    return enum_word(ledger_pb2.Standing, value, "STANDING_").lower()


def relation_of(value: int) -> str:
    """Return ``DEPENDS_ON`` as ``depends on``."""
    return enum_word(ledger_pb2.RelationKind, value, "RELATION_KIND_").lower().replace("_", " ")


def status_of(value: int) -> str:
    """Return ``PENDING`` and the like."""
    return enum_word(proposal_pb2.ProposalStatus, value, "PROPOSAL_STATUS_")


def when(stamp: Timestamp) -> str:
    """Return an instant in UTC: the day, and the time unless it is midnight."""
    if not stamp.seconds and not stamp.nanos:
        return "?"
    return when_text(from_timestamp(stamp))


def when_text(instant: datetime) -> str:
    """Return an instant as :func:`when` does."""
    day = instant.strftime("%Y-%m-%d")
    return day if (instant.hour, instant.minute, instant.second) == (0, 0, 0) else f"{day} {instant:%H:%M}Z"


def interval(valid_from: Timestamp | None, valid_to: Timestamp | None) -> str:
    """Return a half-open interval in words."""
    start = when(valid_from) if valid_from is not None else "the apply"
    return f"{start} → {when(valid_to)}" if valid_to is not None else f"since {start}"


def row_interval(row: ledger_pb2.TimelineRow) -> str:
    """Return the interval of a previewed row; a time that only the apply will know is said so."""
    start = when(row.valid_from) if row.HasField("valid_from") else "the apply"
    if row.HasField("valid_to"):
        return f"{start} → {when(row.valid_to)}"
    return f"{start} → the apply" if row.end_kind else f"since {start}"


def who(principal: common_pb2.Principal) -> str:
    """Return a principal in words."""
    kind = enum_word(common_pb2.PrincipalKind, principal.kind, "PRINCIPAL_KIND_").lower()
    behalf = f" for {principal.on_behalf_of}" if principal.on_behalf_of else ""
    return f"{principal.subject or '?'} ({kind}{behalf})"


def short(name: str) -> str:
    """Return the end of an id, enough to tell the ones on the screen apart."""
    return name.rsplit("/", 1)[-1][-_SHORT_ID:]


def label(family: ledger_pb2.Family) -> str:
    """Return what people call a family: its natural key, else its id."""
    return family.identity_key or family.name.rsplit("/", 1)[-1]


def clip(text: str, limit: int = _CLIP) -> str:
    """Return the start of a text in one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def next_step(command_line: str) -> Text:
    """Return what to do next."""
    return Text().append("next: ", style="dim").append(command_line, style="bold")


def state_text(value: int) -> Text:
    """Return a state in its colour."""
    name = state_of(value)
    return Text(STATE_WORDS.get(name, name.lower()), style=STATE_STYLES.get(name, ""))


# --- Search ---------------------------------------------------------------------------------------------------------


def search_answer(response: retrieval_pb2.SearchResponse) -> Iterator[RenderableType]:
    """Yield an answer, or why there is none."""
    if response.HasField("abstention"):
        yield abstention(response)
    elif response.confidence == retrieval_pb2.ANSWER_CONFIDENCE_CLOSEST:
        yield Text("These are the closest decisions; they may not answer the question.", style="yellow")
        yield Text()
    for number, hit in enumerate(response.hits, 1):
        yield hit_block(number, hit)
    if response.rejected:
        yield Text("Closest, but not good enough to be an answer:", style="dim")
        for number, hit in enumerate(response.rejected, 1):
            yield hit_block(number, hit)
    yield from _footnotes(response)


def abstention(response: retrieval_pb2.SearchResponse) -> Text:
    """Return the reason for silence in a sentence."""
    reason = enum_word(retrieval_pb2.AbstentionReason, response.abstention.reason, "ABSTENTION_REASON_")
    text = Text().append("No answer. ", style="bold yellow")
    text.append(ABSTENTIONS.get(reason, ""), style="")
    if response.abstention.message:
        text.append(f"\n{response.abstention.message}", style="dim")
    text.append(f"  [{reason}]", style="dim")
    return text


def hit_block(number: int, hit: retrieval_pb2.Hit) -> RenderableType:
    """Return one hit: title, state, since when, what it replaced and why, evidence, why it is here."""
    head = hit.head
    content = head.revision.content
    title = Text().append(f"{number}. ", style="bold")
    title.append(content.title or "(untitled)", style="bold")
    title.append("  ").append_text(state_text(head.state))
    title.append(f"  {label(head.family)}", style="dim")
    lines: list[Text] = [_standing_line(head, hit)]
    gist = content.summary or (content.rules[0] if content.rules else content.details)
    if gist:
        lines.append(Text(clip(gist)))
    lines += _replaced_lines(hit)
    lines += [_labelled("now", _replacement(item), "yellow") for item in head.replaced_by]
    lines += [_labelled("next", f"another revision from {when(row.valid_from)}", "cyan") for row in head.scheduled]
    lines.append(_labelled("evidence", evidence_summary(head.evidence)))
    lines += [
        _labelled("review", f"rests on something that changed: {flag.cause.lower()} on {when(flag.time)}", "magenta")
        for flag in head.needs_review
    ]
    # What it replaced has its own lines above.
    why = "; ".join(reason for reason in hit.reasons if not (hit.replaced and reason.startswith("replaced ")))
    lines.append(_labelled("why here", f"{why or 'it matches'}  (score {hit.score.final:.2f})"))
    if hit.newer_than_index:
        lines.append(_labelled("fresh", "newer than the index: taken straight from the ledger", "cyan"))
    return Group(title, Padding(Group(*lines), (0, 0, 1, 3), expand=False))


def _standing_line(head: ledger_pb2.Head, hit: retrieval_pb2.Hit) -> Text:
    until = head.valid_to if head.HasField("valid_to") else None
    parts = [interval(head.valid_from, until), category_of(head.family.category)]
    if head.state != ledger_pb2.STATE_ACTIVE and head.revision.content.standing > ledger_pb2.STANDING_ADOPTED:
        parts.append(standing_of(head.revision.content.standing))
    if head.revision.content.domain:
        parts.append(head.revision.content.domain)
    if hit.origin == retrieval_pb2.HIT_ORIGIN_SUCCESSOR:
        parts.append("found through what it replaced")
    return Text(" · ".join(parts), style="dim")


def _labelled(name: str, text: str, style: str = "") -> Text:
    return Text().append(f"{name:<10} ", style="dim").append(text, style=style)


def _replaced_lines(hit: retrieval_pb2.Hit) -> list[Text]:
    """Return what a hit replaced, the nearest first; an earlier wording of the same is an edit, nothing replaced."""
    family, title = hit.head.family.name, hit.head.revision.content.title
    lines = []
    for item in hit.replaced[:_MOST_REPLACED]:
        if item.family == family and item.title == title and not item.matched:
            because = f": {item.reason}" if item.reason else ""
            lines.append(_labelled("edited", f"on {when(item.time)}{because}"))
        else:
            lines.append(_labelled("replaced", _replaced(item), "yellow"))
    more = len(hit.replaced) - _MOST_REPLACED
    if more > 0:
        lines.append(_labelled("", f"and {more} more (dsearch history {label(hit.head.family)})", "dim"))
    return lines


def _replaced(item: retrieval_pb2.Replaced) -> str:
    name = f"{item.identity_key} " if item.identity_key else ""
    because = f": {item.reason}" if item.reason else ""
    matched = " (your words match this one best)" if item.matched else ""
    return f"{name}“{item.title}” on {when(item.time)}{because}{matched}"


def _replacement(item: ledger_pb2.Replacement) -> str:
    because = f": {item.reason}" if item.reason else ""
    return f"replaced by {item.identity_key or item.family} “{item.title}” on {when(item.effective_time)}{because}"


def evidence_summary(items: Sequence[ledger_pb2.LinkedEvidence]) -> str:
    """Return how many sources say what, and where the first is."""
    if not items:
        return "none"
    counts: dict[tuple[str, str], int] = {}
    for item in items:
        stance = enum_word(ledger_pb2.Stance, item.link.stance, "STANCE_").lower()
        check = enum_word(ledger_pb2.VerificationState, item.evidence.verification, "VERIFICATION_STATE_")
        key = (stance, VERIFICATION_WORDS.get(check, check.lower()))
        counts[key] = counts.get(key, 0) + 1
    said = ", ".join(f"{count} {stance} ({check})" for (stance, check), count in counts.items())
    return f"{said} · {clip(items[0].evidence.locator, 90)}" if items[0].evidence.locator else said


def _footnotes(response: retrieval_pb2.SearchResponse) -> Iterator[RenderableType]:
    notes = []
    if response.suppressed:
        held = ", ".join(f"{s.count} {s.reason.lower().replace('_', ' ')}" for s in response.suppressed)
        notes.append(f"held back: {held}")
    fresh = response.freshness
    behind = fresh.ledger_position - fresh.index_position
    if behind > 0:
        notes.append(f"the index is {behind} commits behind; every hit was checked against the ledger")
    notes += [f"{d.part} did not work: {d.reason}" for d in response.degraded]
    if notes:
        yield Text(" · ".join(notes), style="dim")


# --- Memories -------------------------------------------------------------------------------------------------------


def head_view(head: ledger_pb2.Head) -> Iterator[RenderableType]:
    """Yield one memory in full."""
    content = head.revision.content
    title = Text().append(content.title or "(untitled)", style="bold").append("  ").append_text(state_text(head.state))
    yield title
    yield Text(
        " · ".join(
            (
                label(head.family),
                category_of(head.family.category),
                interval(head.valid_from, head.valid_to if head.HasField("valid_to") else None),
                f"branch {head.branch or 'main'}",
                standing_of(content.standing),
            )
        ),
        style="dim",
    )
    yield from content_view(content)
    for replacement in head.replaced_by:
        yield _labelled("now", _replacement(replacement), "yellow")
    for replacement in head.replaces:
        because = f": {replacement.reason}" if replacement.reason else ""
        name = replacement.identity_key or replacement.family
        text = f"{name} “{replacement.title}” on {when(replacement.effective_time)}{because}"
        yield _labelled("replaces", text, "yellow")
    for row in head.scheduled:
        yield _labelled("next", f"another revision from {when(row.valid_from)}", "cyan")
    for past in head.past:
        because = f": {past.replaced_because}" if past.replaced_because else ""
        yield _labelled("before", f"“{past.title}” until {when(past.valid_to)}{because}", "yellow")
    for flag in head.needs_review:
        cause = f"{relation_of(flag.via)} {flag.cause_family} ({flag.cause.lower()} on {when(flag.time)})"
        yield _labelled("review", cause, "magenta")
    yield from evidence_view(head.evidence)
    yield Text(f"{head.revision.name}\n{head.revision.content_hash}", style="dim")


def content_view(content: ledger_pb2.Content) -> Iterator[RenderableType]:
    """Yield the fields of a content that say something, the title left out."""
    for name in ("summary", "objective", "trigger", "task", "outcome", "details", "rationale"):
        value = getattr(content, name)
        if value:
            yield Text()
            yield Text(name, style="bold")
            yield Padding(Text(value.strip()), (0, 0, 0, 2), expand=False)
    for name in ("rules", "steps", "alternatives", "examples"):
        values = getattr(content, name)
        if values:
            yield Text()
            yield Text(name, style="bold")
            for number, value in enumerate(values, 1):
                mark = f"{number}." if name == "steps" else "-"
                yield Padding(Text(f"{mark} {value.strip()}"), (0, 0, 0, 2), expand=False)
    yield Text()
    for name in ("domain", "url"):
        if getattr(content, name):
            yield _labelled(name, getattr(content, name))
    for name in ("modules", "files", "tags"):
        if getattr(content, name):
            yield _labelled(name, ", ".join(getattr(content, name)))
    for key, value in sorted(content.attributes.items()):
        yield Text(f"{key}: {clip(value, 120)}", style="dim")


def evidence_view(items: Iterable[ledger_pb2.LinkedEvidence]) -> Iterator[RenderableType]:
    """Yield evidence, one block a source."""
    for item in items:
        stance = enum_word(ledger_pb2.Stance, item.link.stance, "STANCE_").lower()
        check = enum_word(ledger_pb2.VerificationState, item.evidence.verification, "VERIFICATION_STATE_")
        kind = enum_word(ledger_pb2.SourceKind, item.evidence.source_kind, "SOURCE_KIND_").lower().replace("_", " ")
        colour = {"supports": "green", "contradicts": "red"}.get(stance, "")
        text = Text().append("evidence   ", style="dim").append(stance, style=colour)
        text.append(f" · {kind} {item.evidence.locator} · {VERIFICATION_WORDS.get(check, check.lower())}")
        if item.evidence.author:
            text.append(f" · {item.evidence.author}")
        yield text
        if item.evidence.excerpt:
            yield Padding(Text(f"“{clip(item.evidence.excerpt)}”", style="italic dim"), (0, 0, 0, 11), expand=False)


def history_view(steps: Sequence[ledger_service_pb2.RevisionHistory]) -> Iterator[RenderableType]:
    """Yield the revisions of a family, newest first, with when each was in force and since when that is known."""
    for step in steps:
        revision = step.revision
        open_rows = [row for row in step.rows if not row.HasField("recorded_to")]
        head = Text().append(f"{short(revision.name)}  ", style="dim").append(revision.content.title, style="bold")
        for row in open_rows:
            until = row.valid_to if row.HasField("valid_to") else None
            head.append("  ").append(interval(row.valid_from, until)).append("  ").append_text(state_text(row.state))
        if not open_rows:
            head.append("  no longer in the timeline", style="dim")
        yield head
        approved = ", ".join(who(a) for a in revision.approvers) or "nobody"
        made = f"commit {revision.position} on {when(revision.record_time)} · {who(revision.author)}"
        yield Padding(Text(f"{made}, approved by {approved}", style="dim"), (0, 0, 0, 11), expand=False)
        if revision.reason:
            yield Padding(Text(f"because {revision.reason}"), (0, 0, 0, 11), expand=False)
        source = revision.content.attributes.get("source_status", "")
        if source:
            yield Padding(Text(f"the source said {source}", style="dim"), (0, 0, 0, 11), expand=False)


# --- Differences and proposals --------------------------------------------------------------------------------------


def diff_view(changes: Iterable[ledger_pb2.FieldChange]) -> Iterator[RenderableType]:
    """Yield a coloured difference, field by field."""
    for change in changes:
        yield Text(change.field, style="bold")
        for mark, value, style in (("-", change.before, "red"), ("+", change.after, "green")):
            if value:
                for line in _json_lines(value):
                    yield Padding(Text(f"{mark} {line}", style=style), (0, 0, 0, 2), expand=False)


def _json_lines(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    values = value if isinstance(value, list) else [value]
    lines: list[str] = []
    for item in values:
        lines += item.splitlines() or [""] if isinstance(item, str) else [json.dumps(item, ensure_ascii=False)]
    return lines


def mutation_word(mutation: proposal_pb2.Mutation) -> str:
    """Return ``supersede`` and the like."""
    return (mutation.WhichOneof("kind") or "?").replace("_", " ")


def families_of(proposal: proposal_pb2.Proposal) -> list[str]:
    """Return the families that a proposal names, the target first."""
    change = getattr(proposal.mutation, proposal.mutation.WhichOneof("kind") or "create")
    fields = ("source_family", "family", "target_family", "replacement_family", "refines_family")
    named = [getattr(change, name) for name in fields if name in change.DESCRIPTOR.fields_by_name]
    return [name for name in named if name]


def proposal_title(proposal: proposal_pb2.Proposal, labels: Mapping[str, str] | None = None) -> str:
    """Return what a proposal is about, in a line; ``labels`` say what people call its families."""
    names = [(labels or {}).get(name) or short(name) for name in families_of(proposal)]
    kind = proposal.mutation.WhichOneof("kind")
    if kind == "link":
        return f" {relation_of(proposal.mutation.link.kind)} ".join(names)
    if kind == "unlink":
        return short(proposal.mutation.unlink.relation)
    title = proposal.after.title or proposal.before.title
    if kind == "deprecate":
        return f"{names[0]} by {names[-1]}" + (f", “{title}”" if title else "")
    if title:
        return f"{title}  {names[0]}" if names and names[0] in (labels or {}).values() else title
    return " ".join(names) or short(proposal.name)


def applied_words(response: proposal_service_pb2.ApplyProposalResponse, labels: Mapping[str, str]) -> str:
    """Return which memory an applied proposal changed, and how: ``adr/0002 expires on 2027-01-01``."""
    proposal, mutation = response.proposal, response.proposal.mutation
    kind = mutation.WhichOneof("kind") or ""
    content = response.head.revision.content if response.HasField("head") else proposal.after
    title = content.title or proposal.after.title or proposal.before.title
    names = [labels.get(name) or "" for name in families_of(proposal)]
    key = response.head.family.identity_key or (names[0] if names else "")
    name = key or (f"“{title}”" if title else proposal_title(proposal, labels))
    named = f"{key} “{title}”" if key and title else name
    if kind == "set_expiry":
        change = mutation.set_expiry
        return f"{name} expires on {when(change.valid_to)}" if change.HasField("valid_to") else f"{name} has no end now"
    if kind == "deprecate":
        return f"{name} deprecated by {names[-1] or short(mutation.deprecate.replacement_family)}"
    words = {
        "create": "created",
        "create_and_link": "created",
        "update": "edited",
        "supersede": "superseded by its new text",
        "invalidate": "is no longer valid",
        "rollback": "rolled back",
        "cancel_schedule": "is no longer scheduled to change",
    }
    if kind in words:
        return f"{named} {words[kind]}"
    ended = " taken back" if kind == "unlink" else ""
    return f"{proposal_title(as_link(response), labels)}{ended}"


def as_link(response: proposal_service_pb2.ApplyProposalResponse) -> proposal_pb2.Proposal:
    """Return what was applied; what took a relation back as the proposal that asserted it, which names both ends."""
    if response.proposal.mutation.WhichOneof("kind") != "unlink" or not response.HasField("relation"):
        return response.proposal
    relation = response.relation
    link = proposal_pb2.LinkMutation(
        kind=relation.kind, source_family=relation.source_family, target_family=relation.target_family
    )
    return proposal_pb2.Proposal(mutation=proposal_pb2.Mutation(link=link))


def queue_view(proposals: Sequence[proposal_pb2.Proposal], labels: Mapping[str, str] | None = None) -> RenderableType:
    """Return the review queue as a table."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("id", "status", "change", "what", "by", "since", "notes"):
        table.add_column(name)
    for p in proposals:
        status = status_of(p.status)
        valid = len(p.approvals)
        notes = []
        if p.approvals_needed > 1:
            notes.append(f"{valid}/{p.approvals_needed} approvals")
        if p.warnings:
            notes.append(f"{len(p.warnings)} warnings")
        table.add_row(
            short(p.name),
            Text(status.lower(), style=STATUS_STYLES.get(status, "")),
            mutation_word(p.mutation),
            Text(clip(proposal_title(p, labels), 60)),
            who(p.requester),
            when(p.create_time),
            Text(", ".join(notes), style="yellow"),
        )
    return table


def proposal_view(
    proposal: proposal_pb2.Proposal, labels: Mapping[str, str] | None = None, *, preview: bool = False
) -> Iterator[RenderableType]:
    """Yield everything that a reviewer needs to decide."""
    status = status_of(proposal.status)
    head = (
        Text()
        .append(f"{mutation_word(proposal.mutation)}: ", style="bold")
        .append(proposal_title(proposal, labels), style="bold")
    )
    if preview:
        head.append("  preview, nothing stored", style="bold cyan")
    else:
        head.append(f"  {status.lower()}", style=STATUS_STYLES.get(status, ""))
    yield head
    yield Text(f"by {who(proposal.requester)} · branch {proposal.branch or 'main'} · because {proposal.reason}")
    if proposal.name:
        yield Text(proposal.name, style="dim")
    if proposal.diff:
        yield Text()
        yield from diff_view(proposal.diff)
    if proposal.timeline_before or proposal.timeline_after:
        yield Text()
        yield Text("in force", style="bold")
        for mark, rows, style in (("-", proposal.timeline_before, "red"), ("+", proposal.timeline_after, "green")):
            for row in rows:
                which = short(row.revision) if row.revision else "this"
                text = Text(f"{mark} {which} {row_interval(row)}", style=style)
                yield Padding(text, (0, 0, 0, 2), expand=False)
    yield Text()
    evidence = list(evidence_view(proposal.evidence))
    yield from evidence or [_labelled("evidence", "none")]
    for warning in proposal.warnings:
        yield Text().append("⚠ ", style="bold yellow").append(warning, style="yellow")
    for approval in proposal.approvals:
        rule = f" by rule {approval.policy_rule}" if approval.policy_rule else ""
        comment = f": {approval.comment}" if approval.comment else ""
        yield _labelled("approved", f"{who(approval.approver)}{rule} on {when(approval.time)}{comment}", "green")
    missing = proposal.approvals_needed - len(proposal.approvals)
    if status == "PENDING" and missing > 0 and not preview:
        yield _labelled("waits for", f"{missing} more approval{'s' if missing > 1 else ''}", "yellow")
    if proposal.decision_comment:
        yield _labelled("decision", proposal.decision_comment)
    yield Text(f"preview {proposal.preview_hash}", style="dim")


def index_status_view(status: index_pb2.GetIndexStatusResponse) -> Iterator[RenderableType]:
    """Yield how the index is."""
    behind = status.ledger_position - status.applied_position
    lag = status.lag.seconds + status.lag.nanos / 1e9
    text = Text().append("index      ", style="dim")
    if behind <= 0:
        text.append("up to date", style="green")
    else:
        text.append(f"{behind} commits behind ({lag:.1f} s)", style="yellow")
    yield text.append(f" · position {status.applied_position} of {status.ledger_position}")
    yield _labelled("holds", f"{status.heads} heads, {status.points} points")
    yield _labelled("model", f"{status.model} · {status.dimensions} dimensions · recipe {status.recipe}")
    yield _labelled("served by", status.collection)
    branches = ", ".join(status.calibrated_branches)
    yield _labelled("calibrated", branches or "not yet: searches abstain by the average of other corpora")
    style = "bold red" if status.dead_letters else ""
    yield _labelled("dead", f"{status.dead_letters} events were given up", style)
    if status.rebuild:
        yield _labelled("rebuild", status.rebuild, "cyan")
    for part in status.degraded:
        yield _labelled("degraded", f"{part.part}: {part.reason}", "red")
