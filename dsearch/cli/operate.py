"""init, projects, policy, status, rebuild, verify, audit, token."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from decisionssearch.index.v1 import index_service_pb2 as index_pb2
from decisionssearch.ledger.v1 import admin_service_pb2 as admin_pb2
from decisionssearch.ledger.v1 import outbox_service_pb2
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from rich.table import Table
from rich.text import Text

from all_in_one.folder import LOCAL_ISSUER, DataFolder
from dsearch.cli import show
from dsearch.cli.frame import CommandError, Exit, Frame, command
from dsearch.client import DecisionsClient
from dsearch.connection import default_data_folder
from service_kit.errors import DomainError, Reason
from service_kit.principals import Kind, Principal, Role, grant
from service_kit.tokens import TokenFile

IMPORT_MUTATIONS: Final = ("create", "update", "supersede", "invalidate", "link", "deprecate")
IMPORT_EXTRACTORS: Final = ("structured/adr", "structured/pep")
_POLL_SECONDS: Final = 0.3


def import_rule(subject: str = "importer", issuer: str = LOCAL_ISSUER) -> admin_pb2.ApprovalRule:
    """Return the rule by which the importer's structured imports need no person; everything else does."""
    return admin_pb2.ApprovalRule(
        id="structured-import",
        issuer=issuer,
        subject=subject,
        mutations=IMPORT_MUTATIONS,
        extractors=IMPORT_EXTRACTORS,
    )


def add(app: typer.Typer) -> None:
    """Add the commands."""
    _add_projects(app)
    _add_index(app)
    _add_audit(app)
    _add_tokens(app)


def _add_projects(app: typer.Typer) -> None:
    @command(app, "init", acts_as="owner", project=False, example='dsearch init ferrybox --name "Ferrybox"')
    async def init(
        frame: Frame,
        name: Annotated[str, typer.Argument(metavar="PROJECT", help="Id: a-z, 0-9 and -.", show_default=False)],
        display_name: Annotated[str, typer.Option("--name", help="For people.")] = "",
        import_rules: Annotated[
            bool, typer.Option("--import-rule/--no-import-rule", help="Let the importer's documents in by rule.")
        ] = True,
    ) -> None:
        """Make a project. Its policy lets the importer's structured documents in by rule; the rest needs a reviewer."""
        async with frame.connect() as client:
            project = await client.create_project(name, display_name=display_name)
            if import_rules:
                policy = admin_pb2.Policy()
                policy.CopyFrom(project.policy)
                policy.approval_rules.append(import_rule())
                project = await client.update_policy(name, policy, expected_version=project.policy.version)
        frame.print(Text().append("made ", style="bold green").append(project.name))
        for rule in project.policy.approval_rules:
            what = f"{', '.join(rule.mutations)} of {rule.subject} from {', '.join(rule.extractors)}"
            frame.print(Text(f"by rule {rule.id}: {what}", style="dim"))
        frame.print(show.next_step(f"dsearch ingest adr DIR --project {name}"))
        frame.result(project)

    @command(app, "projects", acts_as="owner", project=False, example="dsearch projects --json")
    async def projects(frame: Frame) -> None:
        """List the projects that you may read."""
        async with frame.connect() as client:
            found = [p async for p in client.projects()]
        for project in found:
            line = Text().append(project.name.removeprefix("projects/"), style="bold")
            line.append(f"  {project.display_name}  ").append(
                f"{project.position} commits since {show.when(project.create_time)}", style="dim"
            )
            frame.print(line)
        if not found:
            frame.print(Text("none yet; make one with `dsearch init PROJECT`", style="dim"))
        frame.result(found)

    @command(app, "policy", acts_as="owner", example="dsearch policy --project ferrybox > policy.json")
    async def policy(
        frame: Frame,
        put: Annotated[
            Path | None, typer.Option("--put", help="Replace it by this JSON file.", show_default=False)
        ] = None,
    ) -> None:
        """Show the policy of a project as JSON, or replace it."""
        project = frame.need_project()
        async with frame.connect() as client:
            found = await client.get_project(project)
            if put is not None:
                try:
                    wanted = ParseDict(json.loads(put.read_text(encoding="utf-8")), admin_pb2.Policy())
                except (OSError, ValueError, ParseError) as error:
                    raise CommandError(f"{put}: {error}", "start from what `dsearch policy` prints") from None
                found = await client.update_policy(project, wanted, expected_version=found.policy.version)
        body = MessageToDict(found.policy, preserving_proto_field_name=True)
        if not frame.as_json:
            # As it is: it goes into a file, so nothing may wrap it.
            sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")
        frame.result(found.policy)


