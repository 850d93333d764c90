"""Sends what a source reading holds and says what became of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest_pb2
from decisionssearch.ledger.v1 import observation_service_pb2 as observation_pb2

from dsearch.sources.model import SourceReading, Supersession
from service_kit.errors import DomainError, Reason, from_item_error

_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.5
_TRANSIENT: Final = frozenset({Reason.DEPENDENCY_UNAVAILABLE, Reason.SHUTTING_DOWN, Reason.WRITE_CONTENTION})

Progress = Callable[[int, int], None]
"""Called with how many are done and how many there are."""


class IngestClient(Protocol):
    """The part of the client that an import needs."""

    def ingest(
        self,
        project: str,
        observations: Sequence[ingest_pb2.RawObservation],
        *,
        branch: str = "",
        apply_approved: bool = True,
    ) -> Any:
        """Send observations and yield their outcomes."""


@dataclass(slots=True)
class ImportSummary:
    """What became of an import."""

    observations: int = 0
    """Of memories; those of relations between them are not among these."""
    sent: int = 0
    """Observations of both."""
    families: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """By outcome: PROPOSED, DUPLICATE, NO_MEMORY, REJECTED, FAILED."""
    replayed: int = 0
    """Known from an earlier import; nothing was done."""
    published: int = 0
    """Observations whose proposals were approved by rule and applied."""
    waiting: list[str] = field(default_factory=list)
    """Proposals that wait for a reviewer."""
    relations: int = 0
    redactions: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """Locator, outcome and reasons of every observation that was REJECTED or FAILED."""
    supersessions: Sequence[Supersession] = ()

    @property
    def failed(self) -> int:
        """Observations that could not be processed."""
        return self.outcomes["FAILED"]

    @property
    def one_sided(self) -> list[Supersession]:
        """Supersessions that only one of the two documents states."""
        return [s for s in self.supersessions if s.one_sided]

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "observations": self.observations,
            "sent": self.sent,
            "families": self.families,
            "outcomes": dict(self.outcomes),
            "replayed": self.replayed,
            "published": self.published,
            "waiting_proposals": self.waiting,
            "relations": self.relations,
            "redactions": dict(self.redactions),
            "refused": [{"locator": loc, "outcome": out, "reasons": why} for loc, out, why in self.refused],
            "one_sided_supersessions": [
                {"old": s.old, "new": s.new, "followed": s.followed, "why": s.why} for s in self.one_sided
            ],
            "supersessions_not_followed": [
                {"old": s.old, "new": s.new, "why": s.why} for s in self.supersessions if not s.followed
            ],
        }


async def run_import(
    client: IngestClient,
    project: str,
    reading: SourceReading,
    *,
    branch: str = "",
    apply_approved: bool = True,
    progress: Progress | None = None,
) -> ImportSummary:
    """Send the documents in order, then the relations between them; return what became of each.

    A broken connection or a busy server costs nothing: what has no answer yet is sent again, and what had been done
    is recognised. Failures that another try may mend are tried again at the end.
    """
    summary = ImportSummary(families=reading.families, supersessions=reading.supersessions)
    total = len(reading.documents) + len(reading.relations)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    for batch, are_relations in ((reading.documents, False), (reading.relations, True)):
        answers = await _send_all(client, project, batch, branch, apply_approved, step)
        for observation, answer in zip(batch, answers, strict=True):
            _count(summary, observation, answer, are_relations=are_relations)
    return summary


async def _send_all(
    client: IngestClient,
    project: str,
    batch: Sequence[ingest_pb2.RawObservation],
    branch: str,
    apply_approved: bool,
    step: Callable[[], None],
) -> list[ingest_pb2.IngestObservationsResponse]:
    answers: dict[int, ingest_pb2.IngestObservationsResponse] = {}
    left = list(range(len(batch)))
    for attempt in range(1, _ATTEMPTS + 1):
        if not left:
            break
        numbers = left
        try:
            outcomes = client.ingest(project, [batch[i] for i in numbers], branch=branch, apply_approved=apply_approved)
            async for answer in outcomes:
                number = numbers[answer.sequence - 1]
                if number not in answers:
                    step()
                answers[number] = answer
        except DomainError as error:
            if error.reason not in _TRANSIENT or attempt == _ATTEMPTS:
                raise
        left = [i for i in range(len(batch)) if i not in answers or _may_mend(answers[i])]
        if left and attempt < _ATTEMPTS:
            await asyncio.sleep(_PAUSE_SECONDS * attempt)
    missing = [i for i in range(len(batch)) if i not in answers]
    if missing:
        raise DomainError(
            Reason.DEPENDENCY_UNAVAILABLE,
            f"{len(missing)} observations got no answer; run the import again, it goes on where it stopped",
        )
    return [answers[i] for i in range(len(batch))]


def _may_mend(answer: ingest_pb2.IngestObservationsResponse) -> bool:
    if answer.outcome != observation_pb2.ADMISSION_OUTCOME_FAILED:
        return False
    return not answer.HasField("error") or from_item_error(answer.error).reason in _TRANSIENT


def _count(
    summary: ImportSummary,
    observation: ingest_pb2.RawObservation,
    answer: ingest_pb2.IngestObservationsResponse,
    *,
    are_relations: bool,
) -> None:
    outcome = observation_pb2.AdmissionOutcome.Name(answer.outcome).removeprefix("ADMISSION_OUTCOME_")
    summary.sent += 1
    summary.observations += not are_relations
    summary.outcomes[outcome] += 1
    summary.replayed += answer.replayed
    summary.published += bool(answer.families)
    summary.relations += are_relations and bool(answer.proposals) and not answer.replayed
    if answer.proposals and not answer.families and not answer.replayed:
        summary.waiting += answer.proposals
    for kind, count in answer.redactions.items():
        summary.redactions[kind] += count
    if outcome in {"REJECTED", "FAILED"}:
        reasons = list(answer.reasons) or [f"{g.gate}: {g.reason}" for g in answer.gates if not g.passed]
        if answer.HasField("error"):
            reasons.append(answer.error.message)
        summary.refused.append((observation.locator, outcome, reasons))
