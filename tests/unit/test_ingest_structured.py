"""Structured extraction: ADRs, header documents, commit trailers and pull requests, without a model."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest_svc.document import bullets, date_in, identity_of_path, parse, references
from ingest_svc.domain import (
    Action,
    Candidate,
    Category,
    RawObservation,
    RelationKind,
    SourceKind,
    Standing,
)
from ingest_svc.extractor import (
    CleanObservation,
    Extracted,
    ExtractionFailed,
    FirstThatReads,
    NothingToRemember,
)
from ingest_svc.extractor_structured import StructuredExtractor, read
from ingest_svc.standing import standing_of

WHEN = datetime(2021, 5, 4, 12, tzinfo=UTC)


def observe(text: str, kind: SourceKind = SourceKind.ADR, **more: object) -> CleanObservation:
    """Make an observation as it comes out of sanitising."""
    values: dict[str, object] = {"locator": "git:abc:docs/adr/0007-use-grpc.md", "occurred_at": WHEN, **more}
    return CleanObservation(
        observation=RawObservation(kind=kind, text=text, **values),  # type: ignore[arg-type]  # keywords of a test
        source_hash="sha256:feed",
    )


def only(clean: CleanObservation) -> Candidate:
    """Read an observation that holds exactly one candidate."""
    result = read(clean)
    assert isinstance(result, Extracted), result
    assert len(result.candidates) == 1
    return result.candidates[0]


NYGARD = """# 7. Use gRPC between services

Date: 2020-02-03

## Status

Accepted

Supersedes [3. Use REST](0003-use-rest.md)

Depends on ADR-0002

## Context

Services call each other often. REST was considered, but it has no contracts.

## Decision

We will use gRPC. It gives us contracts and streams.

## Consequences

Browsers need a proxy.
"""

MADR = """---
status: "superseded by [ADR-0012](0012-use-quic.md)"
date: 2022-11-30
decision-makers: Ana, Bob
tags: [transport, rpc]
---
# Use gRPC

## Context and Problem Statement

How do services talk?

## Decision Drivers

* contracts
* speed

## Considered Options

* gRPC
* REST
* A message bus

## Decision Outcome

Chosen option: "gRPC", because it comes out best.

### Consequences

* Good, because contracts
* Bad, because browsers

## Pros and Cons of the Options

### gRPC

* Good, because streams
"""

PORTUGUESE = """# ADR-0009: Guardar dinheiro em centavos

- Estado: Substituída por [ADR-0011](0011-decimal.md)
- Data: 12 de março de 2021

## Contexto

Números de ponto flutuante perdem centavos.

## Opções consideradas

1. Ponto flutuante
2. Centavos inteiros

## Decisão

Guardamos centavos inteiros, porque são exatos.

## Consequências

Conversão na borda.
"""


def test_nygard_adr() -> None:
    """A record in Nygard's form gives identity, date, standing, context and what it supersedes."""
    found = only(observe(NYGARD))
    assert found.identity_key == "adr/0007"
    assert found.content.title == "Use gRPC between services"
    assert found.content.summary == "We will use gRPC. It gives us contracts and streams."
    assert found.content.rationale.startswith("Services call each other")
    assert found.content.alternatives == ("REST was considered, but it has no contracts.",)
    assert found.category is Category.ARCHITECTURAL_DECISION
    assert found.content.standing is Standing.ADOPTED
    assert found.valid_from == datetime(2020, 2, 3, tzinfo=UTC)
    assert "Browsers need a proxy." in found.content.details
    assert {(r.kind, r.source_key, r.target_key) for r in found.relations} == {
        (RelationKind.DEPRECATES, "adr/0007", "adr/0003"),
        (RelationKind.DEPENDS_ON, "adr/0007", "adr/0002"),
    }
    assert found.evidence[0].source_hash == "sha256:feed"
    assert found.evidence[0].extractor == "structured/adr@1"


def test_madr() -> None:
    """A MADR record gives drivers and reason as rationale, the options not chosen, and who superseded it."""
    found = only(observe(MADR))
    assert found.content.standing is Standing.RETIRED
    assert found.content.alternatives == ("REST", "A message bus")
    assert "contracts" in found.content.rationale
    assert "because it comes out best" in found.content.rationale
    assert found.content.tags == ("transport", "rpc")
    assert found.content.attributes["deciders"] == "Ana, Bob"
    assert found.content.attributes["source_status"].startswith("superseded by")
    assert found.valid_from == datetime(2022, 11, 30, tzinfo=UTC)
    assert [(r.kind, r.source_key, r.target_key) for r in found.relations] == [
        (RelationKind.DEPRECATES, "adr/0012", "adr/0007")
    ]
    assert "Good, because streams" in found.content.details


