"""What a memory is about and what a question names, in the same words: files, modules, identifiers, domains. Pure.

Every name is folded and in lower case. A file is known by its path and by its last part, so that "settings.py" in a
question finds ``src/app/settings.py``. Which words of a question are names of modules or domains only the index knows:
all of them are offered, together with pairs of neighbours ("customer support").
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from index_svc.domain import MAX_IDENTIFIERS, StructuralQuery
from index_svc.sparse import STOP_WORDS, fold, identifiers

MAX_NAMES: Final = 128
"""Names of one kind that a question may offer; a question of 10,000 characters must not become a huge filter."""

_EDGES: Final = ".,;:!?\"'`()[]{}<>*"


def name_of(text: str) -> str:
    """Return a name as it is compared."""
    return " ".join(fold(text).lower().split())


def file_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the names that files are found by: each path and its last part."""
    found: dict[str, None] = {}
    for path in paths:
        whole = name_of(path).strip("/")
        if whole:
            found.setdefault(whole)
            found.setdefault(whole.rpartition("/")[2])
    return tuple(found)


def names(values: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names of values, without empty ones."""
    return tuple(dict.fromkeys(name for value in values if (name := name_of(value))))


def memory_identifiers(text: str) -> tuple[str, ...]:
    """Return the identifiers that a memory's text names, the first ones."""
    return tuple(identifiers(text)[:MAX_IDENTIFIERS])


def structural_query(text: str) -> StructuralQuery:
    """Return what a question names."""
    named = identifiers(text)[:MAX_NAMES]
    # A path or dotted name may be the file or module itself.
    words = [w for raw in fold(text).lower().split() if (w := raw.strip(_EDGES))]
    single = [w for w in words if w not in STOP_WORDS and len(w) > 1]
    pairs = [f"{a} {b}" for a, b in pairwise(words)]
    offered = tuple(dict.fromkeys([*named, *single, *pairs]))[:MAX_NAMES]
    files = tuple(dict.fromkeys([*(n.strip("/") for n in named), *(w for w in single if "." in w or "/" in w)]))
    return StructuralQuery(files=files[:MAX_NAMES], modules=offered, identifiers=tuple(named), domains=offered)
