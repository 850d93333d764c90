"""R1, R2, R4, R6, R7, R8: retrieval over real servers that are late, wrong, slow or gone."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import grpc
import pytest
from decisionssearch.index.v1 import index_service_pb2 as ipb
from decisionssearch.ledger.v1 import ledger_pb2 as lpb
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as pb
from retrieval_world import LONG_AGO, PROJECT, Running, World, gone, running, suppressed, titles, too_slow

from service_kit import ledger_token
from service_kit.errors import DomainError, Reason, from_rpc_error
from service_kit.ids import new_id

OFF_TOPIC = ipb.Support(total=1.0, baseline_mean=1.0, baseline_deviation=0.5)
NEAR_MISS = ipb.Support(total=1.5, baseline_mean=1.0, baseline_deviation=0.5)
CLOSEST = ipb.Support(total=2.2, baseline_mean=1.0, baseline_deviation=0.5)


async def refused(call: Any) -> DomainError:
    """Return the typed error that a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


# --- R1: never stale as current -------------------------------------------------------------------------------------

DEAD = [
    lpb.STATE_SUPERSEDED,
    lpb.STATE_INVALIDATED,
    lpb.STATE_EXPIRED,
    lpb.STATE_ARCHIVED,
    lpb.STATE_CONFLICTED,
    lpb.STATE_NOT_IN_FORCE,
    lpb.STATE_SCHEDULED,
]


def mixed_world(live: int) -> World:
    """Return a world in which what matches best is of every dead state, and some live memories match a little."""
    world = World()
    for state in DEAD:
        for i in range(12):
            world.add(f"alpha beta gamma {i}", "alpha beta gamma delta", state=state)
    for i in range(live):
        world.add(f"live {i}", "alpha")
    return world


def lies(seed: int) -> Any:
    """Return a lie: the index says that everything is in force, and worse."""
    rng = random.Random(seed)

    def lie(candidates: list[ipb.Candidate]) -> list[ipb.Candidate]:
        result = []
        for candidate in candidates:
            candidate.in_force = candidate.is_head = True
            candidate.position = rng.randrange(10**6)
            match rng.randrange(7):
                case 0:
                    candidate.content_hash = "sha256:wrong"
                case 1:
                    candidate.dense, candidate.sparse = float("nan"), float("inf")
                case 2:
                    candidate.family = candidate.family.replace(PROJECT, "other")
                case 3:
                    candidate.revision = f"{candidate.family}/revisions/{new_id()}"
                case 4:
                    candidate.dense, candidate.sparse = 1e300, -5.0
                case 5:
                    candidate.family = f"projects/{PROJECT}/families/not-a-name"
                case _:
                    pass
            result.append(candidate)
        rng.shuffle(result)
        return result

    return lie


def assert_all_current(found: pb.SearchResponse, world: World) -> None:
    """Check every hit against the world itself."""
    for hit in (*found.hits, *found.rejected):
        memory = world.memories[hit.head.family.name]
        assert memory.state is None
        assert hit.head.state == lpb.STATE_ACTIVE
        assert hit.head.revision.name == memory.rows[-1].name
        assert hit.head.revision.content_hash == memory.rows[-1].content_hash
        assert hit.head.family.name.startswith(f"projects/{PROJECT}/")


@pytest.mark.parametrize("seed", range(8))
async def test_lying_index_shows_nothing_stale(seed: int) -> None:
    """R1: an index that lies about states, hashes, names and scores gets nothing past the ledger; k hits come back."""
    world = mixed_world(live=5)
    world.lie = lies(seed)
    async with running(world) as svc:
        found = await svc.search("alpha beta gamma", limit=5, include_rejected=True)
    assert_all_current(found, world)
    assert len(found.hits) + len(found.rejected) == 5