def test_portuguese_adr() -> None:
    """Portuguese headings, status and dates are read like English ones."""
    found = only(observe(PORTUGUESE, locator="file:x.md", files=("docs/adr/0009-centavos.md",)))
    assert found.identity_key == "adr/0009"
    assert found.content.standing is Standing.RETIRED
    assert found.content.alternatives == ("Ponto flutuante", "Centavos inteiros")
    assert found.valid_from == datetime(2021, 3, 12, tzinfo=UTC)
    assert found.relations[0].source_key == "adr/0011"
    assert found.relations[0].target_key == "adr/0009"


def test_an_adr_without_alternatives_is_a_design_rule() -> None:
    """A decision that records no alternatives is kept as a rule rather than refused as half a decision."""
    found = only(observe("# Use tabs\n\n## Decision\n\nWe use tabs.\n\n## Context\n\nIt was asked.\n"))
    assert found.category is Category.DESIGN_RULE


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        ("Accepted", Standing.ADOPTED),
        ("accepted (was proposed in May)", Standing.ADOPTED),
        ("Aceita", Standing.ADOPTED),
        ("Proposed", Standing.PROPOSED),
        ("Rascunho", Standing.PROPOSED),
        ("Rejected", Standing.REJECTED),
        ("Não aceita", Standing.REJECTED),
        ("Deprecated", Standing.RETIRED),
        ("Superseded by 0012", Standing.RETIRED),
        ("Substituído pela ADR 12", Standing.RETIRED),
        ("Adiada", Standing.DEFERRED),
        ("On hold", Standing.DEFERRED),
        ("Withdrawn", Standing.WITHDRAWN),
        ("Quantum", Standing.PROPOSED),
        ("", Standing.ADOPTED),
    ],
)
def test_adr_statuses(status: str, standing: Standing) -> None:
    """Statuses of both languages become standings; one that nobody knows is never adoption."""
    found = only(observe(f"# T\n\n## Status\n\n{status}\n\n## Decision\n\nD.\n"))
    assert found.content.standing is standing


def test_a_status_log_says_the_last() -> None:
    """A status section that is kept as a log counts by its last line."""
    found = only(observe("# T\n\n## Status\n\n2020-01-01 proposed\n\n2020-02-01 accepted\n\n## Decision\n\nD.\n"))
    assert found.content.standing is Standing.ADOPTED


@pytest.mark.parametrize(
    ("path", "title", "key"),
    [
        ("docs/adr/0007-use-x.md", "Use X", "adr/0007"),
        ("docs/adr/adr-12-use-x.md", "Use X", "adr/0012"),
        ("docs/adr/use-x.md", "ADR 5: Use X", "adr/0005"),
        ("docs/adr/use-x.md", "Use X", "adr/use-x"),
        ("", "Decisão única", "adr/decisao-unica"),
    ],
)
def test_adr_identity(path: str, title: str, key: str) -> None:
    """Identity comes of the file's number, then the title's, then the name; always the same for the same file."""
    found = only(observe(f"# {title}\n\n## Decision\n\nD.\n", locator=f"x:{path}", files=(path,) if path else ()))
    assert found.identity_key == key


PEP = """PEP: 517
Title: A build-system independent format
  for source trees
Status: Final
Type: Standards Track
Topic: Packaging
Requires: 518
Replaces: 516
Superseded-By: 9999
Created: 30-Sep-2015

Abstract
========

While distutils is old.

Rationale
=========

Because.

Rejected Ideas
==============

- A command line
- Entry points

Specification
=============

Hooks
-----

build_wheel
"""