def _add_index(app: typer.Typer) -> None:
    @command(app, "status", acts_as="owner", example="dsearch status --project ferrybox --json")
    async def status(
        frame: Frame,
        redrive: Annotated[bool, typer.Option("--redrive", help="Put the dead letters back in the queue.")] = False,
        wait: Annotated[bool, typer.Option("--wait", help="Return when the index has caught up.")] = False,
    ) -> int:
        """Show who you are, what is stored, how far the index lags, and what was given up."""
        project = frame.need_project()
        async with frame.connect() as client:
            info = await client.ledger_info()
            found = await client.get_project(project)
            index = await client.wait_for_index(project) if wait else await client.index_status(project)
            async with frame.connect("indexer" if not frame.token_file else "") as worker:
                dead = await _dead_letters(frame, worker, project, redrive=redrive)
        line = Text().append("you are    ", style="dim").append(show.who(info.caller))
        frame.print(line.append(f" · ledger {info.store} {info.version}", style="dim"))
        frame.print(Text().append("project    ", style="dim").append(f"{project}, {found.position} commits"))
        frame.print(*show.index_status_view(index))
        for event in dead:
            what = f"commit {event.position} of {event.family} after {event.attempts} attempts"
            frame.print(Text(f"given up: {what}: {event.last_error}", style="red"))
        frame.result({"caller": info.caller, "ledger": info, "project": found, "index": index, "dead_letters": dead})
        return Exit.PROBLEMS if index.dead_letters and not redrive else Exit.OK

    @command(app, "rebuild", acts_as="owner", example="dsearch rebuild --project ferrybox")
    async def rebuild(
        frame: Frame,
        detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    ) -> int:
        """Fill a new index from the ledger while the old one serves, then swap."""
        project = frame.need_project()
        async with frame.connect() as client:
            run = await client.rebuild_index(project)
            if not detach:
                with frame.progress() as bar:
                    task = bar.add_task("rebuilding", total=run.total or None, note="")
                    while run.state == index_pb2.REBUILD_STATE_RUNNING:
                        await asyncio.sleep(_POLL_SECONDS)
                        run = await client.get_rebuild(project, run.name)
                        bar.update(task, completed=run.done, total=run.total or None)
        state = show.enum_word(index_pb2.RebuildState, run.state, "REBUILD_STATE_").lower()
        frame.print(Text(f"rebuild {state}: {run.done} of {run.total} families, {run.collection}"))
        if run.error:
            frame.print(Text(run.error, style="red"))
        frame.result(run)
        return Exit.PROBLEMS if run.state == index_pb2.REBUILD_STATE_FAILED else Exit.OK

    @command(app, "verify", acts_as="owner", example="dsearch verify --repair --project ferrybox")
    async def verify(
        frame: Frame, repair: Annotated[bool, typer.Option("--repair", help="Mend what is found.")] = False
    ) -> int:
        """Compare index and ledger in both directions. Exit code 6 when they differ."""
        project = frame.need_project()
        drifts: list[index_pb2.Drift] = []
        last = index_pb2.VerifyIndexResponse()
        async with frame.connect() as client:
            with frame.progress() as bar:
                task = bar.add_task("comparing", total=None, note="")
                async for last in client.verify_index(project, repair=repair):
                    drifts += last.drifts
                    bar.update(task, completed=last.checked)
        for drift in drifts[:20]:
            kind = show.enum_word(index_pb2.DriftKind, drift.kind, "DRIFT_KIND_").lower().replace("_", " ")
            frame.print(
                Text()
                .append(f"{kind}: ", style="bold yellow")
                .append(f"{drift.revision} {drift.branch}: {drift.detail}")
            )
        if len(drifts) > 20:
            frame.print(Text(f"… and {len(drifts) - 20} more (--json has all)", style="dim"))
        summary = f"{last.checked} revisions compared, {last.total_drifts} differences, {last.repaired} mended"
        frame.print(Text(summary, style="green" if last.total_drifts == 0 else "yellow"))
        frame.result({"summary": last, "drifts": drifts})
        return Exit.PROBLEMS if last.total_drifts > last.repaired else Exit.OK


