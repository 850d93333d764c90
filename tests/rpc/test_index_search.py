"""The index over gRPC: it fills itself, finds, says what does not work, and answers only those who may ask."""

# ruff: noqa: F811 - a fixture is imported, and then named by its tests
from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from decisionssearch.index.v1 import index_service_pb2 as pb
from decisionssearch.ledger.v1 import ledger_pb2

from service_kit.clock import to_timestamp
from service_kit.errors import DomainError, Reason
from tests.index_ledger_stub import LONG_AGO, content
from tests.index_world import WordEmbedder, World, away, index_world, tmp_path, until  # noqa: F401 - a fixture


async def test_what_is_applied_becomes_searchable_by_itself(tmp_path: Path) -> None:
    """I1: apply → searchable, with no call to the index; the status shows that nothing is behind."""
    async with index_world(tmp_path) as world:
        await world.settled()
        row = world.ledger.publish(content("Refunds take fourteen days", "Money goes back within two weeks."))
        await world.settled()
        answer = await world.search("How long do refunds take?")
        assert [c.revision for c in answer.candidates] == [row.name]
        found = answer.candidates[0]
        assert found.is_head
        assert found.in_force
        assert found.dense > 0.05
        assert found.sparse > 0.2
        assert answer.heads == 1
        await until(lambda: _caught_up(world, 1))
        status = await world.status()
        assert (status.points, status.heads, status.dead_letters, list(status.degraded)) == (1, 1, 0, [])
        assert status.model == "words"
        assert status.dimensions == 64


async def test_lag_is_visible_while_the_index_is_behind(tmp_path: Path) -> None:
    """I1: what is committed and not indexed yet shows as lag, in positions and in time."""
    async with index_world(tmp_path, follow=False) as world:
        await world.settled()
        world.ledger.publish(content("Not indexed yet"))
        world.ledger.publish(content("Nor this"))
        status = await world.status()
        assert (status.applied_position, status.ledger_position) == (0, 2)
        assert status.lag.seconds >= 1


async def test_every_candidate_has_both_scores_whatever_found_it(tmp_path: Path) -> None:
    """I7: a hit of one way has the other way's exact score too, the same whichever ways were asked."""
    async with index_world(tmp_path) as world:
        for i in range(12):
            world.ledger.publish(content(f"Rule {i} about invoices and taxes", modules=["billing"]))
        await world.settled()
        scores: list[dict[str, tuple[float, float]]] = []
        for branches in ([pb.SEARCH_BRANCH_DENSE], [pb.SEARCH_BRANCH_SPARSE], [pb.SEARCH_BRANCH_STRUCTURAL], []):
            answer = await world.search("invoices in billing, rule 7", branches=branches, limit=500)
            scores.append({c.revision: (c.dense, c.sparse) for c in answer.candidates})
            assert all(c.HasField("dense") and c.HasField("sparse") for c in answer.candidates)
            assert len(answer.candidates) == 12
        assert scores[0] == scores[1] == scores[2] == scores[3]


async def test_structural_matches_are_named(tmp_path: Path) -> None:
    """I7: files (also by their last part), modules, identifiers and domains that the question names are found."""
    async with index_world(tmp_path) as world:
        body = content(
            "Retries", "Raised as ERR_42.", domain="Cobrança", modules=["payments"], files=["src/app/retry.py"]
        )
        row = world.ledger.publish(body)
        world.ledger.publish(content("Something else"))
        await world.settled()
        answer = await world.search(
            "Onde cobranca de payments trata ERR_42 em retry.py?", branches=[pb.SEARCH_BRANCH_STRUCTURAL]
        )
        assert [c.revision for c in answer.candidates] == [row.name]
        assert set(answer.candidates[0].structural) == {
            "file:retry.py",
            "module:payments",
            "identifier:err_42",
            "domain:cobranca",
        }