async def test_k_live_hits_come_back_behind_many_dead_ones() -> None:
    """R1: over-fetch and widen: ten live hits come back although far more dead ones match better."""
    world = mixed_world(live=10)
    async with running(world) as svc:
        found = await svc.search("alpha beta gamma", limit=10, include_rejected=True)
    assert len(found.hits) + len(found.rejected) == 10
    assert_all_current(found, world)
    assert svc.index.requests[-1].in_force_only


async def test_index_that_forgot_live_memories() -> None:
    """R1: what the index lost is found in the ledger when there are fewer hits than asked for, and that is reported."""
    world = World()
    names = [world.add(f"alpha {i}", "alpha beta") for i in range(4)]
    world.unindexed = set(names[:3])
    async with running(world) as svc:
        found = await svc.search("alpha beta")
    assert len(found.hits) == 4
    assert {d.part for d in found.degraded} == {"index"}


async def test_index_behind_a_replacement() -> None:
    """R1: a memory superseded after the index last looked is not shown; what replaced it is, with the ledger's text."""
    world = World()
    old = world.add("Old rule", "refund by cheque")
    new = world.add("New rule", "refund by transfer")
    world.applied = world.position
    world.replace(old, new)
    async with running(world) as svc:
        found = await svc.search("refund by cheque")
    assert titles(found) == ["New rule"]
    assert found.freshness.index_position < found.freshness.ledger_position


async def test_older_revision_in_the_index_shows_the_ledgers_text() -> None:
    """R1: when the index still has revision 1 as the head, revision 2 is shown and labelled as newer than the index."""
    world = World()
    name = world.add("Fee", "fee is two percent")
    world.index_rows[name] = list(world.memories[name].rows)
    world.applied = world.position
    world.revise(name, "Fee", "fee is three percent")
    async with running(world) as svc:
        found = await svc.search("fee percent")
    assert [h.head.revision.content.summary for h in found.hits] == ["fee is three percent"]
    assert found.hits[0].newer_than_index
    assert "changed since it was indexed: this is the ledger's version" in list(found.hits[0].reasons)


async def test_head_that_changes_between_the_two_looks() -> None:
    """R1: a memory invalidated between the check and the reading of the whole head is dropped, and counted."""
    world = World()
    first = world.add("alpha one", "alpha beta")
    world.add("alpha two", "alpha beta")

    def fault(name: str) -> None:
        if name == "BatchGetHeads:FULL":
            world.memories[first].state = lpb.STATE_INVALIDATED

    world.ledger_fault = fault
    async with running(world) as svc:
        found = await svc.search("alpha beta")
    assert titles(found) == ["alpha two"]
    assert suppressed(found) == {"INVALIDATED": 1}


async def test_foreign_candidates_never_reach_the_ledger() -> None:
    """R1, S2: names of another project are counted as foreign and not even asked about."""
    world = World()
    world.add("alpha", "alpha")
    world.add("alpha elsewhere", "alpha", project="other")
    async with running(world) as svc:
        found = await svc.search("alpha")
    assert titles(found) == ["alpha"]
    assert suppressed(found) == {"foreign": 1}


async def test_cycle_of_replacements_ends() -> None:
    """R1: two memories that replace each other (a fault of the data) leave no answer and do not hang."""
    world = World()
    a, b = world.add("alpha", "alpha beta"), world.add("beta", "alpha beta")
    world.replace(a, b)
    world.replace(b, a)
    async with running(world) as svc:
        found = await svc.search("alpha beta", timeout=5.0)
    assert found.abstention.reason == pb.ABSTENTION_REASON_ONLY_SUPERSEDED


# --- R2: read your writes -------------------------------------------------------------------------------------------


