"""search and context."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from dsearch.cli import inputs, show
from dsearch.cli.frame import CommandError, Exit, Frame, command

# The server's own names, which a server may add to; here because a help text has to know them without one.
_PROFILES: Final = (
    "article, article-no-importance, article-no-recency, article-relevance-only, default, default-no-structural, "
    "default-no-tie-break"
)

Question = Annotated[str, typer.Argument(help="The question, in any words.", show_default=False)]
At = Annotated[str, typer.Option("--at", help="As of then in the world: a day or a time with its offset.")]
KnownAt = Annotated[str, typer.Option("--known-at", help="As the ledger knew it then.")]
Category = Annotated[
    list[str] | None, typer.Option("--category", help=f"Only this category; repeat. {inputs.CATEGORY_WORDS}")
]
State = Annotated[
    list[str] | None, typer.Option("--state", help=f"States to show, default: in force only. {inputs.STATE_WORDS}.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Most hits.", min=1, max=100)]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        help=f"Ranking profile, default: default. {_PROFILES}.",
    ),
]
MinEvidence = Annotated[int, typer.Option("--min-evidence", help="Supporting sources that a hit must have.")]
Verified = Annotated[bool, typer.Option("--verified", help="Only verified evidence counts.")]
Closest = Annotated[bool, typer.Option("--closest", help="Show the closest hits also when there is no answer.")]
Wait = Annotated[bool, typer.Option("--wait", help="Ask when the index has caught up with the ledger.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="Only this way: dense, sparse, structural.")]
Budget = Annotated[int, typer.Option("--tokens", help="Room in the prompt, in tokens.", min=100, max=100_000)]


def _options(frame: Frame, question: str, **given: Any) -> dict[str, Any]:
    if not question.strip():
        raise CommandError("question: it is empty", "write what you want to know, in any words")
    return {
        "branch": frame.branch,
        "valid_at": inputs.instant(given["at"], "--at"),
        "known_at": inputs.instant(given["known_at"], "--known-at"),
        "categories": inputs.categories(given["category"] or ()),
        "states": inputs.states(given["state"] or ()),
        "limit": given["limit"],
        "profile": given["profile"],
        "min_evidence": given["min_evidence"],
        "verified_evidence_only": given["verified"],
        "include_rejected": given["closest"],
    }


def add(app: typer.Typer) -> None:
    """Add the commands."""

    @command(
        app,
        "search",
        acts_as="reader",
        branch=True,
        example='dsearch search "How long can I pick up my parcel?" --project ferrybox',
    )
    async def search(
        frame: Frame,
        question: Question,
        at: At = "",
        known_at: KnownAt = "",
        category: Category = None,
        state: State = None,
        limit: Limit = 5,
        profile: Profile = "",
        min_evidence: MinEvidence = 0,
        verified: Verified = False,
        closest: Closest = False,
        only: Only = None,
        wait: Wait = False,
    ) -> int:
        """Find what is in force, with evidence and with what it replaced; or why there is no answer (exit code 5)."""
        project = frame.need_project()
        options = _options(
            frame,
            question,
            at=at,
            known_at=known_at,
            category=category,
            state=state,
            limit=limit,
            profile=profile,
            min_evidence=min_evidence,
            verified=verified,
            closest=closest,
        )
        async with frame.connect() as client:
            if wait:
                await client.wait_for_index(project)
            response = await client.search(project, question, branches=inputs.search_branches(only or ()), **options)
        frame.print(*show.search_answer(response))
        frame.result(response)
        return Exit.NO_ANSWER if response.HasField("abstention") else Exit.OK

    @command(
        app,
        "context",
        acts_as="reader",
        branch=True,
        example='dsearch context "refund rules" --project ferrybox --tokens 1500 >> prompt.md',
    )
    async def context(
        frame: Frame,
        question: Question,
        tokens: Budget = 2000,
        at: At = "",
        known_at: KnownAt = "",
        category: Category = None,
        state: State = None,
        limit: Limit = 10,
        profile: Profile = "",
        min_evidence: MinEvidence = 0,
        verified: Verified = False,
        wait: Wait = False,
    ) -> int:
        """Print the answer as Markdown for the prompt of an agent, within a budget of tokens."""
        project = frame.need_project()
        options = _options(
            frame,
            question,
            at=at,
            known_at=known_at,
            category=category,
            state=state,
            limit=limit,
            profile=profile,
            min_evidence=min_evidence,
            verified=verified,
            closest=False,
        )
        async with frame.connect() as client:
            if wait:
                await client.wait_for_index(project)
            response = await client.context(project, question, token_budget=tokens, **options)
        if not frame.as_json:
            # As it is: it goes into a prompt, so nothing may wrap or colour it.
            sys.stdout.write(response.text.rstrip("\n") + "\n")
            left = f", {response.left_out} hits left out for want of room" if response.left_out else ""
            frame.note(f"{response.tokens} tokens{left}")
        frame.result(response)
        return Exit.NO_ANSWER if response.search.HasField("abstention") else Exit.OK
