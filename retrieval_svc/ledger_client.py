"""The ledger as retrieval sees it: the port, and its adapter over gRPC. What it says holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import grpc.aio
from decisionssearch.common.v1 import common_pb2
from decisionssearch.ledger.v1 import ledger_pb2, ledger_service_pb2_grpc
from decisionssearch.ledger.v1 import ledger_service_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from retrieval_svc.domain import (
    HeadDetail,
    Heads,
    LedgerHead,
    LinkedEvidence,
    PastRevision,
    Question,
    Replacement,
    State,
    Tail,
    View,
)
from service_kit import ledger_token
from service_kit.clock import to_timestamp
from service_kit.errors import from_rpc_error

MAX_FAMILIES: Final = 500
"""Families in one call, as the contract says."""
MAX_TEXT_CHARS: Final = 3_000
"""How much of a memory's text is kept for matching words here."""

_PREFIX: Final = "STATE_"
_STATES: Final[Mapping[ledger_pb2.State.ValueType, State]] = {
    number: State(name.removeprefix(_PREFIX))
    for name, number in ledger_pb2.State.items()
    if name.removeprefix(_PREFIX) in State.__members__
}
_NUMBERS: Final[Mapping[State, ledger_pb2.State.ValueType]] = {state: number for number, state in _STATES.items()}
_VIEWS: Final[Mapping[View, pb.HeadView.ValueType]] = {
    View.STATE: pb.HEAD_VIEW_STATE,
    View.BASIC: pb.HEAD_VIEW_BASIC,
    View.FULL: pb.HEAD_VIEW_FULL,
}


class LedgerReader(Protocol):
    """What retrieval reads of the ledger. Every method raises ``DomainError`` when the ledger refuses or is gone."""

    async def heads(self, question: Question, families: Sequence[str], view: View, *, token: str = "") -> Heads:
        """Return the heads of families at the moment of the question, and of all that replaced them.

        Args:
            question: Names project, branch and moment.
            families: Which, at least one; of the question's project.
            view: How much of each.
            token: The LedgerToken to be at least as fresh as.
        """

    async def query(
        self,
        question: Question,
        states: Iterable[State],
        view: View,
        *,
        page_size: int,
        page: str = "",
        token: str = "",
    ) -> Heads:
        """Return a page of the heads in some states that the question's filters let through."""

    async def tail(self, project: str, after_position: int, *, at_most: int) -> Tail:
        """Return the families that commits after a position changed."""


class GrpcLedgerReader:
    """The port over gRPC. The channel passes on the caller's token; closing it is its maker's task."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ledger_service_pb2_grpc.LedgerServiceStub(channel)

    async def heads(self, question: Question, families: Sequence[str], view: View, *, token: str = "") -> Heads:
        """Return the heads of families and of all that replaced them."""
        parts = [families[i : i + MAX_FAMILIES] for i in range(0, len(families), MAX_FAMILIES)]
        if len(parts) == 1:
            return await self._batch(question, parts[0], view, token)
        answers = await asyncio.gather(*(self._batch(question, part, view, token) for part in parts))
        # The answer as a whole is as old as its oldest part.
        oldest = min(answers, key=lambda a: a.position)
        merged: dict[str, LedgerHead] = {}
        for answer in answers:
            merged.update(answer.by_family)
        return Heads(merged, oldest.token, oldest.position)

    async def query(
        self,
        question: Question,
        states: Iterable[State],
        view: View,
        *,
        page_size: int,
        page: str = "",
        token: str = "",
    ) -> Heads:
        """Return a page of heads."""
        request = pb.QueryHeadsRequest(
            project=f"projects/{question.project}",
            branch=question.branch,
            # The generated types list the values of an enum; these were checked to be among them.
            scopes=sorted(question.scopes),  # type: ignore[arg-type]
            categories=sorted(question.categories),  # type: ignore[arg-type]
            states=sorted(_NUMBERS[s] for s in states if s in _NUMBERS),
            view=_VIEWS[view],
            page_size=page_size,
            page_token=page,
            consistency=_consistency(token),
        )
        _set_moment(request, question)
        try:
            response = await self._stub.QueryHeads(request, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "ledger") from None
        heads = {h.family.name: head_from_proto(h, view) for h in response.heads}
        position = ledger_token.decode(response.token, "token").position
        return Heads(heads, response.token.value, position, response.next_page_token)

    async def tail(self, project: str, after_position: int, *, at_most: int) -> Tail:
        """Return the families that commits after a position changed."""
        request = pb.ListChangesRequest(
            project=f"projects/{project}", after_position=after_position, page_size=min(at_most, MAX_FAMILIES)
        )
        families: dict[str, None] = {}
        while True:
            try:
                response = await self._stub.ListChanges(request, wait_for_ready=False)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
            for change in response.changes:
                families.update(dict.fromkeys(change.families))
            last = response.changes[-1].position if response.changes else response.head_position
            if last >= response.head_position or not response.changes:
                return Tail(tuple(families), complete=True)
            if last - after_position >= at_most:
                return Tail(tuple(families), complete=False)
            request.after_position = last

    async def _batch(self, question: Question, families: Sequence[str], view: View, token: str) -> Heads:
        request = pb.BatchGetHeadsRequest(
            project=f"projects/{question.project}",
            branch=question.branch,
            families=families,
            view=_VIEWS[view],
            follow_replacements=True,
            consistency=_consistency(token),
        )
        _set_moment(request, question)
        try:
            response = await self._stub.BatchGetHeads(request, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "ledger") from None
        heads = {h.family.name: head_from_proto(h, view) for h in response.heads}
        position = ledger_token.decode(response.token, "token").position
        return Heads(heads, response.token.value, position)


def head_from_proto(message: ledger_pb2.Head, view: View) -> LedgerHead:
    """Return what retrieval needs of a head. Contents are only looked at in the views that carry them."""
    revision, family = message.revision, message.family
    return LedgerHead(
        family=family.name,
        branch=message.branch,
        state=_STATES.get(message.state, State.UNKNOWN),
        revision=revision.name,
        content_hash=revision.content_hash,
        position=message.position,
        scope=family.scope,
        category=family.category,
        identity_key=family.identity_key,
        replaced_by=tuple(map(_replacement, message.replaced_by)),
        view=view,
        detail=None if view is View.STATE else _detail(message),
        source=message,
    )


def sections(head: LedgerHead) -> list[tuple[str, str]]:
    """Return the parts of a head's content that say something, each with its label, the weightiest first."""
    content = head.source.revision.content
    parts = [
        ("", content.summary),
        ("Rules", _bullets(content.rules)),
        ("Steps", _bullets(content.steps)),
        ("Objective", content.objective),
        ("Trigger", content.trigger),
        ("Task", content.task),
        ("Outcome", content.outcome),
        ("Rationale", content.rationale),
        ("Alternatives", _bullets(content.alternatives)),
        ("Examples", _bullets(content.examples)),
        ("Files", ", ".join(content.files)),
        ("Modules", ", ".join(content.modules)),
        ("Details", content.details),
    ]
    return [(label, text) for label, text in parts if text.strip()]


