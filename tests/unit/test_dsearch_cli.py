"""The command line without a server: help, usage, errors, rendering."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from decisionssearch.common.v1 import common_pb2
from decisionssearch.ledger.v1 import ledger_pb2, proposal_pb2, proposal_service_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as retrieval_pb2
from rich.console import Console
from typer.testing import CliRunner

from all_in_one.folder import DataFolder
from dsearch.cli import inputs, show
from dsearch.cli.app import build
from dsearch.cli.frame import EXIT_OF_REASON, REMEDIES, CommandError, Exit
from service_kit.clock import to_timestamp
from service_kit.errors import STATUS, Reason


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the variables of whoever runs the tests away."""
    for name in ("PROJECT", "ENDPOINT", "TOKEN_FILE", "DATA"):
        monkeypatch.delenv(f"DSEARCH_{name}", raising=False)


def every_command() -> list[tuple[str, Any]]:
    """Return every command with its whole name."""
    found = []

    def walk(prefix: str, command: Any) -> None:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                walk(f"{prefix} {name}".strip(), inner)
        else:
            found.append((prefix, command))

    walk("", typer.main.get_command(build()))
    return found


COMMANDS = every_command()


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_explains_itself(name: str, command: Any) -> None:
    """Every command has a sentence and an example that begins with its own name; all but the demo take --json."""
    assert command.help
    if name == "eval":
        return
    assert f"dsearch {name.removesuffix(' queue')}" in (command.epilog or "")
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options or name == "demo"


def test_exit_codes_are_documented() -> None:
    """`dsearch --help` lists every exit code, and every reason of the server has one and a remedy."""
    text = CliRunner().invoke(build(), ["--help"]).output
    shown = " ".join(text.split())
    for code in Exit:
        assert f"{int(code)} " in shown
    assert set(EXIT_OF_REASON) <= set(STATUS)
    assert set(Reason) - set(REMEDIES) <= {
        Reason.REQUEST_ID_REUSED,
        Reason.PAGE_TOKEN_MISMATCH,
        Reason.LEASE_LOST,
        Reason.MODEL_MISMATCH,
    }


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["search", "x"], Exit.USAGE, "no project was named"),
        (["search", "x", "-p", "demo"], Exit.UNAVAILABLE, "dsearch serve"),
        (["search", "x", "-p", "demo", "--at", "yesterday"], Exit.USAGE, "names no instant"),
        (["search", "x", "-p", "demo", "--at", "2020-01-01T00:00:00"], Exit.USAGE, "has no offset"),
        (["search", "x", "-p", "demo", "--at", "2020-02-30"], Exit.USAGE, "no such day"),
        (["search", " ", "-p", "demo"], Exit.USAGE, "question: it is empty"),
        (["search", "x", "-p", "demo", "--category", "poem"], Exit.USAGE, "business-rule"),
        (["search", "x", "-p", "demo", "--endpoint", "nowhere"], Exit.USAGE, "host:port"),
        (["propose", "update", "adr/1", "-m", "why", "-p", "demo"], Exit.USAGE, "nothing was changed"),
        (["token", "issue", "bot", "--kind", "agent"], Exit.USAGE, "--for"),
        (["token", "issue", "../x"], Exit.USAGE, "name of a file"),
        (["token", "revoke", "nobody"], Exit.NOT_FOUND, "token list"),
        (["ingest", "pep", "/nonexistent", "-p", "demo"], Exit.USAGE, "neither a clone"),
        (["propose", "file", "/nonexistent.yaml", "-p", "demo"], Exit.USAGE, "cannot be read"),
    ],
)
def test_errors_say_what_to_do_and_end_with_their_code(
    arguments: list[str], code: Exit, words: str, tmp_path: Path
) -> None:
    """A failing command prints no traceback, says what to do next, and ends with the documented code."""
    result = CliRunner().invoke(build(), [*arguments, "--data", str(tmp_path)])
    assert result.exit_code == code
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    as_json = CliRunner().invoke(build(), [*arguments, "--data", str(tmp_path), "--json"])
    assert json.loads(as_json.stderr)["error"]["exit_code"] == code
    assert not as_json.stdout


