"""The trunk: create, approve, apply, get, over a real server."""

from __future__ import annotations

from decisionssearch.ledger.v1 import ledger_pb2, ledger_service_pb2, proposal_pb2

from tests.ledger_stack import running, supersede


async def test_a_rule_is_proposed_approved_applied_and_read() -> None:
    """The main path: what was proposed and approved by another person is in force after the apply."""
    async with running() as stack:
        await stack.make_project()
        applied = await stack.create(key="adr/0007")
        assert applied.position == 1
        assert applied.proposal.status == proposal_pb2.PROPOSAL_STATUS_APPLIED
        assert applied.head.state == ledger_pb2.STATE_ACTIVE
        head = await stack.head(applied.head.family.name)
        assert head == applied.head
        again = await stack.publish(supersede(head.family.name, "Invoices may be corrected"))
        assert again.position == 2
        head = await stack.head(head.family.name, view=ledger_service_pb2.HEAD_VIEW_FULL)
        assert head.revision.content.title == "Invoices may be corrected"
        assert [p.title for p in head.past] == ["Invoices are immutable"]
        assert len(head.evidence) == 1
