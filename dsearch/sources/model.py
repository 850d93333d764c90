"""What an importer makes: observations in the order to send them, and what the reader should know about the source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest_pb2
from decisionssearch.ledger.v1 import ledger_pb2

from service_kit.clock import to_timestamp


class SourceError(Exception):
    """The source cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supersession:
    """One document takes the place of another, as one or both of them say."""

    old: str
    new: str
    since: datetime
    said_by_old: bool
    said_by_new: bool
    followed: bool
    why: str = ""
    """Why it is not followed, or what is odd about it."""

    @property
    def one_sided(self) -> bool:
        """Whether only one of the two documents says so."""
        return self.said_by_old != self.said_by_new


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReading:
    """A source, read: documents first, in order of time; relations last."""

    documents: Sequence[ingest_pb2.RawObservation]
    relations: Sequence[ingest_pb2.RawObservation] = ()
    supersessions: Sequence[Supersession] = ()
    remarks: Sequence[str] = ()
    problems: Sequence[tuple[str, str]] = ()
    """Files that could not be read, or not all of them, each with the reason."""
    families: int = 0
    dates: str = ""
    """Where the dates come from, in words."""
    facts: Mapping[str, int] = field(default_factory=dict)


class RelationWord(StrEnum):
    """Relations that importers assert."""

    DEPRECATES = "DEPRECATES"


def observation(
    *,
    kind: ledger_pb2.SourceKind.ValueType,
    locator: str,
    text: str,
    occurred_at: datetime,
    title: str = "",
    author: str = "",
    files: Sequence[str] = (),
    attributes: Mapping[str, str],
) -> ingest_pb2.RawObservation:
    """Return an observation; attributes without a value are left out."""
    return ingest_pb2.RawObservation(
        source_kind=kind,
        locator=locator,
        title=title,
        text=text,
        author=author,
        occur_time=to_timestamp(occurred_at),
        files=files,
        attributes={key: value for key, value in attributes.items() if value},
    )


def relation_observation(
    kind: ledger_pb2.SourceKind.ValueType, supersession: Supersession, *, locator: str, attributes: Mapping[str, str]
) -> ingest_pb2.RawObservation:
    """Return the observation that asserts a supersession."""
    sides = {
        (True, True): "both documents say so",
        (True, False): f"{supersession.old} says so",
        (False, True): f"{supersession.new} says so",
    }[supersession.said_by_old, supersession.said_by_new]
    statement = f"{supersession.new} supersedes {supersession.old}: {sides}"
    relations = [
        {
            "kind": RelationWord.DEPRECATES.value,
            "source": supersession.new,
            "target": supersession.old,
            "rationale": sides,
        }
    ]
    return observation(
        kind=kind,
        locator=locator,
        text=statement,
        title=statement,
        occurred_at=supersession.since,
        attributes={
            "identity_key": supersession.new,
            **attributes,
            "relations": json.dumps(relations, ensure_ascii=False, sort_keys=True),
        },
    )
