"""S3: what callers are told when something breaks, and that work ends when nobody waits for it any more.

Faults are injected into the services' own methods, for one call each: the call is known by its request id, which goes
with it from service to service.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc.aio
import pytest
import pytest_asyncio
from decisionssearch.ingest.v1 import ingest_service_pb2
from decisionssearch.ledger.v1 import ledger_service_pb2

from index_svc.service import IndexService
from index_svc.verify import Verifier
from ingest_svc.service import IngestService
from ledger_svc.service.admin import AdminService
from ledger_svc.service.evidence import EvidenceService
from ledger_svc.service.moving import MovingService
from ledger_svc.service.observations import ObservationService
from ledger_svc.service.outbox import OutboxService
from ledger_svc.service.proposals import ProposalService
from ledger_svc.service.reads import ReadService
from retrieval_svc.service import RetrievalService
from service_kit.boundary import REQUEST_ID_KEY
from service_kit.context import current_request_id, remaining_seconds
from service_kit.errors import DETAILS_KEY, Reason, from_rpc_error
from service_kit.ids import new_id
from tests.kept_log import logged
from tests.whole_rpcs import METHODS, REQUESTS, STUBS, Home, call, furnish
from tests.whole_stack import OWN, Whole, deployment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SERVICES: Final[dict[str, tuple[type[Any], ...]]] = {
    "LedgerService": (ReadService,),
    "ProposalService": (ProposalService,),
    "EvidenceService": (EvidenceService,),
    "ObservationService": (ObservationService,),
    "OutboxService": (OutboxService,),
    "AdminService": (AdminService, MovingService),
    "IndexService": (IndexService, Verifier),
    "RetrievalService": (RetrievalService,),
    "IngestService": (IngestService,),
}
"""What decides behind the servicer of each service."""

TEXT: Final = "no such column: salary; near /srv/ledger_svc/store_sqlite/reads.py line 17 of SELECT body FROM secrets"
"""What a fault of a driver says, and no caller must read."""

WHO: Final = {
    "OutboxService": "service",
    "ProposalService.ApproveProposal": "reviewer",
    "ProposalService.BatchApproveProposals": "reviewer",
    "ProposalService.RejectProposal": "reviewer",
    "ProposalService.RevokeApproval": "reviewer",
    "EvidenceService.RecordVerification": "reviewer",
    "AdminService": "root",
    "IndexService": "root",
}


def _who(rpc: str) -> str:
    return WHO.get(rpc) or WHO.get(rpc.partition(".")[0]) or "proposer"


@dataclass(slots=True)
class World:
    """A deployment, what it logs, and the call that a fault is for."""

    whole: Whole
    home: Home
    log: io.StringIO


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A deployment with a furnished project, whose log is kept."""
    with logged() as log:
        async with deployment(tmp_path_factory.mktemp("failures") / "data") as whole:
            home = await furnish(whole, Home(OWN, "proposer", "reviewer", "admin"))
            await whole.settled()
            yield World(whole, home, log)


Instead = Callable[[Any], Any]


def _inject(monkeypatch: pytest.MonkeyPatch, kinds: tuple[type[Any], ...], marker: str, instead: Any) -> None:
    """Put something in the place of every public method of the classes, for one call."""
    for kind in kinds:
        for name, original in list(vars(kind).items()):
            if name.startswith("_"):
                continue
            if isinstance(original, property):
                getter = original.fget
                assert getter is not None
                monkeypatch.setattr(kind, name, property(_instead(getter, marker, instead)))
            elif isinstance(original, staticmethod):
                monkeypatch.setattr(kind, name, staticmethod(_instead(original.__func__, marker, instead)))
            elif inspect.isfunction(original):
                monkeypatch.setattr(kind, name, _instead(original, marker, instead))


def _instead(original: Any, marker: str, instead: Any) -> Any:
    if inspect.isasyncgenfunction(original):

        @functools.wraps(original)
        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            if current_request_id() == marker:
                await instead()
            async for item in original(*args, **kwargs):
                yield item

        return stream
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def answer(*args: Any, **kwargs: Any) -> Any:
            if current_request_id() == marker:
                await instead()
            return await original(*args, **kwargs)

        return answer

    @functools.wraps(original)
    def plain(*args: Any, **kwargs: Any) -> Any:
        # What does not wait can only fail.
        if current_request_id() == marker and instead is _break:
            raise RuntimeError(TEXT)
        return original(*args, **kwargs)

    return plain


async def _break() -> None:
    raise RuntimeError(TEXT)


def _marked(marker: str) -> tuple[tuple[str, str], ...]:
    return ((REQUEST_ID_KEY, marker),)