async def test_as_of_questions_find_past_revisions(tmp_path: Path) -> None:
    """I2: valid_at finds what covered that day as known today; known_at leaves out what was recorded later."""
    async with index_world(tmp_path) as world:
        old = world.ledger.publish(content("The limit is ten"), valid_from=LONG_AGO)
        known = world.ledger.now
        family = old.name.rpartition("/revisions/")[0]
        new = world.ledger.publish(content("The limit is twenty"), family=family)
        await world.settled()
        then = await world.search("limit", valid_at=to_timestamp(LONG_AGO + timedelta(days=1)))
        assert [c.revision for c in then.candidates] == [old.name]
        assert then.candidates[0].in_force
        before = await world.search("limit", known_at=to_timestamp(known))
        assert [c.revision for c in before.candidates] == [old.name]
        now = await world.search("limit twenty")
        assert [c.revision for c in now.candidates] == [new.name]


async def test_one_broken_way_is_reported_and_the_others_answer(tmp_path: Path) -> None:
    """I7: no embedder, no dense search or no sparse search degrades the answer and is named in it."""
    async with index_world(tmp_path) as world:
        row = world.ledger.publish(content("Refunds take fourteen days"))
        await world.settled()
        world.embedder.broken = away
        answer = await world.search("refunds days")
        assert [(d.part, bool(d.reason)) for d in answer.degraded] == [("dense", True)]
        assert [c.revision for c in answer.candidates] == [row.name]
        assert not answer.candidates[0].HasField("dense")
        assert answer.candidates[0].sparse > 0
        world.embedder.broken = lambda _text: None
        collection = world.app.generations.live.collection
        for way in ("dense", "sparse"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(collection), f"search_{way}", _fails)
                answer = await world.search("refunds days")
                assert [d.part for d in answer.degraded] == [way]
                assert [c.revision for c in answer.candidates] == [row.name]
                assert answer.candidates[0].HasField("dense")


async def test_when_no_way_works_the_call_fails_and_can_be_repeated(tmp_path: Path) -> None:
    """I7: an answer that nothing stands behind is an error, never an empty list."""
    async with index_world(tmp_path) as world:
        world.ledger.publish(content("Refunds take fourteen days"))
        await world.settled()
        world.embedder.broken = away
        with pytest.raises(DomainError) as refused:
            await world.search("refunds", branches=[pb.SEARCH_BRANCH_DENSE])
        assert refused.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_a_vector_of_another_model_is_refused(tmp_path: Path) -> None:
    """I8: a query vector is compared only when its model and dimensions are those of the index."""
    async with index_world(tmp_path) as world:
        row = world.ledger.publish(content("Refunds take fourteen days"))
        await world.settled()
        values = list(await WordEmbedder().embed_query("refunds days"))
        good = pb.QueryVector(model="words", values=[v * 3 for v in values])
        answer = await world.search("anything", query_vector=good)
        assert [c.revision for c in answer.candidates] == [row.name]
        assert answer.candidates[0].dense > 0.2
        assert answer.candidates[0].dense <= 1.0
        for wrong in (pb.QueryVector(model="other", values=values), pb.QueryVector(model="words", values=values[:-1])):
            with pytest.raises(DomainError) as refused:
                await world.search("anything", query_vector=wrong)
            assert refused.value.reason is Reason.MODEL_MISMATCH
            assert refused.value.metadata["expected"] == "words/64"
        for odd in (math.nan, math.inf):
            with pytest.raises(DomainError) as refused:
                await world.search("anything", query_vector=pb.QueryVector(model="words", values=[odd, *values[1:]]))
            assert refused.value.fields[0].field == "query_vector.values"


