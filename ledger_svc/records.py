"""One codec for every store: domain records to and from plain values (text, numbers, lists, maps).

Built from the type hints of the dataclasses, so a field that is added later is stored from its first day. Instants and
durations become integers in microseconds, bytes become base64; empty values that are also the default are left out.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeVar, Union

from ledger_svc.instants import from_micros, to_micros

T = TypeVar("T")
Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]

_TAG: Final = "="
_EMPTY: Final = ("", (), None)
_MICROSECOND: Final = timedelta(microseconds=1)


def dump(record: Any) -> str:
    """Return the stored text of a record."""
    return json.dumps(to_plain(record), ensure_ascii=False, separators=(",", ":"))


def load(kind: type[T], text: str) -> T:
    """Return the record of a stored text."""
    return from_plain(kind, json.loads(text))


def dump_plain(value: Any) -> str:
    """Return the stored text of a plain value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def to_plain(record: Any) -> Any:
    """Return a record as plain values."""
    return _codec(type(record))[0](record)


def from_plain(kind: type[T], value: Any) -> T:
    """Return the record of plain values."""
    made: T = _codec(kind)[1](value)
    return made


_CODECS: Final[dict[Any, tuple[Encode, Decode]]] = {}


def _codec(kind: Any) -> tuple[Encode, Decode]:
    """Return the two functions of a dataclass, made at its first use."""
    known = _CODECS.get(kind)
    if known is None:
        known = _CODECS[kind] = _make_codec(kind)
    return known


def _make_codec(kind: Any) -> tuple[Encode, Decode]:
    hints = typing.get_type_hints(kind)
    plan = [(f.name, *_value_codec(hints[f.name]), _may_be_left_out(f)) for f in dataclasses.fields(kind)]
    decoders = {name: decode for name, _, decode, _ in plan}

    def encode(record: Any) -> Any:
        found = {}
        for name, encode_one, _, optional in plan:
            value = getattr(record, name)
            if optional and not value and value in _EMPTY:
                continue
            found[name] = value if encode_one is None else encode_one(value)
        return found

    def decode(value: Any) -> Any:
        made = {}
        for name, item in value.items():
            decode_one = decoders[name]
            made[name] = item if decode_one is None else decode_one(item)
        return kind(**made)

    return encode, decode


def _may_be_left_out(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING and field.default in _EMPTY


def _value_codec(hint: Any) -> tuple[Encode | None, Decode | None]:
    """Return how to encode and decode a value of a type; None where it is plain already."""
    origin = typing.get_origin(hint)
    if origin in {Union, types.UnionType}:
        return _union_codec(typing.get_args(hint))
    if origin is tuple:
        return _list_codec(typing.get_args(hint)[0], tuple, ordered=True)
    if origin is frozenset:
        return _list_codec(typing.get_args(hint)[0], frozenset, ordered=False)
    if origin is not None and issubclass(origin, Mapping):
        return _map_codec(*typing.get_args(hint))
    if hint is datetime:
        return to_micros, from_micros
    if hint is timedelta:
        return (lambda value: value // _MICROSECOND), (lambda value: timedelta(microseconds=value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        members = {m.value: m for m in hint}
        return (lambda value: value.value), members.__getitem__
    if hint is float:
        return float, float
    if hint is bytes:
        return (lambda value: base64.b64encode(value).decode()), (lambda value: base64.b64decode(value, validate=True))
    if dataclasses.is_dataclass(hint):
        # Looked up at the first use: records may hold each other.
        return (lambda value: _codec(hint)[0](value)), (lambda value: _codec(hint)[1](value))  # noqa: PLW0108
    return None, None


def _union_codec(members: tuple[Any, ...]) -> tuple[Encode | None, Decode | None]:
    kinds = [m for m in members if m is not types.NoneType]
    if len(kinds) == 1:
        encode_one, decode_one = _value_codec(kinds[0])
        if encode_one is None or decode_one is None:
            return None, None
        return (
            lambda value: None if value is None else encode_one(value),
            lambda value: None if value is None else decode_one(value),
        )
    by_tag = {kind.SCHEMA: kind for kind in kinds}

    def encode(value: Any) -> Any:
        return {_TAG: value.SCHEMA, **to_plain(value)}

    def decode(value: Any) -> Any:
        rest = dict(value)
        return from_plain(by_tag[rest.pop(_TAG)], rest)

    return encode, decode


def _list_codec(item: Any, build: Callable[[Any], Any], *, ordered: bool) -> tuple[Encode, Decode]:
    encode_item, decode_item = _value_codec(item)
    encode_one, decode_one = encode_item or _same, decode_item or _same

    def encode(values: Any) -> Any:
        found = [encode_one(v) for v in values]
        return found if ordered else sorted(found)

    def decode(values: Any) -> Any:
        return build(values) if decode_item is None else build(decode_one(v) for v in values)

    return encode, decode


def _map_codec(key: Any, item: Any) -> tuple[Encode, Decode]:
    encode_key, decode_key = (part or _same for part in _value_codec(key))
    encode_item, decode_item = (part or _same for part in _value_codec(item))
    return (
        lambda values: {encode_key(k): encode_item(v) for k, v in values.items()},
        lambda values: {decode_key(k): decode_item(v) for k, v in values.items()},
    )


def _same(value: Any) -> Any:
    return value
