"""eval: ask a data set's questions and measure the answers, on a server of its own or on one that runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from decisionssearch.ledger.v1 import admin_service_pb2 as admin_pb2
from decisionssearch.ledger.v1 import ledger_pb2, ledger_service_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as retrieval_pb2
from rich.progress import Progress
from rich.text import Text

from all_in_one.folder import DataFolder
from dsearch.cli.frame import CommandError, Exit, Frame, command
from dsearch.cli.ingest import show_summary
from dsearch.cli.operate import import_rule
from dsearch.client import DecisionsClient, project_name
from dsearch.connection import find
from dsearch.evaluation.dataset import AsOf, Dataset, DatasetError, identity_key, load
from dsearch.evaluation.report import render
from dsearch.evaluation.run import evaluate
from dsearch.sources import pep
from dsearch.sources.importer import ImportSummary, run_import
from dsearch.sources.model import SourceError, SourceReading
from service_kit.errors import DomainError, Reason, deadline_exceeded

PROJECT: Final = "evaluation"
SOURCE_STATUS: Final = "source_status"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
_INDEX_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.2


def add(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "eval", acts_as="reader", branch=True, example="dsearch eval ../shared/data/peps --keep /tmp/peps")
    async def evaluation(
        frame: Frame,
        dataset: Annotated[
            Path,
            typer.Argument(
                help="Folder with documents.jsonl, queries.jsonl and, for a server of its own, events.jsonl.",
                show_default=False,
            ),
        ],
        keep: Annotated[
            Path | None,
            typer.Option(
                "--keep", help="Data folder to use and keep; a second run finds it filled.", show_default=False
            ),
        ] = None,
        ablations: Annotated[
            bool, typer.Option("--ablations/--no-ablations", help="Also without parts of the score.")
        ] = True,
        limit: Annotated[
            int, typer.Option("--limit", min=0, help="Ask only about this many questions of each kind.")
        ] = 0,
    ) -> int:
        """Measure ranking, governance, as-of answers and abstention on questions with known answers.

        Without --endpoint or --project it starts a server of its own on a scratch folder, imports the data set into
        it and stops it at the end. With them it asks a server that holds the same documents.
        """
        try:
            found = load(dataset)
        except DatasetError as error:
            raise CommandError(str(error), "see --help for what the folder has to hold") from None
        if limit:
            found = shortened(found, limit)
        if frame.endpoint or frame.project:
            async with frame.connect() as client:
                return await _measure(frame, client, frame.need_project(), found, {}, ablations=ablations)
        scratch = keep or Path(tempfile.mkdtemp(prefix="dsearch-eval-"))
        try:
            async with _own_server(frame, scratch):
                figures = await _fill(frame, scratch, found)
                async with _client(scratch, "reader", frame) as client:
                    return await _measure(frame, client, PROJECT, found, figures, ablations=ablations)
        finally:
            if keep is None:
                shutil.rmtree(scratch, ignore_errors=True)


def shortened(dataset: Dataset, limit: int) -> Dataset:
    """Return the data set with the first ``limit`` questions of each kind, and as many as-of checks."""
    seen: dict[str, int] = {}
    kept = []
    for question in dataset.questions:
        seen[question.kind] = seen.get(question.kind, 0) + 1
        if seen[question.kind] <= limit:
            kept.append(question)
    return replace(dataset, questions=tuple(kept), as_of=dataset.as_of[:limit])


# --- A server of its own --------------------------------------------------------------------------------------------


@asynccontextmanager
async def _own_server(frame: Frame, folder: Path) -> AsyncIterator[None]:
    """Run the four services in a process of their own, so that what is timed includes a real connection."""
    DataFolder(folder).create()
    log = folder / "server.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dsearch", "serve", "--data", str(folder)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=output,
            env={name: value for name, value in os.environ.items() if not name.startswith("DSEARCH_")},
        )
    try:
        frame.note("starting a server of its own")
        await _until_it_answers(frame, folder, process, log)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _until_it_answers(frame: Frame, folder: Path, process: asyncio.subprocess.Process, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.returncode is None:
        if DataFolder(folder).read_endpoint() is not None:
            try:
                async with _client(folder, "reader", frame) as client:
                    await client.ledger_info()
            except DomainError as error:
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise
            else:
                return
        await asyncio.sleep(_POLL_SECONDS)
    said = await asyncio.to_thread(log.read_text, encoding="utf-8", errors="replace")
    tail = "\n".join(said.splitlines()[-5:])
    raise CommandError(f"the server did not start:\n{tail}", "try `dsearch serve` by hand", Exit.UNAVAILABLE)


def _client(folder: Path, acts_as: str, frame: Frame) -> DecisionsClient:
    connection = find(endpoint="", token_file=None, data=folder, acts_as=acts_as)
    return connection.client(timeout_seconds=frame.timeout_seconds)


async def _fill(frame: Frame, folder: Path, dataset: Dataset) -> dict[str, Any]:
    """Make the project, import the documents, and wait for index and calibration; return what that took."""
    try:
        reading: SourceReading = await asyncio.to_thread(pep.read, dataset.folder)
    except SourceError as error:
        raise CommandError(str(error), "or evaluate a server that holds the documents: --project") from None
    keys = {observation.attributes["identity_key"] for observation in reading.documents}
    strange = [document.id for document in dataset.documents if identity_key(document.id) not in keys]
    if strange:
        raise CommandError(
            f"events.jsonl says nothing of {', '.join(strange[:5])}: ids have to look like 'PEP 8' in both files",
            "or evaluate a server that holds the documents: --project",
        )
    async with _client(folder, "owner", frame) as owner:
        await _make_project(owner)
    async with _client(folder, "importer", frame) as importer:
        started = time.monotonic()
        summary = await _import(frame, importer, reading)
        imported = time.monotonic() - started
    show_summary(frame, reading, summary, imported)
    async with _client(folder, "reader", frame) as reader:
        await wait_until_calibrated(frame, reader, PROJECT, frame.branch or "main")
    settled = time.monotonic() - started
    frame.note(f"imported in {imported:.1f} s, indexed and calibrated after {settled:.1f} s")
    return {
        "import_seconds": round(imported, 2),
        "indexed_and_calibrated_seconds": round(settled, 2),
        "import": summary.to_json(),
    }


async def _make_project(owner: DecisionsClient) -> None:
    try:
        project = await owner.create_project(PROJECT, display_name="Evaluation")
    except DomainError as error:
        if error.reason is Reason.ALREADY_EXISTS:
            # A folder that was kept.
            return
        raise
    policy = admin_pb2.Policy()
    policy.CopyFrom(project.policy)
    policy.approval_rules.append(import_rule())
    await owner.update_policy(PROJECT, policy, expected_version=project.policy.version)


async def _import(frame: Frame, importer: DecisionsClient, reading: SourceReading) -> ImportSummary:
    total = len(reading.documents) + len(reading.relations)
    with frame.progress() as bar:
        task = bar.add_task("importing", total=total, note="")
        return await run_import(
            importer,
            PROJECT,
            reading,
            branch=frame.branch,
            progress=lambda done, _total: bar.update(task, completed=done),
        )


async def wait_until_calibrated(frame: Frame, client: DecisionsClient, project: str, branch: str) -> None:
    """Return once the index has every commit of now and has asked the off-topic bank of that corpus.

    Raises:
        DomainError: DEADLINE, when that takes too long.
    """
    deadline = time.monotonic() + _INDEX_SECONDS
    with frame.progress() as bar:
        task = bar.add_task("indexing", total=None, note="")
        while True:
            status = await client.index_status(project)
            bar.update(task, total=status.ledger_position, completed=status.applied_position)
            if status.applied_position >= status.ledger_position:
                if branch in status.calibrated_branches:
                    return
                bar.update(task, description="calibrating")
            if time.monotonic() >= deadline:
                raise deadline_exceeded()
            await asyncio.sleep(_POLL_SECONDS)


# --- Measuring ------------------------------------------------------------------------------------------------------


async def _measure(
    frame: Frame, client: DecisionsClient, project: str, dataset: Dataset, figures: dict[str, Any], *, ablations: bool
) -> int:
    profiles = [profile.name for profile in await client.profiles()]
    if not ablations:
        profiles = [name for name in profiles if name in {"default", "article"}]

    async def search(request: retrieval_pb2.SearchRequest) -> retrieval_pb2.SearchResponse:
        request.branch = frame.branch
        return await client.send_search(request)

    async def status_as_of(row: AsOf) -> str | None:
        return await source_status(client, project, row, frame.branch)

    with frame.progress() as bar:
        found = await evaluate(
            dataset,
            project=project_name(project),
            profiles=profiles,
            search=search,
            status_as_of=status_as_of,
            ablations=ablations,
            progress=_on_bar(bar),
        )
    if not frame.as_json:
        render(found, frame.out)
    frame.result({**figures, **found.as_dict()})
    frame.print(Text().append("stale as current: ", style="dim").append(str(sum(found.stale_as_current.values()))))
    return Exit.PROBLEMS if sum(found.stale_as_current.values()) or found.as_of.get("wrong") else Exit.OK


def _on_bar(bar: Progress) -> Any:
    questions = bar.add_task("asking", total=None, note="")
    moments = bar.add_task("as-of", total=None, note="", visible=False)

    def step(label: str, done: int, total: int) -> None:
        if label == "as-of":
            bar.update(moments, completed=done, total=total, visible=True)
        else:
            bar.update(questions, completed=done, total=total, note=label)

    return step


async def source_status(client: DecisionsClient, project: str, row: AsOf, branch: str) -> str | None:
    """Return the status of a document at a moment as the ledger tells it; None when it did not exist then."""
    try:
        head = await client.get_head(
            project,
            identity_key(row.document),
            branch=branch,
            valid_at=row.valid_at,
            view=ledger_service_pb2.HEAD_VIEW_BASIC,
        )
    except DomainError as error:
        if error.reason is Reason.NOT_FOUND:
            return None
        raise
    if head.state in {ledger_pb2.STATE_SCHEDULED, ledger_pb2.STATE_INVALIDATED}:
        # It was not there yet, or it had been removed. One that was replaced is still there, with its last status.
        return None
    return head.revision.content.attributes.get(SOURCE_STATUS)
