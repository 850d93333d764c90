"""Limits on fields, lists and messages."""

from __future__ import annotations

import pytest
from decisionssearch.common.v1 import errors_pb2
from google.protobuf import struct_pb2

from service_kit.errors import DomainError, Reason
from service_kit.limits import Limits, check_message_limits

LIMITS = Limits(max_message_bytes=10_000, max_field_bytes=8, max_list_length=3)
Item = errors_pb2.ItemError


def refusal(message: Item | struct_pb2.Struct, limits: Limits = LIMITS) -> DomainError:
    """Return the error that a message is refused with."""
    with pytest.raises(DomainError) as refused:
        check_message_limits(message, limits)
    return refused.value


@pytest.mark.parametrize("text", ["12345678", "áéíó", "😀😀", ""])
def test_text_is_measured_in_bytes_and_may_fill_its_limit(text: str) -> None:
    """S4: the limit itself is allowed, counted in UTF-8 bytes in every script."""
    check_message_limits(Item(message=text, metadata={"k": text}, fields=[{"field": text}]), LIMITS)


@pytest.mark.parametrize(
    ("message", "field", "actual"),
    [
        (Item(message="123456789"), "message", "9"),
        (Item(message="áéíóx"), "message", "9"),
        (Item(fields=[{}, {"description": "123456789"}]), "fields[1].description", "9"),
        (Item(metadata={"key": "123456789"}), "metadata[key]", "9"),
        (Item(metadata={"123456789": "x"}), "metadata key", "9"),
        (Item(fields=[{}, {}, {}, {}]), "fields", "4"),
        (Item(metadata={"a": "", "b": "", "c": "", "d": ""}), "metadata", "4"),
    ],
)
def test_what_is_over_a_limit_is_named(message: Item, field: str, actual: str) -> None:
    """S4: the refusal has the path of the field, in lists, maps and nested messages, and its size."""
    error = refusal(message)
    assert error.reason is Reason.LIMIT_EXCEEDED
    assert error.metadata["field"] == error.fields[0].field == field
    assert error.metadata["actual"] == actual


def test_a_whole_message_has_a_limit() -> None:
    """S4: many small fields together are limited as well."""
    error = refusal(Item(fields=[{}] * 3, message="1234567"), Limits(max_message_bytes=10))
    assert error.metadata == {"field": "", "limit": "10", "actual": "15"}


def test_a_field_can_have_its_own_limit() -> None:
    """S4: an override by full name replaces the general limit, up or down."""
    own = Limits(
        max_field_bytes=8,
        max_list_length=3,
        field_bytes={"decisionssearch.common.v1.ItemError.message": 20},
        list_lengths={"decisionssearch.common.v1.ItemError.fields": 1},
    )
    check_message_limits(Item(message="x" * 20, metadata={"a": "", "b": "", "c": ""}), own)
    assert refusal(Item(message="x" * 21), own).metadata["limit"] == "20"
    assert refusal(Item(fields=[{}, {}]), own).metadata["limit"] == "1"


def test_nul_is_refused_everywhere() -> None:
    """S4: text with a NUL character is refused with its path: stores and tools cut there silently."""
    for message in (Item(message="a\0b"), Item(metadata={"k": "\0"}), Item(metadata={"\0": "k"})):
        error = refusal(message)
        assert error.reason is Reason.INVALID_FIELD
    assert refusal(Item(fields=[{"field": "\0"}])).fields[0].field == "fields[0].field"


def test_nested_structures_are_walked() -> None:
    """S4: a limit holds at any depth."""
    deep = struct_pb2.Struct()
    deep.update({"a": {"b": [1.0, {"c": "123456789"}]}})
    error = refusal(deep, Limits(max_field_bytes=8))
    assert error.metadata["field"].endswith("string_value")
    assert "fields[c]" in error.metadata["field"]
