"""propose: every kind of change, from options or from a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml
from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest_pb2
from decisionssearch.ledger.v1 import ledger_pb2, ledger_service_pb2, proposal_pb2
from decisionssearch.ledger.v1 import observation_service_pb2 as observation_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from rich.text import Text

from dsearch.cli import inputs, show
from dsearch.cli.frame import CommandError, Exit, Frame, command
from dsearch.client import DecisionsClient
from service_kit.clock import to_timestamp

_IMPORTANCE: Final = 0.5

Family = Annotated[str, typer.Argument(help="Natural key, id or resource name of the memory.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why: goes into the record.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would be; store nothing.")]
Evidence = Annotated[
    list[str] | None,
    typer.Option("--evidence", help="KIND:LOCATOR|WORDS of the source; ! in front when it speaks against. Repeat."),
]
From = Annotated[str, typer.Option("--from", help="From when in the world; default: when it is applied.")]
Until = Annotated[str, typer.Option("--until", help="Until when in the world; default: open.")]
Title = Annotated[str, typer.Option("--title", help="One line.")]
Summary = Annotated[str, typer.Option("--summary", help="What holds, in a paragraph.")]
Details = Annotated[str, typer.Option("--details", help="Everything else worth reading.")]
Rationale = Annotated[str, typer.Option("--rationale", help="Why it was decided so.")]
Objective = Annotated[str, typer.Option("--objective", help="What it is for.")]
Trigger = Annotated[str, typer.Option("--trigger", help="What sets it off.")]
Domain = Annotated[str, typer.Option("--domain", help="Area of the business or system.")]
Url = Annotated[str, typer.Option("--url", help="Where it can be read.")]
Rule = Annotated[list[str] | None, typer.Option("--rule", help="A rule, one statement. Repeat.")]
Alternative = Annotated[list[str] | None, typer.Option("--alternative", help="What else was considered. Repeat.")]
ExampleOption = Annotated[list[str] | None, typer.Option("--example", help="An example. Repeat.")]
Step = Annotated[list[str] | None, typer.Option("--step", help="A step, in order. Repeat.")]
Module = Annotated[list[str] | None, typer.Option("--module", help="A module concerned. Repeat.")]
FileOption = Annotated[list[str] | None, typer.Option("--file", help="A file concerned. Repeat.")]
Tag = Annotated[list[str] | None, typer.Option("--tag", help="A label. Repeat.")]
Importance = Annotated[float | None, typer.Option("--importance", help="0 to 1; breaks ties only.", min=0, max=1)]


def _stamp(text: str, option: str) -> Timestamp | None:
    moment = inputs.instant(text, option)
    return to_timestamp(moment) if moment is not None else None


def _fields(**given: Any) -> dict[str, Any]:
    """Return what was given, by the name of the field of Content."""
    return {name: value for name, value in given.items() if value not in ("", None, [], ())}


async def _send(
    frame: Frame,
    client: DecisionsClient,
    mutation: proposal_pb2.Mutation,
    *,
    reason: str,
    evidence: Sequence[str] | None,
    dry_run: bool,
) -> int:
    proposal = await client.propose(
        frame.need_project(),
        mutation,
        reason=reason,
        evidence=[inputs.evidence(text) for text in evidence or ()],
        branch=frame.branch,
        validate_only=dry_run,
    )
    names = await inputs.labels(client, frame.need_project(), [proposal])
    return _shown(frame, proposal, names, dry_run=dry_run)


def _shown(frame: Frame, proposal: proposal_pb2.Proposal, names: dict[str, str], *, dry_run: bool) -> int:
    frame.print(*show.proposal_view(proposal, names, preview=dry_run))
    if not dry_run:
        ident = show.short(proposal.name)
        approved = proposal.status == proposal_pb2.PROPOSAL_STATUS_APPROVED
        step = f"dsearch apply {ident}" if approved else f"dsearch review approve {ident} --as reviewer"
        frame.print(show.next_step(step))
    frame.result(proposal)
    return Exit.OK


def add(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Propose a change; nothing is published before it is approved and applied.",
        epilog='Example: dsearch propose update adr/0007 --tag lockers --reason "find it by its tag" '
        '--evidence "document:docs/adr/0007.md" --project ferrybox',
    )
    app.add_typer(group, name="propose")
    _add_create(group)
    _add_changes(group)
    _add_ends(group)
    _add_links(group)
    _add_file(group)


def _add_create(group: typer.Typer) -> None:
    @command(
        group,
        "create",
        acts_as="owner",
        branch=True,
        example='dsearch propose create --category business-rule --domain refunds --title "Refunds take 10 days" '
        '--summary "..." --reason "agreed with finance" --evidence "statement:finance|Ten days" -p ferrybox',
    )
    async def create(
        frame: Frame,
        title: Title,
        reason: Reason,
        category: Annotated[str, typer.Option("--category", help=inputs.CATEGORY_WORDS)] = "design-rule",
        key: Annotated[str, typer.Option("--key", help="Natural key, e.g. adr/0015.")] = "",
        refines: Annotated[str, typer.Option("--refines", help="Memory that the new one makes more precise.")] = "",
        summary: Summary = "",
        details: Details = "",
        rationale: Rationale = "",
        objective: Objective = "",
        trigger: Trigger = "",
        domain: Domain = "",
        url: Url = "",
        rule: Rule = None,
        alternative: Alternative = None,
        example: ExampleOption = None,
        step: Step = None,
        module: Module = None,
        file: FileOption = None,
        tag: Tag = None,
        importance: Importance = None,
        evidence: Evidence = None,
        valid_from: From = "",
        until: Until = "",
        dry_run: DryRun = False,
    ) -> int:
        """Propose a new memory. It passes the gates of ingest: secrets, duplicates, required fields, weight."""
        project = frame.need_project()
        fields = _fields(
            title=title,
            summary=summary,
            details=details,
            rationale=rationale,
            objective=objective,
            trigger=trigger,
            domain=domain,
            url=url,
            rules=rule,
            alternatives=alternative,
            examples=example,
            steps=step,
            modules=module,
            files=file,
            tags=tag,
            importance=importance,
        )
        content = ledger_pb2.Content(**{"importance": _IMPORTANCE, **fields})
        start, end = _stamp(valid_from, "--from"), _stamp(until, "--until")
        kind = inputs.category(category)
        async with frame.connect() as client:
            mutation = proposal_pb2.CreateMutation(
                identity_key=key, category=kind, content=content, valid_from=start, valid_to=end
            )
            if refines or end is not None:
                # The gates have no word for these two; the ledger checks the rest.
                return await _send(
                    frame,
                    client,
                    await _maybe_refining(client, project, mutation, refines, reason),
                    reason=reason,
                    evidence=evidence,
                    dry_run=dry_run,
                )
            candidate = ingest_pb2.CandidateInput(
                category=kind,
                identity_key=key,
                content=content,
                evidence=[inputs.evidence(text) for text in evidence or ()],
                valid_from=start,
            )
            if dry_run:
                verdict = await client.evaluate_candidate(project, candidate, branch=frame.branch)
                _show_gates(frame, list(verdict.gates))
                for near in verdict.similar:
                    frame.print(Text(f"near: {near.title} ({near.similarity:.2f}) {near.family}", style="dim"))
                frame.result(verdict)
                return Exit.OK if verdict.admitted else Exit.REFUSED
            answer = await client.propose_memory(project, candidate, reason=reason, branch=frame.branch)
        if answer.HasField("proposal"):
            if answer.redactions:
                frame.note("redacted: " + ", ".join(f"{n} {k}" for k, n in sorted(answer.redactions.items())))
            return _shown(frame, answer.proposal, {}, dry_run=False)
        outcome = observation_pb2.AdmissionOutcome.Name(answer.outcome).removeprefix("ADMISSION_OUTCOME_").lower()
        frame.print(Text(f"not proposed: {outcome.replace('_', ' ')}", style="bold yellow"))
        _show_gates(frame, list(answer.gates))
        if answer.duplicate_of:
            frame.print(Text(f"it says what is known already: {answer.duplicate_of}"))
        frame.result(answer)
        return Exit.REFUSED


async def _maybe_refining(
    client: DecisionsClient, project: str, create: proposal_pb2.CreateMutation, refines: str, reason: str
) -> proposal_pb2.Mutation:
    if not refines:
        return proposal_pb2.Mutation(create=create)
    target = await inputs.family(client, project, refines)
    return proposal_pb2.Mutation(
        create_and_link=proposal_pb2.CreateAndLinkMutation(create=create, refines_family=target, rationale=reason)
    )


def _show_gates(frame: Frame, gates: list[ingest_pb2.GateResult]) -> None:
    for gate in gates:
        mark = Text("✓ ", style="green") if gate.passed else Text("✗ ", style="bold red")
        frame.print(mark.append(f"{gate.gate:<10} ").append(gate.reason, style="dim" if gate.passed else ""))


def _add_changes(group: typer.Typer) -> None:
    def register(name: str, *, supersedes: bool, help_text: str, example: str) -> None:
        async def change(
            frame: Frame,
            family: Family,
            reason: Reason,
            title: Title = "",
            summary: Summary = "",
            details: Details = "",
            rationale: Rationale = "",
            objective: Objective = "",
            trigger: Trigger = "",
            domain: Domain = "",
            url: Url = "",
            rule: Rule = None,
            alternative: Alternative = None,
            example: ExampleOption = None,
            step: Step = None,
            module: Module = None,
            file: FileOption = None,
            tag: Tag = None,
            importance: Importance = None,
            evidence: Evidence = None,
            valid_from: From = "",
            until: Until = "",
            dry_run: DryRun = False,
        ) -> int:
            project = frame.need_project()
            fields = _fields(
                title=title,
                summary=summary,
                details=details,
                rationale=rationale,
                objective=objective,
                trigger=trigger,
                domain=domain,
                url=url,
                rules=rule,
                alternatives=alternative,
                examples=example,
                steps=step,
                modules=module,
                files=file,
                tags=tag,
                importance=importance,
            )
            if not fields:
                raise CommandError("nothing was changed", "name at least one field, e.g. --summary or --title")
            start, end = _stamp(valid_from, "--from"), _stamp(until, "--until")
            async with frame.connect() as client:
                target = await inputs.family(client, project, family)
                head = await client.get_head(
                    project, target, branch=frame.branch, view=ledger_service_pb2.HEAD_VIEW_BASIC
                )
                content = ledger_pb2.Content(**fields)
                if supersedes:
                    content = _over(head.revision.content, content, fields)
                mutation = (
                    proposal_pb2.Mutation(
                        supersede=proposal_pb2.SupersedeMutation(
                            family=target, content=content, valid_from=start, valid_to=end
                        )
                    )
                    if supersedes
                    else proposal_pb2.Mutation(
                        update=proposal_pb2.UpdateMutation(
                            family=target,
                            content=content,
                            update_mask=FieldMask(paths=list(fields)),
                            valid_from=start,
                            valid_to=end,
                        )
                    )
                )
                return await _send(frame, client, mutation, reason=reason, evidence=evidence, dry_run=dry_run)

        change.__doc__ = help_text
        change.__name__ = name
        command(group, name, acts_as="owner", branch=True, example=example)(change)

    register(
        "update",
        supersedes=False,
        help_text="Edit a memory: the decision stays as it was, nobody who rests on it is told.",
        example='dsearch propose update adr/0007 --domain collection --reason "name the area" '
        '--evidence "document:docs/adr/0007.md|Collection codes" --project ferrybox',
    )
    register(
        "supersede",
        supersedes=True,
        help_text="Change a decision: what is not named stays as it is; whoever rests on it gets a review flag.",
        example='dsearch propose supersede adr/0007 --title "Codes last 5 days" --summary "..." '
        '--reason "trial in Lagos" --evidence "url:https://example.org/trial" --as agent --project ferrybox',
    )


def _over(current: ledger_pb2.Content, given: ledger_pb2.Content, fields: dict[str, Any]) -> ledger_pb2.Content:
    """Return the current content with the fields that were given."""
    content = ledger_pb2.Content()
    content.CopyFrom(current)
    for name in fields:
        content.ClearField(name)  # type: ignore[arg-type]  # names of fields, by construction
    content.MergeFrom(given)
    # What the source said about the old text is no fact of the new one.
    for fact in ("source_status", "sha", "status"):
        content.attributes.pop(fact, None)
    return content


def _add_ends(group: typer.Typer) -> None:
    @command(
        group,
        "invalidate",
        acts_as="owner",
        branch=True,
        example='dsearch propose invalidate adr/0010 --reason "the repository is gone" --project ferrybox',
    )
    async def invalidate(
        frame: Frame,
        family: Family,
        reason: Reason,
        effective_from: From = "",
        evidence: Evidence = None,
        dry_run: DryRun = False,
    ) -> int:
        """End the validity of a memory; nothing older comes back."""
        start = _stamp(effective_from, "--from")
        async with frame.connect() as client:
            target = await inputs.family(client, frame.need_project(), family)
            mutation = proposal_pb2.Mutation(
                invalidate=proposal_pb2.InvalidateMutation(family=target, effective_from=start)
            )
            return await _send(frame, client, mutation, reason=reason, evidence=evidence, dry_run=dry_run)

    @command(
        group,
        "expire",
        acts_as="owner",
        branch=True,
        example='dsearch propose expire adr/0010 --until 2027-01-01 --reason "pilot ends" --project ferrybox',
    )
    async def expire(
        frame: Frame,
        family: Family,
        reason: Reason,
        until: Annotated[str, typer.Option("--until", help="Until when; empty takes the expiry back.")] = "",
        evidence: Evidence = None,
        dry_run: DryRun = False,
    ) -> int:
        """Set an end of validity that is known in advance, or take it back."""
        end = _stamp(until, "--until")
        async with frame.connect() as client:
            target = await inputs.family(client, frame.need_project(), family)
            mutation = proposal_pb2.Mutation(set_expiry=proposal_pb2.SetExpiryMutation(family=target, valid_to=end))
            return await _send(frame, client, mutation, reason=reason, evidence=evidence, dry_run=dry_run)

    @command(
        group,
        "deprecate",
        acts_as="owner",
        branch=True,
        example='dsearch propose deprecate adr/0003 --by adr/0008 --reason "gRPC now" --project ferrybox',
    )
    async def deprecate(
        frame: Frame,
        family: Family,
        replacement: Annotated[str, typer.Option("--by", help="The memory that replaces it.", show_default=False)],
        reason: Reason,
        effective_from: From = "",
        evidence: Evidence = None,
        dry_run: DryRun = False,
    ) -> int:
        """End a memory because another one replaces it, and record that."""
        start = _stamp(effective_from, "--from")
        async with frame.connect() as client:
            project = frame.need_project()
            target = await inputs.family(client, project, family)
            by = await inputs.family(client, project, replacement)
            mutation = proposal_pb2.Mutation(
                deprecate=proposal_pb2.DeprecateMutation(
                    family=target, replacement_family=by, effective_from=start, rationale=reason
                )
            )
            return await _send(frame, client, mutation, reason=reason, evidence=evidence, dry_run=dry_run)

    @command(
        group,
        "rollback",
        acts_as="owner",
        branch=True,
        example='dsearch propose rollback adr/0007 --to 0198c0de-... --reason "the trial failed" --project ferrybox',
    )
    async def rollback(
        frame: Frame,
        family: Family,
        to: Annotated[str, typer.Option("--to", help="Revision to go back to, by id or name.", show_default=False)],
        reason: Reason,
        valid_from: From = "",
        evidence: Evidence = None,
        dry_run: DryRun = False,
    ) -> int:
        """Publish a new revision whose content equals that of an older one."""
        start = _stamp(valid_from, "--from")
        async with frame.connect() as client:
            target = await inputs.family(client, frame.need_project(), family)
            mutation = proposal_pb2.Mutation(
                rollback=proposal_pb2.RollbackMutation(
                    family=target, to_revision=await inputs.revision(client, target, to, frame.branch), valid_from=start
                )
            )
            return await _send(frame, client, mutation, reason=reason, evidence=evidence, dry_run=dry_run)

    @command(
        group,
        "cancel-schedule",
        acts_as="owner",
        branch=True,
        example='dsearch propose cancel-schedule adr/0007 --reason "not yet" --project ferrybox',
    )
    async def cancel_schedule(
        frame: Frame,
        family: Family,
        reason: Reason,
        revision: Annotated[str, typer.Option("--revision", help="Default: the one that is scheduled.")] = "",
        dry_run: DryRun = False,
    ) -> int:
        """Take a scheduled revision out of the timeline before it starts."""
        async with frame.connect() as client:
            project = frame.need_project()
            target = await inputs.family(client, project, family)
            if revision:
                name = await inputs.revision(client, target, revision, frame.branch)
            else:
                head = await client.get_head(project, target, branch=frame.branch)
                rows = [row.revision for row in head.scheduled]
                if len(rows) != 1:
                    problem = "nothing is scheduled" if not rows else f"{len(rows)} revisions are scheduled"
                    raise CommandError(problem, "name one with --revision; `dsearch history` lists them")
                name = rows[0]
            mutation = proposal_pb2.Mutation(
                cancel_schedule=proposal_pb2.CancelScheduleMutation(family=target, revision=name)
            )
            return await _send(frame, client, mutation, reason=reason, evidence=None, dry_run=dry_run)


def _add_links(group: typer.Typer) -> None:
    @command(
        group,
        "link",
        acts_as="owner",
        branch=True,
        example='dsearch propose link adr/0012 depends-on adr/0006 --reason "refunds need the key" --project ferrybox',
    )
    async def link(
        frame: Frame,
        source: Annotated[str, typer.Argument(help="From: key, id or name.", show_default=False)],
        kind: Annotated[
            str, typer.Argument(help="related-to, depends-on, refines, deprecates, ...", show_default=False)
        ],
        target: Annotated[str, typer.Argument(help="To: key, id or name.", show_default=False)],
        reason: Reason,
        valid_from: From = "",
        evidence: Evidence = None,
        dry_run: DryRun = False,
    ) -> int:
        """Assert a relation between two memories."""
        start = _stamp(valid_from, "--from")
        relation = inputs.choice(ledger_pb2.RelationKind, "RELATION_KIND_", kind, "KIND")
        async with frame.connect() as client:
            project = frame.need_project()
            mutation = proposal_pb2.Mutation(
                link=proposal_pb2.LinkMutation(
                    kind=relation,
                    source_family=await inputs.family(client, project, source),
                    target_family=await inputs.family(client, project, target),
                    rationale=reason,
                    valid_from=start,
                )
            )
            return await _send(frame, client, mutation, reason=reason, evidence=evidence, dry_run=dry_run)

    @command(
        group,
        "unlink",
        acts_as="owner",
        branch=True,
        example='dsearch propose unlink adr/0012 depends-on adr/0006 --reason "was wrong" --project ferrybox',
    )
    async def unlink(
        frame: Frame,
        relation: Annotated[
            str, typer.Argument(help="Id as lineage shows it, or name; or FROM, with KIND and TO.", show_default=False)
        ],
        reason: Reason,
        kind: Annotated[str, typer.Argument(help="depends-on, ...", show_default=False)] = "",
        target: Annotated[str, typer.Argument(metavar="[TO]", help="To: key, id or name.", show_default=False)] = "",
        dry_run: DryRun = False,
    ) -> int:
        """Take a relation back; the same one may be asserted again."""
        async with frame.connect() as client:
            name = await inputs.relation(client, frame.need_project(), relation, kind, target)
            mutation = proposal_pb2.Mutation(unlink=proposal_pb2.UnlinkMutation(relation=name))
            return await _send(frame, client, mutation, reason=reason, evidence=None, dry_run=dry_run)


_FAMILY_FIELDS: Final = ("family", "refines_family", "replacement_family", "source_family", "target_family")


def _add_file(group: typer.Typer) -> None:
    @command(
        group,
        "file",
        acts_as="owner",
        branch=True,
        example="dsearch propose file change.yaml --dry-run --project ferrybox",
    )
    async def from_file(
        frame: Frame,
        path: Annotated[Path, typer.Argument(help="YAML or JSON; - is the standard input.", show_default=False)],
        dry_run: DryRun = False,
    ) -> int:
        """Propose what a file says: one proposal, or a list of them.

        Each has a reason, one kind of change with the fields of the contract, and evidence:
        {reason: ..., supersede: {family: adr/0007, content: {title: ...}}, evidence: ["url:https://..."]}
        """
        project = frame.need_project()
        items = _load(path)
        proposals = []
        async with frame.connect() as client:
            for number, item in enumerate(items, 1):
                where = f"item {number}" if len(items) > 1 else str(path)
                reason, mutation, evidence = _parse_item(item, where)
                await _resolve(client, project, mutation)
                proposals.append(
                    await client.propose(
                        project,
                        mutation,
                        reason=reason,
                        evidence=evidence,
                        branch=frame.branch or str(item.get("branch", "")),
                        validate_only=dry_run,
                    )
                )
        for proposal in proposals:
            frame.print(*show.proposal_view(proposal, preview=dry_run), "")
        frame.result(proposals)
        return Exit.OK


def _load(path: Path) -> list[dict[str, Any]]:
    try:
        text = typer.get_text_stream("stdin").read() if str(path) == "-" else path.read_text(encoding="utf-8")
        body = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise CommandError(f"{path} is neither YAML nor JSON: {first}") from None
    items = body if isinstance(body, list) else [body]
    if not items or not all(isinstance(item, dict) for item in items):
        raise CommandError(f"{path} holds no proposal", "see `dsearch propose file --help`")
    return items


def _parse_item(
    item: dict[str, Any], where: str
) -> tuple[str, proposal_pb2.Mutation, list[proposal_pb2.EvidenceInput]]:
    kinds = [f.name for f in proposal_pb2.Mutation.DESCRIPTOR.fields]
    known = {"reason", "branch", "evidence", *kinds}
    unknown = sorted(set(item) - known)
    if unknown:
        raise CommandError(
            f"{where}: {', '.join(unknown)} is no field of a proposal", f"known are {', '.join(sorted(known))}"
        )
    if not item.get("reason"):
        raise CommandError(f"{where}: reason is required")
    body = {key: value for key, value in item.items() if key in kinds}
    if len(body) != 1:
        raise CommandError(f"{where}: name exactly one change", f"one of {', '.join(kinds)}")
    mutation: proposal_pb2.Mutation = inputs.parse_message(body, proposal_pb2.Mutation(), where)
    if mutation.WhichOneof("kind") == "create" and "importance" not in (body["create"] or {}).get("content", {}):
        mutation.create.content.importance = _IMPORTANCE
    evidence = [
        inputs.evidence(entry)
        if isinstance(entry, str)
        else inputs.parse_message(entry, proposal_pb2.EvidenceInput(), f"{where}: evidence")
        for entry in item.get("evidence", [])
    ]
    return str(item["reason"]), mutation, evidence


async def _resolve(client: DecisionsClient, project: str, mutation: proposal_pb2.Mutation) -> None:
    """Turn natural keys into resource names."""
    change = getattr(mutation, mutation.WhichOneof("kind") or "")
    for name in _FAMILY_FIELDS:
        if name in change.DESCRIPTOR.fields_by_name and getattr(change, name):
            setattr(change, name, await inputs.family(client, project, getattr(change, name)))