async def test_find_similar_compares_heads(tmp_path: Path) -> None:
    """G5: FindSimilar returns the nearest heads of each text, nearest first, of one category when asked."""
    async with index_world(tmp_path) as world:
        old = world.ledger.publish(content("Refunds take fourteen days"))
        family = old.name.rpartition("/revisions/")[0]
        new = world.ledger.publish(content("Refunds take thirty days"), family=family)
        other = world.ledger.publish(content("Logs hold no secrets"), category=ledger_pb2.CATEGORY_BUSINESS_RULE)
        await world.settled()
        texts = [pb.SimilarText(title="Refunds take fourteen days"), pb.SimilarText(title="Logs hold no secrets")]
        request = pb.FindSimilarRequest(project="projects/billing", texts=texts)
        found = await world.call("FindSimilar", request, "reader")
        assert found.model == "words"
        assert [n.revision for n in found.results[0].neighbours] == [new.name, other.name]
        assert [n.revision for n in found.results[1].neighbours] == [other.name, new.name]
        assert found.results[1].neighbours[0].similarity == pytest.approx(1.0, abs=1e-3)
        request.category = ledger_pb2.CATEGORY_DESIGN_RULE
        found = await world.call("FindSimilar", request, "reader")
        assert [n.revision for n in found.results[1].neighbours] == [new.name]


async def test_support_is_measured_and_calibrated_when_the_corpus_is_quiet(tmp_path: Path) -> None:
    """R6: the answer carries the support signals with their baseline; the bank is asked in the background."""
    async with index_world(tmp_path) as world:
        for i in range(8):
            world.ledger.publish(content(f"Decision {i}", f"Payments of kind {i} are settled on day {i} of the month."))
        await world.settled()

        async def calibrated() -> bool:
            return "main" in (await world.status()).calibrated_branches

        await until(calibrated)
        answer = await world.search("On which day are payments of kind 3 settled?", measure_support=True)
        support = answer.support
        assert support.calibrated
        assert support.baseline_deviation > 0
        assert support.total == pytest.approx(support.sentence + support.centred + support.late)
        assert support.total > support.baseline_mean
        assert support.version.endswith("/words")


async def test_nothing_of_another_project_is_found(tmp_path: Path) -> None:
    """S1: a question sees its own project and branch only, whoever asks."""
    async with index_world(tmp_path) as world:
        world.ledger.publish(content("Refunds take fourteen days"), project="shipping")
        mine = world.ledger.publish(content("Refunds take thirty days"))
        world.ledger.publish(content("Refunds take sixty days"), branch="release/1")
        await world.settled()
        answer = await world.search("refunds days", who="admin")
        assert [c.revision for c in answer.candidates] == [mine.name]
        assert answer.heads == 1
        there = await world.search("refunds days", who="admin", branch="release/1")
        assert len(there.candidates) == 1


async def test_readers_of_the_project_only(tmp_path: Path) -> None:
    """S1: a foreign reader is refused whether or not the project exists; nobody without a token gets in."""
    async with index_world(tmp_path) as world:
        world.ledger.create_project()
        await world.settled()
        for rpc in ("SearchCandidates", "FindSimilar", "GetIndexStatus"):
            for project in ("billing", "nothing-here"):
                for who, reason in (("foreign", Reason.PERMISSION_DENIED), ("nobody", Reason.UNAUTHENTICATED)):
                    with pytest.raises(DomainError) as refused:
                        await world.call(rpc, _request(rpc, project), who)
                    assert refused.value.reason is reason
            await world.call(rpc, _request(rpc, "billing"), "reader")
            with pytest.raises(DomainError) as refused:
                await world.call(rpc, _request(rpc, "nothing-here"), "admin")
            assert refused.value.reason is Reason.NOT_FOUND


async def test_upkeep_needs_an_admin(tmp_path: Path) -> None:
    """S1: rebuild and verification need the role admin."""
    async with index_world(tmp_path) as world:
        world.ledger.create_project()
        await world.settled()
        for rpc in ("RebuildIndex", "GetRebuild"):
            with pytest.raises(DomainError) as refused:
                await world.call(rpc, getattr(pb, f"{rpc}Request")(project="projects/billing"), "reader")
            assert refused.value.reason is Reason.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as aborted:
            await world.verify(who="reader")
        assert aborted.value.code() is grpc.StatusCode.PERMISSION_DENIED


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"project": ""}, "project"),
    ({"project": "billing"}, "project"),
    ({"project": "projects/billing/families/x"}, "project"),
    ({"text": ""}, "text"),
    ({"text": "x" * 10_001}, "text"),
    ({"branch": "Main Branch"}, "branch"),
    ({"branches": [0]}, "branches[0]"),
    ({"branches": [9]}, "branches[0]"),
    ({"limit": -1}, "limit"),
    ({"limit": 501}, "limit"),
    ({"scopes": [77]}, "scopes[0]"),
    ({"categories": [0]}, "categories[0]"),
    ({"query_vector": {"model": "", "values": [1.0]}}, "query_vector.model"),
    ({"query_vector": {"model": "words"}}, "query_vector.values"),
    ({"valid_at": {"seconds": 10**13}}, "valid_at"),
    ({"known_at": {"nanos": 1}}, "known_at"),
]


