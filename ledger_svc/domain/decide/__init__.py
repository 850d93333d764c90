"""Decisions: pure functions from a State to a ChangeSet or a DomainError. Every rule of the ledger is here, once.

``preview`` and ``decide_proposal`` a change is asked for · ``decide_approval``, ``decide_rejection``,
``decide_withdrawal``, ``decide_revocation`` people answer · ``decide`` and ``decide_or_refuse`` it is applied ·
``decide_evidence``, ``decide_verification`` what it rests on · ``decide_project``, ``decide_policy`` where.
"""

from ledger_svc.domain.decide.application import Outcome, decide, decide_or_refuse
from ledger_svc.domain.decide.evidence import (
    EvidenceDraft,
    Registration,
    decide_evidence,
    decide_verification,
    fingerprint_of,
    register,
)
from ledger_svc.domain.decide.finish import refuse
from ledger_svc.domain.decide.projects import decide_policy, decide_project
from ledger_svc.domain.decide.proposing import decide_proposal, preview
from ledger_svc.domain.decide.review import (
    decide_approval,
    decide_rejection,
    decide_revocation,
    decide_withdrawal,
)

__all__ = [
    "EvidenceDraft",
    "Outcome",
    "Registration",
    "decide",
    "decide_approval",
    "decide_evidence",
    "decide_or_refuse",
    "decide_policy",
    "decide_project",
    "decide_proposal",
    "decide_rejection",
    "decide_revocation",
    "decide_verification",
    "decide_withdrawal",
    "fingerprint_of",
    "preview",
    "refuse",
    "register",
]
