"""Are two principals the same person? Answered conservatively: a look-alike counts as the same.

Separation of duty compares people, not strings. ``alice``, ``Alice ``, ``аlice`` with a Cyrillic а, ``alice`` with a
zero-width space in it, ``alice@corp`` and ``alice`` qualified by a domain must not approve one another's proposals,
whichever issuer vouches for them. Treating two different people as one costs another reviewer; treating one as two
costs the review itself.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

from ledger_svc.domain.model import Principal

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
_MARKS: Final = frozenset({"Mn", "Me", "Mc"})
_PREFIX_ENDS: Final = "\\|:/"
"""``CORP\\alice``, ``oidc|alice``, ``user:alice``: what comes before is the issuer's."""

# Within ASCII itself: shapes that many fonts draw alike.
_ALIKE: Final = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "!": "l", "5": "s", "$": "s"})
_ALIKE_PAIRS: Final = (("rn", "m"), ("vv", "w"))


def same_person(one: Principal, other: Principal) -> bool:
    """Whether two principals may be one person, also under different issuers."""
    return same_subject(one.subject, other.subject)


def acts_for(agent: Principal, person: Principal) -> bool:
    """Whether ``agent`` acts on behalf of ``person``."""
    return bool(agent.on_behalf_of) and same_subject(agent.on_behalf_of, person.subject)


def same_subject(one: str, other: str) -> bool:
    """Whether two subjects may name one person."""
    return not person_keys(one).isdisjoint(person_keys(other))


@lru_cache(maxsize=4096)
def person_keys(subject: str) -> frozenset[str]:
    """Skeletons of a subject: the whole of it, and the local part when it looks like an address or a qualified name.

    Two subjects may be one person when they share a skeleton. A subject of which nothing visible is left has the empty
    skeleton, and equals every other such subject.
    """
    names = {subject}
    folded = unicodedata.normalize("NFKC", subject)
    for text in (subject, folded):
        local = _local_part(text)
        names.update((local, local.split("+", 1)[0]))
    # Confusables are looked up both before and after case folding: a Cyrillic capital looks like another Latin letter
    # than its small form does.
    forms = {form for name in names for form in (name, name.upper())}
    keys = {_skeleton(_fold(_confuse(form))) for form in forms} | {_skeleton(_confuse(_fold(form))) for form in forms}
    visible = frozenset(key for key in keys if key)
    return visible or frozenset({""})


def _local_part(subject: str) -> str:
    # Invisible characters could hide the sign that ends the local part.
    text = "".join(c for c in subject if unicodedata.category(c) not in _INVISIBLE)
    local = text.split("@", 1)[0] if "@" in text[1:] else text
    for sign in _PREFIX_ENDS:
        if sign in local.rstrip(sign):
            local = local.rstrip(sign).rsplit(sign, 1)[1]
    return local


def _fold(text: str) -> str:
    """Compatibility forms, case, accents and everything invisible taken away."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return "".join(c for c in decomposed if unicodedata.category(c) not in _INVISIBLE | _MARKS)


def _confuse(text: str) -> str:
    """Each character that looks like ASCII replaced by that."""
    return text if text.isascii() else "".join(c if c.isascii() else _prototype(c) for c in text)


@lru_cache(maxsize=4096)
def _prototype(char: str) -> str:
    # Imported late: it reads a table of a megabyte.
    from confusable_homoglyphs import confusables

    found = confusables.is_confusable(char, greedy=True, preferred_aliases=[])
    if not found:
        return char
    looks = [glyph["c"] for entry in found for glyph in entry["homoglyphs"] if glyph["c"].isascii()]
    letters = sorted((look for look in looks if look.isalnum()), key=lambda look: (len(look), look.casefold(), look))
    return letters[0] if letters else (min(looks) if looks else char)


def _skeleton(text: str) -> str:
    text = text.translate(_ALIKE)
    for pair, single in _ALIKE_PAIRS:
        text = text.replace(pair, single)
    return text
