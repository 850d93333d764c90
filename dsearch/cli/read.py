"""get, asof, history, diff, blame, lineage, changes."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from decisionssearch.ledger.v1 import ledger_pb2
from rich.padding import Padding
from rich.text import Text

from dsearch.cli import inputs, show
from dsearch.cli.frame import CommandError, Exit, Frame, command, plain

FamilyArgument = Annotated[
    str, typer.Argument(help="Natural key (adr/0007), id or resource name of a memory.", show_default=False)
]


def add(app: typer.Typer) -> None:
    """Add the commands."""
    _add_heads(app)
    _add_history(app)
    _add_graph(app)


def _add_heads(app: typer.Typer) -> None:
    @command(app, "get", acts_as="reader", branch=True, example="dsearch get adr/0007 --project ferrybox")
    async def get(
        frame: Frame,
        family: FamilyArgument,
        at: Annotated[str, typer.Option("--at", help="As of then in the world: a day or a time with its offset.")] = "",
    ) -> int:
        """Show a memory as it is now: content, state, evidence, what it replaces and what replaces it."""
        project = frame.need_project()
        valid_at = inputs.instant(at, "--at")
        async with frame.connect() as client:
            name = await inputs.family(client, project, family)
            head = await client.get_head(project, name, branch=frame.branch, valid_at=valid_at)
        if valid_at is not None:
            return _show_then(frame, head)
        frame.print(*show.head_view(head))
        frame.result(head)
        return Exit.OK

    @command(app, "asof", acts_as="reader", branch=True, example="dsearch asof adr/0004 2020-06-01 --project ferrybox")
    async def asof(
        frame: Frame,
        family: FamilyArgument,
        moment: Annotated[str, typer.Argument(help="A day (its start in UTC) or a time with its offset.")],
        known_at: Annotated[str, typer.Option("--known-at", help="As the ledger knew it then.")] = "",
    ) -> int:
        """Show what held at a moment of the world, as known today or as known then. Exit code 5: nothing yet did."""
        project = frame.need_project()
        valid_at = inputs.instant(moment, "MOMENT")
        known = inputs.instant(known_at, "--known-at")
        async with frame.connect() as client:
            name = await inputs.family(client, project, family)
            head = await client.get_head(project, name, branch=frame.branch, valid_at=valid_at, known_at=known)
        return _show_then(frame, head)


_NOTHING_THEN: Final = frozenset({ledger_pb2.STATE_SCHEDULED, ledger_pb2.STATE_INVALIDATED, ledger_pb2.STATE_EXPIRED})


def _show_then(frame: Frame, head: ledger_pb2.Head) -> int:
    """Show what held at a moment that was asked for; a text that starts later did not."""
    frame.result({**plain(head), "held": head.state not in _NOTHING_THEN})
    if head.state == ledger_pb2.STATE_SCHEDULED:
        text = Text().append("Nothing held then. ", style="bold yellow")
        text.append(f"{show.label(head.family)} “{head.revision.content.title}” is in force from ")
        frame.print(text.append(show.when(head.valid_from)))
        return Exit.NO_ANSWER
    frame.print(*show.head_view(head))
    return Exit.OK


def _add_history(app: typer.Typer) -> None:
    @command(app, "history", acts_as="reader", branch=True, example="dsearch history adr/0007 --project ferrybox")
    async def history(
        frame: Frame,
        family: FamilyArgument,
        known_at: Annotated[str, typer.Option("--known-at", help="As the ledger knew it then.")] = "",
    ) -> None:
        """Show every revision: when it was in force, who asked, who approved, and why."""
        project = frame.need_project()
        known = inputs.instant(known_at, "--known-at")
        async with frame.connect() as client:
            name = await inputs.family(client, project, family)
            steps = [s async for s in client.history(name, branch=frame.branch, known_at=known)]
        frame.print(*show.history_view(steps))
        frame.result({"family": name, "history": steps})

    @command(app, "diff", acts_as="reader", branch=True, example="dsearch diff adr/0007 --project ferrybox")
    async def diff(
        frame: Frame,
        family: FamilyArgument,
        old: Annotated[str, typer.Argument(help="Older revision; default: the one before the newest.")] = "",
        new: Annotated[str, typer.Argument(help="Newer revision; default: the newest.")] = "",
    ) -> None:
        """Show the differences between two revisions of a memory, field by field."""
        project = frame.need_project()
        async with frame.connect() as client:
            name = await inputs.family(client, project, family)
            steps = [s.revision.name async for s in client.history(name, branch=frame.branch)]
            before = _pick(steps, old, name, 1)
            after = _pick(steps, new, name, 0)
            changes = await client.diff(before, after)
        frame.print(*(show.diff_view(changes) if changes else [Text("no difference", style="dim")]))
        frame.result({"from_revision": before, "to_revision": after, "changes": list(changes)})

    @command(app, "blame", acts_as="reader", branch=True, example="dsearch blame adr/0007 --project ferrybox")
    async def blame(
        frame: Frame,
        family: FamilyArgument,
        revision: Annotated[str, typer.Option("--revision", help="Revision to explain; default: the newest.")] = "",
    ) -> None:
        """Show for each field which revision set it, who asked, who approved, why, and on what evidence."""
        project = frame.need_project()
        async with frame.connect() as client:
            name = await inputs.family(client, project, family)
            wanted = await inputs.revision(client, name, revision, frame.branch) if revision else ""
            fields = await client.blame(name, branch=frame.branch, revision=wanted)
        for field in fields:
            frame.print(Text().append(f"{field.field:<14} ", style="bold").append(show.clip(field.value, 90)))
            approved = ", ".join(show.who(a) for a in field.approvers) or "nobody"
            made = f"{show.short(field.revision)} on {show.when(field.record_time)} by {show.who(field.author)}"
            frame.print(
                Padding(
                    Text(f"{made}, approved by {approved}: {field.reason}", style="dim"), (0, 0, 0, 15), expand=False
                )
            )
            if field.evidence:
                text = Text(show.evidence_summary(field.evidence), style="dim")
                frame.print(Padding(text, (0, 0, 0, 15), expand=False))
        frame.result({"family": name, "fields": list(fields)})


def _pick(revisions: list[str], wanted: str, family: str, default: int) -> str:
    """Return a revision by name, id or the end of its id; without one, the one at a place in the history."""
    if not wanted:
        if default >= len(revisions):
            raise CommandError(f"{family} has only one revision", "there is nothing to compare it with", Exit.NOT_FOUND)
        return revisions[default]
    return inputs.by_end(revisions, wanted, "revision", "`dsearch history`")


def _add_graph(app: typer.Typer) -> None:
    @command(app, "lineage", acts_as="reader", branch=True, example="dsearch lineage adr/0007 --project ferrybox")
    async def lineage(
        frame: Frame,
        family: FamilyArgument,
        depth: Annotated[int, typer.Option("--depth", help="Steps to follow.", min=1, max=5)] = 2,
    ) -> None:
        """Show the graph around a memory: what it replaces, what replaces it, what rests on it."""
        project = frame.need_project()
        async with frame.connect() as client:
            name = await inputs.family(client, project, family)
            graph = await client.lineage(name, branch=frame.branch, depth=depth)
        heads = {head.family.name: head for head in graph.heads}
        for head in graph.heads:
            line = Text().append(show.label(head.family), style="bold").append(f"  {head.revision.content.title}  ")
            frame.print(line.append_text(show.state_text(head.state)))
            for relation in graph.relations:
                if relation.source_family == head.family.name:
                    other = heads.get(relation.target_family)
                    where = show.label(other.family) if other is not None else relation.target_family
                    why = f": {relation.rationale}" if relation.rationale else ""
                    text = Text(f"{show.relation_of(relation.kind)} → {where}{why}", style="yellow")
                    text.append(f"  {show.short(relation.name)}", style="dim")
                    frame.print(Padding(text, (0, 0, 0, 3), expand=False))
        if graph.truncated:
            frame.note("the graph is larger; the farthest memories were left out")
        frame.result(graph)

    @command(app, "changes", acts_as="reader", example="dsearch changes --project ferrybox --after 40")
    async def changes(
        frame: Frame,
        after: Annotated[int, typer.Option("--after", help="Only commits after this position.", min=0)] = 0,
        limit: Annotated[int, typer.Option("--limit", "-n", help="Most commits.", min=1)] = 50,
    ) -> None:
        """List the commits of a project in order."""
        project = frame.need_project()
        found = []
        async with frame.connect() as client:
            async for change in client.changes(project, after=after):
                found.append(change)
                if len(found) >= limit:
                    break
        for change in found:
            line = Text().append(f"{change.position:>6}  ", style="dim").append(f"{change.mutation:<16} ", style="bold")
            line.append(f"{show.when(change.record_time)}  {show.who(change.requester)}  ")
            frame.print(line.append(show.clip(change.reason, 60), style="dim"))
        frame.result(found)