async def _dead_letters(
    frame: Frame, worker: DecisionsClient, project: str, *, redrive: bool
) -> list[outbox_service_pb2.OutboxEvent]:
    """Return the events that were given up; nothing when the caller may not see the queue."""
    try:
        if redrive:
            count = await worker.redrive_dead_letters(project)
            frame.note(f"{count} events are back in the queue")
        return [event async for event in worker.dead_letters(project)]
    except DomainError as error:
        if error.reason is Reason.PERMISSION_DENIED and not redrive:
            return []
        raise


def _add_audit(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="The append-only record of every commit, decision and refusal.",
        epilog="Example: dsearch audit verify --project ferrybox",
    )
    app.add_typer(group, name="audit")

    @command(group, "verify", acts_as="owner", example="dsearch audit verify --project ferrybox")
    async def verify(frame: Frame) -> int:
        """Recompute the hash chain and every hash that it covers. Exit code 6 when something does not match."""
        async with frame.connect() as client:
            found = await client.verify_audit(frame.need_project())
        for problem in found.problems:
            where = f"entry {problem.sequence}" if problem.sequence else problem.resource
            frame.print(Text(f"✗ {where}: {problem.problem}", style="bold red"))
        if found.valid:
            frame.print(
                Text(f"✓ {found.entries} entries and {found.records} records match their hashes", style="bold green")
            )
        frame.print(Text(f"chain head {found.chain_head}", style="dim"))
        frame.result(found)
        return Exit.OK if found.valid else Exit.PROBLEMS

    @command(group, "list", acts_as="owner", example="dsearch audit list --project ferrybox --after 100")
    async def entries(
        frame: Frame,
        after: Annotated[int, typer.Option("--after", help="Only entries after this one.", min=0)] = 0,
        limit: Annotated[int, typer.Option("--limit", "-n", help="Most entries.", min=1)] = 50,
    ) -> None:
        """List the entries in order."""
        found = []
        async with frame.connect() as client:
            async for entry in client.audit_entries(frame.need_project(), after=after):
                found.append(entry)
                if len(found) >= limit:
                    break
        for entry in found:
            line = Text().append(f"{entry.sequence:>6}  {show.when(entry.record_time)}  ", style="dim")
            style = "red" if entry.action.startswith("refuse") else "bold"
            line.append(f"{entry.action:<18} ", style=style).append(f"{show.who(entry.principal)}  ")
            frame.print(line.append(entry.resource, style="dim"))
        frame.result(found)


