"""review (queue, show, approve, reject, withdraw, revoke) and apply."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from decisionssearch.ledger.v1 import proposal_pb2
from rich.prompt import Prompt
from rich.rule import Rule
from rich.text import Text
from typer.core import TyperGroup

from dsearch.cli import inputs, show
from dsearch.cli.frame import Exit, Frame, command, show_error
from dsearch.client import DecisionsClient
from service_kit.errors import DomainError

Proposal = Annotated[
    str, typer.Argument(help="Proposal: the id of the queue, the whole id, or the name.", show_default=False)
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="Words for the record.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when the index has it.")]


class _QueueByDefault(TyperGroup):
    """`dsearch review --project x` is `dsearch review queue --project x`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the queue in front unless a command or help is asked for."""
        if (not args or args[0] not in self.commands) and "--help" not in args:
            args.insert(0, "queue")
        return super().parse_args(ctx, args)


def add(app: typer.Typer) -> None:
    """Add the group, and apply."""
    about = "Look at what is proposed and decide. Without a command: the queue, one by one on a terminal."
    group = typer.Typer(
        cls=_QueueByDefault, help=about, epilog="Example: dsearch review show 3fa85f64 --project ferrybox"
    )
    app.add_typer(group, name="review")
    _add_looking(group)
    _add_deciding(group)
    _add_apply(app)


def _add_looking(group: typer.Typer) -> None:
    @command(group, "queue", acts_as="reviewer", example="dsearch review queue --project ferrybox")
    async def queue(
        frame: Frame,
        status: Annotated[
            list[str] | None,
            typer.Option("--status", help="pending, applied, ...; default: those that wait."),
        ] = None,
        family: Annotated[str, typer.Option("--family", help="Only proposals about this memory.")] = "",
        batch: Annotated[bool, typer.Option("--list", help="Only list, also on a terminal.")] = False,
    ) -> int:
        """List the proposals that wait; on a terminal, go through them one by one."""
        project = frame.need_project()
        statuses = [
            inputs.choice(proposal_pb2.ProposalStatus, "PROPOSAL_STATUS_", text, "--status") for text in status or ()
        ]
        async with frame.connect() as client:
            name = await inputs.family(client, project, family) if family else ""
            found = [p async for p in client.proposals(project, statuses=statuses, family=name)]
            names = await inputs.labels(client, project, found)
            frame.print(show.queue_view(found, names) if found else Text("nothing waits", style="dim"))
            frame.result(found)
            pending = [p for p in found if p.status == proposal_pb2.PROPOSAL_STATUS_PENDING]
            if frame.interactive and not batch and pending and not statuses:
                return await _one_by_one(frame, client, pending, names)
        return Exit.OK

    @command(group, "show", acts_as="reader", example="dsearch review show 3fa85f64 --project ferrybox")
    async def show_one(frame: Frame, proposal: Proposal) -> None:
        """Show a proposal: difference field by field, timeline, evidence, warnings, approvals."""
        async with frame.connect() as client:
            project = frame.need_project()
            found = await inputs.proposal(client, project, proposal)
            names = await inputs.labels(client, project, [found])
        frame.print(*show.proposal_view(found, names))
        frame.result(found)


async def _one_by_one(
    frame: Frame, client: DecisionsClient, pending: list[proposal_pb2.Proposal], names: dict[str, str]
) -> int:
    worst = Exit.OK
    for number, proposal in enumerate(pending, 1):
        frame.print("", Rule(f"{number} of {len(pending)}"), *show.proposal_view(proposal, names))
        answer = Prompt.ask("decide", choices=["approve", "reject", "skip", "quit"], default="skip", console=frame.out)
        if answer == "quit":
            break
        try:
            if answer == "approve":
                await client.approve(proposal.name, preview_hash=proposal.preview_hash)
                if Prompt.ask("apply now", choices=["yes", "no"], default="yes", console=frame.out) == "yes":
                    # Applying is the right of a proposer, which a reviewer need not be.
                    async with frame.connect("owner") as proposer:
                        applied = await proposer.apply(proposal.name, preview_hash=proposal.preview_hash)
                    frame.print(Text(f"applied as commit {applied.position}", style="green"))
            elif answer == "reject":
                comment = Prompt.ask("why", console=frame.out)
                await client.reject(proposal.name, comment=comment)
                frame.print(Text("rejected", style="red"))
        except DomainError as error:
            # One that cannot be decided must not keep the rest from being looked at.
            worst = Exit(show_error(frame, error))
    return worst


def _add_deciding(group: typer.Typer) -> None:
    @command(
        group,
        "approve",
        acts_as="reviewer",
        example='dsearch review approve 3fa85f64 --comment "checked with finance" --project ferrybox',
    )
    async def approve(
        frame: Frame,
        proposal: Proposal,
        comment: Comment = "",
        preview: Annotated[str, typer.Option("--preview", help="Only if it still has this preview hash.")] = "",
    ) -> None:
        """Say yes to exactly what the proposal says now."""
        async with frame.connect() as client:
            found = await inputs.proposal(client, frame.need_project(), proposal)
            response = await client.approve(found.name, preview_hash=preview or found.preview_hash, comment=comment)
        status = show.status_of(response.proposal.status).lower()
        frame.print(Text().append("approved ", style="bold green").append(show.proposal_title(response.proposal)))
        frame.print(Text(f"by {show.who(response.approval.approver)} · the proposal is {status}", style="dim"))
        if response.proposal.status == proposal_pb2.PROPOSAL_STATUS_APPROVED:
            frame.print(show.next_step(f"dsearch apply {show.short(found.name)}"))
        frame.result(response)

    @command(
        group,
        "reject",
        acts_as="reviewer",
        example='dsearch review reject 3fa85f64 --comment "no evidence" --project ferrybox',
    )
    async def reject(
        frame: Frame,
        proposal: Proposal,
        comment: Annotated[str, typer.Option("--comment", "-m", help="Why; goes into the record.", show_default=False)],
    ) -> None:
        """Say no. Final; the same change may be proposed again."""
        async with frame.connect() as client:
            found = await inputs.proposal(client, frame.need_project(), proposal)
            rejected = await client.reject(found.name, comment=comment)
        frame.print(Text().append("rejected ", style="bold red").append(show.proposal_title(rejected)))
        frame.result(rejected)

    @command(group, "withdraw", acts_as="owner", example="dsearch review withdraw 3fa85f64 --project ferrybox")
    async def withdraw(frame: Frame, proposal: Proposal, comment: Comment = "") -> None:
        """Take one's own proposal back."""
        async with frame.connect() as client:
            found = await inputs.proposal(client, frame.need_project(), proposal)
            withdrawn = await client.withdraw(found.name, comment=comment)
        frame.print(Text().append("withdrawn ", style="bold").append(show.proposal_title(withdrawn)))
        frame.result(withdrawn)

    @command(
        group,
        "revoke",
        acts_as="reviewer",
        example='dsearch review revoke 3fa85f64 --comment "read it again" --project ferrybox',
    )
    async def revoke(
        frame: Frame,
        proposal: Proposal,
        comment: Annotated[str, typer.Option("--comment", "-m", help="Why; goes into the record.", show_default=False)],
    ) -> None:
        """Take one's own approval back before it is used."""
        async with frame.connect() as client:
            me = (await client.ledger_info()).caller
            found = await inputs.proposal(client, frame.need_project(), proposal)
            mine = [a for a in found.approvals if (a.approver.issuer, a.approver.subject) == (me.issuer, me.subject)]
            if not mine:
                frame.note(f"{me.subject} has not approved it")
                frame.result(found)
                return
            for approval in mine:
                found = await client.revoke_approval(approval.name, reason=comment)
        frame.print(Text("revoked; the proposal is ").append(show.status_of(found.status).lower()))
        frame.result(found)


