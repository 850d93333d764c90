"""Context: the hits as a text within a budget of tokens, for the prompt of an agent. Pure.

What a memory says is quoted line by line, so that no text inside one can pass for a heading, a state or an instruction
of this answer. A memory that does not fit whole is given without its longer parts, and says so; one that does not fit
even then is left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from retrieval_svc.domain import ANSWERS, Answer, Confidence, Hit
from retrieval_svc.explain import day

CHARS_PER_TOKEN: Final = 4

_INTRO: Final = {
    Confidence.ANSWER: "Decisions that answer, checked against the ledger:",
    Confidence.CLOSEST: "The closest decisions, checked against the ledger; they may not answer:",
}


@dataclass(frozen=True, slots=True)
class Memory:
    """A hit as it is written: the hit, its category in words, and its parts, the weightiest first."""

    hit: Hit
    category: str
    sections: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Context:
    """The text, its cost, what is in it and how much was left out."""

    text: str
    tokens: int
    families: tuple[str, ...]
    left_out: int


def estimate_tokens(text: str) -> int:
    """Return the characters divided by four, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def build_context(answer: Answer, memories: Sequence[Memory], token_budget: int) -> Context:
    """Return the text for an answer; for an abstention its reason in words."""
    room = token_budget * CHARS_PER_TOKEN
    verdict = answer.verdict
    if verdict.reason is not None:
        text = f"No answer from memory ({verdict.reason.value}): {verdict.message}."[:room]
        return Context(text, estimate_tokens(text), (), 0)
    text = _INTRO[verdict.confidence][:room]
    families: list[str] = []
    left_out = 0
    for number, memory in enumerate(memories, start=1):
        for block in _blocks(number, memory):
            if len(text) + 2 + len(block) <= room:
                text = f"{text}\n\n{block}"
                families.append(memory.hit.head.family)
                break
        else:
            left_out += 1
    return Context(text, estimate_tokens(text), tuple(families), left_out)


def _blocks(number: int, memory: Memory) -> list[str]:
    """Return the memory whole, then with fewer and fewer of its parts."""
    head = _heading(number, memory)
    parts = [_quote(label, text) for label, text in memory.sections]
    blocks = ["\n".join([head, *parts])]
    blocks += ["\n".join([head, *parts[:count], "(shortened)"]) for count in range(len(parts) - 1, -1, -1)]
    return blocks


def _heading(number: int, memory: Memory) -> str:
    hit, head = memory.hit, memory.hit.head
    detail = head.detail
    title = _one_line(detail.title if detail else "")
    key = f" [{head.identity_key}]" if head.identity_key else ""
    lines = [f"## {number}. {title}{key}"]
    state = "in force" if head.state in ANSWERS else f"NOT in force ({head.state.value})"
    since = day(detail.valid_from) if detail else ""
    until = day(detail.valid_to) if detail else ""
    when = "".join((f" since {since}" if since else "", f" until {until}" if until else ""))
    lines.append(f"- {memory.category}, {state}{when}")
    lines.append(f"- evidence: {_evidence(hit)}")
    lines += [_replaced_line(r.identity_key, r.title, r.time, r.reason) for r in hit.replaced if r.matched or r.time]
    if detail and detail.review:
        lines.append(f"- needs review: something it rests on was {', '.join(c.lower() for c in detail.review)}")
    if detail and detail.conflicts:
        lines.append("- in an open conflict with another memory")
    lines.append(f"- source: {head.revision}")
    return "\n".join(lines)


def _replaced_line(identity_key: str, title: str, time: float | None, reason: str) -> str:
    name = " ".join(part for part in (identity_key, _one_line(title)) if part) or "an earlier revision"
    when = f" on {day(time)}" if time is not None else ""
    return f"- replaced {name}{when}{f': {_one_line(reason)}' if reason else ''}"


def _evidence(hit: Hit) -> str:
    evidence = hit.head.detail.evidence if hit.head.detail else ()
    if not evidence:
        return "none"
    supports = [e for e in evidence if e.supports]
    verified = sum(e.verified for e in supports)
    return f"{len(supports)} supporting, {verified} verified" + (
        f", {len(evidence) - len(supports)} other" if len(evidence) > len(supports) else ""
    )


def _quote(label: str, text: str) -> str:
    lines = [f"> {line}" for line in text.splitlines() or [""]]
    return "\n".join([f"**{label}**", *lines] if label else lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())