def _add_tokens(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Tokens of the embedded deployment, in its data folder.",
        epilog="Example: dsearch token issue maria --role reviewer",
    )
    app.add_typer(group, name="token")

    @command(
        group,
        "issue",
        acts_as="owner",
        project=False,
        example="dsearch token issue maria --kind human --role reviewer --in ferrybox",
    )
    async def issue(
        frame: Frame,
        name: Annotated[str, typer.Argument(help="Who it is for.", show_default=False)],
        kind: Annotated[str, typer.Option("--kind", help="human, agent or service.")] = "human",
        role: Annotated[
            list[str] | None, typer.Option("--role", help="reader, proposer, reviewer, admin. Repeat.")
        ] = None,
        within: Annotated[list[str] | None, typer.Option("--in", help="Project; default: all. Repeat.")] = None,
        on_behalf_of: Annotated[str, typer.Option("--for", help="For an agent: whom it acts for.")] = "",
        days: Annotated[int, typer.Option("--days", help="Days that it lasts; 0 is for ever.", min=0)] = 0,
    ) -> None:
        """Make a token and write it to tokens/NAME.token, mode 0600."""
        try:
            roles = [Role(r) for r in role or ["reader"]]
            what = Kind(kind.upper())
        except ValueError as error:
            raise CommandError(
                str(error), "roles: reader, proposer, reviewer, admin; kinds: human, agent, service"
            ) from None
        if what is Kind.POLICY:
            raise CommandError("a policy has no token", "kinds are human, agent, service")
        if what is Kind.AGENT and not on_behalf_of:
            raise CommandError("an agent acts for somebody", "name them with --for")
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise CommandError(f"{name!r} cannot be the name of a file", "use letters, digits and - _ .")
        folder = _folder(frame)
        grants = tuple(grant(project, roles) for project in within or ["*"])
        who = Principal(LOCAL_ISSUER, name, what, on_behalf_of, grants)
        target = folder.token_file(name)
        if target.exists():
            raise CommandError(f"{target} exists", f"revoke it first: dsearch token revoke {name}", Exit.REFUSED)
        expires = datetime.now(UTC) + timedelta(days=days) if days else None
        write_token(folder, name, who, expires)
        frame.print(Text().append("issued ", style="bold green").append(str(target)))
        frame.print(Text(f"use it with --as {name}, or elsewhere with --token-file", style="dim"))
        frame.result({"name": name, "file": str(target), "roles": [r.value for r in roles]})

    @command(group, "list", acts_as="owner", project=False, example="dsearch token list")
    async def tokens(frame: Frame) -> None:
        """List who has a token and what it allows; never the tokens themselves."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("id", "who", "kind", "may", "since", "until"):
            table.add_column(column)
        found = []
        for entry in TokenFile(_folder(frame).tokens_file).entries():
            may = "; ".join(f"{', '.join(sorted(g.roles))} in {g.project}" for g in entry.principal.grants)
            until = show.when_text(entry.expires_at) if entry.expires_at else ""
            behalf = f" for {entry.principal.on_behalf_of}" if entry.principal.on_behalf_of else ""
            kind = f"{entry.principal.kind.lower()}{behalf}"
            table.add_row(entry.id[-8:], entry.principal.subject, kind, may, show.when_text(entry.issued_at), until)
            found.append({"id": entry.id, "subject": entry.principal.subject, "kind": kind, "may": may, "until": until})
        frame.print(table if found else Text("none yet; `dsearch serve` makes the first ones", style="dim"))
        frame.result(found)

    @command(group, "revoke", acts_as="owner", project=False, example="dsearch token revoke maria")
    async def revoke(
        frame: Frame,
        who: Annotated[str, typer.Argument(help="Name, or the end of the id as listed.", show_default=False)],
    ) -> None:
        """Revoke tokens; they are refused from the next call on."""
        folder = _folder(frame)
        file = TokenFile(folder.tokens_file)
        found = [e for e in file.entries() if e.principal.subject == who or e.id.endswith(who)]
        if not found:
            raise CommandError(f"nobody called {who!r} has a token", "`dsearch token list` shows them", Exit.NOT_FOUND)
        for entry in found:
            file.revoke(entry.id)
            folder.token_file(entry.principal.subject).unlink(missing_ok=True)
        frame.print(Text(f"revoked {len(found)} of {found[0].principal.subject}", style="bold green"))
        frame.result({"revoked": [e.id for e in found]})


def _folder(frame: Frame) -> DataFolder:
    return DataFolder((frame.data or default_data_folder()).expanduser())


def write_token(folder: DataFolder, name: str, who: Principal, expires: datetime | None) -> None:
    """Issue a token into its file, which has mode 0600 from its first byte on."""
    import os

    token = TokenFile(folder.tokens_file).issue(who, expires_at=expires)
    handle = os.open(folder.token_file(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