def _with_keys(error: DomainError, names: dict[str, str]) -> DomainError:
    """Return a refusal that calls families what people call them."""
    metadata = {key: f"{names[value]} ({value})" if value in names else value for key, value in error.metadata.items()}
    return DomainError(error.reason, error.message, fields=error.fields, metadata=metadata)


def _add_apply(app: typer.Typer) -> None:
    @command(app, "apply", acts_as="owner", example="dsearch apply 3fa85f64 --wait --project ferrybox")
    async def apply(frame: Frame, proposal: Proposal, wait: Wait = False) -> None:
        """Commit an approved proposal. If a head has moved since, nothing changes and you are told."""
        project = frame.need_project()
        async with frame.connect() as client:
            found = await inputs.proposal(client, project, proposal)
            names = await inputs.labels(client, project, [found])
            try:
                response = await client.apply(found.name, preview_hash=found.preview_hash)
            except DomainError as error:
                raise _with_keys(error, names) from None
            names |= await inputs.labels(client, project, [show.as_link(response)])
            if wait:
                await client.wait_for_index(project)
        title = show.applied_words(response, names)
        frame.print(
            Text()
            .append("applied ", style="bold green")
            .append(f"{title}  ")
            .append(f"commit {response.position}", "dim")
        )
        if response.HasField("head"):
            head = response.head
            until = head.valid_to if head.HasField("valid_to") else None
            line = Text().append_text(show.state_text(head.state)).append(f" {show.interval(head.valid_from, until)}")
            frame.print(line)
            for row in head.scheduled:
                frame.print(Text(f"scheduled from {show.when(row.valid_from)}", style="cyan"))
        frame.result(response)
