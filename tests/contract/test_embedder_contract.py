"""The contract of the embedder port, for the offline model and for an OpenAI-compatible API over real HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator

import numpy as np
import psutil
import pytest
from embedding_server import EmbeddingServer, Fault

from index_svc.embedder import Embedder, EmbedderIdentity, checked
from index_svc.embedder_offline import DIMENSIONS, OfflineEmbedder
from index_svc.embedder_openai import MAX_TEXT_CHARS, OpenAIEmbedder, OpenAIEmbedderOptions
from service_kit.errors import DomainError, Reason

ODD_TEXTS = [
    "",
    " ",
    "\x00",
    "\ud800 lone surrogate",
    "x" * 10_000,
    "decisão " * 2_000,
    "\ufdfa" * 400,
    "決定を記録する",
    "😀😀😀",
    "!!! ???",
]


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    """Return a running API."""
    with EmbeddingServer() as running:
        yield running


def options(server: EmbeddingServer, **changes: object) -> OpenAIEmbedderOptions:
    """Return options that fail fast."""
    values: dict[str, object] = {
        "model": "test-embedding",
        "dimensions": 16,
        "base_url": server.base_url,
        "api_key": "key",
        "batch_size": 4,
        "timeout_seconds": 5.0,
        "query_timeout_seconds": 5.0,
        "attempts": 3,
        "first_wait_seconds": 0.01,
        **changes,
    }
    return OpenAIEmbedderOptions(**values)  # type: ignore[arg-type]  # a dict of the right values


@pytest.fixture(params=["offline", "openai"])
async def embedder(request: pytest.FixtureRequest, server: EmbeddingServer) -> AsyncIterator[Embedder]:
    """Return each adapter in turn."""
    made: Embedder = OfflineEmbedder() if request.param == "offline" else OpenAIEmbedder(options(server))
    yield made
    await made.close()


async def test_one_unit_vector_per_text_in_order(embedder: Embedder) -> None:
    """Every text gets its own finite unit vector, and a batch gives what single calls give."""
    texts = ["publish a revision", "publicar uma revisão", "roll back the change", "publish a revision"]
    vectors = await embedder.embed_documents(texts)
    assert vectors.shape == (4, embedder.identity.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert np.allclose(vectors[0], vectors[3], atol=1e-5), "equal up to the rounding of another batch"
    for text, vector in zip(texts[:3], vectors, strict=False):
        assert np.allclose(await embedder.embed_query(text), vector, atol=1e-4)
    assert np.allclose(await embedder.embed_queries(texts), vectors, atol=1e-5)


async def test_nothing_in_nothing_out(embedder: Embedder) -> None:
    """An empty batch is an empty matrix with the right number of columns."""
    assert (await embedder.embed_documents([])).shape == (0, embedder.identity.dimensions)


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
async def test_odd_texts_get_vectors_too(embedder: Embedder, text: str) -> None:
    """R8: empty, huge, CJK, emoji and broken text gives a finite vector, never an exception."""
    vector = await embedder.embed_query(text)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


async def test_closing_twice_is_harmless(embedder: Embedder) -> None:
    """Shutdown paths may meet."""
    await embedder.close()
    await embedder.close()


@pytest.mark.parametrize(
    ("rows", "count", "reason"),
    [
        ([[np.nan, 1.0]], 1, Reason.DEPENDENCY_UNAVAILABLE),
        ([[np.inf, 1.0]], 1, Reason.DEPENDENCY_UNAVAILABLE),
        ([[0.0, 0.0]], 1, Reason.DEPENDENCY_UNAVAILABLE),
        ([[1.0, 0.0]], 2, Reason.DEPENDENCY_UNAVAILABLE),
        ([[1.0, 0.0, 0.0]], 1, Reason.MODEL_MISMATCH),
    ],
)
def test_what_is_no_vector_is_refused(rows: list[list[float]], count: int, reason: Reason) -> None:
    """I8: NaN, infinity, zero, a missing row or another dimension never reaches a collection."""
    with pytest.raises(DomainError) as caught:
        checked(np.array(rows), count, EmbedderIdentity("m", 2))
    assert caught.value.reason is reason


# --- Offline --------------------------------------------------------------------------------------------------------


async def test_offline_knows_both_languages_and_words() -> None:
    """English and Portuguese say the same thing nearby; words have vectors, cached by word."""
    embedder = OfflineEmbedder()
    try:
        assert embedder.has_word_vectors
        english, portuguese, other = await embedder.embed_queries(
            ["how do we deploy on Fridays?", "como publicamos às sextas-feiras?", "the cat sleeps on the sofa"]
        )
        assert english @ portuguese > english @ other + 0.2
        words = [f"word{i}" for i in range(40)] + ["deploy", "release", "banana"]
        first = await embedder.word_vectors(words)
        assert first.shape == (43, DIMENSIONS)
        assert first[40] @ first[41] > first[40] @ first[42]
        assert np.array_equal(first, await embedder.word_vectors(words))
    finally:
        await embedder.close()


async def test_offline_survives_the_death_of_its_worker() -> None:
    """I3: a killed worker fails the batch in hand as a fault that may be retried, and the next batch works."""
    embedder = OfflineEmbedder()
    try:
        await embedder.embed_documents(["warm"])
        pool = embedder._pool
        assert pool is not None
        (worker,) = pool._processes.values()
        task = asyncio.create_task(embedder.embed_documents(["a text that takes a while " * 200] * 256))
        await asyncio.sleep(0)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(DomainError) as caught:
            await task
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert (await embedder.embed_documents(["again"])).shape == (1, DIMENSIONS)
    finally:
        await embedder.close()


async def test_offline_worker_does_not_outlive_a_killed_parent() -> None:
    """S5: kill -9 of the serving process leaves no worker behind."""
    code = (
        "import asyncio\n"
        "from index_svc.embedder_offline import OfflineEmbedder\n"
        "async def main():\n"
        "    e = OfflineEmbedder()\n"
        "    await e.embed_documents(['warm'])\n"
        "    print(*[p.pid for p in e._pool._processes.values()], flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    worker = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [worker], timeout=10)
    assert gone == [worker]


async def test_offline_questions_do_not_wait_for_bulk_work() -> None:
    """A question is embedded while a long batch runs in the worker process."""
    embedder = OfflineEmbedder()
    try:
        await embedder.embed_documents(["warm"])
        await embedder.embed_query("warm here too")
        bulk = asyncio.create_task(embedder.embed_documents(["some long text about everything " * 60] * 200))
        await asyncio.sleep(0)
        await embedder.embed_query("which backend do we use?")
        assert not bulk.done()
        await bulk
    finally:
        await embedder.close()


# --- OpenAI-compatible ----------------------------------------------------------------------------------------------


async def test_openai_batches_and_restores_the_order(server: EmbeddingServer) -> None:
    """Texts go out in batches with model and dimensions; rows that come back in another order are put right."""
    embedder = OpenAIEmbedder(options(server))
    texts = [f"text number {i}" for i in range(10)]
    vectors = await embedder.embed_documents(texts)
    assert sorted(len(r["input"]) for r in server.requests) == [2, 4, 4]
    assert all(r["model"] == "test-embedding" and r["dimensions"] == 16 for r in server.requests)
    assert set(server.keys) == {"Bearer key"}
    for text, vector in zip(texts, vectors, strict=True):
        assert np.allclose(vector, await embedder.embed_query(text), atol=1e-6)
    await embedder.close()


async def test_openai_caches_questions(server: EmbeddingServer) -> None:
    """The same question costs one request."""
    embedder = OpenAIEmbedder(options(server))
    await embedder.embed_query("again")
    await embedder.embed_query("again")
    assert len(server.requests) == 1
    await embedder.close()


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_openai_retries_what_may_pass(server: EmbeddingServer, status: int) -> None:
    """G3 for vectors: a provider that stumbles is asked again, and Retry-After is obeyed."""
    server.faults += [Fault(status, b"{}", {"retry-after": "0.01"}), Fault(status, b"{}")]
    embedder = OpenAIEmbedder(options(server))
    assert (await embedder.embed_documents(["a"])).shape == (1, 16)
    assert len(server.requests) == 3
    await embedder.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_openai_does_not_retry_a_refusal(server: EmbeddingServer, status: int) -> None:
    """A wrong key, model or request fails at once, with a typed reason and none of the provider's text."""
    server.faults.append(Fault(status, b'{"error": {"message": "secret internals"}}'))
    embedder = OpenAIEmbedder(options(server))
    with pytest.raises(DomainError) as caught:
        await embedder.embed_query("a")
    assert caught.value.reason is (Reason.MODEL_MISMATCH if status == 404 else Reason.DEPENDENCY_UNAVAILABLE)
    assert "secret" not in caught.value.message
    assert len(server.requests) == 1
    await embedder.close()


