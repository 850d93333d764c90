"""The landing zone: raw events as received, sanitised, and what became of them. Not knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from ledger_svc.domain.model.fields import server_made
from ledger_svc.domain.model.kinds import AdmissionOutcome, SignalKind, SourceKind
from ledger_svc.domain.model.knowledge import Principal


@dataclass(frozen=True, slots=True)
class Observation:
    """One raw event. Idempotent by (source_kind, locator, source_hash)."""

    SCHEMA: ClassVar[str] = "observation/1"

    observation_id: str = field(metadata=server_made("an id made by the server"))
    project_id: str
    source_kind: SourceKind
    locator: str
    source_hash: str
    title: str
    text: str
    author: str
    source_time: datetime | None
    attributes: Mapping[str, str]
    recorded_by: Principal = field(metadata=server_made("who brought it"))
    recorded_at: datetime = field(metadata=server_made("capture time"))


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of one observation, once; an observation may have several over time."""

    SCHEMA: ClassVar[str] = "admission/1"

    observation_id: str
    number: int
    """1, 2, 3, ... for one observation."""
    outcome: AdmissionOutcome
    reasons: tuple[str, ...]
    proposal_ids: tuple[str, ...]
    extractor: str
    recorded_by: Principal
    recorded_at: datetime
    duplicate_of: str = ""
    """Id of the family that says the same already."""
    retryable: bool = False
    """For FAILED: trying again may help."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Usage of a memory or feedback on it. Feeds ranking; never makes a proposal or a revision."""

    SCHEMA: ClassVar[str] = "signal/1"

    project_id: str
    family_id: str
    kind: SignalKind
    happened_at: datetime
    recorded_by: Principal
    recorded_at: datetime