async def test_write_is_found_before_it_is_indexed() -> None:
    """R2: a search with the token of a write sees it although the index has not: it comes from the ledger's tail."""
    world = World()
    world.add("Refund window", "thirty days")
    world.applied = world.position
    world.support = OFF_TOPIC
    written = world.add("Chargeback handling", "Chargebacks are contested within a week")
    world.unindexed = {written}
    async with running(world) as svc:
        found = await svc.search("chargeback handling", consistency={"at_least_as_fresh": world.token()})
    assert titles(found)[0] == "Chargeback handling"
    assert found.hits[0].origin == pb.HIT_ORIGIN_LEDGER_TAIL
    assert [d.part for d in found.degraded] == ["tail"]
    assert found.freshness.index_position < found.freshness.ledger_position
    assert ledger_token.decode(found.freshness.token, "token").position == world.position


async def test_no_token_says_how_fresh_it_is() -> None:
    """R2: without a token the tail is not read, and freshness says that the index is behind."""
    world = World()
    world.add("Refund window", "thirty days")
    world.applied = world.position
    world.add("Refund form", "paper")
    async with running(world) as svc:
        found = await svc.search("refund", limit=1)
    assert "ListChanges" not in world.calls
    assert (found.freshness.index_position, found.freshness.ledger_position) == (1, 2)


async def test_index_that_has_caught_up_needs_no_tail() -> None:
    """R2: a token that the index has reached costs nothing."""
    world = World()
    world.add("Refund window", "thirty days")
    async with running(world) as svc:
        found = await svc.search("refund", limit=1, consistency={"at_least_as_fresh": world.token()})
    assert titles(found) == ["Refund window"]
    assert "ListChanges" not in world.calls


async def test_tail_too_long_is_index_lagging() -> None:
    """R2: more commits than may be read: INDEX_LAGGING, never an answer from before the token."""
    world = World()
    world.add("Refund window", "thirty days")
    world.applied = 0
    for i in range(40):
        world.add(f"filler {i}")
    async with running(world, tail_commits=10) as svc:
        found = await svc.search("refund window", consistency={"at_least_as_fresh": world.token()})
    assert found.abstention.reason == pb.ABSTENTION_REASON_INDEX_LAGGING
    assert not found.hits


async def test_tail_that_takes_too_long_is_index_lagging() -> None:
    """R2: a ledger too slow for the tail within the deadline: INDEX_LAGGING within the deadline."""
    world = World()
    world.add("Refund window", "thirty days")
    world.applied = 0
    world.ledger_fault = lambda name: too_slow() if name == "ListChanges" else None
    async with running(world) as svc:
        found = await svc.search("refund window", timeout=1.0, consistency={"at_least_as_fresh": world.token()})
    assert found.abstention.reason == pb.ABSTENTION_REASON_INDEX_LAGGING


async def test_index_from_another_history_is_not_believed() -> None:
    """R2: an index that claims commits which the ledger does not have (a restored ledger) counts as knowing none."""
    world = World()
    world.applied = 10**9
    written = world.add("Refund window", "thirty days")
    world.unindexed = {written}
    async with running(world) as svc:
        found = await svc.search("refund window", consistency={"at_least_as_fresh": world.token()})
    assert titles(found) == ["Refund window"]
    assert found.freshness.index_position == 0
    assert [d.part for d in found.degraded] == ["index", "tail"]


async def test_token_of_the_future_is_refused_by_the_ledger() -> None:
    """R2: the ledger itself is behind the token: NOT_FRESH_ENOUGH, not an older answer."""
    world = World()
    world.add("Refund window", "thirty days")
    async with running(world) as svc:
        error = await refused(svc.search("refund", consistency={"at_least_as_fresh": world.token(99)}))
    assert error.reason is Reason.NOT_FRESH_ENOUGH


# --- R4: exact identifiers ------------------------------------------------------------------------------------------


async def test_exact_name_lifts_the_thresholds() -> None:
    """R4: a file that the question names is found although the support is that of an off-topic question."""
    world = World()
    world.support = OFF_TOPIC
    world.add("Gateway module", "how money flows", files=["src/pay_gate.py"])
    world.add("Other", "nothing")
    async with running(world) as svc:
        found = await svc.search("who changed src/pay_gate.py and why on earth")
    assert titles(found) == ["Gateway module"]
    assert found.confidence == pb.ANSWER_CONFIDENCE_ANSWER


