"""What a group of decisions works on: the domain's ``State`` of one project, and how it is read piece by piece.

Before a decision runs, what it needs and is not there yet is asked of the store with a ``StateQuery``; what it decides
is put on top with :meth:`WorkingState.put`, so that the next decision of the group sees it, though nothing is
committed yet. That is the whole concurrency control, the same for every store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from ledger_svc.domain.model import Admission, ChangeSet, Observation, RelationKind, Signal, StoredReply
from ledger_svc.domain.state import FamilyBranch, State, StateNeeds, apply_to_state

BEGINNING = datetime(1, 1, 1, tzinfo=UTC)
INCOMING = (RelationKind.DEPENDS_ON, RelationKind.REFINES, RelationKind.DEPRECATES)
"""The kinds that ``StateNeeds.incoming`` is about."""

ReplyKey = tuple[str, str, str]
"""Caller, rpc, request_id."""
ObservationKey = tuple[str, str, str]
"""Source kind, locator, source hash."""


@dataclass(frozen=True, slots=True)
class StateQuery:
    """What a store must read. What does not exist is left out."""

    needs: StateNeeds
    rows_since: datetime = BEGINNING
    """Of the open rows of each head: from the one that covers this moment (else the last one before it) on."""
    replies: frozenset[ReplyKey] = frozenset()
    observations: frozenset[str] = frozenset()
    """By id."""
    observation_keys: frozenset[ObservationKey] = frozenset()

    @property
    def project_id(self) -> str:
        """The project that it is about."""
        return self.needs.project_id

    @staticmethod
    def union(queries: Sequence[StateQuery]) -> StateQuery:
        """Return one query for what all of several ask for; they are about one project, and at least one."""
        first = queries[0]
        if any(query.project_id != first.project_id for query in queries):
            raise ValueError("needs of two projects are never read together")
        needs: dict[str, Any] = {name: frozenset().union(*(getattr(q.needs, name) for q in queries)) for name in _SETS}
        return StateQuery(
            replace(first.needs, **needs),
            min(query.rows_since for query in queries),
            frozenset[ReplyKey]().union(*(query.replies for query in queries)),
            frozenset[str]().union(*(query.observations for query in queries)),
            frozenset[ObservationKey]().union(*(query.observation_keys for query in queries)),
        )

    def __or__(self, other: StateQuery) -> StateQuery:
        return StateQuery(
            self.needs | other.needs,
            min(self.rows_since, other.rows_since),
            self.replies | other.replies,
            self.observations | other.observations,
            self.observation_keys | other.observation_keys,
        )


@dataclass(frozen=True, slots=True)
class Landing:
    """What is stored without being knowledge: observations, admissions, signals. Atomic with its replies."""

    project_id: str
    observations: tuple[Observation, ...] = ()
    admissions: tuple[Admission, ...] = ()
    signals: tuple[Signal, ...] = ()
    replies: tuple[StoredReply, ...] = ()


Change = ChangeSet | Landing

_SETS = tuple(f.name for f in fields(StateNeeds) if f.name != "project_id")


@dataclass(slots=True)
class WorkingState:
    """The part of one project that was read so far, with the changes of the group on top."""

    project_id: str
    state: State | None = None
    """None while the project does not exist."""
    importing: bool = False
    """Whether it does not exist yet because an import of it has not ended."""
    replies: dict[ReplyKey, StoredReply] = field(default_factory=dict)
    observations: dict[str, Observation] = field(default_factory=dict)
    admissions: dict[str, int] = field(default_factory=dict)
    """How many admissions an observation has."""
    observation_keys: dict[ObservationKey, str] = field(default_factory=dict)
    heads_since: dict[FamilyBranch, datetime] = field(default_factory=dict)
    """From which moment on the rows of each head were read."""
    answered: StateQuery = field(init=False)
    """All that was asked for."""

    def __post_init__(self) -> None:
        self.answered = StateQuery(StateNeeds(self.project_id))

    def missing(self, wanted: StateQuery) -> StateQuery | None:
        """Return what of a query is not here yet; None when all of it is."""
        done = self.answered
        left = {name: getattr(wanted.needs, name) - getattr(done.needs, name) for name in _SETS}
        never = datetime.max.replace(tzinfo=UTC)
        left["heads"] = frozenset(
            key for key in wanted.needs.heads if self.heads_since.get(key, never) > wanted.rows_since
        )
        replies = wanted.replies - done.replies
        observations = wanted.observations - done.observations
        keys = wanted.observation_keys - done.observation_keys
        if not (any(left.values()) or replies or observations or keys):
            return None
        return StateQuery(replace(wanted.needs, **left), wanted.rows_since, replies, observations, keys)

    def note(self, answered: StateQuery) -> None:
        """Remember that a query was answered."""
        self.answered |= answered
        self.heads_since.update(dict.fromkeys(answered.needs.heads, answered.rows_since))
        if self.state is not None:
            # A decision about an earlier moment than was read, because the clock went back, is refused by the domain.
            self.state = replace(self.state, rows_since=dict(self.heads_since))

    def put(self, change: Change) -> None:
        """Put a decision's effects on top. They are not durable before the group commits."""
        for reply in change.replies:
            self.replies[reply.caller, reply.rpc, reply.request_id] = reply
        if isinstance(change, Landing):
            self._put_landing(change)
        elif self.state is not None:
            self.state = apply_to_state(self.state, change)
        elif change.project is not None and change.policy is not None:
            self.state = apply_to_state(State(change.project, change.policy), change)

    def _put_landing(self, change: Landing) -> None:
        for observation in change.observations:
            key = (observation.source_kind.value, observation.locator, observation.source_hash)
            self.observations[observation.observation_id] = observation
            self.observation_keys[key] = observation.observation_id
        for admission in change.admissions:
            known = self.admissions.get(admission.observation_id, 0)
            self.admissions[admission.observation_id] = max(known, admission.number)


class FoundState:
    """The maps of a state while a store fills them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.families = dict(state.families)
        self.owners = dict(state.owners)
        self.heads = dict(state.heads)
        self.rows = dict(state.rows)
        self.revisions = dict(state.revisions)
        self.evidence = dict(state.evidence)
        self.evidence_ids: set[str] = set()
        """Evidence that is still to be read."""
        self.relations = dict(state.relations)
        self.flags = dict(state.flags)
        self.proposals = dict(state.proposals)
        self.approvals = dict(state.approvals)

    def state(self) -> State:
        """Return the state with what was found."""
        return replace(
            self._state,
            families=self.families,
            owners=self.owners,
            heads=self.heads,
            rows=self.rows,
            revisions=self.revisions,
            evidence=self.evidence,
            relations=self.relations,
            flags=self.flags,
            proposals=self.proposals,
            approvals=self.approvals,
        )


class NothingChangedError(Exception):
    """A record that a change names is not there, or was changed already: the decision saw something else."""
