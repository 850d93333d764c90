"""Generations of the index: the one that serves, the one being filled, and the change from one to the other.

A generation is a collection of the vector store and the state that belongs to it, in a file of its own beside a mark
that says it was filled once. What a crash leaves half filled has no mark and is not live: the next start removes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from index_svc.calibrator import Calibrator
from index_svc.embedder import Embedder
from index_svc.projector import Generation, Projector
from index_svc.recipe import RECIPE_VERSION
from index_svc.search import Searcher
from index_svc.state import StateStore
from index_svc.vectors import Collection, CollectionSpec, VectorStore
from service_kit.errors import dependency_unavailable

RETIRE_SECONDS: Final = 30.0
"""How long the searches of a replaced generation may take before it is closed under them."""

_LOG = logging.getLogger(__name__)


class StateFolder:
    """The files of the states, named after their collections.

    Args:
        folder: Where they are; made when missing.
        open_state: Opens one file.
    """

    def __init__(self, folder: Path, open_state: Callable[[Path], StateStore]) -> None:
        self._folder = folder
        self._open = open_state
        folder.mkdir(parents=True, exist_ok=True)

    def open(self, name: str) -> StateStore:
        """Open the state of a collection, an empty one when there is none."""
        return self._open(self._file(name))

    def is_complete(self, name: str) -> bool:
        """Return whether the collection was filled once, and its state is still there."""
        return self._mark(name).exists() and self._file(name).exists()

    def mark_complete(self, name: str, ledger_id: str) -> None:
        """Note that the collection was filled, and from which ledger."""
        self._mark(name).write_text(ledger_id, "utf-8")

    def ledger_id(self, name: str) -> str:
        """Return which ledger the collection was filled from."""
        return self._mark(name).read_text("utf-8")

    def mark_incomplete(self, name: str) -> None:
        """Note that something has to be filled again, so that a crash before that does not go unnoticed."""
        self._mark(name).unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Remove the state of a collection; the mark first."""
        self._mark(name).unlink(missing_ok=True)
        for path in self._folder.glob(f"{name}.sqlite*"):
            path.unlink(missing_ok=True)

    def delete_others(self, name: str) -> None:
        """Remove the states of all other collections."""
        for path in sorted(self._folder.iterdir()):
            other = path.name.partition(".")[0]
            if other != name:
                self.delete(other)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.sqlite"

    def _mark(self, name: str) -> Path:
        return self._folder / f"{name}.complete"


class Generations:
    """Which generation serves, and which is being filled. Every write goes through the projector to both."""

    def __init__(self, store: VectorStore, states: StateFolder, embedder: Embedder, projector: Projector) -> None:
        self._store = store
        self._states = states
        self._embedder = embedder
        self._projector = projector
        self._live: Generation | None = None
        self._filling: Generation | None = None
        self._left = asyncio.Event()
        identity = embedder.identity
        self.spec = CollectionSpec(identity.model, identity.dimensions, RECIPE_VERSION)

    @property
    def live(self) -> Generation:
        """The generation that serves."""
        if self._live is None:
            raise dependency_unavailable("index", "the index is being built for the first time; try again later")
        return self._live

    @property
    def is_serving(self) -> bool:
        """Whether there is a generation that serves."""
        return self._live is not None

    @contextmanager
    def reading(self) -> Iterator[Generation]:
        """Hold the generation that serves now, for one request: a change meanwhile does not touch it."""
        generation = self.live
        generation.readers += 1
        try:
            yield generation
        finally:
            generation.readers -= 1
            self._left.set()

    async def open(self) -> bool:
        """Open the generation that serves, or make the first; return whether it is complete.

        Raises:
            DomainError: MODEL_MISMATCH, when it holds vectors of another model, dimensions or recipe.
        """
        collection = await self._store.ensure_collection(self.spec)
        self._states.delete_others(collection.name)
        complete = self._states.is_complete(collection.name)
        if not complete:
            self._states.delete(collection.name)
        self._live = self._make(collection, complete=complete)
        await self._projector.add_target(self._live)
        return complete

    async def begin(self) -> Generation:
        """Return an empty generation that takes every write from now on: the first one itself, or else a new one."""
        if self._live is not None and not self._live.complete and await self._live.collection.is_empty():
            # Nothing serves yet that has to be kept apart from what is half filled.
            self._filling = self._live
            return self._live
        collection = await self._store.begin_rebuild(self.spec)
        self._states.delete(collection.name)
        self._filling = self._make(collection, complete=False)
        await self._projector.add_target(self._filling)
        return self._filling

    async def promote(self, generation: Generation, ledger_id: str = "") -> None:
        """Let a filled generation serve; the one before is closed and removed when its last search has ended."""
        self.mark_complete(generation, ledger_id)
        if generation is self._live:
            self._filling = None
            return
        await self._store.swap(generation.collection)
        before, self._live, self._filling = self._live, generation, None
        if before is None:
            self._states.delete_others(generation.collection.name)
        else:
            await self._projector.remove_target(before)
            await self._retire(before)

    def is_of(self, ledger_id: str) -> bool:
        """Return whether the generation that serves was filled from this ledger."""
        name = self.live.collection.name
        return not self.live.complete or self._states.ledger_id(name) == ledger_id

    def mark_complete(self, generation: Generation, ledger_id: str) -> None:
        """Note that everything of a ledger is in a generation."""
        self._states.mark_complete(generation.collection.name, ledger_id)
        generation.complete = True

    def mark_incomplete(self, generation: Generation) -> None:
        """Note that a part of a generation has to be filled again; a crash before that leads to a rebuild."""
        self._states.mark_incomplete(generation.collection.name)
        generation.complete = False

    async def abandon(self) -> None:
        """Give up the generation that is being filled; the one that serves stays."""
        generation, self._filling = self._filling, None
        if generation is not None and generation is not self._live:
            await self._projector.remove_target(generation)
            await self._remove(generation)

    async def close(self) -> None:
        """Close everything. A generation that was being filled is left for the next start to remove."""
        for generation in (self._filling, self._live):
            if generation is not None:
                await asyncio.to_thread(generation.state.close)
        self._filling = self._live = None
        await self._store.close()

    def _make(self, collection: Collection, *, complete: bool) -> Generation:
        state = self._states.open(collection.name)
        searcher = Searcher(collection, state, self._embedder)
        return Generation(collection, state, searcher, Calibrator(searcher, state), complete)

    async def _retire(self, generation: Generation) -> None:
        try:
            async with asyncio.timeout(RETIRE_SECONDS):
                while generation.readers:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            _LOG.warning("closing a replaced collection under %d searches", generation.readers)
        await self._remove(generation)

    async def _remove(self, generation: Generation) -> None:
        await self._store.discard(generation.collection)
        await asyncio.to_thread(generation.state.close)
        self._states.delete(generation.collection.name)