async def test_exact_name_is_not_pushed_off_the_list() -> None:
    """R4: when more similar memories fill the list, the one that holds the name still gets the last place."""
    world = World()
    for i in range(12):
        world.add(f"who changed this and why {i}", "who changed this and why")
    world.add("Gateway module", "flow", files=["src/pay_gate.py"])
    async with running(world) as svc:
        found = await svc.search("who changed this and why: src/pay_gate.py", limit=5)
    assert len(found.hits) == 5
    assert titles(found)[-1] == "Gateway module"


async def test_exact_name_without_dense_and_without_index() -> None:
    """R4, R7: an error code is found with the dense branch dead, and with the whole index dead."""
    world = World()
    world.add("Upload errors", "ERR_4217 means that the disk is full")
    world.add("Other", "nothing at all to see")
    world.dense, world.support = False, None
    world.degraded = [ipb.Degradation(part="dense", reason="the embedder does not answer")]
    async with running(world) as svc:
        sparse_only = await svc.search("what does ERR_4217 mean when I upload large files on Sunday")
        world.index_fault = gone
        ledger_only = await svc.search("what does ERR_4217 mean when I upload large files on Sunday")
    for found in (sparse_only, ledger_only):
        assert titles(found) == ["Upload errors"] or titles(found)[0] == "Upload errors"


# --- R6: abstention -------------------------------------------------------------------------------------------------


async def abstains(svc: Running, text: str, **rest: Any) -> int:
    """Return the reason of the abstention; the answer must be empty and the reason must have words."""
    found = await svc.search(text, **rest)
    assert not found.hits
    assert found.confidence == pb.ANSWER_CONFIDENCE_UNSPECIFIED
    assert found.abstention.message
    return found.abstention.reason


async def test_reasons_are_told_apart() -> None:
    """R6: nothing stored, off topic, below the threshold and only superseded are different answers."""
    async with running(World()) as svc:
        assert await abstains(svc, "refund") == pb.ABSTENTION_REASON_NO_MEMORY
    world = World()
    world.add("Refund window", "thirty days")
    async with running(world) as svc:
        world.support = OFF_TOPIC
        assert await abstains(svc, "weather on Mars") == pb.ABSTENTION_REASON_OUT_OF_SCOPE
        world.support = NEAR_MISS
        assert await abstains(svc, "weather on Mars") == pb.ABSTENTION_REASON_BELOW_THRESHOLD
        world.support = CLOSEST
        closest = await svc.search("refund")
        assert closest.confidence == pb.ANSWER_CONFIDENCE_CLOSEST
        assert titles(closest) == ["Refund window"]
    only_dead = World()
    only_dead.add("Old rule", "refund by cheque", state=lpb.STATE_INVALIDATED)
    async with running(only_dead) as svc:
        assert await abstains(svc, "refund by cheque") == pb.ABSTENTION_REASON_ONLY_SUPERSEDED


async def test_dead_best_match_beside_weak_live_ones() -> None:
    """R6: a question about something that ended is not answered by what merely shares a word with it."""
    world = World()
    world.add("Cheques", "refund by cheque within ten days", state=lpb.STATE_INVALIDATED)
    world.add("Holidays", "ten public holidays")
    async with running(world) as svc:
        found = await svc.search("refund by cheque within ten days", include_rejected=True)
    assert found.abstention.reason == pb.ABSTENTION_REASON_ONLY_SUPERSEDED
    assert [h.head.revision.content.title for h in found.rejected] == ["Holidays"]