def test_pep_headers() -> None:
    """Headers become standing, facts and relations; the commit's time becomes valid time."""
    found = only(observe(PEP, SourceKind.PEP, locator="git:abc:peps/pep-0517.rst"))
    assert found.identity_key == "pep/517"
    assert found.content.title == "A build-system independent format for source trees"
    assert found.content.standing is Standing.ADOPTED
    assert found.content.attributes["source_status"] == "Final"
    assert found.content.summary == "While distutils is old."
    assert found.content.rationale == "Because."
    assert found.content.alternatives == ("A command line", "Entry points")
    assert "build_wheel" in found.content.details
    assert found.content.tags == ("Packaging",)
    assert found.valid_from == WHEN
    assert [(r.kind, r.source_key, r.target_key) for r in found.relations] == [
        (RelationKind.DEPRECATES, "pep/9999", "pep/517"),
        (RelationKind.DEPRECATES, "pep/517", "pep/516"),
        (RelationKind.DEPENDS_ON, "pep/517", "pep/518"),
    ]


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        *((s, Standing.ADOPTED) for s in ("Active", "Accepted", "Final", "Provisional")),
        *((s, Standing.PROPOSED) for s in ("Draft", "Incomplete", "Open", "", "April Fool!")),
        ("Deferred", Standing.DEFERRED),
        ("Rejected", Standing.REJECTED),
        ("Withdrawn", Standing.WITHDRAWN),
        *((s, Standing.RETIRED) for s in ("Superseded", "Replaced", "Moved")),
    ],
)
def test_pep_statuses(status: str, standing: Standing) -> None:
    """Every status of a PEP has its standing, and the original word is kept."""
    found = only(observe(f"PEP: 1\nTitle: T\nStatus: {status}\n", SourceKind.PEP))
    assert found.content.standing is standing
    assert found.content.attributes.get("source_status", "") == status


def test_a_draft_replaces_nobody() -> None:
    """What a draft says that it replaces is its wish: no relation until it is adopted."""
    assert only(observe("PEP: 2\nTitle: T\nStatus: Draft\nReplaces: 1\n", SourceKind.PEP)).relations == ()
    assert only(observe("PEP: 2\nTitle: T\nStatus: Final\nReplaces: 1\n", SourceKind.PEP)).relations


def test_a_removed_document_ends_its_memory() -> None:
    """An importer says that a document is gone; that asks for an invalidation from the commit's time."""
    found = only(observe("PEP 9 was removed", SourceKind.PEP, attributes={"identity_key": "pep/9", "removed": "true"}))
    assert found.action is Action.INVALIDATE
    assert found.identity_key == "pep/9"
    assert found.valid_from == WHEN


def test_kep_front_matter_and_rfc_headers() -> None:
    """KEPs (YAML) and RFCs (Obsoletes) are header documents as well."""
    kep = only(
        observe(
            "---\ntitle: Sidecars\nkep-number: 753\nstatus: implementable\nreplaces:\n  - KEP-0009\n---\n"
            "# x\n\n## Summary\n\nS\n",
            SourceKind.PEP,
        )
    )
    assert (kep.identity_key, kep.content.standing, kep.content.summary) == ("kep/753", Standing.ADOPTED, "S")
    assert kep.relations[0].target_key == "kep/9"
    rfc = only(
        observe("Request for Comments: 7231\nTitle: HTTP\nStatus: Proposed Standard\nObsoletes: 2616\n", SourceKind.PEP)
    )
    assert (rfc.identity_key, rfc.content.standing) == ("rfc/7231", Standing.ADOPTED)
    assert rfc.relations[0].target_key == "rfc/2616"


def test_relations_of_an_importer() -> None:
    """An importer states relations itself; those that one identified document claims are left to it."""
    stated = [{"kind": "DEPRECATES", "source": "pep/2", "target": "pep/1", "rationale": "both say so"}]
    result = read(observe("x", SourceKind.PEP, attributes={"relations": json.dumps(stated)}))
    assert isinstance(result, Extracted)
    assert result.candidates == ()
    assert (result.relations[0].source_key, result.relations[0].target_key) == ("pep/2", "pep/1")
    assert only(observe(PEP, SourceKind.PEP, attributes={"identity_key": "pep/517"})).relations == ()


@pytest.mark.parametrize("stated", ["{", "[1]", '[{"kind":"NOPE","source":"a","target":"b"}]', '{"a":1}', "[{}]"])
def test_malformed_relations_fail(stated: str) -> None:
    """G3: relations that cannot be read are a failure with its reason, not NO_MEMORY."""
    result = read(observe("x", SourceKind.PEP, attributes={"relations": stated}))
    assert isinstance(result, ExtractionFailed)
    assert result.reason == "MALFORMED_RELATIONS"
    assert not result.retryable


COMMIT = """billing: store money in minor units

Floats lost a cent in March.

Decision: Money is stored in integer minor units
Rationale: Floats lose cents
Alternatives: Decimal strings; floats
Supersedes: ADR-4
Decision-Id: rule/money
Domain: billing
Module: billing.money
Signed-off-by: Ana
"""