async def test_openai_gives_up_after_its_attempts(server: EmbeddingServer) -> None:
    """Retries are bounded."""
    server.faults += [Fault(503, b"{}")] * 10
    embedder = OpenAIEmbedder(options(server))
    with pytest.raises(DomainError) as caught:
        await embedder.embed_query("a")
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert len(server.requests) == 2, "a question gets one second attempt, not the bulk's number"
    await embedder.close()


async def test_openai_times_out(server: EmbeddingServer) -> None:
    """R7: a provider that hangs costs a question its own short timeout, then the search goes on without it."""
    server.faults += [Fault(hang=True)] * 5
    embedder = OpenAIEmbedder(options(server, query_timeout_seconds=0.1))
    with pytest.raises(DomainError) as caught:
        await embedder.embed_query("a")
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    await embedder.close()


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"{}",
        b'{"data": null}',
        b'{"data": []}',
        b'{"data": [{"index": 0, "embedding": ["x"]}]}',
        b'{"data": [{"index": 1, "embedding": [1.0]}]}',
        b'{"data": [{"index": 0, "embedding": [NaN, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}]}',
    ],
    ids=range(7),
)
async def test_openai_malformed_answers_are_faults(server: EmbeddingServer, body: bytes) -> None:
    """I8: an answer that is no list of finite vectors is a fault of the provider, not a vector."""
    server.faults.append(Fault(200, body))
    embedder = OpenAIEmbedder(options(server))
    with pytest.raises(DomainError) as caught:
        await embedder.embed_query("a")
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    await embedder.close()