async def test_open_conflict_abstains() -> None:
    """R6: what matches is in an open conflict: CONFLICTED."""
    world = World()
    world.add("Refund A", "refund in ten days", state=lpb.STATE_CONFLICTED)
    world.add("Other", "unrelated")
    async with running(world) as svc:
        assert await abstains(svc, "refund in ten days") == pb.ABSTENTION_REASON_CONFLICTED


async def test_abstention_costs_no_reading_of_heads() -> None:
    """An abstention for want of relevance reads no contents, unless the caller wants to see the closest hits."""
    world = World()
    world.add("Refund window", "thirty days")
    world.support = OFF_TOPIC
    async with running(world) as svc:
        await svc.search("weather on Mars")
        assert "BatchGetHeads:FULL" not in world.calls
        found = await svc.search("weather on Mars", include_rejected=True)
    assert [h.head.revision.content.title for h in found.rejected] == ["Refund window"]
    assert not found.hits


# --- R7: one dead dependency ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [gone, too_slow])
async def test_dead_or_slow_index_degrades(fault: Any) -> None:
    """R7: without the index the ledger's texts are searched, successors stand in, and the answer says so."""
    world = World()
    old = world.add("Vouchers expire", "a gift voucher expires")
    new = world.add("Credit notes", "store credit never lapses")
    world.replace(old, new)
    world.add("Refund window", "refund within thirty days")
    world.index_fault = fault
    async with running(world, index_timeout_seconds=0.3) as svc:
        direct = await svc.search("refund window", timeout=5.0)
        lent = await svc.search("when does a gift voucher expire", timeout=5.0)
    assert titles(direct)[0] == "Refund window"
    assert titles(lent)[0] == "Credit notes"
    for found in (direct, lent):
        assert [d.part for d in found.degraded] == ["index"]
        assert not found.HasField("support_z")
        assert_all_current(found, world)


async def test_dead_index_still_reads_your_writes() -> None:
    """R2, R7: the ledger alone is always fresh."""
    world = World()
    world.add("Refund window", "refund within thirty days")
    world.index_fault = gone
    async with running(world) as svc:
        found = await svc.search("refund window", consistency={"at_least_as_fresh": world.token()})
    assert titles(found) == ["Refund window"]


async def test_dead_index_abstains_on_nonsense() -> None:
    """R6, R7: without support, a question that shares next to nothing is still not answered."""
    world = World()
    world.add("Refund window", "refund within thirty days")
    world.index_fault = gone
    async with running(world) as svc:
        found = await svc.search("who won the football match in the thirty first minute yesterday evening in Berlin")
    assert found.abstention.reason == pb.ABSTENTION_REASON_BELOW_THRESHOLD


async def test_dead_embedder_is_passed_on() -> None:
    """R7: what the index could not do is said; sparse alone ranks and decides."""
    world = World()
    world.add("Refund window", "refund within thirty days")
    world.add("Other", "nothing")
    world.dense, world.support = False, None
    world.degraded = [ipb.Degradation(part="dense", reason="the embedder does not answer")]
    async with running(world) as svc:
        found = await svc.search("refund window")
    assert titles(found)[0] == "Refund window"
    assert found.hits[0].score.final == pytest.approx(found.hits[0].score.sparse)
    assert not found.hits[0].score.HasField("dense")
    assert [(d.part, d.reason) for d in found.degraded] == [("dense", "the embedder does not answer")]


@pytest.mark.parametrize("call", ["BatchGetHeads:FULL", "QueryHeads"])
async def test_dead_ledger_is_unavailable(call: str) -> None:
    """R7: nothing may be shown unchecked: a dead ledger is UNAVAILABLE with the dependency named."""
    world = World()
    world.add("Refund window", "thirty days")
    world.ledger_fault = lambda name: gone() if name == call else None
    async with running(world) as svc:
        error = await refused(svc.search("refund"))
    assert error.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_scan_is_bounded_and_says_so() -> None:
    """R7: a large ledger is not read to its end in the index's place; the answer says how far it was."""
    world = World()
    for i in range(250):
        world.add(f"rule {i}", "refund")
    world.index_fault = gone
    async with running(world, scan_heads=100) as svc:
        found = await svc.search("refund")
    assert found.hits
    assert {d.part: d.reason for d in found.degraded}["ledger_scan"] == "only the first 100 memories were looked at"


