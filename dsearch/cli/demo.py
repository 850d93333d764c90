"""demo: the whole path on sample decisions, on a server of its own in a scratch folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from decisionssearch.ledger.v1 import ledger_pb2, proposal_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as retrieval_pb2
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from all_in_one.folder import LOCAL_ISSUER, DataFolder
from dsearch.cli.frame import Exit, make_console
from dsearch.cli.operate import write_token
from dsearch.client import SyncDecisionsClient
from dsearch.connection import find
from service_kit.errors import DomainError, Reason
from service_kit.principals import ALL_PROJECTS, Kind, Principal, Role, grant

PROJECT: Final = "ferrybox"
QUESTION: Final = "How long does a customer have to pick up a parcel before the code expires?"
PERGUNTA: Final = "Por quanto tempo guardamos os dados pessoais de quem recebe encomendas?"
NONSENSE: Final = "Which mountain did the king climb to hear the singing whale?"
NEW_TITLE: Final = "Collection codes have eight characters and last five days"
NEW_SUMMARY: Final = (
    "A collection code has eight letters and digits and is valid for five days. After three days the receiver gets a "
    "reminder; after five wrong attempts the compartment stays shut until support opens it."
)
REASON: Final = "The trial in two towns: returns to the depot fell by half, and compartments were never short"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0


def add(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("demo", epilog="Example: dsearch demo --keep")
    def demo(
        samples: Annotated[
            Path | None, typer.Option("--samples", help="Folder of decision records.", show_default=False)
        ] = None,
        keep: Annotated[bool, typer.Option("--keep", help="Keep the scratch folder.")] = False,
    ) -> None:
        """Show the whole path on sample decisions: import, search, propose, review, apply, as-of, history, audit."""
        folder = samples or Path(__file__).resolve().parents[2] / "examples" / "adr"
        out = make_console()
        if not folder.is_dir():
            out.print(Text(f"✗ {folder} is not there; run it from a checkout, or name records with --samples"))
            raise typer.Exit(Exit.USAGE)
        scratch = Path(tempfile.mkdtemp(prefix="dsearch-demo-"))
        show = Demo(app, out, scratch, folder)
        try:
            code = show.run()
        finally:
            if keep:
                out.print(Text(f"kept: {scratch}", style="dim"))
            else:
                shutil.rmtree(scratch, ignore_errors=True)
        raise typer.Exit(code)


class ClaimFailed(Exception):  # noqa: N818 - reads as what it is
    """A step did not show what it claims."""


@dataclass(slots=True)
class Demo:
    """The steps, and what they have to show."""

    app: typer.Typer
    out: Console
    scratch: Path
    samples: Path
    step: int = 0
    proposal: str = ""
    failures: list[str] = field(default_factory=list)

    def run(self) -> int:
        """Run all steps; return the exit code."""
        started = time.monotonic()
        self.out.print(Rule("DecisionsSearch: governed memory in two minutes", style="bold"))
        try:
            with self._server():
                self._steps()
        except ClaimFailed as error:
            self.out.print(Text(f"\n✗ {error}", style="bold red"))
            return Exit.REFUSED
        self.out.print(Rule(f"all {self.step} steps showed what they claim, {time.monotonic() - started:.0f} s"))
        return Exit.OK

    def _steps(self) -> None:
        self._title("Make a project. Its policy lets the importer's documents in by rule; the rest needs a reviewer.")
        self._dsearch("init", PROJECT, "--name", "Ferrybox, parcel lockers", project=False)

        self._title("Import the sample decisions, with their own dates as valid time.")
        self._dsearch("ingest", "adr", str(self.samples), "--dates", "document", "--wait")
        self._title("Import them again: nothing changes.")
        position = self._ask(lambda c: c.get_project(PROJECT)).position
        self._dsearch("ingest", "adr", str(self.samples), "--dates", "document")
        self._claim("no new commit", self._ask(lambda c: c.get_project(PROJECT)).position == position)

        self._title("Ask. The rule in force answers, and says what it replaced.")
        self._dsearch("search", QUESTION, "--limit", "2")
        first = self._first(QUESTION)
        self._claim("adr/0007 (72 hours) answers", first.head.family.identity_key == "adr/0007")
        self._claim("it says that it replaced adr/0004", _replaced(first, "adr/0004"))
        self._title("Ask in Portuguese.")
        self._dsearch("search", PERGUNTA, "--limit", "1")
        self._claim("adr/0009 answers", self._first(PERGUNTA).head.family.identity_key == "adr/0009")

        self._title("An agent proposes a new rule. Nothing is published by that.")
        self._dsearch(
            *("propose", "supersede", "adr/0007", "--title", NEW_TITLE, "--summary", NEW_SUMMARY),
            *("--reason", REASON, "--evidence", "document:trials/2025-collection.md|Returns fell from 3.4 % to 1.6 %"),
            *("--as", "agent"),
        )
        waiting = self._ask(_waiting)
        self._claim("one proposal waits", len(waiting) == 1)
        self.proposal = waiting[0].name
        ident = self.proposal[-8:]
        self._claim("72 hours still answer", "72 hours" in self._first(QUESTION).head.revision.content.title)

        self._title("The agent may not review; nor may the person it acts for, even with the role of a reviewer.")
        self._dsearch("review", "approve", ident, "--as", "agent", code=Exit.REFUSED)
        # The same person with a second token, which has the role: what refuses now is the rule, not a missing role.
        owner = Principal(LOCAL_ISSUER, "owner", Kind.HUMAN, "", (grant(ALL_PROJECTS, [Role.REVIEWER]),))
        write_token(DataFolder(self.scratch), "owner-as-reviewer", owner, None)
        self._dsearch("review", "approve", ident, "--as", "owner-as-reviewer", code=Exit.REFUSED)
        self._claim("the rule refuses it", self._ask(self._refusal, "owner-as-reviewer") == "APPROVER_NOT_ALLOWED")
        self._claim("it is not approved", self._ask(self._look).status == proposal_pb2.PROPOSAL_STATUS_PENDING)

        self._title("The reviewer looks at the difference and the evidence, and approves exactly that.")
        self._dsearch("review", "show", ident, "--as", "reviewer")
        self._dsearch("review", "approve", ident, "--comment", "read the trial's report", "--as", "reviewer")
        self._claim("it is approved", self._ask(self._look).status == proposal_pb2.PROPOSAL_STATUS_APPROVED)

        self._title("Apply it. The index follows by itself.")
        self._dsearch("apply", ident, "--wait")
        self._title("Ask again: the new rule answers, with what it replaced, when and why.")
        self._dsearch("search", QUESTION, "--limit", "1")
        first = self._first(QUESTION)
        self._claim("five days answer", "five days" in first.head.revision.content.title)
        self._claim("it says what it replaced and why", any(r.reason == REASON for r in first.replaced))

        self._title("What held on 1 June 2020? Time has two axes; nothing is overwritten.")
        self._dsearch("search", QUESTION, "--at", "2020-06-01", "--limit", "1")
        then = self._first(QUESTION, at="2020-06-01")
        self._claim("six digits and 48 hours held then", then.head.family.identity_key == "adr/0004")
        self._dsearch("asof", "adr/0007", "2023-01-01")
        self._title("Who changed it, when, and on whose word?")
        self._dsearch("history", "adr/0007")
        self._dsearch("diff", "adr/0007")

        self._title("A question that nothing here answers gets silence, with its reason (exit code 5).")
        self._dsearch("search", NONSENSE, code=Exit.NO_ANSWER)

        self._title("Every commit, decision and refusal is in a chain of hashes.")
        self._dsearch("audit", "verify")
        self._dsearch("status")

    # --- Showing ----------------------------------------------------------------------------------------------------

    def _title(self, text: str) -> None:
        self.step += 1
        self.out.print(Text(f"\n{self.step}. {text}", style="bold cyan"))

    def _dsearch(self, *arguments: str, project: bool = True, code: int = Exit.OK) -> None:
        """Show a command and its output; fail unless it ends with the exit code."""
        shown = " ".join(_quoted(part) for part in arguments)
        self.out.print(Text().append("$ dsearch ", style="bold green").append(shown, style="green"))
        self.out.file.flush()
        full = [*arguments, "--data", str(self.scratch), *(("--project", PROJECT) if project else ())]
        ended = self._call(full)
        self._claim(f"exit code {code}", ended == code, f"ended with exit code {ended}", quiet=code == Exit.OK)

    def _call(self, arguments: list[str]) -> int:
        command = typer.main.get_command(self.app)
        try:
            result: Any = command.main(arguments, prog_name="dsearch", standalone_mode=False)
        except typer.Exit as end:
            return int(end.exit_code)
        return int(result or 0)

    def _claim(self, what: str, holds: bool, problem: str = "", *, quiet: bool = False) -> None:
        if not holds:
            raise ClaimFailed(f"step {self.step} should show: {what}" + (f"; it {problem}" if problem else ""))
        if not quiet:
            self.out.print(Text(f"  ✓ {what}", style="dim green"))

    # --- Checking ---------------------------------------------------------------------------------------------------

    def _ask(self, call: Callable[[Any], Any], acts_as: str = "owner") -> Any:
        connection = find(endpoint="", token_file=None, data=self.scratch, acts_as=acts_as)
        with SyncDecisionsClient(connection.endpoints, connection.token) as client:
            return client.call(call)

    async def _refusal(self, client: Any) -> str:
        found = await client.get_proposal(self.proposal)
        try:
            await client.approve(self.proposal, preview_hash=found.preview_hash)
        except DomainError as error:
            return error.reason.value
        return ""

    def _look(self, client: Any) -> Any:
        return client.get_proposal(self.proposal)

    def _first(self, question: str, at: str = "") -> retrieval_pb2.Hit:
        from dsearch.cli.inputs import instant

        response: retrieval_pb2.SearchResponse = self._ask(
            lambda c: c.search(PROJECT, question, valid_at=instant(at, "at"), limit=3)
        )
        if not response.hits:
            raise ClaimFailed(f"step {self.step}: {question!r} found nothing: {response.abstention.message}")
        if response.hits[0].head.state != ledger_pb2.STATE_ACTIVE:
            raise ClaimFailed(f"step {self.step}: the first hit is not in force")
        return response.hits[0]

    # --- The server -------------------------------------------------------------------------------------------------

    @contextmanager
    def _server(self) -> Iterator[None]:
        self._title("Start the four services in one process, on a scratch folder.")
        self.out.print(Text("$ dsearch serve --data SCRATCH &", style="green"))
        log = (self.scratch / "server.log").open("wb")
        process = subprocess.Popen(  # noqa: S603 - this program itself
            [sys.executable, "-m", "dsearch", "serve", "--data", str(self.scratch)],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=_without_settings(),
        )
        try:
            self._wait_for(process)
            yield
            self._title("Stop. Calls in progress end; nothing acknowledged is lost.")
            process.send_signal(signal.SIGTERM)
            self._claim("it stopped cleanly", process.wait(timeout=_STOP_SECONDS) == 0)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            log.close()

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        folder = DataFolder(self.scratch)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            if folder.read_endpoint() is not None:
                try:
                    info = self._ask(lambda c: c.ledger_info())
                except DomainError as error:
                    if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                        raise
                else:
                    self.out.print(
                        Text(f"  ✓ serving; ledger {info.store}, you are {info.caller.subject}", style="dim")
                    )
                    return
            time.sleep(0.1)
        tail = (self.scratch / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        raise ClaimFailed("the server did not start:\n" + "\n".join(tail))


async def _waiting(client: Any) -> list[proposal_pb2.Proposal]:
    return [proposal async for proposal in client.proposals(PROJECT)]


def _replaced(hit: retrieval_pb2.Hit, key: str) -> bool:
    return any(item.identity_key == key for item in hit.replaced)


def _quoted(part: str) -> str:
    return f'"{part}"' if any(c in part for c in " |?%") else part


def _without_settings() -> dict[str, str]:
    """Return the environment without this program's variables: a demo shows the defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DSEARCH_")}
