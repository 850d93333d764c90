"""The words of sources for adoption, in English and Portuguese, as standings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ingest_svc.document import fold
from ingest_svc.domain import Standing

_WORDS: Mapping[Standing, str] = {
    Standing.RETIRED: (
        r"superseded|superceded|replaced|moved|deprecated|retired|obsoleted?|historic|sunset|"
        r"substituid[ao]|superad[ao]|depreciad[ao]|descontinuad[ao]|obsolet[ao]|revogad[ao]|aposentad[ao]"
    ),
    Standing.REJECTED: (
        r"rejected|declined|denied|refused|not (?:accepted|approved)|closed|"
        r"rejeitad[ao]|recusad[ao]|negad[ao]|nao (?:aceit[ao]|aprovad[ao])|reprovad[ao]"
    ),
    Standing.WITHDRAWN: (
        r"withdrawn|withdrawal|cancell?ed|abandoned|dropped|retirad[ao]|cancelad[ao]|abandonad[ao]|desistid[ao]"
    ),
    Standing.DEFERRED: r"deferred|postponed|on hold|parked|paused|adiad[ao]|suspens[ao]|em espera|postergad[ao]",
    Standing.ADOPTED: (
        r"accepted|acepted|approved|adopted|decided|agreed|final|finished|active|provisional|implemented|implementable|"
        r"completed?|done|merged|in force|in use|standard|internet standard|proposed standard|best current practice|"
        r"aceit[ao]|aprovad[ao]|adotad[ao]|decidid[ao]|vigente|em vigor|implementad[ao]|ativ[ao]|concluid[ao]|"
        r"finalizad[ao]"
    ),
    Standing.PROPOSED: (
        r"proposed|draft|incomplete|pending|open|under (?:review|discussion)|in (?:review|discussion|progress)|rfc|wip|"
        r"request for comments|not ready|idea|propost[ao]|rascunho|pendente|abert[ao]|"
        r"em (?:revisao|analise|discussao|andamento)"
    ),
}
_PATTERNS = {standing: re.compile(rf"\b(?:{words})\b") for standing, words in _WORDS.items()}


def standing_of(status: str) -> Standing | None:
    """What a status says about adoption; None when it says nothing that we know.

    The first word that we know counts: ``Accepted (was proposed in May)`` is accepted. A status that is not known
    is never taken for adoption.
    """
    plain = fold(status)
    found = [
        (match.start(), -match.end(), standing)
        for standing, pattern in _PATTERNS.items()
        if (match := pattern.search(plain)) is not None
    ]
    return min(found)[2] if found else None
