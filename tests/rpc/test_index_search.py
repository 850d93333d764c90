"""The index over gRPC: it fills itself, and finds."""

from __future__ import annotations

from pathlib import Path

from tests.index_ledger_stub import content
from tests.index_world import index_world, until


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

        async def caught_up() -> bool:
            status = await world.status()
            return status.applied_position == status.ledger_position == 1

        await until(caught_up)
        status = await world.status()
        assert (status.points, status.heads, status.dead_letters, list(status.degraded)) == (1, 1, 0, [])
        assert status.model == "words"
