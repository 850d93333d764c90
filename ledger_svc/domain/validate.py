"""Bounds on what may be said: lengths, ranges, order of times. All problems of a draft are reported at once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from ledger_svc.domain.diff import CONTENT_FIELDS
from ledger_svc.domain.errors import FieldProblem, invalid_fields, limit_exceeded
from ledger_svc.domain.model import CategoryPolicy, Content, EvidenceLink

PROJECT_ID: Final = re.compile(r"[a-z][a-z0-9-]{1,62}")
BRANCH: Final = re.compile(r"[a-z0-9][a-z0-9._/-]{0,99}")

MAX_TITLE: Final = 300
MAX_TEXT: Final = 65_536
MAX_ITEMS: Final = 1_000
MAX_ITEM: Final = 16_384
MAX_ATTRIBUTES: Final = 100
MAX_ATTRIBUTE_KEY: Final = 100
MAX_ATTRIBUTE_VALUE: Final = 2_000
MAX_REASON: Final = 2_000
MAX_IDENTITY_KEY: Final = 200
MAX_LOCATOR: Final = 2_000
MAX_CLAIM: Final = 2_000
MAX_EVIDENCE_LINKS: Final = 100


def check_content(content: Content, path: str = "content") -> None:
    """Refuse content that is malformed or over a limit.

    Raises:
        DomainError: LIMIT_EXCEEDED for the first field over its limit, else INVALID_FIELD with every wrong field.
    """
    problems: list[FieldProblem] = []
    if not content.title.strip():
        problems.append(FieldProblem(f"{path}.title", "say in a line what this is"))
    check_length(f"{path}.title", content.title, MAX_TITLE)
    for name in CONTENT_FIELDS:
        value = getattr(content, name)
        if isinstance(value, tuple):
            check_count(f"{path}.{name}", len(value), MAX_ITEMS)
            for index, item in enumerate(value):
                check_length(f"{path}.{name}[{index}]", item, MAX_ITEM)
                if not item.strip():
                    problems.append(FieldProblem(f"{path}.{name}[{index}]", "must not be empty"))
        elif isinstance(value, str):
            check_length(f"{path}.{name}", value, MAX_TEXT)
            if "\x00" in value:
                problems.append(FieldProblem(f"{path}.{name}", "must not hold a NUL character"))
    problems.extend(_attribute_problems(content, path))
    problems.extend(_fraction_problem(f"{path}.importance", content.importance))
    refuse(problems)


def _attribute_problems(content: Content, path: str) -> Iterable[FieldProblem]:
    check_count(f"{path}.attributes", len(content.attributes), MAX_ATTRIBUTES)
    for key, value in content.attributes.items():
        check_length(f"{path}.attributes", key, MAX_ATTRIBUTE_KEY)
        check_length(f"{path}.attributes.{key}", value, MAX_ATTRIBUTE_VALUE)
        if not key.strip():
            yield FieldProblem(f"{path}.attributes", "a key must not be empty")


def _fraction_problem(path: str, value: float) -> Iterable[FieldProblem]:
    # Written so that NaN fails as well.
    if not 0 <= value <= 1:
        yield FieldProblem(path, "must be from 0 to 1")


def check_fraction(path: str, value: float) -> None:
    """Refuse a number outside 0 to 1."""
    refuse(_fraction_problem(path, value))


def check_required_fields(content: Content, policy: CategoryPolicy, category: str, path: str = "content") -> None:
    """Refuse content that lacks what its category asks for."""
    problems = [
        FieldProblem(
            f"{path}.{group[0]}",
            f"a {category} needs {group[0]}" if len(group) == 1 else f"a {category} needs one of {', '.join(group)}",
        )
        for group in policy.required_fields
        if not any(_is_filled(content, name) for name in group)
    ]
    refuse(problems)


def _is_filled(content: Content, name: str) -> bool:
    value = getattr(content, name)
    return bool(value.strip()) if isinstance(value, str) else bool(value)


def check_links(links: tuple[EvidenceLink, ...], path: str = "evidence") -> None:
    """Refuse evidence links that are too many or out of range."""
    check_count(path, len(links), MAX_EVIDENCE_LINKS)
    problems: list[FieldProblem] = []
    for index, link in enumerate(links):
        check_length(f"{path}[{index}].claim", link.claim, MAX_CLAIM)
        problems.extend(_fraction_problem(f"{path}[{index}].confidence", link.confidence))
    refuse(problems)


def check_reason(reason: str, path: str = "reason") -> None:
    """Refuse a change that does not say why."""
    check_length(path, reason, MAX_REASON)
    if not reason.strip():
        refuse([FieldProblem(path, "say why, in 1 to 2000 characters")])


def check_branch(branch: str) -> None:
    """Refuse a malformed branch name."""
    if not BRANCH.fullmatch(branch):
        refuse([FieldProblem("branch", f"must match {BRANCH.pattern}, e.g. main or release/2.x")])


def check_project_id(project_id: str) -> None:
    """Refuse a malformed project id."""
    if not PROJECT_ID.fullmatch(project_id):
        refuse([FieldProblem("project", f"the id must match {PROJECT_ID.pattern}, e.g. billing")])


def check_identity_key(key: str, path: str = "identity_key") -> None:
    """Refuse a key that people could not type or tell apart: spaces, control and invisible characters."""
    check_length(path, key, MAX_IDENTITY_KEY)
    if any(c.isspace() or unicodedata.category(c) in {"Cc", "Cf", "Cs"} for c in key):
        refuse([FieldProblem(path, "must not hold spaces or invisible characters, e.g. adr/0007")])


def check_times(valid_from: datetime | None, valid_to: datetime | None, path: str = "") -> None:
    """Refuse naive times and an interval that holds no moment."""
    problems = [
        FieldProblem(f"{path}{name}", "a time needs an offset from UTC, e.g. 2021-01-31T00:00:00Z")
        for name, value in (("valid_from", valid_from), ("valid_to", valid_to))
        if value is not None and value.utcoffset() is None
    ]
    if not problems and valid_from is not None and valid_to is not None and valid_from >= valid_to:
        problems.append(FieldProblem(f"{path}valid_from", "must be before valid_to"))
    refuse(problems)


def check_length(path: str, text: str, limit: int) -> None:
    """Refuse a text over its limit."""
    if len(text) > limit:
        raise limit_exceeded(path, limit, len(text))


def check_count(path: str, count: int, limit: int) -> None:
    """Refuse a list over its limit."""
    if count > limit:
        raise limit_exceeded(path, limit, count, "entries")


def refuse(problems: Iterable[FieldProblem]) -> None:
    """Raise when there are problems."""
    listed = tuple(problems)
    if listed:
        raise invalid_fields(listed)