def test_commit_trailers() -> None:
    """Trailers of a commit give a decision with rationale, alternatives, identity and what it supersedes."""
    found = only(observe(COMMIT, SourceKind.COMMIT, locator="git:0123456789abcdef", files=("billing/money.py",)))
    assert found.identity_key == "rule/money"
    assert found.category is Category.ARCHITECTURAL_DECISION
    assert found.content.title == "Money is stored in integer minor units"
    assert found.content.alternatives == ("Decimal strings", "floats")
    assert found.content.domain == "billing"
    assert found.content.files == ("billing/money.py",)
    assert "lost a cent" in found.content.details
    assert found.relations[0].target_key == "adr/0004"
    assert found.valid_from == WHEN


def test_portuguese_trailers_and_a_business_rule() -> None:
    """Portuguese trailers work; a rule with a domain is a business rule; without an id the commit is its identity."""
    text = "fatura: vencimento\n\nRegra: Fatura vence em 30 dias\nDomínio: faturamento\nMotivo: contrato\n"
    found = only(observe(text, SourceKind.COMMIT, locator="git:x", attributes={"sha": "0123456789abcdef0123"}))
    assert found.category is Category.BUSINESS_RULE
    assert found.identity_key == "commit/0123456789ab"
    assert found.content.rationale == "contrato"


def test_two_decisions_of_one_commit() -> None:
    """Two Decision trailers are two candidates with identities of their own."""
    text = "x\n\nDecision: A\nRationale: a\nDecision: B\n"
    result = read(observe(text, SourceKind.COMMIT, attributes={"sha": "0123456789abcdef"}))
    assert isinstance(result, Extracted)
    assert [c.identity_key for c in result.candidates] == ["commit/0123456789ab/1", "commit/0123456789ab/2"]
    assert result.candidates[0].content.rationale == "a"
    assert result.candidates[1].content.rationale == ""


@pytest.mark.parametrize("kind", [SourceKind.COMMIT, SourceKind.DIFF])
def test_a_commit_without_a_decision_is_nothing_to_remember(kind: SourceKind) -> None:
    """G3: a plain commit or diff holds nothing structured: NO_MEMORY, which is not a failure."""
    assert isinstance(read(observe("Fix typo\n\nSigned-off-by: Ana\n", kind)), NothingToRemember)


def test_pull_request_by_its_template() -> None:
    """A pull request gives its summary, why, files and url; its state is its standing."""
    text = "## What\n\nAdds retries.\n\n## Why\n\nThe API flakes.\n\n## Testing\n\nUnit tests.\n"
    clean = observe(
        text,
        SourceKind.PULL_REQUEST,
        locator="https://example.com/o/r/pull/42",
        title="Retry calls",
        files=("a.py",),
        attributes={"state": "open"},
    )
    found = only(clean)
    assert found.identity_key == "pr/42"
    assert found.category is Category.PULL_REQUEST
    assert (found.content.summary, found.content.rationale) == ("Adds retries.", "The API flakes.")
    assert found.content.url == "https://example.com/o/r/pull/42"
    assert found.content.standing is Standing.PROPOSED
    merged = only(
        observe(text, SourceKind.PULL_REQUEST, locator="https://x/pull/42", title="T", attributes={"merged": "true"})
    )
    assert (merged.identity_key, merged.content.standing) == ("pr/42", Standing.ADOPTED)


def test_a_document_is_looked_at() -> None:
    """A document of unnamed kind that is an ADR or has headers is read as one."""
    assert only(observe(MADR, SourceKind.DOCUMENT)).extractor == "structured/adr@1"
    assert only(observe(PEP, SourceKind.DOCUMENT, locator="x:pep-0517.rst")).extractor == "structured/pep@1"


