"""Moving house: whole projects out to a file, and in from one."""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final

from ledger_svc import export_file
from ledger_svc.domain.authority import EVERYWHERE, check_importer
from ledger_svc.domain.moving import ImportStep, check_free
from ledger_svc.service.context import Ledger, as_principal
from ledger_svc.views import ProjectView
from service_kit import names
from service_kit.errors import dependency_unavailable, invalid, not_found
from service_kit.principals import Principal as Caller
from service_kit.principals import Role

MOST_AT_ONCE: Final = 2
"""Exports and imports at one time, each with a temporary file of the size of its project; others wait."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import came to."""

    view: ProjectView
    summary: export_file.Summary
    skipped: int
    """Records that an earlier attempt had stored."""


class MovingService:
    """Exports and imports. Both go through a temporary file, so that neither store nor memory waits for a caller."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def export(
        self, caller: Caller, project_id: str, after_chunk: int, digest: str
    ) -> AsyncGenerator[export_file.Part, None]:
        """Yield the file of a project, or what is left of it."""
        await self._ledger.enter(caller, project_id, Role.ADMIN)
        async with self._turns:
            with _temporary() as file:
                spool = export_file.Spool(file)
                if not await self._ledger.store.export(project_id, spool):
                    raise not_found(names.project_name(project_id))
                parts = export_file.resume(spool.parts(), after_chunk, digest)
                # In a thread: a part is read from the disk and hashed.
                while (part := await asyncio.to_thread(next, parts, None)) is not None:
                    yield part

    async def import_project(self, caller: Caller, project_id: str, data: AsyncIterator[bytes]) -> Imported:
        """Take the bytes of a file, look at all of them, then store what they hold."""
        # Before the project is looked up: the answer must not depend on whether it exists.
        check_importer(as_principal(caller, EVERYWHERE))
        store = self._ledger.store
        check_free(project_id, await store.import_progress(project_id))
        async with self._turns:
            with _temporary() as file:
                async for piece in data:
                    await asyncio.to_thread(file.write, piece)
                if not file.tell():
                    raise invalid("data", "is required: the bytes of an export")
                summary = await asyncio.to_thread(export_file.check, file, project_id)
                skipped = await self._store(project_id, summary, file)
        self._ledger.exists(project_id)
        view = await store.project(project_id)
        if view is None:
            raise LookupError("a project that was imported is there")
        return Imported(view, summary, skipped)

    async def _store(self, project_id: str, summary: export_file.Summary, file: IO[bytes]) -> int:
        store, total = self._ledger.store, summary.header.total
        known = await store.import_progress(project_id)
        check_free(project_id, known, summary.digest)
        if known.visible:
            return total
        skipped = known.marker.records if known.marker is not None else 0
        done = 0
        chunks = export_file.ExportReader(file).chunks()
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            after, done = done, done + len(chunk.records)
            if done > skipped and chunk.records:
                step = ImportStep(summary.project, summary.digest, after, done, self._ledger.now())
                await store.import_step(step, chunk.records)
        last = ImportStep(summary.project, summary.digest, total, total, self._ledger.now(), last=True)
        await store.import_step(last, ())
        return skipped


@contextmanager
def _temporary() -> Iterator[IO[bytes]]:
    try:
        with tempfile.TemporaryFile(prefix="dsearch-") as file:
            yield file
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # Nothing that a caller did; what was stored until then is not seen, and the same call goes on from there.
        raise dependency_unavailable("the temporary folder") from error
