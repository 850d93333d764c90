"""Ranking profiles: data that the stages read. A change of a number is a new version of the profile."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from retrieval_svc.domain import Branch

DEFAULT_PROFILE: Final = "default"
TIE_BREAKS: Final = frozenset({"structural", "importance", "recency"})
SCORES: Final = frozenset({"dense", "sparse"})


@dataclass(frozen=True, slots=True)
class Fusion:
    """How the scores of the branches become one. ``kind`` is ``weighted`` or ``rrf``; ``k`` is for the latter."""

    kind: str
    weights: Mapping[str, float]
    k: float = 60.0


@dataclass(frozen=True, slots=True)
class Composite:
    """What relevance, recency and importance weigh in the final score."""

    relevance: float
    recency: float
    importance: float
    half_life_days: float


@dataclass(frozen=True, slots=True)
class Abstention:
    """When to be silent. ``z`` is the distance of the support from the off-topic bank in standard deviations.

    ``strength`` (the mean of the dense and sparse scores of the best candidate) stands in when there is no support,
    because the embedder or the index does not work. ``held_back_ratio``: when the best live hit has less than this
    share of the score of a memory that had to be held back, the question is taken to be about the latter.
    """

    closest_from_z: float
    answer_from_z: float
    out_of_scope_below_z: float
    closest_from_strength: float
    answer_from_strength: float
    held_back_ratio: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to rank."""

    name: str
    version: int
    description: str
    branches: tuple[Branch, ...]
    candidates: int
    fusion: Fusion
    composite: Composite
    tie_break: tuple[str, ...]
    abstention: Abstention
    settings: str
    """All of it as canonical JSON."""

    @property
    def id(self) -> str:
        """Name and version, e.g. ``default@1``."""
        return f"{self.name}@{self.version}"


def parse_profile(text: str) -> Profile:
    """Return the profile of a JSON text; a ``ValueError`` says what is wrong with it."""
    data: dict[str, Any] = json.loads(text)
    fusion, settings = data["fusion"], {k: v for k, v in data.items() if k not in {"name", "version", "description"}}
    profile = Profile(
        name=data["name"],
        version=data["version"],
        description=data["description"],
        branches=tuple(Branch(b) for b in data["branches"]),
        candidates=data["candidates"],
        fusion=Fusion(fusion["kind"], MappingProxyType(dict(fusion["weights"])), float(fusion.get("k", 60.0))),
        composite=Composite(**data["composite"]),
        tie_break=tuple(data["tie_break"]),
        abstention=Abstention(**data["abstention"]),
        settings=json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
    )
    _check(profile)
    return profile


def _check(profile: Profile) -> None:
    fusion, composite = profile.fusion, profile.composite
    weights = [*fusion.weights.values(), composite.relevance, composite.recency, composite.importance]
    rules = {
        "fusion.kind is weighted or rrf": fusion.kind in {"weighted", "rrf"},
        "fusion.weights are of dense and sparse": set(fusion.weights) <= SCORES and any(fusion.weights.values()),
        "weights are finite and not negative": all(math.isfinite(w) and w >= 0 for w in weights),
        "fusion.k is above 0": fusion.k > 0,
        "half_life_days is above 0": composite.half_life_days > 0,
        "tie_break names known signals": set(profile.tie_break) <= TIE_BREAKS,
        "candidates is 1 to 500": 1 <= profile.candidates <= 500,
        "thresholds are in order": profile.abstention.closest_from_z <= profile.abstention.answer_from_z
        and profile.abstention.closest_from_strength <= profile.abstention.answer_from_strength,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise ValueError(f"profile {profile.name}: {'; '.join(broken)}")


@lru_cache(maxsize=1)
def shipped_profiles() -> Mapping[str, Profile]:
    """Return the profiles of this release, by name."""
    folder = files("retrieval_svc").joinpath("data")
    found = [parse_profile(entry.read_text("utf-8")) for entry in folder.iterdir() if entry.name.endswith(".json")]
    return MappingProxyType({p.name: p for p in sorted(found, key=lambda p: p.name)})
