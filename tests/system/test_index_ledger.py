"""The index on a real ledger: whatever happens there, the points end as a fresh rebuild makes them."""

# ruff: noqa: F811 - a fixture is imported, and then named by its tests
from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from decisionssearch.ledger.v1 import outbox_service_pb2, proposal_pb2

from service_kit.errors import from_rpc_error
from tests.index_world import WordEmbedder, World, index_world, tmp_path, until  # noqa: F401 - a fixture
from tests.ledger_stack import PROJECT, Stack, create_rule, running, stamp, supersede

WORDS = [
    *("refund", "invoice", "retry", "log", "tax", "parcel", "courier"),
    *("billing", "ledger", "branch", "merge", "release", "rollback", "expiry", "audit"),
]


class History:
    """Random changes of a real ledger; what it refuses is no change."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self._stack = stack
        self._random = random.Random(seed)
        self.families: list[str] = []
        self.done = 0

    async def step(self) -> None:
        """Make one change."""
        kinds = ["create", "supersede", "schedule", "cancel", "invalidate", "expire", "rollback", "update", "deprecate"]
        kind = "create" if len(self.families) < 3 else self._random.choice(kinds)
        mutation = await self._mutation(kind)
        if mutation is None:
            return
        try:
            applied = await self._stack.publish(mutation)
        except grpc.aio.AioRpcError as error:
            from_rpc_error(error)
            return
        self.done += 1
        if kind == "create":
            self.families.append(applied.head.family.name)

    async def _mutation(self, kind: str) -> proposal_pb2.Mutation | None:
        title = " ".join(self._random.sample(WORDS, 4))
        if kind == "create":
            return create_rule(title)
        family = self._random.choice(self.families)
        soon = self._stack.clock.now() + timedelta(days=self._random.randint(1, 30))
        if kind == "supersede":
            return supersede(family, title)
        if kind == "schedule":
            return supersede(family, title, soon)
        if kind == "invalidate":
            return proposal_pb2.Mutation(invalidate=proposal_pb2.InvalidateMutation(family=family))
        if kind == "expire":
            return proposal_pb2.Mutation(set_expiry=proposal_pb2.SetExpiryMutation(family=family, valid_to=stamp(soon)))
        if kind == "deprecate":
            other = self._random.choice(self.families)
            return proposal_pb2.Mutation(
                deprecate=proposal_pb2.DeprecateMutation(family=family, replacement_family=other, rationale="newer")
            )
        head = await self._stack.head(family)
        if kind == "cancel":
            if not head.scheduled:
                return None
            return proposal_pb2.Mutation(
                cancel_schedule=proposal_pb2.CancelScheduleMutation(family=family, revision=head.scheduled[0].revision)
            )
        if kind == "rollback":
            return proposal_pb2.Mutation(
                rollback=proposal_pb2.RollbackMutation(family=family, to_revision=head.revision.name)
            )
        return supersede(family, head.revision.content.title)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_histories_converge_to_a_fresh_rebuild(tmp_path: Path, seed: int) -> None:
    """I2, I4, L10: random changes, two followers and a rebuild in the middle end with the points of a fresh index."""
    async with running() as stack:
        await stack.make_project()
        history = History(stack, seed)
        async with index_world(tmp_path / "lived", ledger=stack, token="indexer", batch_size=7) as world:
            await world.settled()
            second = asyncio.create_task(world.app.follower.run(world.host.stopping))
            rebuilt = False
            while history.done < 60:
                await history.step()
                if history.done >= 30 and not rebuilt:
                    rebuilt = (await world.rebuild(f"middle-{seed}")).done > 0
            await world.settled()
            lived = await world.points()
            assert await world.drifts() == []
            status = await world.status()
            assert status.applied_position == status.ledger_position
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        async with index_world(tmp_path / "fresh", ledger=stack, token="indexer", follow=False) as world:
            await world.settled()
            fresh = await world.points()
            assert without_positions(fresh) == without_positions(lived)
            assert await world.drifts() == []


async def test_what_is_applied_is_found_and_rolled_back(tmp_path: Path) -> None:
    """I1, L10: create, supersede and roll back in a real ledger; the index follows each step by itself."""
    async with running() as stack:
        await stack.make_project()
        async with index_world(tmp_path, ledger=stack, token="indexer") as world:
            first = await stack.create("Refunds take fourteen days")
            await world.settled()
            await found(world, "refunds fourteen", first.head.revision.name)
            family = first.head.family.name
            second = await stack.publish(supersede(family, "Refunds take thirty days"))
            await world.settled()
            await found(world, "refunds thirty", second.head.revision.name)
            back = proposal_pb2.RollbackMutation(family=family, to_revision=first.head.revision.name)
            third = await stack.publish(proposal_pb2.Mutation(rollback=back))
            await world.settled()
            await found(world, "refunds fourteen", third.head.revision.name)
            assert [c.in_force for c in (await world.search("refunds")).candidates if c.is_head] == [True]


async def test_dead_letters_of_a_real_ledger_are_redriven(tmp_path: Path) -> None:
    """I3: an event that cannot be indexed is given back to the ledger with its reason, and comes back by redrive."""
    async with running() as stack:
        await stack.make_project()
        embedder = WordEmbedder()
        async with index_world(tmp_path, ledger=stack, token="indexer", embedder=embedder) as world:
            await world.settled()
            embedder.broken = lambda text: ValueError("no") if "poison" in text else None
            await stack.create("The poison rule")
            good = await stack.create("The good rule")

            async def buried() -> bool:
                # Backoffs end by the ledger's clock; small steps, or the leases would end as well.
                stack.clock.advance(timedelta(seconds=2))
                return (await world.outbox.stats()).dead > 0

            await until(buried)
            stats = await world.outbox.stats(PROJECT)
            assert (stats.dead, stats.pending) == (1, 0)
            await found(world, "good rule", good.head.revision.name)
            embedder.broken = lambda _text: None
            request = outbox_service_pb2.RedriveDeadLettersRequest(project=f"projects/{PROJECT}")
            assert (await stack.as_("indexer").outbox.RedriveDeadLetters(request)).redriven == 1
            await world.settled()
            assert len(await world.points()) == 2
            assert await world.drifts() == []


def without_positions(points: dict[str, Any]) -> dict[str, Any]:
    """Return the points as far as they say something: a position may be that of a later look at the same."""
    return {i: replace(p, position=0) for i, p in points.items()}


async def found(world: World, text: str, revision: str) -> None:
    """Check that the best candidate is the revision."""
    answer = await world.search(text)
    assert answer.candidates, text
    assert answer.candidates[0].revision == revision
