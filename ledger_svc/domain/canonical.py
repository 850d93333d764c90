"""Canonical form and hashes: equal meaning gives an equal hash, any change of a field another one.

The form is RFC 8785 JSON of a versioned schema: strings in NFC, instants in UTC with microseconds, sets sorted and
without repetition, fields that are empty (no text, no entries, None) left out. The last rule lets a schema grow: a
field that is added later and empty in old records leaves their hashes as they were. Which fields a hash covers is
said by the marks in ``model.fields``; without a mark a field is covered.

Two readings of a record:

- its *meaning* leaves out what the server made (ids, capture times), so that a retry equals the first try;
- the *whole* record is what the audit chain remembers, every stored byte of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

import rfc8785

from ledger_svc.domain.errors import invalid_field
from ledger_svc.domain.model import AuditEntry, Content, Evidence, EvidenceLink, Principal, Proposal

HASH_PATTERN: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MICROSECOND: Final = timedelta(microseconds=1)
_BEFORE_SURROGATES: Final = "\ud800"
_SAFE_INTEGER: Final = 2**53


class _Odd:
    """A value that Python's JSON encoder would write otherwise than RFC 8785: sends its tree down the slow way."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def nfc(text: str) -> str:
    """Text in Unicode's composed normal form."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def instant_text(moment: datetime, field: str = "time") -> str:
    """An instant as ``2021-01-31T00:00:00.000000Z``.

    Raises:
        DomainError: INVALID_FIELD for a naive datetime, which no one can place.
    """
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise invalid_field(field, "a time needs an offset from UTC, e.g. 2021-01-31T00:00:00Z")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def canonical_json(value: Any) -> bytes:
    """RFC 8785 JSON of records, mappings, sequences, sets, texts, numbers, enums and instants, by their meaning."""
    return _write(_tree(value, whole=False))


def sha256(data: bytes) -> str:
    """``sha256:<hex>`` of bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def text_hash(text: str) -> str:
    """Hash of a text's NFC form in UTF-8, e.g. of an excerpt."""
    try:
        return sha256(nfc(text).encode())
    except UnicodeEncodeError as error:
        raise _lone_surrogate() from error


def is_hash(text: str) -> bool:
    """Whether a text looks like a hash of this module."""
    return HASH_PATTERN.fullmatch(text) is not None


def meaning_hash(value: Any) -> str:
    """Hash of what a record says, without what the server made."""
    return sha256(_write(_tree(value, whole=False)))


def record_hash(value: Any) -> str:
    """Hash of a whole record, as the audit chain remembers it."""
    return sha256(_write(_tree(value, whole=True)))


def content_hash(content: Content) -> str:
    """Hash of what a revision says."""
    return meaning_hash(content)


def evidence_fingerprint(evidence: Evidence) -> str:
    """Hash of what evidence says; two registrations with one fingerprint are one evidence."""
    return meaning_hash(evidence)


def revision_hash(
    *,
    content: str,
    parents: Iterable[str],
    restores: str,
    evidence_links: Iterable[EvidenceLink],
    author: Principal,
    reason: str,
    branch: str,
    valid_from: datetime,
    valid_to: datetime | None,
) -> str:
    """Hash of a revision: what it says, where it comes from, and why.

    Args:
        content: The content hash.
        parents: Revision hashes of the parents, so that the hash covers the whole history before it.
        restores: Revision hash of the revision whose content a rollback brings back, or empty.
        evidence_links: Links to its evidence.
        author: Who asked for it.
        reason: Why.
        branch: Where it was published.
        valid_from: Start of its validity.
        valid_to: End of its validity, None for no end.
    """
    return meaning_hash(
        {
            "schema": "revision-hash/1",
            "content": content,
            "parents": frozenset(parents),
            "restores": restores,
            "evidence_links": frozenset(evidence_links),
            "author": author,
            "reason": reason,
            "branch": branch,
            "valid_from": valid_from,
            "valid_to": valid_to,
        }
    )


def preview_hash(proposal: Proposal, evidence: Iterable[Evidence]) -> str:
    """Hash of everything that a reviewer decides on; recomputed from stored content at approve and in the apply.

    Args:
        proposal: Its stored fields; what the server made of it (id, times, status, the hash itself) does not count.
        evidence: The records that its links, and the restored revision's, point at.
    """
    return meaning_hash({"schema": "preview/1", "proposal": proposal, "evidence": frozenset(evidence)})


def request_hash(rpc: str, payload: Any) -> str:
    """Hash of a request's meaning, kept with its request_id: the same id with another hash is another request."""
    return meaning_hash({"schema": "request/1", "rpc": rpc, "payload": payload})


def audit_entry_hash(entry: AuditEntry) -> str:
    """Hash of one link of the audit chain, the previous link's hash included."""
    return record_hash(entry)


def normalised(content: Content) -> Content:
    """The same content with its texts in NFC and its sets sorted, which is how it is stored."""
    changes: dict[str, Any] = {}
    for name, how in _plan(Content):
        value = getattr(content, name)
        if isinstance(value, str) and not isinstance(value, Enum):
            changes[name] = nfc(value)
        elif isinstance(value, tuple):
            items = [nfc(item) for item in value]
            changes[name] = tuple(sorted(set(items))) if how == "set" else tuple(items)
        elif isinstance(value, Mapping):
            changes[name] = {nfc(key): nfc(value[key]) for key in sorted(value)}
    return dataclasses.replace(content, **changes)