def category_name(head: LedgerHead) -> str:
    """Return the category in words, e.g. ``business rule``."""
    if head.category not in ledger_pb2.Category.values():
        return "memory"
    name: str = ledger_pb2.Category.Name(head.source.family.category)
    return name.removeprefix("CATEGORY_").replace("_", " ").lower()


def _detail(message: ledger_pb2.Head) -> HeadDetail:
    content = message.revision.content
    return HeadDetail(
        title=content.title,
        text=_text(content),
        importance=content.importance,
        valid_from=_seconds(message.valid_from) if message.HasField("valid_from") else None,
        valid_to=_seconds(message.valid_to) if message.HasField("valid_to") else None,
        replaces=tuple(map(_replacement, message.replaces)),
        past=tuple(
            PastRevision(
                p.revision, p.title, _seconds(p.valid_to) if p.HasField("valid_to") else None, p.replaced_because
            )
            for p in message.past
        ),
        evidence=tuple(
            LinkedEvidence(
                source=e.evidence.source_hash or e.evidence.locator or e.link.evidence,
                supports=e.link.stance == ledger_pb2.STANCE_SUPPORTS,
                verified=e.evidence.verification == ledger_pb2.VERIFICATION_STATE_VERIFIED,
            )
            for e in message.evidence
        ),
        conflicts=tuple(
            r.target_family if r.source_family == message.family.name else r.source_family
            for r in message.relations
            if r.kind == ledger_pb2.RELATION_KIND_CONFLICTS_WITH
        ),
        review=tuple(dict.fromkeys(flag.cause for flag in message.needs_review)),
    )


def _text(content: ledger_pb2.Content) -> str:
    left = MAX_TEXT_CHARS
    parts: list[str] = []
    for part in _texts(content):
        if part:
            parts.append(part[:left])
            left -= len(part) + 1
        if left <= 0:
            break
    return "\n".join(parts)


def _texts(content: ledger_pb2.Content) -> Iterable[str]:
    # A generator, so that what no longer fits is not even copied out of the message.
    yield content.title
    yield content.summary
    yield from content.rules
    yield content.domain
    yield from content.files
    yield from content.modules
    yield content.objective
    yield content.trigger
    yield content.rationale
    yield content.task
    yield content.outcome
    yield from content.steps
    yield content.details


def _replacement(message: ledger_pb2.Replacement) -> Replacement:
    return Replacement(
        family=message.family,
        identity_key=message.identity_key,
        title=message.title,
        effective=_seconds(message.effective_time) if message.HasField("effective_time") else None,
        reason=message.reason,
    )


def _seconds(timestamp: Timestamp) -> float:
    return float(timestamp.seconds) + timestamp.nanos / 1e9


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _consistency(token: str) -> common_pb2.Consistency | None:
    if not token:
        return None
    return common_pb2.Consistency(at_least_as_fresh=common_pb2.LedgerToken(value=token))


def _set_moment(request: pb.BatchGetHeadsRequest | pb.QueryHeadsRequest, question: Question) -> None:
    # A moment that was left out stays out: the ledger's clock, which dated the writes, says what now is.
    if question.valid_at is not None:
        request.valid_at.CopyFrom(to_timestamp(question.valid_at))
    if question.known_at is not None:
        request.known_at.CopyFrom(to_timestamp(question.known_at))
