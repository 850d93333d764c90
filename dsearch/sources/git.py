"""Reading a git repository: which files changed in which commit, and what they said. Never writes, never fetches."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from dsearch.sources.model import SourceError

_RECORD: Final = "\x1e"
_UNIT: Final = "\x1f"
_ABSENT: Final = "0" * 40


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file as a commit left it."""

    sha: str
    time: datetime
    author: str
    subject: str
    path: str
    blob: str
    """Id of its content; empty when the commit removed it."""


def _run(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed program, no shell
            ["git", "-C", str(repository), "-c", "core.quotepath=off", *arguments],  # noqa: S607 - from the PATH, as people run it
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        raise SourceError("git is not installed; install it, or import by document dates") from None
    except subprocess.CalledProcessError as error:
        first = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        raise SourceError(f"git {arguments[0]} failed in {repository}: {first[0] if first else error}") from None
    return done.stdout.decode("utf-8", "replace")


def repository_of(folder: Path) -> Path | None:
    """Return the top folder of the repository that holds a folder (or the folder itself when it is bare)."""
    try:
        if _run(folder, "rev-parse", "--is-bare-repository").strip() == "true":
            return folder
        top = _run(folder, "rev-parse", "--show-toplevel").strip()
    except SourceError:
        return None
    return Path(top) if top else None


def has_commits(repository: Path) -> bool:
    """Return whether there is anything to read."""
    try:
        _run(repository, "rev-parse", "--verify", "--quiet", "HEAD")
    except SourceError:
        return False
    return True


def is_shallow(repository: Path) -> bool:
    """Return whether the history was cut off when the repository was cloned."""
    return _run(repository, "rev-parse", "--is-shallow-repository").strip() == "true"


def changes(repository: Path, paths: Sequence[str] = ()) -> Iterator[FileChange]:
    """Yield every change of files by a commit that is not a merge, oldest first; times never go back.

    Commits of branches that were merged later count from their own time: that is when the words were written.
    """
    form = f"--format={_RECORD}%H{_UNIT}%cI{_UNIT}%an{_UNIT}%s"
    text = _run(
        repository,
        *("log", "--reverse", "--date-order", "--no-merges", "--no-renames", "--no-abbrev", "--raw", "-z", form),
        "--",
        *paths,
    )
    latest = datetime.min.replace(tzinfo=UTC)
    for record in text.split(_RECORD)[1:]:
        header, _, body = record.partition("\0")
        sha, moment, author, subject = header.strip("\n").split(_UNIT, 3)
        # A clock that was wrong on one machine must not put a change before the one that it builds on.
        latest = max(latest, datetime.fromisoformat(moment).astimezone(UTC))
        parts = [part for part in body.strip("\n").split("\0") if part]
        for meta, path in zip(parts[::2], parts[1::2], strict=False):
            blob = meta.lstrip("\n:").split()[3]
            yield FileChange(sha, latest, author, subject, path, "" if blob == _ABSENT else blob)


def read_blobs(repository: Path, blobs: Iterable[str]) -> Mapping[str, str]:
    """Return the texts of contents by id, read in one go."""
    wanted = list(dict.fromkeys(blob for blob in blobs if blob))
    found: dict[str, str] = {}
    process = subprocess.Popen(  # noqa: S603 - fixed program, no shell
        ["git", "-C", str(repository), "cat-file", "--batch"],  # noqa: S607 - from the PATH, as people run it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        source, target = process.stdout, process.stdin
        if source is None or target is None:
            raise SourceError("git cat-file gave no pipes")
        for blob in wanted:
            target.write(f"{blob}\n".encode())
            target.flush()
            text = _one_blob(source)
            if text is not None:
                found[blob] = text
        target.close()
        source.close()
    finally:
        process.wait(timeout=60)
    return found


def _one_blob(source: IO[bytes]) -> str | None:
    header = source.readline().split()
    if len(header) != 3:
        return None
    body = source.read(int(header[2]) + 1)[:-1]
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        # Old files are in Latin-1; every byte is a letter there, so nothing is lost.
        return body.decode("latin-1")