def _plan(cls: type[Any]) -> tuple[tuple[str, str], ...]:
    """Names of a record's fields with how each is read: plain, set, server or derived."""
    plan = _PLANS.get(cls)
    if plan is None:
        plan = tuple((f.name, f.metadata.get("canonical", "plain")) for f in dataclasses.fields(cls))
        _PLANS[cls] = plan
    return plan


_PLANS: Final[dict[type[Any], tuple[tuple[str, str], ...]]] = {}


def _tree(value: Any, *, whole: bool) -> Any:
    """The value as JSON data: dicts, lists, texts, numbers, booleans and None."""
    kind = type(value)
    # Nearly everything is text or nothing; the rest is looked up by its type, which is much faster than a chain of
    # isinstance for the dozen hashes of a publication.
    if kind is str:
        return value if value.isascii() else unicodedata.normalize("NFC", value)
    if value is None:
        return None
    reader = _READERS.get(kind)
    if reader is None:
        reader = _reader_of(kind)
        _READERS[kind] = reader
    return reader(value, whole)


Reader = Callable[[Any, bool], Any]


def _reader_of(kind: type[Any]) -> Reader:
    for base, reader in _READERS_OF_BASES:
        if issubclass(kind, base):
            return reader
    if dataclasses.is_dataclass(kind):
        return _record
    raise TypeError(f"no canonical form for {kind.__name__}")


def _record(value: Any, whole: bool) -> dict[str, Any]:
    tree: dict[str, Any] = {"schema": value.SCHEMA}
    for name, how in _plan(type(value)):
        if how == "derived" or (how == "server" and not whole):
            continue
        item = getattr(value, name)
        # 0 and False mean something and stay.
        if item is None or item in _EMPTY:
            continue
        item = _tree(item, whole=whole)
        tree[name] = _as_set(item) if how == "set" else item
    return tree


_EMPTY: Final[tuple[Any, ...]] = ("", (), {}, frozenset(), [])


def _mapping(value: Mapping[Any, Any], whole: bool) -> Any:
    tree: dict[str, Any] = {}
    odd = False
    for key, item in value.items():
        name = key.value if isinstance(key, Enum) else nfc(key)
        if name in tree:
            raise invalid_field("attributes", f"two keys are the same text: {name}")
        odd = odd or not (name.isascii() or max(name) < _BEFORE_SURROGATES)
        tree[name] = _tree(item, whole=whole)
    return _Odd(tree) if odd else tree


_READERS_OF_BASES: Final[tuple[tuple[type[Any], Reader], ...]] = (
    (Enum, lambda value, _: value.value),
    (bool, lambda value, _: value),
    (str, lambda value, _: nfc(str(value))),
    (int, lambda value, _: value if -_SAFE_INTEGER < value < _SAFE_INTEGER else _Odd(value)),
    (float, lambda value, _: _number(value)),
    (datetime, lambda value, _: instant_text(value)),
    (timedelta, lambda value, _: value // _MICROSECOND),
    (tuple, lambda value, whole: [_tree(item, whole=whole) for item in value]),
    (list, lambda value, whole: [_tree(item, whole=whole) for item in value]),
    (frozenset, lambda value, whole: _as_set([_tree(item, whole=whole) for item in value])),
    (set, lambda value, whole: _as_set([_tree(item, whole=whole) for item in value])),
    (Mapping, _mapping),
)
"""How each type is read; the first base that fits."""

_READERS: Final[dict[type[Any], Reader]] = {}


def _as_set(items: list[Any]) -> list[Any]:
    """Sorted by canonical form, each once."""
    if len(items) < 2:
        return items
    if all(type(item) is str for item in items):
        return sorted(set(items))
    by_form = {_write(item): item for item in items}
    return [by_form[form] for form in sorted(by_form)]


def _number(value: float) -> Any:
    if not math.isfinite(value):
        raise invalid_field("number", "must be finite")
    if value.is_integer():
        return int(value) if abs(value) < _SAFE_INTEGER else _Odd(value)
    # In this range Python and RFC 8785 write the same shortest digits.
    return value if 1e-4 <= abs(value) < 1e16 else _Odd(value)


def _write(tree: Any) -> bytes:
    try:
        text = _ENCODER.encode(tree)
    except TypeError:
        return _write_slowly(tree)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _lone_surrogate() from error


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _write_slowly(tree: Any) -> bytes:
    try:
        return rfc8785.dumps(_without_odd(tree))
    except rfc8785.CanonicalizationError as error:
        raise invalid_field("value", f"has no canonical form: {error}") from error


def _without_odd(tree: Any) -> Any:
    if isinstance(tree, _Odd):
        return _without_odd(tree.value)
    if isinstance(tree, dict):
        return {key: _without_odd(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_without_odd(item) for item in tree]
    return tree


def _lone_surrogate() -> Exception:
    return invalid_field("text", "holds half of a surrogate pair, which is no character")
