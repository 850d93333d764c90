"""What every command has in common: options, output, errors, exit codes.

Exit codes, for scripts:

    0   done
    1   refused: a rule, a role or the state of the project does not allow it
    2   usage: an option or a field is wrong
    3   not found
    4   unavailable: no server, a dependency is down, out of time; trying again may help
    5   no answer: a search abstained
    6   problems found: by verify, audit or an import
    7   a bug of the program or of the server
    130 interrupted
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import time
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import IO, Annotated, Any, Final, TextIO, cast

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from all_in_one.folder import DataFolder
from dsearch.client import DecisionsClient
from dsearch.connection import ConnectionProblem, TokenProblem, default_data_folder, find
from service_kit.errors import DomainError, Reason
from service_kit.settings import SettingsError
from service_kit.tokens import TokenFileError

_START_SECONDS: Final = 30.0
"""How long a command waits for a server that holds the data folder and does not answer yet."""
_NOTICE_SECONDS: Final = 1.0
"""How long a server that was started a moment ago has to take the data folder."""
_POLL_SECONDS: Final = 0.1


class Exit(IntEnum):
    """Exit codes; described in the module's text and in ``dsearch --help``."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    NO_ANSWER = 5
    PROBLEMS = 6
    BUG = 7
    INTERRUPTED = 130


EXIT_CODES_HELP: Final = (
    "Exit codes: 0 done, 1 refused, 2 usage, 3 not found, 4 unavailable (try again), 5 no answer, "
    "6 problems found, 7 bug, 130 interrupted. With --json results are JSON on the standard output; "
    "errors are JSON on stderr, usage errors too."
)

EXIT_OF_REASON: Final[Mapping[Reason, Exit]] = MappingProxyType(
    {
        Reason.INVALID_FIELD: Exit.USAGE,
        Reason.LIMIT_EXCEEDED: Exit.USAGE,
        Reason.REQUEST_ID_REUSED: Exit.USAGE,
        Reason.PAGE_TOKEN_MISMATCH: Exit.USAGE,
        Reason.NOT_FOUND: Exit.NOT_FOUND,
        Reason.WRITE_CONTENTION: Exit.UNAVAILABLE,
        Reason.NOT_FRESH_ENOUGH: Exit.UNAVAILABLE,
        Reason.DEPENDENCY_UNAVAILABLE: Exit.UNAVAILABLE,
        Reason.SHUTTING_DOWN: Exit.UNAVAILABLE,
        Reason.OVERLOADED: Exit.UNAVAILABLE,
        Reason.DEADLINE: Exit.UNAVAILABLE,
        Reason.INTEGRITY: Exit.PROBLEMS,
        Reason.BUG: Exit.BUG,
    }
)
"""Every other reason is a refusal."""

REMEDIES: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.INVALID_FIELD: "mend the fields above; --help shows an example",
        Reason.LIMIT_EXCEEDED: "shorten it, or split it into several memories",
        Reason.UNAUTHENTICATED: "name a valid token with --as NAME or --token-file FILE; see `dsearch token list`",
        Reason.PERMISSION_DENIED: "no such project, or no right to it: check the name (`dsearch projects`), "
        "or use a principal with that role (--as NAME; `dsearch token list`)",
        Reason.APPROVER_NOT_ALLOWED: "somebody else has to decide: a person with the role reviewer (--as reviewer)",
        Reason.NOT_FOUND: "check the name; `dsearch projects` lists projects, `dsearch search` finds memories",
        Reason.ALREADY_EXISTS: "use what is there, or choose another name",
        Reason.HEAD_MOVED: "somebody published in between: see `dsearch history`, then propose again",
        Reason.WRITE_CONTENTION: "send the same command again",
        Reason.PROPOSAL_STATUS: "`dsearch review show ID` says where the proposal stands",
        Reason.APPROVAL_MISSING: "it has to be approved first: dsearch review approve ID --as reviewer",
        Reason.PREVIEW_HASH_MISMATCH: "look at the proposal again and decide on what it says now",
        Reason.EVIDENCE_INSUFFICIENT: 'add evidence: --evidence "KIND:LOCATOR|WORDS", '
        'e.g. --evidence "url:https://example.org/1|We agreed to..."',
        Reason.STATE_CONFLICT: "`dsearch history` shows what is in force and what is scheduled",
        Reason.RELATION_CYCLE: "`dsearch lineage` shows the relations that are there",
        Reason.NOT_FRESH_ENOUGH: "try again in a moment; `dsearch status` shows the lag",
        Reason.DEPENDENCY_UNAVAILABLE: "is the server running? start it with `dsearch serve`, or check --endpoint",
        Reason.SHUTTING_DOWN: "try again when the server is back",
        Reason.OVERLOADED: "try again later",
        Reason.DEADLINE: "try again, or give it longer with --timeout",
        Reason.INTEGRITY: "stop writing, keep a copy of the data folder, and run `dsearch audit verify`",
        Reason.BUG: "report it with the incident id; the server's log has the details",
    }
)


