"""Sanitises request messages in place, before anything is made of them (G1).

Every text field is rewritten, whatever message it is in and whether or not anybody thought of it: a field that a
contract gains is text until it is listed as an identifier. Identifiers (keys, names, request ids) are never rewritten,
because two of them must not become one: one that holds a secret is a problem of the request.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from service_kit.checks import FieldChecks
from service_kit.sanitising.sanitise import Sanitised, sanitise, sanitise_mapping

_INLINE_BYTES: Final = 32 * 1024
"""A larger request is sanitised in a thread: it would hold up every other call for milliseconds."""
_KEY_IN_PATH_CHARS: Final = 60
# Ids that the server made, below a project that was looked at when it was made: nothing can hide there.
_MADE_NAME: Final = re.compile(
    r"projects/[a-z][a-z0-9-]{1,62}(?:/[a-z]{1,20}/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}){1,2}", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Replacement:
    """What was taken out of one field."""

    field: str
    """Path in the request, e.g. ``content.summary``."""
    kind: str
    """E.g. ``EMAIL``."""
    count: int

    def __str__(self) -> str:
        verb = "was" if self.count == 1 else "were"
        return f"{self.field}: {self.count} {self.kind} {verb} replaced before storing"


@dataclass(slots=True)
class Taken:
    """What sanitising a request came to."""

    replaced: list[Replacement] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Path and kind of every identifier that holds a secret."""

    def check(self, checks: FieldChecks) -> Taken:
        """Add a problem for every identifier that holds a secret; return itself."""
        for path, kind in self.refused:
            checks.add(path, f"holds what looks like {kind}; it is stored as it is, so choose another")
        return self


@dataclass(frozen=True, slots=True)
class MessageSanitiser:
    """Sanitises messages of a set of contracts.

    Args:
        identifiers: Names of the fields that are stored as they are or refused.
        principals: Names of the identifiers that say who somebody is: an e-mail is a usual name there.
    """

    identifiers: frozenset[str]
    principals: frozenset[str] = frozenset()

    async def take(self, message: Message, *, but: Collection[str] = ()) -> Taken:
        """Sanitise a message in place, but for the named fields of its own."""
        if message.ByteSize() <= _INLINE_BYTES:
            return self.take_now(message, but=but)
        return await asyncio.to_thread(self.take_now, message, but=but)

    async def take_each(self, messages: Sequence[Message]) -> list[Taken]:
        """Sanitise messages in place; each has paths of its own."""
        if sum(message.ByteSize() for message in messages) <= _INLINE_BYTES:
            return [self.take_now(message) for message in messages]
        return await asyncio.to_thread(lambda: [self.take_now(message) for message in messages])

    def take_now(self, message: Message, *, but: Collection[str] = ()) -> Taken:
        """Sanitise a message in place, in this thread."""
        taken = Taken()
        self._message(message, "", taken, but)
        return taken

    def _message(self, message: Message, prefix: str, taken: Taken, but: Collection[str] = ()) -> None:
        for descriptor, value in message.ListFields():
            name = descriptor.name
            if name in but:
                continue
            path = f"{prefix}{name}"
            if descriptor.type == FieldDescriptor.TYPE_STRING:
                if descriptor.is_repeated:
                    self._texts(value, name, path, taken)
                else:
                    clean = self._text(value, name, path, taken)
                    if clean is not value:
                        setattr(message, name, clean)
            elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
                if not descriptor.is_repeated:
                    self._message(value, f"{path}.", taken)
                elif isinstance(value, Mapping):
                    self._mapping(value, path, taken)
                else:
                    for index, item in enumerate(value):
                        self._message(item, f"{path}[{index}].", taken)

    def _texts(self, values: Any, name: str, path: str, taken: Taken) -> None:
        for index, value in enumerate(values):
            clean = self._text(value, name, f"{path}[{index}]", taken)
            if clean is not value:
                values[index] = clean

    def _text(self, value: str, name: str, path: str, taken: Taken) -> str:
        if name in self.identifiers or name in self.principals:
            allowed = ("EMAIL",) if name in self.principals else ()
            taken.refused += [(path, kind) for kind in found_in_identifier(value) if kind not in allowed]
            return value
        done = _sanitised(value)
        _note(path, done.findings, taken)
        return done.text

    def _mapping(self, values: Any, path: str, taken: Taken) -> None:
        if any(isinstance(item, Message) for item in values.values()):
            for key, item in values.items():
                taken.refused += [(f"{path} key", kind) for kind in found_in_identifier(str(key))]
                self._message(item, f"{path}[{str(key)[:_KEY_IN_PATH_CHARS]}].", taken)
            return
        texts = {key: value for key, value in values.items() if isinstance(key, str) and isinstance(value, str)}
        clean, found = sanitise_mapping({_composed(key): _composed(value) for key, value in texts.items()})
        if found:
            values.clear()
            values.update(clean)
            _note(path, found, taken)


def found_in_identifier(value: str) -> Iterable[str]:
    """Return the kinds of secrets and personal data that an identifier holds."""
    return () if _MADE_NAME.fullmatch(value) else sorted(_sanitised(value).findings)


def check_identifier(checks: FieldChecks, name: str, value: str) -> None:
    """Refuse an identifier that holds a secret: it would be stored as it is."""
    Taken(refused=[(name, kind) for kind in found_in_identifier(value)]).check(checks)


def _composed(text: str) -> str:
    # Stores keep text in its composed form: what is a secret in that form is looked for in that form.
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _sanitised(text: str) -> Sanitised:
    done = sanitise(_composed(text))
    return done if done.findings else Sanitised(text)


def _note(path: str, found: Mapping[str, int] | Counter[str], taken: Taken) -> None:
    taken.replaced += [Replacement(path, kind, count) for kind, count in sorted(found.items())]
