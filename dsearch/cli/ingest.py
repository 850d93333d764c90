"""ingest: decision records, PEPs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dsearch.cli import show
from dsearch.cli.frame import CommandError, Exit, Frame, command
from dsearch.sources import adr, pep
from dsearch.sources.importer import ImportSummary, run_import
from dsearch.sources.model import SourceError, SourceReading

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only read the source and say what would be sent.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when the index has it and knows the corpus.")]
OnlyPropose = Annotated[bool, typer.Option("--propose-only", help="Apply nothing, also what a rule approves.")]


def add(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Import structured sources; importing again changes nothing.",
        epilog="Example: dsearch ingest adr docs/adr --project ferrybox",
    )
    app.add_typer(group, name="ingest")

    @command(
        group,
        "adr",
        acts_as="importer",
        branch=True,
        example="dsearch ingest adr docs/adr --project ferrybox",
    )
    async def ingest_adr(
        frame: Frame,
        folder: Annotated[Path, typer.Argument(help="Folder with the records.", show_default=False)],
        dates: Annotated[
            adr.Dates, typer.Option("--dates", help="auto: git where the records are committed, else the records' own.")
        ] = adr.Dates.AUTO,
        dry_run: DryRun = False,
        wait: Wait = False,
        propose_only: OnlyPropose = False,
    ) -> int:
        """Import architecture decision records: Markdown files with a number in their name."""
        return await _ingest(
            frame, lambda: adr.read(folder, dates), dry_run=dry_run, wait=wait, propose_only=propose_only
        )

    @command(
        group,
        "pep",
        acts_as="importer",
        branch=True,
        example="dsearch ingest pep ~/src/peps --project python",
    )
    async def ingest_pep(
        frame: Frame,
        source: Annotated[
            Path,
            typer.Argument(help="Clone, or folder with documents.jsonl and events.jsonl.", show_default=False),
        ],
        dry_run: DryRun = False,
        wait: Wait = False,
        propose_only: OnlyPropose = False,
    ) -> int:
        """Import Python Enhancement Proposals with the history of their headers."""
        return await _ingest(frame, lambda: pep.read(source), dry_run=dry_run, wait=wait, propose_only=propose_only)


async def _ingest(frame: Frame, read: object, *, dry_run: bool, wait: bool, propose_only: bool) -> int:
    project = frame.need_project()
    started = time.monotonic()
    try:
        reading: SourceReading = await asyncio.to_thread(read)  # type: ignore[arg-type]  # a callable, from above
    except SourceError as error:
        raise CommandError(str(error), "see --help for what the source has to be") from None
    for remark in reading.remarks:
        frame.note(remark)
    if dry_run:
        facts = ", ".join(f"{count} {what}" for what, count in reading.facts.items())
        what = f"{len(reading.documents)} observations of {reading.families} memories"
        what += f", {len(reading.relations)} of relations"
        frame.print(Text(f"{what} ({facts})"))
        frame.print(Text(f"dates from {reading.dates}", style="dim"))
        _show_problems(frame, reading)
        found = {"observations": len(reading.documents), "relations": len(reading.relations)}
        frame.result({**found, "families": reading.families, "problems": _problems(reading)})
        return Exit.PROBLEMS if reading.problems else Exit.OK
    async with frame.connect() as client:
        with frame.progress() as bar:
            task = bar.add_task("importing", total=len(reading.documents) + len(reading.relations), note="")
            summary = await run_import(
                client,
                project,
                reading,
                branch=frame.branch,
                apply_approved=not propose_only,
                progress=lambda done, _: bar.update(task, completed=done),
            )
            if wait:
                bar.update(task, description="indexing")
                await client.wait_for_index(project, calibrated_branch=frame.branch or "main")
    show_summary(frame, reading, summary, time.monotonic() - started)
    _show_problems(frame, reading)
    frame.result({**summary.to_json(), "problems": _problems(reading)})
    return Exit.PROBLEMS if summary.refused or reading.problems else Exit.OK


def _problems(reading: SourceReading) -> list[dict[str, str]]:
    return [{"file": file, "reason": reason} for file, reason in reading.problems]


def _show_problems(frame: Frame, reading: SourceReading) -> None:
    for file, reason in reading.problems:
        frame.print(Text(f"  problem: {file}: {reason}", style="red"))


def show_summary(frame: Frame, reading: SourceReading, summary: ImportSummary, seconds: float) -> None:
    """Print what became of an import."""
    nothing_new = summary.replayed == summary.sent
    head = (
        Text().append("nothing new: ", style="bold") if nothing_new else Text().append("imported ", style="bold green")
    )
    related = summary.sent - summary.observations
    what = f"{summary.observations} observations of {summary.families} memories, {related} of relations"
    head.append(f"{what}, in {seconds:.1f} s")
    frame.print(head.append(f" · dates from {reading.dates}", style="dim"))
    counts = ", ".join(f"{count} {name.lower().replace('_', ' ')}" for name, count in summary.outcomes.most_common())
    frame.print(Text(f"  {counts}; {summary.replayed} known from before", style="dim"))
    frame.print(
        Text(
            f"  {summary.published} published by rule, {summary.relations} relations made, {len(summary.waiting)} wait"
        )
    )
    if summary.waiting:
        frame.print(show.next_step("dsearch review"))
    if summary.redactions:
        text = ", ".join(f"{count} {kind}" for kind, count in summary.redactions.most_common())
        frame.print(Text(f"  redacted: {text}", style="yellow"))
    for s in summary.one_sided:
        done = "followed" if s.followed else "not followed"
        side = "only the old one says so" if s.said_by_old else "only the new one says so"
        text = f"  one-sided: {s.new} supersedes {s.old} ({side}); {done}: {s.why}"
        frame.print(Text(text, style="dim" if s.followed else "yellow"))
    for s in summary.supersessions:
        if not s.followed and not s.one_sided:
            frame.print(Text(f"  not followed: {s.new} supersedes {s.old}: {s.why}", style="yellow"))
    for locator, outcome, reasons in summary.refused[:20]:
        frame.print(Text(f"  {outcome.lower()}: {locator}: {'; '.join(reasons)}", style="red"))
    if len(summary.refused) > 20:
        frame.print(Text(f"  … and {len(summary.refused) - 20} more (--json has all)", style="red"))
