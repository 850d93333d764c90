"""Checks of request fields that gather every problem before they refuse, so that a caller mends all at once.

Each check returns the parsed value (or None when it is wrong); call :meth:`FieldChecks.raise_if_any` before using any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from service_kit import names
from service_kit.clock import from_timestamp
from service_kit.errors import DomainError, FieldProblem, InvalidRequest

T = TypeVar("T")

DEFAULT_PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 1_000


class ProtoEnum(Protocol):
    """A generated enum, e.g. ``common_pb2.PrincipalKind``."""

    def Name(self, number: Any) -> str:  # noqa: N802 - the generated code's name
        """Return the name of a number; ``ValueError`` for an unknown one."""


class FieldChecks:
    """Gathers the problems of one request. ``prefix`` starts every path, e.g. ``requests[3].``."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._problems: list[FieldProblem] = []

    @property
    def problems(self) -> Sequence[FieldProblem]:
        """What was found so far."""
        return tuple(self._problems)

    def add(self, field: str, description: str) -> None:
        """Note a problem."""
        self._problems.append(FieldProblem(f"{self._prefix}{field}", description))

    def raise_if_any(self) -> None:
        """Raise ``InvalidRequest`` with every problem, when there is one."""
        if self._problems:
            raise InvalidRequest(self._problems)

    def below(self, field: str) -> FieldChecks:
        """Return checks for the fields of a message field; they gather into these."""
        inner = FieldChecks(f"{self._prefix}{field}.")
        inner._problems = self._problems
        return inner

    def attempt(self, check: Callable[[], T]) -> T | None:
        """Return what a raising check returns, or gather its field problems and return None."""
        try:
            return check()
        except DomainError as error:
            if not error.fields:
                raise
            self._problems += [FieldProblem(f"{self._prefix}{p.field}", p.description) for p in error.fields]
            return None

    def must(self, ok: bool, field: str, description: str) -> bool:
        """Note a problem unless the condition holds; return the condition."""
        if not ok:
            self.add(field, description)
        return ok

    def required(self, field: str, value: str | bytes | Sequence[Any] | Mapping[Any, Any]) -> bool:
        """Refuse an empty value; text of only white space is empty."""
        empty = not value.strip() if isinstance(value, str) else not value
        return self.must(not empty, field, "is required")

    def present(self, message: Message, field: str) -> bool:
        """Refuse an unset message field or oneof of a request."""
        oneofs = message.DESCRIPTOR.oneofs_by_name
        found = message.WhichOneof(field) is not None if field in oneofs else message.HasField(field)
        return self.must(found, field, "is required")

    def length(self, field: str, value: str, *, at_most: int, at_least: int = 0) -> bool:
        """Refuse text with fewer or more characters than allowed."""
        count = len(value)
        if at_least <= count <= at_most:
            return True
        self.add(field, f"has {count} characters; {at_least} to {at_most} are allowed")
        return False

    def count(self, field: str, values: Sequence[Any], *, at_most: int, at_least: int = 0) -> bool:
        """Refuse a list with fewer or more entries than allowed."""
        found = len(values)
        if at_least <= found <= at_most:
            return True
        self.add(field, f"has {found} entries; {at_least} to {at_most} are allowed")
        return False

    def pattern(self, field: str, value: str, pattern: re.Pattern[str], rule: str) -> bool:
        """Refuse text that does not match as a whole; ``rule`` says what is allowed."""
        return self.must(pattern.fullmatch(value) is not None, field, rule)

    def in_range(self, field: str, value: float, low: float, high: float) -> bool:
        """Refuse a number outside [low, high]; NaN is outside of everything."""
        return self.must(low <= value <= high, field, f"must be between {low} and {high}")

    def enum(self, field: str, value: int, enum: ProtoEnum) -> str | None:
        """Return the name of a required choice; refuse UNSPECIFIED and numbers that this version does not know."""
        if value == 0:
            self.add(field, "is required")
            return None
        return self.optional_enum(field, value, enum)

    def optional_enum(self, field: str, value: int, enum: ProtoEnum) -> str | None:
        """Return the name of a choice that may be left out (UNSPECIFIED); refuse unknown numbers."""
        try:
            return enum.Name(value)
        except ValueError:
            self.add(field, f"{value} is not a value that this version knows")
            return None

    def timestamp(self, message: Message, field: str, *, required: bool = False) -> datetime | None:
        """Return the instant in a Timestamp field, None when it is unset."""
        if not message.HasField(field):
            if required:
                self.add(field, "is required")
            return None
        value = getattr(message, field)
        if not isinstance(value, Timestamp):
            raise TypeError(f"{field} is not a Timestamp")
        return self.attempt(lambda: from_timestamp(value, field))

    def interval(
        self, message: Message, start: str, end: str, *, start_required: bool = False
    ) -> tuple[datetime | None, datetime | None]:
        """Return the ends of a half-open interval [start, end); refuse one that is empty or reversed."""
        begins, ends = self.timestamp(message, start, required=start_required), self.timestamp(message, end)
        if begins is not None and ends is not None and begins >= ends:
            self.add(start, f"must be before {end}")
        return begins, ends

    def page_size(
        self, value: int, *, field: str = "page_size", default: int = DEFAULT_PAGE_SIZE, at_most: int = MAX_PAGE_SIZE
    ) -> int:
        """Return the size of a page: the default for 0; refuse a negative or too large one (nothing is cut)."""
        if value == 0:
            return default
        self.must(1 <= value <= at_most, field, f"must be between 1 and {at_most}, or 0 for {default}")
        return value

    def name(
        self, field: str, value: str, kind: names.NameKind, *, project: str | None = None, optional: bool = False
    ) -> names.ResourceName | None:
        """Return a parsed resource name of one kind, and of one project when given."""
        if optional and not value:
            return None
        return self.attempt(lambda: names.parse(value, kind, field, project=project))

    def project(self, value: str, field: str = "project") -> str | None:
        """Return the id in the name of a project."""
        return self.attempt(lambda: names.parse_project(value, field))

    def branch(self, value: str, field: str = "branch") -> str | None:
        """Return the branch, ``main`` for an empty one."""
        return self.attempt(lambda: names.check_branch(value, field))
