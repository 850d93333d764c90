"""The embedder behind any OpenAI-compatible embeddings API: the public one, Azure, or a server in the same rack.

What leaves for the API is sanitised first, questions as well as documents: the API may be anybody's (G1). Retries are
ours (stamina), not the client's: connection errors, timeouts, 408, 409, 429 and 5xx are tried again within a bounded
time, ``Retry-After`` is honoured, everything else fails at once.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import openai
import stamina

from index_svc.embedder import EmbedderIdentity, Matrix, Vector, checked
from index_svc.embedder_offline import LruCache
from service_kit.errors import DomainError, Reason, dependency_unavailable
from service_kit.sanitising.sanitise import sanitise

MAX_TEXT_CHARS: Final = 8_000
"""Longer texts are cut for the vector only: the public models take 8,191 tokens."""

MAX_BATCH_CHARS: Final = 200_000
_RETRIED: Final = frozenset({408, 409, 429})
_MAX_RETRY_AFTER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class OpenAIEmbedderOptions:
    """How to reach the API. Nothing is read from the environment here."""

    model: str
    dimensions: int
    base_url: str
    api_key: str
    send_dimensions: bool = True
    """Ask for the dimensions; servers of models that cannot shorten their vectors may refuse the field."""
    batch_size: int = 128
    concurrency: int = 4
    timeout_seconds: float = 30.0
    """For one HTTP request."""
    query_timeout_seconds: float = 5.0
    """For the request of one question: a search falls back to sparse rather than wait."""
    attempts: int = 5
    retry_seconds: float = 60.0
    """For all attempts of one batch together."""
    first_wait_seconds: float = 0.25
    query_cache: int = 1_024


class OpenAIEmbedder:
    """The port on an OpenAI-compatible API."""

    def __init__(self, options: OpenAIEmbedderOptions) -> None:
        self._options = options
        self._identity = EmbedderIdentity(options.model, options.dimensions)
        self._queries: LruCache[str, Vector] = LruCache(options.query_cache)
        self._slots = asyncio.Semaphore(options.concurrency)
        # The client insists on a key; a server without one ignores it.
        self._client = openai.AsyncOpenAI(
            api_key=options.api_key or "none",
            base_url=options.base_url,
            timeout=options.timeout_seconds,
            max_retries=0,
        )

    @property
    def identity(self) -> EmbedderIdentity:
        """Model and dimensions."""
        return self._identity

    @property
    def has_word_vectors(self) -> bool:
        """Not measured for these models, and a call per word would cost more than it tells."""
        return False

    async def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text, in batches, a few at a time."""
        batches = self._batches(await asyncio.to_thread(lambda: [_clean(t) for t in texts]))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._with_slot(batch)) for batch in batches]
        parts = [task.result() for task in tasks]
        return np.concatenate(parts) if parts else np.empty((0, self._identity.dimensions), dtype=np.float32)

    async def embed_query(self, text: str) -> Vector:
        """Return the unit vector of one question: one attempt and one quick second one."""
        cached = self._queries.get(text)
        if cached is None:
            options = self._options
            cached = (await self._embed([_clean(text)], min(2, options.attempts), options.query_timeout_seconds))[0]
            self._queries.put(text, cached)
        return cached

    async def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Return the unit vectors of many questions."""
        return await self.embed_documents(texts)

    async def word_vectors(self, words: Sequence[str]) -> Matrix:
        """Refuse: see ``has_word_vectors``."""
        raise NotImplementedError(f"{self._identity} has no word vectors for {len(words)} words")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _batches(self, texts: Sequence[str]) -> list[list[str]]:
        batches: list[list[str]] = []
        size = 0
        for text in texts:
            full = not batches or len(batches[-1]) >= self._options.batch_size or size + len(text) > MAX_BATCH_CHARS
            if full:
                batches.append([])
                size = 0
            batches[-1].append(text)
            size += len(text)
        return batches

    async def _with_slot(self, texts: Sequence[str]) -> Matrix:
        async with self._slots:
            return await self._embed(texts, self._options.attempts, self._options.timeout_seconds)

    async def _embed(self, texts: Sequence[str], attempts: int, timeout: float) -> Matrix:  # noqa: ASYNC109 - HTTP's
        options = self._options
        try:
            async for attempt in stamina.retry_context(
                on=_retry,
                attempts=attempts,
                timeout=options.retry_seconds,
                wait_initial=options.first_wait_seconds,
                wait_jitter=options.first_wait_seconds,
                wait_max=_MAX_RETRY_AFTER_SECONDS,
            ):
                with attempt:
                    response = await self._client.embeddings.create(
                        input=list(texts),
                        model=options.model,
                        encoding_format="float",
                        timeout=timeout,
                        dimensions=options.dimensions if options.send_dimensions else openai.omit,
                    )
        except openai.AuthenticationError as error:
            raise dependency_unavailable("embedder", "the embedding API refused the key; check its setting") from error
        except openai.NotFoundError as error:
            raise DomainError(
                Reason.MODEL_MISMATCH,
                f"the embedding API does not know the model {options.model} (or has no embeddings at its address)",
                metadata={"expected": options.model, "actual": "not found"},
            ) from error
        except openai.APIStatusError as error:
            raise dependency_unavailable("embedder", f"the embedding API answered {error.status_code}") from error
        except openai.APITimeoutError as error:
            raise dependency_unavailable("embedder", "the embedding API did not answer in time") from error
        except (openai.OpenAIError, ValueError, TypeError) as error:
            raise dependency_unavailable("embedder", "the embedding API could not be reached or understood") from error
        return self._rows(response, len(texts))

    def _rows(self, response: openai.types.CreateEmbeddingResponse, count: int) -> Matrix:
        try:
            ordered = sorted(response.data, key=lambda item: item.index)
            complete = [item.index for item in ordered] == list(range(count))
            matrix = np.array([item.embedding for item in ordered], dtype=np.float32)
        except (AttributeError, TypeError, ValueError) as error:
            raise dependency_unavailable(
                "embedder", "the embedding API answered something else than vectors"
            ) from error
        if not complete:
            raise dependency_unavailable("embedder", "the embedding API answered another number of vectors")
        return checked(matrix, count, self._identity)


def _clean(text: str) -> str:
    """Return what may be sent of a text: sanitised first and cut after, or half of a secret would go unseen."""
    whole = sanitise(text.encode("utf-8", "replace").decode("utf-8").replace("\x00", " ")).text
    return whole[:MAX_TEXT_CHARS].strip() or " "


def _retry(error: Exception) -> bool | float | dt.timedelta:
    """Say whether to try again, and after how many seconds when the server said so."""
    if isinstance(error, openai.APIConnectionError):  # timeouts are a kind of it
        return True
    if isinstance(error, openai.APIStatusError) and (error.status_code in _RETRIED or error.status_code >= 500):
        wait = error.response.headers.get("retry-after", "")
        try:
            return min(max(float(wait), 0.0), _MAX_RETRY_AFTER_SECONDS) or True
        except ValueError:
            return True
    return False
