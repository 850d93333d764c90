"""Moving house: what the records of an exported project must be, and which step of an import may come next.

A project travels whole: every record with its history, in an order in which each only names records before it. Leases
of the outbox do not travel; the ledger that a project moves into makes one event for each head, when it is done.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ledger_svc.domain import names
from ledger_svc.domain.audit import ChainProblem, ChainVerifier
from ledger_svc.domain.errors import ALREADY_EXISTS, WRITE_CONTENTION, DomainError
from ledger_svc.domain.model import (
    Admission,
    Approval,
    AuditEntry,
    AuditTip,
    Commit,
    Evidence,
    Family,
    Head,
    Observation,
    Policy,
    Project,
    Proposal,
    Relation,
    ReviewFlag,
    Revision,
    Signal,
    StoredReply,
    TimelineRow,
)

MovingRecord = (
    Project
    | Policy
    | AuditEntry
    | Family
    | Evidence
    | Revision
    | TimelineRow
    | Head
    | Relation
    | ReviewFlag
    | Proposal
    | Approval
    | Commit
    | Observation
    | Admission
    | Signal
    | StoredReply
)

SECTIONS: Final[tuple[tuple[type[Any], ...], ...]] = (
    (Project,),
    (Policy,),
    (AuditEntry,),
    (Family,),
    (Evidence,),
    (Revision,),
    (TimelineRow,),
    (Head,),
    (Relation,),
    (ReviewFlag,),
    (Proposal, Approval),
    (Commit,),
    (Observation, Admission),
    (Signal,),
    (StoredReply,),
)
"""The order of an export. Approvals follow their proposal, admissions their observation."""

_SECTION_OF: Final = {kind: number for number, kinds in enumerate(SECTIONS) for kind in kinds}

CHAIN_LESS: Final = (Observation, Admission, Signal, StoredReply)
"""What the audit chain does not cover."""


def signal_key(signal: Signal) -> tuple[Any, ...]:
    """What orders the signals of a family: they have no identity, so equal ones may follow each other."""
    who = signal.recorded_by
    return (
        signal.recorded_at,
        signal.happened_at,
        signal.kind.value,
        who.issuer,
        who.subject,
        who.kind.value,
        who.on_behalf_of,
    )


@dataclass(frozen=True, slots=True)
class MovedTip:
    """Where an exported project ends."""

    position: int
    audit: AuditTip


@dataclass(slots=True)
class ImportCheck:
    """Looks at every record of an export in order, before anything of it is stored.

    Call :meth:`record` for each, then :meth:`finish`. What it remembers are ids, as a verification of the audit does.
    """

    project_id: str
    verifier: ChainVerifier = field(default_factory=ChainVerifier)
    _section: int = -1
    _last: Any = None
    _project: Project | None = None
    _policy_version: int = 0
    _position: int = 0
    _families: dict[str, int] = field(default_factory=dict)
    """Position of creation by id."""
    _keys: set[str] = field(default_factory=set)
    _evidence: set[str] = field(default_factory=set)
    _revisions: set[str] = field(default_factory=set)
    _proposals: set[str] = field(default_factory=set)
    _observations: set[str] = field(default_factory=set)
    _under: str = ""
    """The proposal or observation that was last."""
    _admission: int = 0
    _early: list[Project | Policy] = field(default_factory=list)
    """Records that come before the audit entries that cover them."""

    def record(self, record: MovingRecord) -> str:
        """Look at one record; return what is wrong with it, empty when nothing is."""
        section = _SECTION_OF[type(record)]
        if section < self._section:
            return "is out of order"
        if section > self._section:
            self._section, self._last, self._under = section, None, ""
        if getattr(record, "project_id", self.project_id) != self.project_id:
            return "belongs to another project"
        problem = self._place(record) or self._links(record)
        if problem:
            return problem
        return "; ".join(f"{one.subject} {one.problem}" for one in self._chain(record))

    def finish(self, tip: MovedTip) -> list[ChainProblem]:
        """Look at the whole; return what is wrong."""
        problems = self._late() + self.verifier.tip(tip.audit)
        subject = f"PROJECT {self.project_id}"
        if self._project is None:
            return [ChainProblem(0, subject, "is not there")]
        if self._project.policy_version != self._policy_version:
            problems.append(ChainProblem(0, subject, "names a policy that is not the last one"))
        if self._position != tip.position:
            problems.append(ChainProblem(0, subject, "does not end with its last commit"))
        return problems + self.verifier.missing()

    def _chain(self, record: MovingRecord) -> list[ChainProblem]:
        if isinstance(record, AuditEntry):
            return self.verifier.entry(record)
        if isinstance(record, CHAIN_LESS):
            return []
        if isinstance(record, Evidence):
            return self.verifier.record(record) + [
                problem for check in record.verifications for problem in self.verifier.record(check)
            ]
        if isinstance(record, Project | Policy):
            # Before the entries that cover them: looked at when those are known.
            self._early.append(record)
            return []
        return self._late() + self.verifier.record(record)

    def _late(self) -> list[ChainProblem]:
        early, self._early = self._early, []
        return [problem for record in early for problem in self.verifier.record(record)]

    def _place(self, record: MovingRecord) -> str:
        """Check that a record comes after the one before it; so none is there twice."""
        key = self._key(record)
        if key is None:
            return ""
        repeats = isinstance(record, Signal)
        if self._last is not None and (key < self._last or (key == self._last and not repeats)):
            return "is out of order, or there twice"
        self._last = key
        return ""

    def _key(self, record: MovingRecord) -> Any:
        """Return what the records of a section are ordered by; None for those that follow by their own rule."""
        match record:
            case Project():
                return 0
            case Policy():
                return record.version
            case AuditEntry():
                return record.sequence
            case Family():
                return (record.created_position, record.family_id)
            case Evidence():
                return record.fingerprint
            case Revision():
                return (*self._family_key(record.family_id), record.branch, record.number)
            case TimelineRow():
                return (
                    *self._family_key(record.family_id),
                    record.branch,
                    record.opened_position,
                    record.valid_from,
                )
            case Head():
                return (*self._family_key(record.family_id), record.branch)
            case Relation() | Commit():
                return (record.position, getattr(record, "relation_id", ""))
            case ReviewFlag():
                return (
                    *self._family_key(record.family_id),
                    record.branch,
                    record.cause_family_id,
                    record.position,
                )
            case Signal():
                return (*self._family_key(record.family_id), *signal_key(record))
            case StoredReply():
                return (record.caller, record.rpc, record.request_id)
            case _:
                return None

    def _family_key(self, family_id: str) -> tuple[int, str]:
        return (self._families.get(family_id, 0), family_id)

    def _links(self, record: MovingRecord) -> str:
        """Check that what a record names was there before it, and remember the record for those that name it."""
        match record:
            case Project():
                self._project = record
            case Policy():
                self._policy_version = record.version
            case Commit():
                self._position = record.position
            case Family():
                return self._family(record)
            case Evidence():
                return self._add(self._evidence, record.evidence_id) or self._checks(record)
            case Revision():
                return (
                    self._known(self._families, record.family_id)
                    or self._known(self._revisions, *record.parents)
                    or self._known(self._evidence, *(link.evidence_id for link in record.evidence_links))
                    or self._add(self._revisions, record.revision_id)
                )
            case TimelineRow() | Head():
                return self._known(self._families, record.family_id) or self._known(self._revisions, record.revision_id)
            case Relation():
                return self._known(self._families, record.source_id, record.target_id)
            case ReviewFlag() | Signal():
                return self._known(self._families, record.family_id)
            case Proposal():
                self._under = record.proposal_id
                families = filter(None, (*(h.family_id for h in record.expected_heads), record.result_family_id))
                return self._add(self._proposals, record.proposal_id) or self._known(self._families, *families)
            case Approval():
                return "" if record.proposal_id == self._under else "does not follow its proposal"
            case Observation():
                self._under, self._admission = record.observation_id, 0
                return self._add(self._observations, record.observation_id)
            case Admission():
                self._admission += 1
                fits = record.observation_id == self._under and record.number == self._admission
                return "" if fits else "does not follow its observation"
            case _:
                pass
        return ""

    def _family(self, family: Family) -> str:
        if family.family_id in self._families:
            return "is there twice"
        self._families[family.family_id] = family.created_position
        for key in family.keys:
            if self._add(self._keys, key):
                return f"has the identity key {key} of another family"
        return ""

    @staticmethod
    def _checks(evidence: Evidence) -> str:
        for number, check in enumerate(evidence.verifications, 1):
            if check.number != number or check.evidence_id != evidence.evidence_id:
                return "has a verification that is not its own"
        return ""

    @staticmethod
    def _add(known: set[str], ident: str) -> str:
        if ident in known:
            return "is there twice"
        known.add(ident)
        return ""

    @staticmethod
    def _known(known: Container[str], *idents: str) -> str:
        missing = [ident for ident in idents if ident not in known]
        return f"names {missing[0]}, which is not there before it" if missing else ""


# --- Which step may come next -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImportMarker:
    """How far an import into a project is. It stays when it is done, so that the same file is recognised."""

    digest: str
    """Hash of the whole file."""
    records: int
    """How many are stored."""


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """What a store knows of a project that is to be imported."""

    visible: bool = False
    """Whether the project is there, for everybody."""
    marker: ImportMarker | None = None


@dataclass(frozen=True, slots=True)
class ImportStep:
    """One bounded part of an import, stored as a whole or not at all. The last has no records: it shows the rest."""

    project: Project
    digest: str
    after: int
    """Records of the file before this step."""
    upto: int
    """Records of the file with this step."""
    now: datetime
    last: bool = False

    @property
    def project_id(self) -> str:
        """The project."""
        return self.project.project_id


def is_done(progress: ImportProgress, step: ImportStep) -> bool:
    """Say whether a step was done before; if not, it is the next one to do.

    Raises:
        DomainError: ALREADY_EXISTS, as :func:`check_free`; WRITE_CONTENTION, when it is not its turn.
    """
    check_free(step.project_id, progress, step.digest)
    if progress.visible:
        return True
    records = progress.marker.records if progress.marker is not None else 0
    if step.upto <= records and not step.last:
        return True
    if step.after != records:
        raise DomainError(
            WRITE_CONTENTION,
            "another call imports the same file into this project: send the same request again",
            {"retry": "same_request"},
        )
    return False


def check_free(project_id: str, progress: ImportProgress, digest: str | None = None) -> None:
    """Refuse an import into a project that is there, unless it came from this very file.

    Args:
        project_id: The project.
        progress: What is known of it.
        digest: Hash of the file; None while it is not known.

    Raises:
        DomainError: ALREADY_EXISTS.
    """
    name = names.project(project_id)
    marker = progress.marker
    if progress.visible and (marker is None or digest not in {None, marker.digest}):
        raise DomainError(
            ALREADY_EXISTS,
            f"{name} exists already: a project is only imported into a ledger that does not have it",
            {"project": name},
        )
    if marker is not None and digest not in {None, marker.digest}:
        raise DomainError(
            ALREADY_EXISTS,
            f"an import into {name} from another file has begun: finish it with that file",
            {"project": name, "sha256": marker.digest},
        )


def being_imported(project_id: str) -> DomainError:
    """Return the refusal of making a project that is being imported."""
    name = names.project(project_id)
    return DomainError(ALREADY_EXISTS, f"{name} is being imported: finish that with the same file", {"project": name})


def ids_taken(project_id: str) -> DomainError:
    """Return the refusal of a file that holds ids which another project of this ledger has."""
    name = names.project(project_id)
    return DomainError(
        ALREADY_EXISTS,
        f"ids in the file of {name} belong to another project of this ledger: it cannot be imported here",
        {"project": name},
    )
