"""Exact names: what a question names literally and only few memories have. Pure.

A file, an error code or a class name that the question spells out is found whatever the scores say. An ordinary word
is not such a name, however it is hyphenated: otherwise any question that mentions "built-in" would be answered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from retrieval_svc.domain import Candidate
from retrieval_svc.lexical import fold

MAX_HOLDERS: Final = 10
"""A name that more families have than that singles none of them out."""

KINDS: Final = frozenset({"file", "identifier", "module"})
_MIN_CHARS: Final = 3
_CODE_LIKE: Final = re.compile(r"[_/.:@#]|\d")
_MIXED_CASE: Final = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2,}[a-z]")


def exact_families(candidates: Sequence[Candidate], question: str) -> frozenset[str]:
    """Return the families that hold a name which the question spells out."""
    written = {fold(word.strip(".,;:!?\"'`()[]{}<>*")): word for word in question.split()}
    holders: Counter[str] = Counter()
    named: dict[str, set[str]] = {}
    for family, label in {(c.family, label) for c in candidates for label in c.structural}:
        kind, _, name = label.partition(":")
        if kind in KINDS and _distinctive(name, written.get(fold(name), "")):
            holders[label] += 1
            named.setdefault(label, set()).add(family)
    return frozenset(f for label, families in named.items() if holders[label] <= MAX_HOLDERS for f in families)


def _distinctive(name: str, written: str) -> bool:
    if len(name) < _MIN_CHARS or not any(ch.isalpha() for ch in name):
        return False
    return bool(_CODE_LIKE.search(name) or _MIXED_CASE.search(written))