async def test_deadline_is_passed_on_and_holds() -> None:
    """S3: a ledger that never answers ends the search at the caller's deadline."""
    world = World()
    world.add("Refund window", "thirty days")
    world.ledger_fault = lambda name: too_slow()
    async with running(world) as svc:
        started = asyncio.get_running_loop().time()
        error = await refused(svc.search("refund", timeout=0.5))
        assert asyncio.get_running_loop().time() - started < 3.0
    assert error.reason is Reason.DEADLINE


# --- R8: odd input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["😀😀😀", "返金期間は三十日", "x", "?!…", "ﷺ" * 300, "a" * 10_000, "refund " * 1_400, "\u0301\u0301", "٣٠ يوما"],
)
async def test_odd_questions_are_answered_or_declined(text: str) -> None:
    """R8: emoji, CJK, one letter, punctuation, compatibility forms, 10,000 characters: a well-formed response."""
    world = World()
    world.add("返金期間", "返金期間は三十日です")
    world.add("Refund window", "thirty days")
    async with running(world) as svc:
        found = await svc.search(text[:10_000])
        world.index_fault = gone
        degraded = await svc.search(text[:10_000])
    for response in (found, degraded):
        assert response.hits or response.abstention.reason


async def test_cjk_is_found_without_the_index() -> None:
    """R8: CJK text is matched by bigrams."""
    world = World()
    world.add("返金期間", "返金期間は三十日です")
    world.add("Refund window", "thirty days")
    world.index_fault = gone
    async with running(world) as svc:
        found = await svc.search("返金期間")
    assert titles(found) == ["返金期間"]


@pytest.mark.parametrize(
    ("dense", "sparse"),
    [
        (float("nan"), float("nan")),
        (float("inf"), 0.5),
        (-float("inf"), -3.0),
        (-0.9, 0.0),
        (1e308, 1e308),
        (0.5, 0.5),
    ],
)
async def test_odd_scores_survive(dense: float, sparse: float) -> None:
    """R8: NaN, infinities, negative and equal scores give finite scores and the same order every time."""
    world = World()
    for i in range(4):
        world.add(f"rule {i}", "refund", importance=i / 10)

    def lie(candidates: list[ipb.Candidate]) -> list[ipb.Candidate]:
        for candidate in candidates:
            candidate.dense, candidate.sparse = dense, sparse
        return candidates

    world.lie = lie
    async with running(world) as svc:
        found = await svc.search("refund")
        again = await svc.search("refund")
        article = await svc.search("refund", profile="article")
    assert titles(found) == titles(again) == ["rule 3", "rule 2", "rule 1", "rule 0"]
    for hit in (*found.hits, *article.hits):
        assert abs(hit.score.final) < 10
        assert not hit.score.HasField("dense") or abs(hit.score.dense) <= 1e308


async def test_odd_support_counts_as_unknown() -> None:
    """R8: a baseline without deviation, or NaN, is no measure; the strength of the best match decides."""
    world = World()
    world.add("Refund window", "thirty days")
    async with running(world) as svc:
        for support in (
            ipb.Support(total=float("nan"), baseline_mean=1.0, baseline_deviation=0.5),
            ipb.Support(total=2.0, baseline_mean=1.0, baseline_deviation=0.0),
            ipb.Support(total=2.0, baseline_mean=1.0, baseline_deviation=-1.0),
        ):
            world.support = support
            found = await svc.search("refund window")
            assert titles(found) == ["Refund window"]
            assert not found.HasField("support_z")


