"""export, import, backup: whole projects as files. The format is described in docs/export-format.md."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer
from decisionssearch.ledger.v1 import admin_service_pb2
from rich.text import Text

from dsearch.cli import show
from dsearch.cli.frame import CommandError, Exit, Frame, command, show_error
from dsearch.client import DecisionsClient
from service_kit.errors import DomainError, Reason

FORMAT: Final = "decisionssearch-export"
SUFFIX: Final = ".dsearch.jsonl"
"""How a backup names the file of a project."""
_PIECE_BYTES: Final = 512 * 1024
_CHUNK_END: Final = b'{"chunk"'
_END: Final = b'{"end"'
_MOST_HEADER_BYTES: Final = 64 * 1024

Report = Callable[[int, int], None]
"""Told how many records are done, of how many."""


@dataclass(frozen=True, slots=True)
class Written:
    """An export that is complete."""

    project: str
    file: str
    records: int
    bytes: int
    sha256: str
    resumed_after_chunk: int


def add(app: typer.Typer) -> None:
    """Add the commands."""

    @command(app, "export", acts_as="owner", project=False, example="dsearch export ferrybox ferrybox.dsearch.jsonl")
    async def export(
        frame: Frame,
        project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project.", show_default=False)],
        file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.", show_default=False)],
        force: Annotated[bool, typer.Option("--force", help="Replace the file when it is there.")] = False,
    ) -> None:
        """Write a whole project to a file, with all its history; an interrupted export goes on where it was.

        The file appears when it is complete; until then it is FILE.part. The same project gives the same bytes.
        """
        if file.exists() and not force:
            raise CommandError(f"{file} exists", "choose another name, or replace it with --force", Exit.REFUSED)
        async with frame.connect() as client:
            written = await _export(frame, client, project, file)
        _show_written(frame, written)
        frame.result(asdict(written))

    @command(app, "import", acts_as="owner", project=False, example="dsearch import ferrybox.dsearch.jsonl --wait")
    async def import_file(
        frame: Frame,
        file: Annotated[Path, typer.Argument(metavar="FILE", help="What export wrote.", show_default=False)],
        wait: Annotated[bool, typer.Option("--wait", help="Return when the index has it.")] = False,
    ) -> None:
        """Store a project from a file, into a ledger that does not have it; the index then fills itself.

        Nothing is stored of a file in which any byte was changed. After an interruption send the same file again: it
        goes on where it was.
        """
        project, total = read_header(file)
        async with frame.connect() as client:
            with frame.progress() as bar:
                task = bar.add_task("sending", total=total, note="")

                def report(done: int, of: int) -> None:
                    sent = done >= of
                    bar.update(task, completed=done, description="checking and storing" if sent else "sending")

                made = await _import(client, project, _pieces(file, total, report))
                if wait:
                    bar.update(task, description="indexing")
                    await client.wait_for_index(project)
        new = made.records - made.records_skipped
        line = Text().append("imported " if new else "nothing new: ", style="bold green")
        frame.print(line.append(f"{project}: {made.records} records, {made.project.position} commits"))
        if made.records_skipped and new:
            frame.print(Text(f"{made.records_skipped} of them were there from an earlier attempt", style="dim"))
        frame.print(Text(f"{made.sha256} · chain head {made.chain_head}", style="dim"))
        frame.print(show.next_step(f"dsearch status --wait --project {project.removeprefix('projects/')}"))
        frame.result(made)

    @command(app, "backup", acts_as="owner", project=False, example="dsearch backup /var/backups/decisions")
    async def backup(
        frame: Frame,
        folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the files.", show_default=False)],
    ) -> int:
        """Export all projects that you may administer, each to DIR/PROJECT.dsearch.jsonl.

        A file of an earlier backup stays as it was until the new one is complete.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        done: list[Written] = []
        code = int(Exit.OK)
        async with frame.connect() as client:
            names = [project.name.removeprefix("projects/") async for project in client.projects()]
            for name in names:
                try:
                    written = await _export(frame, client, name, folder / f"{name}{SUFFIX}")
                except DomainError as error:
                    # One project that cannot be had must not cost the others their backup.
                    code = show_error(frame, error)
                    continue
                done.append(written)
                _show_written(frame, written)
        if not names:
            frame.print(Text("there are no projects", style="dim"))
        frame.result([asdict(written) for written in done])
        return code


def _show_written(frame: Frame, written: Written) -> None:
    line = Text().append("exported ", style="bold green").append(f"{written.project} to {written.file}")
    frame.print(line.append(f": {written.records} records, {written.bytes} bytes", style="dim"))
    frame.print(Text(written.sha256, style="dim"))


