"""What people type, turned into what the contracts say: times, enums, evidence, contents, names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from decisionssearch.index.v1 import index_service_pb2 as index_pb2
from decisionssearch.ledger.v1 import ledger_pb2, ledger_service_pb2, proposal_pb2
from google.protobuf.json_format import ParseDict, ParseError

from dsearch.cli.frame import CommandError, Exit
from dsearch.cli.show import families_of
from dsearch.client import DecisionsClient, project_name
from service_kit.clock import parse_text
from service_kit.errors import DomainError, Reason
from service_kit.names import UUID_TEXT

_MOMENT: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2})(:\d{2}(?:\.\d{1,9})?)?\s*([Zz]|[+-]\d{2}:?\d{2})?)?"
)
_MOST_KEYS: Final = 2_000
_MOST_NAMED: Final = 8
_MOST_LABELS: Final = 400
_WAITING: Final = (proposal_pb2.PROPOSAL_STATUS_PENDING, proposal_pb2.PROPOSAL_STATUS_APPROVED)


def instant(text: str, option: str) -> datetime | None:
    """Return the instant that a person means: a day is its first moment in UTC, a time needs its offset."""
    if not text:
        return None
    if text == "now":
        return datetime.now(UTC)
    match = _MOMENT.fullmatch(text.strip())
    if match is None:
        raise _no_instant(option, text, "it is no date and no time")
    day, hours, seconds, offset = match.groups()
    if hours and not offset:
        raise _no_instant(option, text, "it has no offset; add Z for UTC, or e.g. -03:00")
    try:
        if not hours:
            return datetime.fromisoformat(day).replace(tzinfo=UTC)
        zone = offset.upper() if ":" in offset or offset in "Zz" else f"{offset[:3]}:{offset[3:]}"
        return parse_text(f"{day}T{hours}{seconds or ':00'}{zone}", option)
    except (DomainError, ValueError):
        raise _no_instant(option, text, "there is no such day or time") from None


def _no_instant(option: str, text: str, problem: str) -> CommandError:
    return CommandError(
        f"{option}: {text!r} names no instant: {problem}",
        "write a day (2026-01-31, its start in UTC) or a time with its offset (2026-01-31T12:00-03:00)",
    )


def choice(enum: Any, prefix: str, text: str, option: str) -> Any:
    """Return the value of an enum that a person named in any spelling: ``design-rule``, ``DesignRule``."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text.strip())
    name = re.sub(r"[\s-]+", "_", spaced).upper().removeprefix(prefix)
    known = [str(key).removeprefix(prefix) for key in enum.keys() if not str(key).endswith("_UNSPECIFIED")]  # noqa: SIM118 - a generated enum is no mapping
    if name not in known:
        words = ", ".join(word.lower().replace("_", "-") for word in known)
        raise CommandError(f"{option}: {text!r} is none of: {words}", "choose one of them")
    return enum.Value(f"{prefix}{name}")


def words(enum: Any, prefix: str) -> str:
    """Return the values of an enum as people write them, for a help text."""
    named = [str(key).removeprefix(prefix) for key in enum.keys() if not str(key).endswith("_UNSPECIFIED")]  # noqa: SIM118 - a generated enum is no mapping
    return ", ".join(word.lower().replace("_", "-") for word in named)


CATEGORY_WORDS: Final = f"{words(ledger_pb2.Category, 'CATEGORY_')}."
STATE_WORDS: Final = f"{words(ledger_pb2.State, 'STATE_')}, or all"


def category(text: str) -> ledger_pb2.Category.ValueType:
    """Return a category."""
    value: ledger_pb2.Category.ValueType = choice(ledger_pb2.Category, "CATEGORY_", text, "--category")
    return value


def categories(texts: Sequence[str]) -> list[ledger_pb2.Category.ValueType]:
    """Return categories."""
    return [category(text) for text in texts]


def states(texts: Sequence[str]) -> list[ledger_pb2.State.ValueType]:
    """Return states; ``all`` is every one."""
    if list(texts) == ["all"]:
        return [value for value in ledger_pb2.State.values() if value]
    return [choice(ledger_pb2.State, "STATE_", text, "--state") for text in texts]


