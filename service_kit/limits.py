"""Limits on the size of messages, fields and lists. Over a limit means a typed refusal; nothing is ever cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from service_kit.errors import invalid, limit_exceeded

DEFAULT_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
TRANSPORT_FACTOR: Final = 4
"""The transport accepts this many times the limit, so that a message somewhat over it gets a typed answer; beyond
that the transport refuses by itself, with RESOURCE_EXHAUSTED and no details, and the memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a request may be. The overrides are by full field name, e.g. ``pkg.v1.Message.field``."""

    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    max_field_bytes: int = 64 * 1024
    max_list_length: int = 1_000
    field_bytes: Mapping[str, int] = field(default_factory=dict)
    list_lengths: Mapping[str, int] = field(default_factory=dict)


_MAX_KEY_CHARS: Final = 60
_UNSIZED: Final = frozenset(
    {
        FieldDescriptor.TYPE_DOUBLE,
        FieldDescriptor.TYPE_FLOAT,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_FIXED32,
        FieldDescriptor.TYPE_SFIXED64,
        FieldDescriptor.TYPE_SFIXED32,
        FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_SINT32,
        FieldDescriptor.TYPE_BOOL,
        FieldDescriptor.TYPE_ENUM,
    }
)
"""Types whose items need no look: a vector of 512 numbers only counts as a list."""

DEFAULT_LIMITS: Final = Limits()


def check_message_limits(message: Message, limits: Limits = DEFAULT_LIMITS) -> None:
    """Refuse a message with a field or list over its limit, or with text that holds a NUL character.

    Raises:
        DomainError: LIMIT_EXCEEDED with the path of the field, the limit and the actual size, or INVALID_FIELD.
    """
    size = message.ByteSize()
    if size > limits.max_message_bytes:
        raise limit_exceeded("", limits.max_message_bytes, size, "bytes in all")
    _check(message, limits, "")


def _check(message: Message, limits: Limits, prefix: str) -> None:
    for descriptor, value in message.ListFields():
        path = f"{prefix}{descriptor.name}"
        if not descriptor.is_repeated:
            _check_item(value, descriptor, limits, path)
            continue
        allowed = limits.list_lengths.get(descriptor.full_name, limits.max_list_length)
        if len(value) > allowed:
            raise limit_exceeded(path, allowed, len(value), "entries")
        if descriptor.type in _UNSIZED:
            continue
        # A map is a mapping here, though a repeated entry on the wire.
        if isinstance(value, Mapping):
            for key, item in value.items():
                _check_item(key, descriptor, limits, f"{path} key")
                _check_item(item, descriptor, limits, f"{path}[{str(key)[:_MAX_KEY_CHARS]}]")
        else:
            for index, item in enumerate(value):
                _check_item(item, descriptor, limits, f"{path}[{index}]")


def _check_item(value: Any, descriptor: FieldDescriptor, limits: Limits, path: str) -> None:
    if isinstance(value, str):
        # A character takes at most 4 bytes: most text needs no encoding to be measured.
        allowed = limits.field_bytes.get(descriptor.full_name, limits.max_field_bytes)
        if len(value) * 4 > allowed and len(value.encode()) > allowed:
            raise limit_exceeded(path, allowed, len(value.encode()), "bytes")
        if "\0" in value:
            raise invalid(path, "must not hold a NUL character")
    elif isinstance(value, bytes):
        allowed = limits.field_bytes.get(descriptor.full_name, limits.max_field_bytes)
        if len(value) > allowed:
            raise limit_exceeded(path, allowed, len(value), "bytes")
    elif isinstance(value, Message):
        _check(value, limits, f"{path}.")