class CommandError(Exception):
    """A command cannot go on; says what to do next."""

    def __init__(self, message: str, remedy: str = "", code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.message, self.remedy, self.code = message, remedy, code


@dataclass(slots=True)
class Frame:
    """The common options of a command, and where its output goes."""

    project: str
    branch: str
    acts_as: str
    endpoint: str
    token_file: Path | None
    data: Path | None
    as_json: bool
    timeout_seconds: float
    out: Console
    err: Console

    @property
    def interactive(self) -> bool:
        """Whether a person is there to answer."""
        return sys.stdin.isatty() and self.out.is_terminal and not self.as_json

    def need_project(self) -> str:
        """Return the project; a usage error when none was named."""
        if not self.project:
            raise CommandError("no project was named", "add --project NAME, or set DSEARCH_PROJECT")
        return self.project

    @asynccontextmanager
    async def connect(self, acts_as: str = "", *, wait_for_ready: bool = False) -> AsyncIterator[DecisionsClient]:
        """Open a client for a block; what it wrote is remembered for the next command."""
        await self._until_served()
        connection = find(
            endpoint=self.endpoint, token_file=self.token_file, data=self.data, acts_as=acts_as or self.acts_as
        )
        async with connection.client(timeout_seconds=self.timeout_seconds, wait_for_ready=wait_for_ready) as client:
            try:
                yield client
            finally:
                connection.remember(client.seen)

    async def _until_served(self) -> None:
        """Wait for a server that starts on the data folder: `dsearch serve & dsearch init billing` works."""
        if self.endpoint:
            return
        folder = DataFolder((self.data or default_data_folder()).expanduser())
        started = time.monotonic()
        told = False
        while folder.read_endpoint() is None:
            waited = time.monotonic() - started
            held = await asyncio.to_thread(folder.is_held)
            if waited > (_START_SECONDS if held else _NOTICE_SECONDS):
                break
            if held and not told and self.err.is_terminal:
                told = True
                self.note(f"a server starts on {folder.root}; waiting for it ...")
            await asyncio.sleep(_POLL_SECONDS)

    def print(self, *what: Any) -> None:
        """Print for people; nothing with --json."""
        if not self.as_json:
            for item in what or ("",):
                self.out.print(item)

    def note(self, text: str) -> None:
        """Print a remark beside the result, on the error stream."""
        if not self.as_json:
            self.err.print(Text(text, style="dim"))

    def result(self, value: Message | Mapping[str, Any] | list[Any]) -> None:
        """Print the result for programs; nothing without --json."""
        if self.as_json:
            sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")

    def progress(self) -> Progress:
        """Return a progress bar; it shows on a terminal only."""
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.err,
            disable=self.as_json or not self.err.is_terminal,
            transient=True,
        )


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; messages with the names of the contracts."""
    if isinstance(value, Message):
        return MessageToDict(value, preserving_proto_field_name=True)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that wraps at a readable width when nobody watches."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 120
    # A file and a pipe get the words without the spaces that fill up a line.
    target = stream if stream.isatty() else cast("IO[str]", _Unpadded(stream))
    return Console(file=target, highlight=False, width=width, emoji=False)


class _Unpadded:
    """A text stream without spaces at the ends of its lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write lines."""
        self._stream.write(_LINE_END.sub("\n", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_LINE_END: Final = re.compile(r"[ \t]+\n")


ProjectOption = Annotated[
    str, typer.Option("--project", "-p", help="Project, e.g. billing.", envvar="DSEARCH_PROJECT", show_default=False)
]
BranchOption = Annotated[str, typer.Option("--branch", help="Branch of published knowledge; empty is main.")]
EndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint",
        help="host:port of the server, or ledger=..,index=..,retrieval=..,ingest=..; "
        "without it the server that runs on the data folder.",
        envvar="DSEARCH_ENDPOINT",
        show_default=False,
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the bearer token.", envvar="DSEARCH_TOKEN_FILE", show_default=False),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Data folder of the embedded server (default: ~/.local/share/decisionssearch).",
        envvar="DSEARCH_DATA",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs; errors are JSON on stderr.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds that a call may take.")]

Command = Callable[..., Awaitable[int | None]]


def command(
    group: typer.Typer, name: str, *, acts_as: str, example: str, project: bool = True, branch: bool = False
) -> Callable[[Command], Command]:
    """Register ``async def f(frame, ...)`` as a command with the common options.

    Args:
        group: Where it belongs.
        name: Its name.
        acts_as: Whose token it uses unless ``--as`` says otherwise.
        example: Shown at the end of ``--help``.
        project: Whether it takes ``--project``.
        branch: Whether it takes ``--branch``.
    """

    def register(function: Command) -> Command:
        hints = typing.get_type_hints(function, include_extras=True)
        own = [
            p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for p in list(inspect.signature(function).parameters.values())[1:]
        ]
        as_option = Annotated[str, typer.Option("--as", help="Whose token to use from the data folder.")]
        common: dict[str, tuple[Any, Any]] = {
            "project": (ProjectOption, ""),
            "branch": (BranchOption, ""),
            "acts_as": (as_option, acts_as),
            "endpoint": (EndpointOption, ""),
            "token_file": (TokenFileOption, None),
            "data": (DataOption, None),
            "timeout_seconds": (TimeoutOption, 30.0),
            "as_json": (JsonOption, False),
        }
        if not project:
            del common["project"]
        if not branch:
            del common["branch"]
        added = [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, annotation=a, default=d)
            for n, (a, d) in common.items()
        ]

        def run(**values: Any) -> None:
            options = {n: values.pop(n) for n in common}
            frame = Frame(**{"project": "", "branch": "", **options}, out=make_console(), err=make_console(stderr=True))
            code = guarded(frame, lambda: asyncio.run(_as_coroutine(function(frame, **values))))
            if code:
                raise typer.Exit(code)

        run.__name__ = function.__name__
        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
        group.command(name, epilog=f"Example: {example}")(run)
        return function

    return register


async def _as_coroutine(result: Awaitable[int | None]) -> int | None:
    return await result


def guarded(frame: Frame, run: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; every failure becomes a message that says what to do next."""
    try:
        return int(run() or Exit.OK)
    except DomainError as error:
        return show_error(frame, error)
    except CommandError as error:
        return _show(
            frame, "USAGE" if error.code is Exit.USAGE else error.code.name, error.message, error.remedy, error.code
        )
    except TokenProblem as error:
        return _show(frame, "USAGE", str(error), "", Exit.USAGE)
    except ConnectionProblem as error:
        return _show(frame, "NO_CONNECTION", str(error), "", Exit.UNAVAILABLE)
    except (SettingsError, TokenFileError) as error:
        return _show(frame, "USAGE", str(error), "", Exit.USAGE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        frame.err.print("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`): nobody is left to tell.
        return Exit.OK


def show_error(frame: Frame, error: DomainError) -> int:
    """Show a typed refusal with its fields, details and what to do next; return the exit code."""
    code = EXIT_OF_REASON.get(error.reason, Exit.REFUSED)
    fields = [(p.field, p.description) for p in error.fields]
    return _show(frame, error.reason.value, error.message, REMEDIES.get(error.reason, ""), code, error.metadata, fields)


def _show(
    frame: Frame,
    reason: str,
    message: str,
    remedy: str,
    code: Exit,
    metadata: Mapping[str, str] | None = None,
    fields: list[tuple[str, str]] | None = None,
) -> int:
    if frame.as_json:
        body = {
            "error": {
                "reason": reason,
                "message": message,
                "metadata": dict(metadata or {}),
                "fields": [{"field": f, "description": d} for f, d in fields or []],
                "remedy": remedy,
                "exit_code": int(code),
            }
        }
        sys.stderr.write(json.dumps(body, ensure_ascii=False, indent=2) + "\n")
        return code
    text = Text()
    text.append("✗ ", style="bold red").append(reason, style="bold red").append(f"  {message}")
    for field, description in fields or []:
        text.append("\n  ").append(field or "(request)", style="bold").append(f"  {description}")
    shown = {k: v for k, v in (metadata or {}).items() if k != "field" and v}
    for key, value in shown.items():
        text.append(f"\n  {key}: ", style="dim").append(value, style="dim")
    if remedy:
        text.append("\n  → ", style="bold yellow").append(remedy)
    frame.err.print(text)
    return code