def test_a_token_is_issued_listed_and_revoked(tmp_path: Path) -> None:
    """A token goes to a private file, is listed without itself, and is gone after its revocation."""
    run = CliRunner()

    def call(*arguments: str) -> Any:
        result = run.invoke(build(), ["token", *arguments, "--data", str(tmp_path), "--json"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    issued = call("issue", "maria", "--role", "reviewer", "--in", "billing", "--days", "3")
    file = Path(issued["file"])
    assert file.stat().st_mode & 0o777 == 0o600
    listed = call("list")
    assert [(row["subject"], row["may"]) for row in listed] == [("maria", "reviewer in billing")]
    assert file.read_text().strip() not in json.dumps(listed)
    again = run.invoke(build(), ["token", "issue", "maria", "--data", str(tmp_path)])
    assert again.exit_code == Exit.REFUSED
    call("revoke", "maria")
    assert call("list") == []
    assert not file.exists()


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """L6: a token file with a mode wider than 0600 is not used."""
    folder = DataFolder(tmp_path)
    folder.issue_first_tokens()
    folder.write_endpoint("127.0.0.1:1")
    folder.token_file("reader").chmod(0o644)
    result = CliRunner().invoke(build(), ["search", "x", "-p", "demo", "--data", str(tmp_path)])
    assert result.exit_code == Exit.USAGE
    assert "chmod 600" in " ".join(result.stderr.split())


def test_the_version_is_printed_without_a_command() -> None:
    """`dsearch --version` prints one line and ends with 0."""
    result = CliRunner().invoke(build(), ["--version"])
    assert (result.exit_code, len(result.stdout.split())) == (0, 1)


@pytest.mark.parametrize(
    "arguments",
    [["search"], ["search", "x", "--limit", "many"], ["search", "x", "--nonsense"], ["nothing"]],
)
def test_usage_errors_are_json_with_json(arguments: list[str]) -> None:
    """With --json a wrong option is JSON on stderr like every other error, and nothing is on stdout."""
    result = CliRunner().invoke(build(), [*arguments, "--json"])
    assert result.exit_code == Exit.USAGE
    error = json.loads(result.stderr)["error"]
    assert (error["reason"], error["exit_code"]) == ("USAGE", Exit.USAGE)
    assert error["message"]
    assert not result.stdout


@pytest.mark.parametrize("group", ["audit", "token", "ingest", "propose", "review"])
def test_every_group_shows_an_example(group: str) -> None:
    """The help of a group shows how it is used."""
    assert f"Example: dsearch {group} " in " ".join(CliRunner().invoke(build(), [group, "--help"]).output.split())


def test_piped_output_has_no_spaces_at_the_ends_of_lines(tmp_path: Path) -> None:
    """What goes into a file or a pipe is not padded to the width of a terminal."""
    DataFolder(tmp_path).issue_first_tokens()
    result = CliRunner().invoke(build(), ["token", "list", "--data", str(tmp_path)])
    assert "importer" in result.stdout
    assert [line for line in result.stdout.splitlines() if line != line.rstrip()] == []


# --- Rendering ------------------------------------------------------------------------------------------------------


def stamp(day: str) -> Any:
    """Return the first moment of a day."""
    return to_timestamp(datetime.fromisoformat(day).replace(tzinfo=UTC))


def printed(*what: Any) -> str:
    """Return what a terminal without colours shows."""
    out = io.StringIO()
    console = Console(file=out, width=110, highlight=False)
    for item in what:
        console.print(item)
    return out.getvalue()


def hit() -> retrieval_pb2.Hit:
    """Return a hit with everything that a hit can say."""
    head = ledger_pb2.Head(
        family=ledger_pb2.Family(
            name="projects/p/families/f", identity_key="adr/0007", category=ledger_pb2.CATEGORY_DESIGN_RULE
        ),
        state=ledger_pb2.STATE_ACTIVE,
        revision=ledger_pb2.Revision(
            content=ledger_pb2.Content(title="Codes [bold]last[/bold] 72 hours", summary="Três dias. " * 60)
        ),
        valid_from=stamp("2021-04-12"),
        evidence=[
            ledger_pb2.LinkedEvidence(
                link=ledger_pb2.EvidenceLink(stance=ledger_pb2.STANCE_SUPPORTS),
                evidence=ledger_pb2.Evidence(
                    locator="git:abc:docs/7.md", verification=ledger_pb2.VERIFICATION_STATE_VERIFIED
                ),
            )
        ],
        needs_review=[ledger_pb2.ReviewFlag(cause="SUPERSEDED", time=stamp("2022-01-01"))],
    )
    return retrieval_pb2.Hit(
        head=head,
        origin=retrieval_pb2.HIT_ORIGIN_SUCCESSOR,
        score=retrieval_pb2.ScoreBreakdown(final=0.61),
        replaced=[
            retrieval_pb2.Replaced(
                identity_key="adr/0004",
                title="Codes last 48 hours",
                time=stamp("2021-04-12"),
                reason="too many returns",
                matched=True,
            )
        ],
        reasons=["matches the words: code, hours"],
    )


def test_a_hit_reads_at_a_glance() -> None:
    """A hit says title, state, since when, what it replaced and why, evidence, and why it is here."""
    text = printed(*show.search_answer(retrieval_pb2.SearchResponse(hits=[hit()])))
    for words in (
        "1. Codes [bold]last[/bold] 72 hours",
        "in force",
        "adr/0007",
        "since 2021-04-12",
        "found through what it replaced",
        "adr/0004 “Codes last 48 hours” on 2021-04-12: too many returns (your words match this one",
        "1 supports (verified) · git:abc:docs/7.md",
        "matches the words: code, hours  (score 0.61)",
        "rests on something that changed",
    ):
        assert words in text
    assert "…" in text


def test_an_edit_is_not_shown_as_replaced_and_the_list_is_short() -> None:
    """An earlier wording under the same title is an edit; of many replaced ones three are listed."""
    shown = hit()
    family, title = shown.head.family.name, shown.head.revision.content.title
    shown.replaced.insert(
        0, retrieval_pb2.Replaced(family=family, title=title, time=stamp("2022-02-02"), reason="typo")
    )
    text = printed(show.hit_block(1, shown))
    assert "edited     on 2022-02-02: typo" in text
    assert text.count("replaced   adr/0004") == 1
    for number in range(4):
        shown.replaced.append(retrieval_pb2.Replaced(family=f"f{number}", title=f"Old {number}"))
    text = printed(show.hit_block(1, shown))
    assert "Old 0" in text
    assert "Old 1" not in text
    assert "and 3 more" in text


def test_an_applied_change_names_the_memory_and_what_happened() -> None:
    """The line after an apply says which memory changed, by its key, and how."""
    head = ledger_pb2.Head(family=ledger_pb2.Family(name="projects/p/families/a", identity_key="adr/0002"))
    names = {"projects/p/families/a": "adr/0002", "projects/p/families/b": "adr/0004"}

    def words(**mutation: Any) -> str:
        proposal = proposal_pb2.Proposal(mutation=proposal_pb2.Mutation(**mutation))
        return show.applied_words(proposal_service_pb2.ApplyProposalResponse(proposal=proposal, head=head), names)

    expiry = proposal_pb2.SetExpiryMutation(family="projects/p/families/a", valid_to=stamp("2027-01-01"))
    assert words(set_expiry=expiry) == "adr/0002 expires on 2027-01-01"
    by = proposal_pb2.DeprecateMutation(family="projects/p/families/a", replacement_family="projects/p/families/b")
    assert words(deprecate=by) == "adr/0002 deprecated by adr/0004"
    gone = proposal_pb2.InvalidateMutation(family="projects/p/families/a")
    assert words(invalidate=gone) == "adr/0002 is no longer valid"


def test_a_short_id_is_resolved_or_its_candidates_are_named() -> None:
    """The end of an id, as lists print it, is enough; one that fits several names them."""
    names = ["projects/p/relations/0198-aa11", "projects/p/relations/0198-bb11"]
    assert inputs.by_end(names, "aa11", "relation", "lineage") == names[0]
    with pytest.raises(CommandError, match=r"0198-aa11, 0198-bb11") as several:
        inputs.by_end(names, "11", "relation", "lineage")
    assert several.value.code is Exit.USAGE
    with pytest.raises(CommandError) as nothing:
        inputs.by_end(names, "ff", "relation", "lineage")
    assert nothing.value.code is Exit.NOT_FOUND


@pytest.mark.parametrize("reason", [v for v in retrieval_pb2.AbstentionReason.values() if v])
def test_an_abstention_says_its_reason_in_a_sentence(reason: Any) -> None:
    """R6: every reason for silence has a sentence of its own, beside the figures of the server."""
    response = retrieval_pb2.SearchResponse(
        abstention=retrieval_pb2.Abstention(reason=reason, message="best 0.12, needed 1.3")
    )
    text = printed(*show.search_answer(response))
    name = retrieval_pb2.AbstentionReason.Name(reason).removeprefix("ABSTENTION_REASON_")
    assert show.ABSTENTIONS[name].split(".")[0][:40] in text
    assert "best 0.12, needed 1.3" in text


def test_a_proposal_shows_difference_evidence_and_warnings() -> None:
    """A reviewer sees every changed field before and after, the evidence, the warnings and what is still missing."""
    proposal = proposal_pb2.Proposal(
        name="projects/p/proposals/0198c0de-0000-7000-8000-0000deadbeef",
        mutation=proposal_pb2.Mutation(supersede=proposal_pb2.SupersedeMutation(family="f")),
        after=ledger_pb2.Content(title="New"),
        diff=[
            ledger_pb2.FieldChange(field="title", before='"Old"', after='"New"'),
            ledger_pb2.FieldChange(field="rules", before="", after='["a", "b"]'),
        ],
        warnings=["two memories rest on it"],
        requester=common_pb2.Principal(subject="agent", kind=common_pb2.PRINCIPAL_KIND_AGENT, on_behalf_of="owner"),
        reason="trial",
        status=proposal_pb2.PROPOSAL_STATUS_PENDING,
        approvals_needed=2,
        preview_hash="sha256:1",
    )
    text = printed(*show.proposal_view(proposal))
    for words in ("- Old", "+ New", "+ a", "+ b", "⚠ two memories", "agent (agent for owner)", "2 more approvals"):
        assert words in text
    assert "deadbeef" in printed(show.queue_view([proposal]))


# --- What people type -----------------------------------------------------------------------------------------------


def test_a_day_is_its_start_in_utc_and_a_time_needs_its_offset() -> None:
    """L9: a day means its first moment in UTC; a time without an offset is refused."""
    assert inputs.instant("2020-06-01", "--at") == datetime(2020, 6, 1, tzinfo=UTC)
    assert inputs.instant("2020-06-01T00:00:00-03:00", "--at") == datetime(2020, 6, 1, 3, tzinfo=UTC)
    assert inputs.instant("", "--at") is None
    for text in ("2026-12-01T10:00+01:00", "2026-12-01 10:00 +0100", "2026-12-01T09:00Z", "2026-12-01 09:00:00.0z"):
        assert inputs.instant(text, "--at") == datetime(2026, 12, 1, 9, tzinfo=UTC)
    with pytest.raises(CommandError):
        inputs.instant("2020-06-01T00:00:00", "--at")
    with pytest.raises(CommandError):
        inputs.instant("2020-02-30", "--at")


@pytest.mark.parametrize("text", ["design-rule", "DesignRule", "DESIGN_RULE", "design rule", "CATEGORY_DESIGN_RULE"])
def test_enums_are_read_in_any_spelling(text: str) -> None:
    """A category may be written as people write it."""
    assert inputs.category(text) == ledger_pb2.CATEGORY_DESIGN_RULE


def test_evidence_is_read_with_its_stance_and_words() -> None:
    """KIND:LOCATOR|WORDS, with ! for what speaks against; a name stands by itself."""
    found = inputs.evidence("!url:https://example.org/a|We saw it fail")
    assert (found.stance, found.draft.locator) == (ledger_pb2.STANCE_CONTRADICTS, "https://example.org/a")
    assert found.draft.excerpt == "We saw it fail"
    assert inputs.evidence("projects/p/evidence/x").name == "projects/p/evidence/x"
    with pytest.raises(CommandError):
        inputs.evidence("just words")


def test_a_file_is_read_with_enums_times_and_lists_as_people_write_them() -> None:
    """A proposal in a file may use short enum names, bare days, and contents with lists and maps."""
    body = {
        "supersede": {
            "family": "adr/0007",
            "valid_from": date(2026, 1, 31),
            "content": {"title": "T", "rules": ["a"], "standing": "adopted", "attributes": {"k": "v"}},
        }
    }
    mutation = inputs.parse_message(body, proposal_pb2.Mutation(), "file")
    assert mutation.supersede.content.standing == ledger_pb2.STANDING_ADOPTED
    assert mutation.supersede.valid_from.ToDatetime(UTC) == datetime(2026, 1, 31, tzinfo=UTC)
    assert dict(mutation.supersede.content.attributes) == {"k": "v"}
    with pytest.raises(CommandError):
        inputs.parse_message({"supersede": {"familly": "x"}}, proposal_pb2.Mutation(), "file")
