"""The service: which profile, how much time, and the three things that can be asked of it."""

from __future__ import annotations

from collections.abc import Mapping

from retrieval_svc.context import Context, Memory, build_context
from retrieval_svc.domain import Answer, Question
from retrieval_svc.ledger_client import category_name, sections
from retrieval_svc.pipeline import Pipeline
from retrieval_svc.profiles import DEFAULT_PROFILE, Profile
from service_kit.context import remaining_seconds
from service_kit.errors import deadline_exceeded, invalid


class RetrievalService:
    """Searches, packs contexts, lists profiles."""

    def __init__(
        self, pipeline: Pipeline, profiles: Mapping[str, Profile], *, default_deadline_seconds: float = 10.0
    ) -> None:
        self._pipeline = pipeline
        self._profiles = profiles
        self._default_deadline = default_deadline_seconds

    def profiles(self) -> list[Profile]:
        """Return the profiles, by name."""
        return [self._profiles[name] for name in sorted(self._profiles)]

    def profile(self, name: str, field: str = "profile") -> Profile:
        """Return a profile, the default for an empty name.

        Raises:
            InvalidRequest: There is none of that name.
        """
        found = self._profiles.get(name or DEFAULT_PROFILE)
        if found is None:
            raise invalid(field, f"is unknown; known are {', '.join(sorted(self._profiles))}")
        return found

    async def search(self, question: Question, profile: Profile) -> Answer:
        """Return the answer to a question, within the caller's deadline."""
        left = remaining_seconds()
        if left is not None and left <= 0:
            raise deadline_exceeded()
        return await self._pipeline.run(question, profile, seconds=self._default_deadline if left is None else left)

    async def context(self, question: Question, profile: Profile, token_budget: int) -> tuple[Context, Answer]:
        """Return the hits of a search as a text within a budget of tokens, and the search."""
        answer = await self.search(question, profile)
        memories = [Memory(hit, category_name(hit.head), sections(hit.head)) for hit in answer.hits]
        return build_context(answer, memories, token_budget), answer
