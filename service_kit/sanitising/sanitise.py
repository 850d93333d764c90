"""Take secrets and personal data out of text before anything is stored or sent (G1).

``sanitise(text)`` replaces what it finds by typed placeholders such as ``[REDACTED:EMAIL]``. It is pure, runs in time
linear in the text, and applied to its own result it changes nothing. Sanitise first, clip after: a secret cut in half
is no longer recognised, so ``clip`` only takes what was sanitised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from service_kit.sanitising.personal_data import PERSONAL, Region, Regions
from service_kit.sanitising.secret_assignments import assignment_spans, is_secret_key, is_secret_value
from service_kit.sanitising.secret_shapes import Span, header_spans, pem_spans, token_spans, url_spans

SANITISER_VERSION = "s1"
"""Changes whenever the rules change in what they find; recorded with what was sanitised."""

_PLACEHOLDER = re.compile(r"\[REDACTED:[A-Z_]+\]")
_MOST_ROUNDS = 5


class _CleanTexts:
    """Which recent texts hold nothing to take out: the same text passes through several hands. Keeps no text."""

    def __init__(self, most: int) -> None:
        # Two generations instead of an order of use: threads share them, and a lost entry costs one more look.
        self._most = most
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def knows(self, digest: bytes) -> bool:
        """Whether the text was found clean lately."""
        if digest in self._young:
            return True
        if digest in self._old:
            self.add(digest)
            return True
        return False

    def add(self, digest: bytes) -> None:
        """Remember that a text is clean."""
        if len(self._young) >= self._most:
            self._old, self._young = self._young, set()
        self._young.add(digest)


_CLEAN = _CleanTexts(50_000)


@dataclass(frozen=True, slots=True)
class Sanitised:
    """A clean text, and how many findings of each kind were taken out."""

    text: str
    findings: Mapping[str, int] = field(default_factory=dict)


def sanitise(text: str) -> Sanitised:
    """Replace every secret and every piece of personal data by a typed placeholder."""
    found: Counter[str] = Counter()
    # A replacement can uncover another finding beside it; a few rounds reach the text that stays as it is.
    for _ in range(_MOST_ROUNDS):
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if _CLEAN.knows(digest):
            break
        spans = _merge(text, _spans(text))
        if not spans:
            _CLEAN.add(digest)
            break
        found.update(span.kind for span in spans)
        text = _replace(text, spans)
    return Sanitised(text, dict(found))


def clean(text: str) -> str:
    """The sanitised text alone."""
    return sanitise(text).text


def sanitise_mapping(values: Mapping[str, str]) -> tuple[dict[str, str], Counter[str]]:
    """Sanitise keys and values; a value whose key names a secret goes whatever it looks like."""
    result: dict[str, str] = {}
    found: Counter[str] = Counter()
    for key, value in values.items():
        clean_key = sanitise(key)
        found.update(clean_key.findings)
        name, number = clean_key.text, 1
        while name in result:
            # Two keys may come to the same placeholder; neither value is lost.
            number += 1
            name = f"{clean_key.text} ({number})"
        if is_secret_key(key) and is_secret_value(value):
            found["SECRET"] += 1
            result[name] = "[REDACTED:SECRET]"
            continue
        clean_value = sanitise(value)
        found.update(clean_value.findings)
        result[name] = clean_value.text
    return result, found


def clip(sanitised: Sanitised, limit: int) -> str:
    """The first ``limit`` characters, never ending inside a placeholder; an ellipsis marks the cut."""
    text = sanitised.text
    if len(text) <= limit:
        return text
    end = max(0, limit - 1)
    for placeholder in _PLACEHOLDER.finditer(text, max(0, end - 64)):
        if placeholder.start() >= end:
            break
        if placeholder.end() > end:
            end = placeholder.start()
    return text[:end].rstrip() + "…"


def _spans(text: str) -> Iterator[Span]:
    yield from pem_spans(text)
    yield from token_spans(text)
    yield from url_spans(text)
    yield from header_spans(text)
    yield from assignment_spans(text)
    yield from _personal_spans(text)


def _personal_spans(text: str) -> Iterator[Span]:
    known: dict[Regions, list[Region]] = {}
    for rule in PERSONAL:
        regions = known.get(rule.regions)
        if regions is None:
            regions = known[rule.regions] = rule.regions(text)
        position = 0
        for start, stop in regions:
            position = max(position, start)
            while (match := rule.pattern.search(text, position, stop)) is not None:
                judged = rule.judge(match)
                if judged is None:
                    # What follows the first character may still be one: "1234 4111 1111 1111 1111".
                    position = match.start() + 1
                    continue
                kind, end = judged
                yield Span(match.end(rule.keep) if rule.keep else match.start(), end, kind)
                position = max(end, match.start() + 1)


def _merge(text: str, spans: Iterator[Span]) -> list[Span]:
    """One list without overlaps, in order; what overlaps is joined and keeps the kind that was found first."""
    placeholders = [match.span() for match in _PLACEHOLDER.finditer(text)]
    found = [
        (span.start, order, span)
        for order, span in enumerate(spans)
        if not any(start <= span.start and span.end <= end for start, end in placeholders)
    ]
    merged: list[Span] = []
    ranks: list[int] = []
    for _, order, span in sorted(found, key=lambda item: (item[0], item[1])):
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            kind = last.kind if ranks[-1] < order else span.kind
            merged[-1] = Span(last.start, max(last.end, span.end), kind)
            ranks[-1] = min(ranks[-1], order)
        else:
            merged.append(span)
            ranks.append(order)
    return merged


def _replace(text: str, spans: list[Span]) -> str:
    parts: list[str] = []
    position = 0
    for span in spans:
        parts += (text[position : span.start], f"[REDACTED:{span.kind}]")
        position = span.end
    parts.append(text[position:])
    return "".join(parts)