# --- Export -----------------------------------------------------------------------------------------------------------


async def _export(frame: Frame, client: DecisionsClient, project: str, file: Path) -> Written:
    with frame.progress() as bar:
        task = bar.add_task(f"exporting {project}", total=None, note="")

        def report(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        try:
            return await write_export(client, project, file, report)
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror or error}", "", Exit.REFUSED) from None
        except DomainError as error:
            if error.metadata.get("rule") != "export_resume":
                raise
        # What an earlier attempt left is of another moment of the project.
        _part(file).unlink(missing_ok=True)
        frame.note(f"{project} has changed since the export was interrupted: starting again")
        return await write_export(client, project, file, report)


def _part(file: Path) -> Path:
    return file.with_name(f"{file.name}.part")


async def write_export(client: DecisionsClient, project: str, file: Path, report: Report) -> Written:
    """Export a project to a file, going on with what an earlier attempt left; the file appears when it is complete."""
    part = _part(file)
    handle = os.open(part, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b") as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"another export writes {part}", "wait for it, or choose another name") from None
        try:
            written = await _write(client, project, file, out, report)
            await asyncio.to_thread(_publish, out, part, file)
        except BaseException:
            # What has begun is kept, to go on with.
            if not out.tell():
                part.unlink(missing_ok=True)
            raise
    return written


async def _write(client: DecisionsClient, project: str, file: Path, out: IO[bytes], report: Report) -> Written:
    after, hasher = await asyncio.to_thread(_resume_point, out)
    digest = f"sha256:{hasher.hexdigest()}" if after else ""
    last = b""
    records = 0
    async for response in client.export_project(project, after_chunk=after, sha256=digest):
        # Hashed one behind: the last line holds the hash of what comes before it.
        hasher.update(last)
        last = response.data
        await asyncio.to_thread(out.write, last)
        records = response.records_done
        report(records, response.records_total)
    _check_end(last, f"sha256:{hasher.hexdigest()}", file)
    hasher.update(last)
    return Written(project, str(file), records, out.tell(), f"sha256:{hasher.hexdigest()}", after)


def _resume_point(out: IO[bytes]) -> tuple[int, Any]:
    """Cut off what follows the last complete chunk; return its number and the hash of all up to its end."""
    hasher, chunks, end = hashlib.sha256(), 0, 0
    lines: list[bytes] = []
    for line in out:
        if line.startswith(_END) or not line.endswith(b"\n"):
            break
        lines.append(line)
        if line.startswith(_CHUNK_END):
            chunks += 1
            for one in lines:
                hasher.update(one)
                end += len(one)
            lines.clear()
    out.seek(end)
    out.truncate()
    return chunks, hasher


def _check_end(line: bytes, digest: str, file: Path) -> None:
    """Refuse a stream that ended before its end, or was changed on its way."""
    try:
        told = json.loads(line)["sha256"] if line.startswith(_END) else ""
    except (ValueError, KeyError):
        told = ""
    if told != digest:
        raise CommandError(f"{_part(file)} is not what the server sent", "remove it and export again", Exit.PROBLEMS)


def _publish(out: IO[bytes], part: Path, file: Path) -> None:
    """Give the complete file its name, durably."""
    out.flush()
    os.fsync(out.fileno())
    part.replace(file)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- Import -----------------------------------------------------------------------------------------------------------


async def _import(
    client: DecisionsClient, project: str, data: AsyncIterator[bytes]
) -> admin_service_pb2.ImportProjectResponse:
    try:
        return await client.import_project(project, data)
    except DomainError as error:
        if error.reason is not Reason.INTEGRITY:
            raise
        # The general remedy is about a ledger's own records; here only the file is damaged.
        remedy = "nothing was stored; take the file again from where it was exported"
        raise CommandError(error.message, remedy, Exit.PROBLEMS) from None


def read_header(file: Path) -> tuple[str, int]:
    """Return the project that a file holds, and how many records.

    Raises:
        CommandError: It is no export. What else is wrong with it the server says.
    """
    try:
        with file.open("rb") as source:
            header = json.loads(source.readline(_MOST_HEADER_BYTES))
        found = (str(header["project"]), int(header["total"])) if header["format"] == FORMAT else None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}", "", Exit.NOT_FOUND) from None
    except (ValueError, KeyError, TypeError):
        found = None
    if found is None:
        raise CommandError(f"{file} is not an export of a project", "`dsearch export` writes one")
    return found


async def _pieces(file: Path, total: int, report: Report) -> AsyncIterator[bytes]:
    lines = 0
    with file.open("rb") as source:
        while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
            lines += piece.count(b"\n")
            report(min(lines, total - 1), total)
            yield piece
    report(total, total)