def search_branches(texts: Sequence[str]) -> list[index_pb2.SearchBranch.ValueType]:
    """Return ways of finding candidates."""
    return [choice(index_pb2.SearchBranch, "SEARCH_BRANCH_", text, "--only") for text in texts]


def evidence(text: str) -> proposal_pb2.EvidenceInput:
    """Return evidence from ``KIND:LOCATOR``, with ``|excerpt`` and a leading ``!`` for what speaks against.

    The name of registered evidence stands by itself.
    """
    against = text.startswith("!")
    body = text.removeprefix("!")
    stance = ledger_pb2.STANCE_CONTRADICTS if against else ledger_pb2.STANCE_SUPPORTS
    if body.startswith("projects/"):
        return proposal_pb2.EvidenceInput(name=body, stance=stance, confidence=1.0)
    kind, colon, rest = body.partition(":")
    locator, _, excerpt = rest.partition("|")
    if not colon or not locator.strip():
        raise CommandError(
            f"--evidence: {text!r} has no kind and locator",
            'write KIND:LOCATOR or KIND:LOCATOR|WORDS, e.g. --evidence "url:https://example.org/1|We agreed to..."',
        )
    draft = ledger_pb2.EvidenceDraft(
        source_kind=choice(ledger_pb2.SourceKind, "SOURCE_KIND_", kind, "--evidence"),
        locator=locator.strip(),
        excerpt=excerpt.strip(),
        extractor="dsearch/cli",
        reliability=0.5,
    )
    return proposal_pb2.EvidenceInput(draft=draft, stance=stance, confidence=1.0)


def parse_message(values: Mapping[str, Any], message: Any, where: str) -> Any:
    """Fill a message from what a file says, with the names of the contracts and enums in any spelling."""
    try:
        return ParseDict(_named_enums(values, message.DESCRIPTOR), message)
    except ParseError as error:
        raise CommandError(f"{where}: {error}", "the fields are those of the contracts in proto/") from None


def _named_enums(value: Any, descriptor: Any) -> Any:
    if not isinstance(value, Mapping) or descriptor is None:
        return value
    filled: dict[str, Any] = {}
    for key, item in value.items():
        found = descriptor.fields_by_name.get(key)
        if found is None:
            filled[key] = item
        elif found.enum_type is not None and isinstance(item, str):
            filled[key] = _enum_name(found.enum_type, item, key)
        elif found.message_type is not None and found.message_type.full_name == "google.protobuf.Timestamp":
            filled[key] = _timestamp_text(item, key)
        elif found.message_type is not None and not found.message_type.GetOptions().map_entry:
            inner = found.message_type
            filled[key] = (
                [_named_enums(i, inner) for i in item] if isinstance(item, list) else _named_enums(item, inner)
            )
        else:
            filled[key] = item
    return filled


def _enum_name(enum: Any, text: str, where: str) -> str:
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.name).upper() + "_"
    known = {name.removeprefix(prefix): name for name in enum.values_by_name}
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text)
    name = re.sub(r"[\s-]+", "_", spaced).upper().removeprefix(prefix)
    if name not in known:
        raise CommandError(f"{where}: {text!r} is none of: {', '.join(k for k in known if k != 'UNSPECIFIED')}")
    return str(known[name])


def _timestamp_text(value: Any, where: str) -> str:
    # YAML reads a bare day as a date, and a bare time as a datetime.
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    moment = instant(text, where)
    return moment.isoformat().replace("+00:00", "Z") if moment is not None else text


async def family(client: DecisionsClient, project: str, text: str) -> str:
    """Return the resource name of a family that a person named: by key, id or name."""
    if UUID_TEXT.fullmatch(text):
        return f"{project_name(project)}/families/{text}"
    try:
        return await client.family_name(project, text)
    except DomainError as error:
        near = await _near_keys(client, project, text) if error.reason is Reason.NOT_FOUND else []
        if not near:
            raise
        raise CommandError(
            f"there is no memory {text!r}; did you mean {' or '.join(near)}?",
            "`dsearch search` finds memories",
            Exit.NOT_FOUND,
        ) from None