# --- Bad requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": "   "}, "text"),
        ({"text": "a" * 10_001}, "text"),
        ({"project": ""}, "project"),
        ({"project": "billing"}, "project"),
        ({"branch": "Main Branch"}, "branch"),
        ({"limit": -1}, "limit"),
        ({"limit": 101}, "limit"),
        ({"min_evidence": 11}, "min_evidence"),
        ({"profile": "best"}, "profile"),
        ({"states": [0]}, "states[0]"),
        ({"states": [99]}, "states[0]"),
        ({"scopes": [99]}, "scopes[0]"),
        ({"categories": [0]}, "categories[0]"),
        ({"branches": [0]}, "branches[0]"),
        ({"query_vector": {"model": "", "values": [1.0]}}, "query_vector.model"),
        ({"query_vector": {"model": "m", "values": []}}, "query_vector.values"),
        ({"query_vector": {"model": "m", "values": [float("nan")]}}, "query_vector.values"),
        ({"query_vector": {"model": "m", "values": [float("inf"), -float("inf")]}}, "query_vector.values"),
        ({"consistency": {"at_least_as_fresh": {"value": "made up"}}}, "consistency.at_least_as_fresh"),
        ({"consistency": {"at_least_as_fresh": {}}}, "consistency.at_least_as_fresh"),
        (
            {"consistency": {"at_least_as_fresh": ledger_token.encode("some-ledger", "other", 3)}},
            "consistency.at_least_as_fresh",
        ),
    ],
)
async def test_bad_requests_name_the_field(change: dict[str, Any], field: str) -> None:
    """S4: every malformed request is refused with INVALID_FIELD and the path of the field; GetContext the same."""
    async with running() as svc:
        request = pb.SearchRequest(**{"project": f"projects/{PROJECT}", "text": "refund", **change})
        error = await refused(svc.stub.Search(request))
        nested = await refused(svc.stub.GetContext(pb.GetContextRequest(search=request)))
    assert error.reason is Reason.INVALID_FIELD
    assert [f.field for f in error.fields] == [field]
    assert [f.field for f in nested.fields] == [f"search.{field}"]
    assert svc.world.calls == []


async def test_get_context_needs_a_search_and_a_budget_in_range() -> None:
    """S4: every problem of a request is named at once."""
    async with running() as svc:
        error = await refused(svc.stub.GetContext(pb.GetContextRequest(token_budget=5)))
    assert [f.field for f in error.fields] == ["token_budget", "search"]


async def test_foreign_project_is_denied_before_anything_else() -> None:
    """S1: without a role in the project the refusal says nothing else, and nobody is asked."""
    async with running() as svc:
        request = pb.SearchRequest(project="projects/secret", text="", limit=999)
        error = await refused(svc.stub.Search(request))
    assert error.reason is Reason.PERMISSION_DENIED
    assert svc.world.calls == []


async def test_refusal_of_the_callers_vector_is_passed_on() -> None:
    """I8: a vector of another model is the caller's mistake, not a reason to degrade."""
    world = World()
    world.add("Refund window", "thirty days")

    def refuse() -> None:
        raise DomainError(Reason.MODEL_MISMATCH, "other model", metadata={"expected": "usem3", "actual": "m"})

    world.index_fault = refuse
    async with running(world) as svc:
        error = await refused(svc.search("refund", query_vector={"model": "m", "values": [1.0]}))
    assert error.reason is Reason.MODEL_MISMATCH


async def test_what_becomes_valid_later_does_not_replace_yet() -> None:
    """A replacement that takes effect later lends nothing to the successor and leaves the present one in force."""
    world = World()
    old = world.add("Fee now", "fee is two percent")
    new = world.add("Fee next", "unlike")
    world.replace(old, new, time=LONG_AGO + timedelta(days=36_500))
    async with running(world) as svc:
        found = await svc.search("fee is two percent", limit=1)
    assert titles(found) == ["Fee now"]
