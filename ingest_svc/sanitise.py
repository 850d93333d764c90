"""Sanitise the records of ingest: observations, contents, evidence, field by field (G1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ingest_svc.domain import Content, EvidenceDraft, RawObservation
from service_kit.sanitising.sanitise import sanitise, sanitise_mapping


def sanitise_observation(observation: RawObservation) -> tuple[RawObservation, Mapping[str, int]]:
    """Sanitise every text field of an observation: text, title, locator, author, file names, attributes."""
    found: Counter[str] = Counter()

    def take(text: str) -> str:
        done = sanitise(text)
        found.update(done.findings)
        return done.text

    attributes, in_attributes = sanitise_mapping(observation.attributes)
    found.update(in_attributes)
    clean_observation = replace(
        observation,
        text=take(observation.text),
        title=take(observation.title),
        locator=take(observation.locator),
        author=take(observation.author),
        files=tuple(take(file) for file in observation.files),
        attributes=attributes,
    )
    return clean_observation, dict(found)


def sanitise_content(content: Content) -> tuple[Content, Counter[str]]:
    """Sanitise every text field of a content, however it was come by."""
    found: Counter[str] = Counter()

    def take(text: str) -> str:
        done = sanitise(text)
        found.update(done.findings)
        return done.text

    changes: dict[str, Any] = {}
    for name in Content.__dataclass_fields__:
        value = getattr(content, name)
        # An enumeration is a str as well, and none of ours holds a secret.
        if type(value) is str:
            changes[name] = take(value)
        elif isinstance(value, tuple):
            changes[name] = tuple(take(item) for item in value)
        elif isinstance(value, Mapping):
            changes[name], in_mapping = sanitise_mapping(value)
            found.update(in_mapping)
    return replace(content, **changes), found


def sanitise_evidence(evidence: EvidenceDraft) -> tuple[EvidenceDraft, Counter[str]]:
    """Sanitise the text fields of an evidence."""
    found: Counter[str] = Counter()

    def take(text: str) -> str:
        done = sanitise(text)
        found.update(done.findings)
        return done.text

    clean_evidence = replace(
        evidence,
        locator=take(evidence.locator),
        excerpt=take(evidence.excerpt),
        author=take(evidence.author),
        extractor=take(evidence.extractor),
        claim=take(evidence.claim),
    )
    return clean_evidence, found