async def test_openai_other_dimensions_are_refused(server: EmbeddingServer) -> None:
    """I8: a model that answers other dimensions than configured is refused with the remedy."""
    server.faults.append(Fault(200, server.rows([[1.0, 0.0]])))
    embedder = OpenAIEmbedder(options(server))
    with pytest.raises(DomainError) as caught:
        await embedder.embed_query("a")
    assert caught.value.reason is Reason.MODEL_MISMATCH
    assert "rebuild" in caught.value.message
    await embedder.close()


async def test_openai_unreachable_server_is_a_typed_fault() -> None:
    """R7: nobody listening is DEPENDENCY_UNAVAILABLE."""
    closed = EmbeddingServer()
    url = closed.base_url
    closed._server.server_close()
    embedder = OpenAIEmbedder(OpenAIEmbedderOptions("m", 16, url, "", attempts=2, first_wait_seconds=0.01))
    with pytest.raises(DomainError) as caught:
        await embedder.embed_query("a")
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    await embedder.close()


async def test_openai_cuts_long_texts_for_the_vector(server: EmbeddingServer) -> None:
    """A text over the model's window is cut before it is sent instead of failing its whole batch."""
    embedder = OpenAIEmbedder(options(server))
    await embedder.embed_documents(["word " * 5_000])
    assert len(server.requests[0]["input"][0]) <= MAX_TEXT_CHARS
    await embedder.close()


async def test_openai_word_vectors_are_not_offered(server: EmbeddingServer) -> None:
    """A model without measured word vectors says so."""
    embedder = OpenAIEmbedder(options(server))
    assert not embedder.has_word_vectors
    with pytest.raises(NotImplementedError):
        await embedder.word_vectors(["a"])
    await embedder.close()


async def test_an_api_never_gets_a_secret(server: EmbeddingServer) -> None:
    """G1: questions and documents are sanitised before they are sent, also when they are cut."""
    embedder = OpenAIEmbedder(options(server))
    secret = "ghp_" + "x7Qz" * 9
    person = "ana.souza@example.org"
    try:
        await embedder.embed_query(f"who gave {secret} to {person}?")
        await embedder.embed_queries([f"what is {secret} for?"])
        await embedder.embed_documents([f"{person} decides.", "x " * (MAX_TEXT_CHARS // 2 - 10) + secret])
    finally:
        await embedder.close()
    sent = "\n".join(text for body in server.requests for text in body["input"])
    assert "who gave [REDACTED:GITHUB_TOKEN] to [REDACTED:EMAIL]?" in sent
    assert secret[:12] not in sent
    assert person not in sent