async def test_bad_requests_name_their_field(tmp_path: Path) -> None:
    """S4: every malformed field is refused by name."""
    async with index_world(tmp_path) as world:
        world.ledger.create_project()
        for fields, wrong in BAD_REQUESTS:
            values = {"project": "projects/billing", "text": "What holds?", **fields}
            with pytest.raises(DomainError) as refused:
                await world.call("SearchCandidates", pb.SearchCandidatesRequest(**values))
            assert refused.value.reason is Reason.INVALID_FIELD, wrong
            assert [f.field for f in refused.value.fields] == [wrong]


async def test_a_ledger_that_is_away_does_not_hold_up_a_search(tmp_path: Path) -> None:
    """R7: what is indexed is found without the ledger; the status says that the lag is not known."""
    async with index_world(tmp_path) as world:
        row = world.ledger.publish(content("Refunds take fourteen days"))
        await until(lambda: _caught_up(world, 1))
        await world.ledger.stop()
        request = pb.SearchCandidatesRequest(project="projects/billing", text="refunds")
        answer = await world.stub.SearchCandidates(request, metadata=world.as_("reader"), timeout=1)
        assert [c.revision for c in answer.candidates] == [row.name]
        assert answer.applied_position == 1
        assert "ledger" in {d.part for d in (await world.status()).degraded}


async def test_what_admission_compared_is_not_embedded_again(tmp_path: Path) -> None:
    """G5: a text that was compared for admission and is then published costs one embedding, not two."""
    async with index_world(tmp_path) as world:
        world.ledger.create_project()
        await world.settled()
        text = pb.SimilarText(title="Refunds", summary="They take fourteen days.")
        request = pb.FindSimilarRequest(project="projects/billing", texts=[text])
        await world.call("FindSimilar", request, "reader")
        await world.call("FindSimilar", request, "reader")
        world.ledger.publish(content("Refunds", "They take fourteen days."))
        await world.settled()
        assert world.embedder.embedded.count("Refunds. They take fourteen days.") == 1
        assert len((await world.call("FindSimilar", request, "reader")).results[0].neighbours) == 1


async def test_odd_questions_get_an_answer(tmp_path: Path) -> None:
    """R8: emoji, CJK, only stop words, 10 kB and accents are questions like any other."""
    async with index_world(tmp_path) as world:
        row = world.ledger.publish(content("A decisão sobre notificações", "通知は日本語で送る"))
        await world.settled()
        for text in ("🙂", "通知", "the of and", "x " * 5_000, "\u202e", "ﬁ"):
            answer = await world.search(text, measure_support=True)
            assert all(math.isfinite(c.dense) and math.isfinite(c.sparse) for c in answer.candidates)
        for text in ("decisão", "decisao", "DECISÃO", "通知"):
            assert (await world.search(text)).candidates[0].sparse > 0.1, text
        assert row.name


async def _caught_up(world: World, position: int) -> bool:
    status = await world.status()
    return status.applied_position == status.ledger_position == position


async def _fails(*_arguments: object, **_named: object) -> None:
    raise RuntimeError("the engine is broken")


def _request(rpc: str, project: str) -> Any:
    request = getattr(pb, f"{rpc}Request")(project=f"projects/{project}")
    if rpc == "SearchCandidates":
        request.text = "What holds?"
    if rpc == "FindSimilar":
        request.texts.add(title="Something")
    return request
