"""The landing zone: observations, admissions, signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ledger_svc.domain import errors
from ledger_svc.domain.model import Admission, AdmissionOutcome, Observation, Signal, SourceKind
from ledger_svc.domain.state import State, StateNeeds
from ledger_svc.service.commands import Command, Made, Request
from ledger_svc.service.context import Ledger
from ledger_svc.state import Landing, StateQuery, WorkingState
from ledger_svc.views import ObservationView
from service_kit import names
from service_kit.errors import as_domain_error, not_found
from service_kit.principals import Principal as Caller
from service_kit.principals import Role


@dataclass(frozen=True, slots=True)
class Recorded:
    """An observation as stored, and whether it is new."""

    view: ObservationView
    created: bool


class ObservationService:
    """Raw events and what became of them. Not knowledge: nothing here makes a proposal or a revision."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def record(self, request: Request, observations: Sequence[Observation]) -> list[Recorded]:
        """Record observations; the same source, locator and hash give the same one."""
        await self._ledger.enter(request.caller, request.project_id, Role.PROPOSER)
        made = await self._decide(_RecordObservations(self._ledger, request, observations))
        ids = [item[0] for item in made.kept["observations"]]
        views = await self._ledger.store.observations_by_id(request.project_id, ids, made.kept["admissions"])
        return [Recorded(views[ident], created) for ident, created in made.kept["observations"]]

    async def admit(self, request: Request, admissions: Sequence[Admission]) -> None:
        """Record what became of observations."""
        await self._ledger.enter(request.caller, request.project_id, Role.PROPOSER)
        await self._decide(_RecordAdmissions(self._ledger, request, admissions))

    async def page(
        self, caller: Caller, project_id: str, outcomes: frozenset[AdmissionOutcome], after: int, limit: int
    ) -> list[ObservationView]:
        """List observations with their latest admission, oldest first."""
        await self._ledger.enter(caller, project_id)
        return await self._ledger.store.observations(project_id, outcomes, after, limit)

    async def signal(self, request: Request, signals: Sequence[Signal]) -> None:
        """Record usage and feedback."""
        await self._ledger.enter(request.caller, request.project_id)
        await self._decide(_RecordSignals(self._ledger, request, signals))

    async def _decide(self, command: Command[None]) -> Made[None]:
        outcome = (await self._ledger.store.decide([command]))[0]
        if outcome.error is not None:
            raise as_domain_error(outcome.error) or outcome.error
        made: Made[None] = outcome.result
        return made


def observation_key(source_kind: SourceKind, locator: str, source_hash: str) -> tuple[str, str, str]:
    """Return what makes two observations one."""
    return (source_kind.value, locator, source_hash)


@dataclass(slots=True)
class _RecordObservations(Command[None]):
    observations: Sequence[Observation]
    """Without ids and record time."""

    def asks(self, working: WorkingState, state: State) -> StateQuery:
        del working, state
        keys = frozenset(observation_key(o.source_kind, o.locator, o.source_hash) for o in self.observations)
        return StateQuery(StateNeeds(self.project_id), self.ledger.now(), observation_keys=keys)

    def run(self, state: State, working: WorkingState, now: datetime) -> tuple[None, Mapping[str, Any], Landing]:
        del state
        known = dict(working.observation_keys)
        added: list[Observation] = []
        answers: list[tuple[str, bool]] = []
        for observation in self.observations:
            key = observation_key(observation.source_kind, observation.locator, observation.source_hash)
            ident = known.get(key)
            if ident is None:
                ident = self.ledger.new_id()
                known[key] = ident
                added.append(replace(observation, observation_id=ident, recorded_at=now))
                answers.append((ident, True))
            else:
                answers.append((ident, False))
        admissions = {ident: working.admissions.get(ident, 0) for ident, created in answers if not created}
        kept = {"observations": answers, "admissions": admissions}
        return None, kept, Landing(self.project_id, observations=tuple(added))


@dataclass(slots=True)
class _RecordAdmissions(Command[None]):
    admissions: Sequence[Admission]
    """Without number and record time."""

    def asks(self, working: WorkingState, state: State) -> StateQuery:
        del working, state
        needs = StateNeeds(
            self.project_id,
            families=frozenset(a.duplicate_of for a in self.admissions if a.duplicate_of),
            proposals=frozenset(p for a in self.admissions for p in a.proposal_ids),
        )
        ids = frozenset(a.observation_id for a in self.admissions)
        return StateQuery(needs, self.ledger.now(), observations=ids)

    def run(self, state: State, working: WorkingState, now: datetime) -> tuple[None, Mapping[str, Any], Landing]:
        count = dict(working.admissions)
        made = []
        for admission in self.admissions:
            if admission.observation_id not in working.observations:
                raise errors.not_found(names.observation_name(self.project_id, admission.observation_id))
            if admission.duplicate_of:
                state.family(admission.duplicate_of)
            for proposal_id in admission.proposal_ids:
                if proposal_id not in state.proposals:
                    raise errors.not_found(names.proposal_name(self.project_id, proposal_id))
            number = count.get(admission.observation_id, 0) + 1
            count[admission.observation_id] = number
            made.append(replace(admission, number=number, recorded_at=now))
        return None, {}, Landing(self.project_id, admissions=tuple(made))


@dataclass(slots=True)
class _RecordSignals(Command[None]):
    signals: Sequence[Signal]
    """Without record time."""

    def asks(self, working: WorkingState, state: State) -> StateQuery:
        del working, state
        needs = StateNeeds(self.project_id, families=frozenset(s.family_id for s in self.signals))
        return StateQuery(needs, self.ledger.now())

    def run(self, state: State, working: WorkingState, now: datetime) -> tuple[None, Mapping[str, Any], Landing]:
        del working
        for signal in self.signals:
            if signal.family_id not in state.families:
                raise not_found(names.family_name(self.project_id, signal.family_id))
        made = tuple(replace(signal, recorded_at=now) for signal in self.signals)
        return None, {}, Landing(self.project_id, signals=made)