def test_free_text_without_a_model_fails_and_is_not_no_memory() -> None:
    """G3: free text that nobody can read is FAILED and retryable; a commit without trailers is NO_MEMORY."""
    chain = FirstThatReads([StructuredExtractor()], reads_free_text=False)
    talk = asyncio.run(chain.extract(observe("so we decided", SourceKind.CONVERSATION)))
    assert isinstance(talk, ExtractionFailed)
    assert talk.reason == "EXTRACTOR_NOT_CONFIGURED"
    assert talk.retryable
    assert isinstance(asyncio.run(chain.extract(observe("fix", SourceKind.COMMIT))), NothingToRemember)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2020-02-03", "2020-02-03"),
        ("30-Sep-2015", "2015-09-30"),
        ("12 de março de 2021", "2021-03-12"),
        ("March 5, 2021", "2021-03-05"),
        ("05/03/2021", "2021-03-05"),
        ("03/25/2021", "2021-03-25"),
        ("2020-02-30", None),
        ("soon", None),
    ],
)
def test_dates(text: str, expected: str | None) -> None:
    """Dates of both languages are read; an impossible one is none."""
    found = date_in(text)
    assert (found.date().isoformat() if found else None) == expected


def test_a_time_without_offset_is_only_a_day() -> None:
    """L9: a naive time is not taken for an instant; one with an offset becomes UTC."""
    assert date_in("2020-02-03T23:30:00") == datetime(2020, 2, 3, tzinfo=UTC)
    assert date_in("2020-02-03T23:30:00-03:00") == datetime(2020, 2, 4, 2, 30, tzinfo=UTC)


def test_references() -> None:
    """Links, file names, numbers with and without a prefix lead to identity keys, in order, once each."""
    text = "[ADR-0007](0007-a.md), see adr 8, 0009-b.md and [10. X](0010-x.md)"
    assert references(text, "adr") == ("adr/0007", "adr/0008", "adr/0009", "adr/0010")
    assert references("426, 566 566", "pep", bare_numbers=True) == ("pep/426", "pep/566")
    assert references("https://example.com/0001-x.md", "adr") == ()
    assert identity_of_path("a/b/pep-0517.rst", "adr") == "pep/517"


def test_lists_are_joined_and_nested_items_belong_to_their_parent() -> None:
    """A list gives its outermost items, continued lines joined."""
    assert bullets("- a\n  more\n- b\n  - c\n\ntext") == ("a more", "b c")


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    """G3: no text makes the structured extractors raise, whatever kind it claims to be."""
    for kind in SourceKind:
        read(observe(text, kind))
    parse(text)
    standing_of(text)


@given(st.lists(st.sampled_from(["# ", "## Status", "\n", "---", "Status: ", "PEP: 1", "- ", "===", "x", ":", "```"])))
def test_any_structure_is_read_without_an_error(pieces: list[str]) -> None:
    """G3: nor does text made of nothing but structure."""
    for kind in (SourceKind.ADR, SourceKind.PEP, SourceKind.PULL_REQUEST, SourceKind.COMMIT):
        read(observe("".join(pieces), kind))


def test_one_observation_states_a_bounded_number_of_decisions() -> None:
    """S4: more decisions than one observation may state are refused as a whole, with the limit; nothing is cut."""
    result = read(observe("x\n\n" + "Decision: a\n" * 51, SourceKind.COMMIT))
    assert isinstance(result, ExtractionFailed)
    assert "50" in result.detail


def test_comments_of_a_template_are_left_out() -> None:
    """A comment is not content; one that never ends is text."""
    found = only(observe("# T\n\n## Decision\n\nWe <!-- say\nwhat --> do it. <!-- and\n"))
    assert found.content.summary == "We  do it. <!-- and".replace("  ", " ")


LONG = {
    "comments": "<!--" * 100_000,
    "headings": "# a\n" * 60_000,
    "underlines": "a\n===\n" * 40_000,
    "bullets": "- a\n" * 80_000,
    "links": "([a](0001-" * 40_000,
    "trailers": "Decision: a\n" * 20_000,
    "fields": "Status: accepted\n" * 20_000,
    "line": "x" * 400_000,
    "slashes": "a/" * 200_000,
    "fences": "```\n" * 80_000,
    "status": "# T\n\n## Status\n\n" + "superseded by 0001-a.md " * 15_000,
    "sentences": "# T\n\n## Decision\n\n" + "Instead of A. " * 25_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("kind", [SourceKind.ADR, SourceKind.PEP, SourceKind.COMMIT, SourceKind.PULL_REQUEST])
def test_long_documents_are_read_in_linear_time(name: str, kind: SourceKind) -> None:
    """S3: no document makes a reader's cost explode; twice the text costs about twice the time."""
    text = LONG[name]
    times = []
    for part in (text[: len(text) // 2], text):
        started = time.process_time()
        read(observe(part, kind))
        times.append(time.process_time() - started)
    assert times[1] < 3.5 * times[0] + 0.5
