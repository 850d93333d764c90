"""What ingest needs of the index: neighbours of a content, for the gate of duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import grpc.aio
from decisionssearch.index.v1 import index_service_pb2, index_service_pb2_grpc

from ingest_svc.domain import Content, Similar
from service_kit.errors import from_rpc_error

MAX_TEXTS: Final = 64
MAX_DETAILS_CHARS: Final = 8_000
NEIGHBOURS: Final = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """Neighbours of several contents, and the embedding model that measured them."""

    model: str
    neighbours: Sequence[tuple[Similar, ...]]


class SimilaritySource(Protocol):
    """Finds heads that say nearly the same. A failure is raised as ``DomainError``."""

    async def similar(self, project: str, branch: str, contents: Sequence[Content]) -> Comparison:
        """Return the neighbours of each content, nearest first."""


class GrpcSimilaritySource:
    """The port over gRPC. Closing the channel is its maker's task."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout_seconds: float = 10.0) -> None:
        self._index = index_service_pb2_grpc.IndexServiceStub(channel)
        self._timeout = timeout_seconds

    async def similar(self, project: str, branch: str, contents: Sequence[Content]) -> Comparison:
        """Return the neighbours of each content."""
        model = ""
        found: list[tuple[Similar, ...]] = []
        for start in range(0, len(contents), MAX_TEXTS):
            part = contents[start : start + MAX_TEXTS]
            request = index_service_pb2.FindSimilarRequest(
                project=f"projects/{project}",
                branch=branch,
                texts=[_text(content) for content in part],
                limit=NEIGHBOURS,
            )
            try:
                response = await self._index.FindSimilar(request, timeout=self._timeout)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "index") from None
            model = response.model
            found += [
                tuple(Similar(family=n.family, score=n.similarity, head=n.revision) for n in result.neighbours)
                for result in response.results
            ]
        return Comparison(model, found)


def _text(content: Content) -> index_service_pb2.SimilarText:
    more = (content.details, content.rationale, *content.rules, *content.steps)
    return index_service_pb2.SimilarText(
        title=content.title,
        summary=content.summary,
        details="\n".join(part for part in more if part)[:MAX_DETAILS_CHARS],
    )