def _received(error: grpc.aio.AioRpcError) -> str:
    """Everything that a refused caller receives, as text."""
    trailing = dict(error.trailing_metadata() or ())
    details = bytes(trailing.get(DETAILS_KEY, b"")).decode("utf-8", "replace")
    return f"{error.details()} {error.debug_error_string()} {details} {sorted(trailing)}"


def _bug_lines(world: World, marker: str) -> list[dict[str, Any]]:
    lines = world.log.getvalue().splitlines()
    return [json.loads(line) for line in lines if marker in line and '"bug"' in line]


@pytest.mark.parametrize("rpc", METHODS)
async def test_a_bug_is_masked(rpc: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: a bug in what decides behind any RPC is INTERNAL with an incident id; its text is in the log only."""
    request = await REQUESTS[rpc](world.whole, world.home)
    marker = f"bug-{new_id()}"
    _inject(monkeypatch, SERVICES[rpc.partition(".")[0]], marker, _break)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(world.whole.as_(_who(rpc)), rpc, request, metadata=_marked(marker))
    error, received = from_rpc_error(failed.value), _received(failed.value)
    assert failed.value.code() is grpc.StatusCode.INTERNAL, received
    assert error.reason is Reason.BUG
    incident = error.metadata["incident"]
    for word in ("salary", "SELECT", "RuntimeError", "Traceback", ".py", "_svc"):
        assert word not in received, received
    lines = _bug_lines(world, marker)
    assert [line["incident"] for line in lines] == [incident]
    assert "salary" in json.dumps(lines[0])
    assert lines[0]["method"].endswith(f"/{rpc.partition('.')[2]}")


@pytest.mark.parametrize(
    ("rpc", "below"),
    [
        ("RetrievalService.GetContext", ReadService),
        ("IngestService.IngestObservations", ObservationService),
        ("IngestService.ProposeMemory", ProposalService),
        ("IngestService.EvaluateCandidate", AdminService),
    ],
)
async def test_a_bug_below_keeps_its_incident(
    rpc: str, below: type[Any], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: a bug of a called service reaches the caller with the incident that its log has, and none of its text."""
    request = await REQUESTS[rpc](world.whole, world.home)
    if rpc == "IngestService.IngestObservations":
        request.observation.locator = f"docs/{new_id()}.md"
    marker = f"below-{new_id()}"
    _inject(monkeypatch, (below,), marker, _break)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(world.whole.as_(_who(rpc)), rpc, request, metadata=_marked(marker))
    error, received = from_rpc_error(failed.value), _received(failed.value)
    assert error.reason is Reason.BUG, error
    assert "salary" not in received
    assert error.metadata["incident"] in {line["incident"] for line in _bug_lines(world, marker)}


async def test_the_index_may_break_without_breaking_a_search(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7, S3: a bug of the index is a degradation of the search, told without its text."""
    request = await REQUESTS["RetrievalService.Search"](world.whole, world.home)
    marker = f"degraded-{new_id()}"
    _inject(monkeypatch, (IndexService,), marker, _break)
    answer = (await call(world.whole.as_("reader"), "RetrievalService.Search", request, metadata=_marked(marker)))[0]
    assert answer.degraded
    assert "salary" not in str(answer)
    assert _bug_lines(world, marker)


async def test_a_stream_that_breaks_in_the_middle(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: what a stream has told is told; then it ends as INTERNAL with an incident id."""
    marker = f"middle-{new_id()}"
    original = ReadService.watch

    async def breaks(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        count = 0
        async for item in original(*args, **kwargs):
            yield item
            count += 1
            if count == 2 and current_request_id() == marker:
                raise RuntimeError(TEXT)

    monkeypatch.setattr(ReadService, "watch", breaks)
    request = ledger_service_pb2.WatchChangesRequest(project=world.home.project)
    stream = world.whole.as_("reader").ledger.WatchChanges(request, metadata=_marked(marker))
    assert [await stream.read(), await stream.read()]
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stream.read()
    assert from_rpc_error(failed.value).reason is Reason.BUG
    assert "salary" not in _received(failed.value)


# --- Nobody waits any more --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stuck:
    """Work that never ends by itself, and tells when it is ended."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self) -> None:
        """Wait for ever."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def _waits(rpc: str) -> bool:
    """Whether what is behind an RPC waits for anything at all."""
    return rpc not in {
        "AdminService.GetLedgerInfo",
        "IndexService.RebuildIndex",
        "IndexService.GetRebuild",
        "RetrievalService.ListProfiles",
    }


@pytest.mark.parametrize("rpc", [rpc for rpc in METHODS if _waits(rpc)])
@pytest.mark.parametrize("how", ["deadline", "cancel"])
async def test_work_ends_with_its_caller(how: str, rpc: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: when the deadline passes or the caller leaves, the work behind any RPC is cancelled."""
    request = await REQUESTS[rpc](world.whole, world.home)
    marker, stuck = f"stuck-{new_id()}", Stuck()
    _inject(monkeypatch, SERVICES[rpc.partition(".")[0]], marker, _coroutine(stuck))
    stubs = world.whole.as_(_who(rpc))
    async with asyncio.timeout(60):
        if how == "cancel":
            made = asyncio.ensure_future(call(stubs, rpc, request, metadata=_marked(marker), timeout=60.0))
            await stuck.started.wait()
            made.cancel()
            with pytest.raises(asyncio.CancelledError):
                await made
        else:
            for seconds in (0.2, 1.0, 5.0):
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call(stubs, rpc, request, metadata=_marked(marker), timeout=seconds)
                assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                # On a busy machine the time may be over before the work was begun.
                if stuck.started.is_set():
                    break
        await stuck.ended.wait()


def _coroutine(stuck: Stuck) -> Any:
    async def wait() -> None:
        await stuck()

    return wait


@pytest.mark.parametrize(
    ("rpc", "below"),
    [
        ("RetrievalService.Search", ReadService),
        ("RetrievalService.GetContext", IndexService),
        ("IngestService.EvaluateCandidate", IndexService),
        ("IngestService.ProposeMemory", ObservationService),
        ("IngestService.IngestObservations", ProposalService),
    ],
)
async def test_the_work_of_a_called_service_ends_too(
    rpc: str, below: type[Any], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: a caller who leaves a service ends what that service had asked of another one."""
    request = await REQUESTS[rpc](world.whole, world.home)
    if rpc == "IngestService.IngestObservations":
        request.observation.locator = f"docs/{new_id()}.md"
    marker, stuck = f"deep-{new_id()}", Stuck()
    _inject(monkeypatch, (below,), marker, _coroutine(stuck))
    made = asyncio.ensure_future(call(world.whole.as_("proposer"), rpc, request, metadata=_marked(marker)))
    async with asyncio.timeout(20):
        await stuck.started.wait()
        made.cancel()
        with pytest.raises(asyncio.CancelledError):
            await made
        await stuck.ended.wait()


@pytest.mark.parametrize("rpc", ["RetrievalService.Search", "IngestService.EvaluateCandidate"])
async def test_the_time_that_is_left_is_passed_on(rpc: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: a service gives the services that it calls no more time than its own caller has left."""
    request = await REQUESTS[rpc](world.whole, world.home)
    marker, left = f"left-{new_id()}", []

    async def note() -> None:
        left.append(remaining_seconds())

    for kinds in (SERVICES["LedgerService"], SERVICES["AdminService"], SERVICES["IndexService"]):
        _inject(monkeypatch, kinds, marker, note)
    await call(world.whole.as_("proposer"), rpc, request, metadata=_marked(marker), timeout=7.0)
    assert left
    # The transport rounds up.
    assert all(0 < seconds <= 7.1 for seconds in left), left


async def test_a_deadline_that_has_passed_starts_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: a call that comes too late is not begun."""
    request = await REQUESTS["ProposalService.CreateProposal"](world.whole, world.home)
    before = world.whole.stored()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await world.whole.as_("proposer").proposals.CreateProposal(request, timeout=1e-9)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert world.whole.stored() == before


async def test_a_broken_off_import_stores_whole_observations(world: World) -> None:
    """S3, L1: a caller who leaves in the middle of a stream leaves nothing half done; sent again, nothing doubles."""
    whole, home = world.whole, world.home
    keys = [f"docs/adr/{1000 + n}-{new_id()}.md" for n in range(30)]

    def requests() -> list[Any]:
        made = []
        for number, locator in enumerate(keys, 1):
            request = ingest_service_pb2.IngestObservationsRequest(project=home.project, sequence=number)
            request.observation.source_kind = 4
            request.observation.locator = locator
            request.observation.text = f"# {1000 + number}. Title {number}\n\nStatus: Accepted\n\n## Decision\n\nSo.\n"
            made.append(request)
        return made

    async def send(upto: int) -> list[Any]:
        async def messages() -> AsyncIterator[Any]:
            for request in requests():
                yield request

        answers = []
        stream = whole.as_("importer").ingest.IngestObservations(messages())
        async for answer in stream:
            answers.append(answer)
            if len(answers) == upto:
                stream.cancel()
                break
        return answers

    await send(1)
    final = await send(len(keys) + 1)
    assert sorted(answer.sequence for answer in final) == list(range(1, len(keys) + 1))
    names = {answer.observation for answer in final}
    assert len(names) == len(keys)
    again = await send(len(keys) + 1)
    assert {answer.observation for answer in again} == names
    assert all(answer.replayed for answer in again)


async def test_every_service_has_its_faults() -> None:
    """S3: a service that the contracts gain is in these tests."""
    assert set(SERVICES) == set(STUBS)