async def _near_keys(client: DecisionsClient, project: str, text: str) -> list[str]:
    """Return the natural keys that look like a text; of a large project only the first memories are looked at."""
    keys: list[str] = []
    async for found in client.families(project):
        keys.append(found.identity_key)
        if len(keys) >= _MOST_KEYS:
            break
    return difflib.get_close_matches(text, [key for key in keys if key], 3, 0.7)


def by_end(names: Sequence[str], text: str, what: str, where: str) -> str:
    """Return the only resource name whose id ends in a text, as lists show ids.

    Raises:
        CommandError: There is none, or several: then it names them.
    """
    found = [name for name in dict.fromkeys(names) if name.endswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CommandError(f"no {what} has an id that ends in {text!r}", f"{where} lists them", Exit.NOT_FOUND)
    listed = ", ".join(name.rsplit("/", 1)[-1] for name in found[:_MOST_NAMED])
    raise CommandError(f"the ids of {len(found)} {what}s end in {text!r}: {listed}", "write more of the id")


async def revision(client: DecisionsClient, family_name: str, text: str, branch: str) -> str:
    """Return the resource name of a revision given by name, by id, or by the end of its id."""
    if text.startswith("projects/"):
        return text
    if UUID_TEXT.fullmatch(text):
        return f"{family_name}/revisions/{text}"
    names = [step.revision.name async for step in client.history(family_name, branch=branch)]
    return by_end(names, text, "revision", "`dsearch history`")


async def relation(client: DecisionsClient, project: str, text: str, kind: str, target: str) -> str:
    """Return the resource name of a relation given by name, by id, by the end of its id, or by what it says."""
    if kind or target:
        if not (kind and target):
            raise CommandError("a relation is FROM KIND TO", "e.g. adr/0012 depends-on adr/0006; or give its id")
        wanted = choice(ledger_pb2.RelationKind, "RELATION_KIND_", kind, "KIND")
        ends = {await family(client, project, text), await family(client, project, target)}
        found = [
            r.name
            async for r in client.relations(project, kinds=[wanted])
            if {r.source_family, r.target_family} == ends
        ]
        if len(found) != 1:
            raise CommandError(
                f"{len(found) or 'no'} relations say: {text} {kind} {target}",
                "`dsearch lineage` shows the relations with their ids",
                Exit.USAGE if found else Exit.NOT_FOUND,
            )
        return found[0]
    if text.startswith("projects/"):
        return text
    if UUID_TEXT.fullmatch(text):
        return f"{project_name(project)}/relations/{text}"
    return by_end([r.name async for r in client.relations(project)], text, "relation", "`dsearch lineage`")


async def labels(client: DecisionsClient, project: str, proposals: Sequence[proposal_pb2.Proposal]) -> dict[str, str]:
    """Return what people call the families that proposals name."""
    wanted = list(dict.fromkeys(name for p in proposals for name in families_of(p)))[:_MOST_LABELS]
    if not wanted:
        return {}
    request = ledger_service_pb2.BatchGetHeadsRequest(
        project=project_name(project), families=wanted, view=ledger_service_pb2.HEAD_VIEW_STATE
    )
    heads = (await client.batch_get_heads(request)).heads
    return {head.family.name: head.family.identity_key for head in heads if head.family.identity_key}


async def proposal(client: DecisionsClient, project: str, text: str) -> proposal_pb2.Proposal:
    """Return the proposal that a person named: by name, by id, or by the end of the id as the queue shows it."""
    if text.startswith("projects/"):
        return await client.get_proposal(text)
    if UUID_TEXT.fullmatch(text):
        return await client.get_proposal(f"{project_name(project)}/proposals/{text}")
    found = [p async for p in client.proposals(project) if p.name.endswith(text)]
    if not found:
        every = [s for s in proposal_pb2.ProposalStatus.values() if s and s not in _WAITING]
        found = [p async for p in client.proposals(project, statuses=every) if p.name.endswith(text)]
    name = by_end([p.name for p in found], text, "proposal", "`dsearch review`")
    return next(p for p in found if p.name == name)
