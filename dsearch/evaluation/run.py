"""Ask a running stack every question of a data set, once per variant, and measure the answers.

A variant is a ranking profile, or the default profile with one way of finding candidates only. Questions whose right
answers are all not in force are asked with every state allowed: such a memory must come back, labelled.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from decisionssearch.index.v1 import index_service_pb2 as index_pb
from decisionssearch.ledger.v1 import ledger_pb2 as ledger_pb
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from dsearch.evaluation.baseline import PlainBm25
from dsearch.evaluation.dataset import AsOf, Dataset, Question, identity_key
from dsearch.evaluation.metrics import (
    auroc,
    coverage_at_precision,
    matched_auroc,
    paired_bootstrap,
    percentile,
    rank_metrics,
    reciprocal_rank,
)

Search = Callable[[pb.SearchRequest], Awaitable[pb.SearchResponse]]
StatusAsOf = Callable[[AsOf], Awaitable[str | None]]
Progress = Callable[[str, int, int], None]

BASELINE = "plain-bm25"
HITS = 10
"""What somebody who searches gets by default, and how deep the measures look."""
_ALL_STATES = [value for value in ledger_pb.State.values() if value != ledger_pb.STATE_UNSPECIFIED]
_ALONE = {
    "dense alone": index_pb.SEARCH_BRANCH_DENSE,
    "sparse alone": index_pb.SEARCH_BRANCH_SPARSE,
    "structural alone": index_pb.SEARCH_BRANCH_STRUCTURAL,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one question."""

    question: Question
    ranked: tuple[str, ...]
    current: tuple[str, ...]
    abstained: str
    score: float
    z: float
    milliseconds: float


@dataclass(slots=True)
class Evaluation:
    """All that was measured; ``as_dict`` is the JSON that ``dsearch eval --json`` prints."""

    dataset: str
    documents: int
    ranking: dict[str, dict[str, Any]] = field(default_factory=dict)
    differences: dict[str, dict[str, Any]] = field(default_factory=dict)
    stale_as_current: dict[str, int] = field(default_factory=dict)
    stale: list[dict[str, Any]] = field(default_factory=list)
    """Each one, with where it came; ``counts`` is false for one that the source says was in force at the date asked."""
    as_of: dict[str, Any] = field(default_factory=dict)
    abstention: dict[str, Any] = field(default_factory=dict)
    latency: dict[str, dict[str, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


async def evaluate(
    dataset: Dataset,
    *,
    project: str,
    profiles: Sequence[str],
    search: Search,
    status_as_of: StatusAsOf,
    ablations: bool = True,
    progress: Progress = lambda _label, _done, _total: None,
) -> Evaluation:
    """Ask, measure, compare.

    Args:
        dataset: Questions and documents; the stack behind ``search`` holds the same documents.
        project: ``projects/{project}`` to search.
        profiles: Names of ranking profiles; "default" is compared with all others.
        search: One search.
        status_as_of: The status that the ledger gives for a document at a time, None when nothing covers it.
        ablations: Also ask with each way of finding candidates alone.
        progress: Called with a label, how many are done and how many there are.
    """
    result = Evaluation(dataset.name, len(dataset.documents))
    names = {identity_key(document.id): document.id for document in dataset.documents}
    in_force = {document.id for document in dataset.documents if document.in_force}
    runs: dict[str, list[Answer]] = {BASELINE: _baseline(dataset)}
    variants: list[tuple[str, str, int | None]] = [(profile, profile, None) for profile in profiles]
    if ablations:
        variants += [(label, "default", branch) for label, branch in _ALONE.items()]
    total = len(variants) * len(dataset.questions)
    for profile in profiles[:1] if dataset.questions else ():
        # The first search of a server loads what the others find loaded; it is not timed.
        await search(_request(dataset.questions[0], project, profile, None, labelled=False))
    for index, (label, profile, branch) in enumerate(variants):
        answers: list[Answer] = []
        for question in dataset.questions:
            request = _request(question, project, profile, branch, labelled=_is_labelled(question, in_force))
            answers.append(await _ask(question, request, search, names))
            progress(label, index * len(dataset.questions) + len(answers), total)
        runs[label] = answers
        stale = [row for answer in answers for row in _presented_stale(dataset, answer)]
        result.stale_as_current[label] = sum(row["counts"] for row in stale)
        result.stale += [{"variant": label, **row} for row in stale]
        result.latency[label] = _latency(answers)
    for label, answers in runs.items():
        result.ranking[label] = _ranking(answers, in_force)
    ours = runs.get("default")
    if ours is not None:
        for label, theirs in runs.items():
            if label != "default":
                result.differences[label] = _differences(ours, theirs, in_force)
        result.abstention = _abstention(ours)
    result.as_of = await _as_of(dataset.as_of, status_as_of, progress)
    return result


def _is_labelled(question: Question, in_force: set[str]) -> bool:
    return question.kind == "current" and bool(question.expected) and not question.expected & in_force


def _request(question: Question, project: str, profile: str, branch: int | None, *, labelled: bool) -> pb.SearchRequest:
    request = pb.SearchRequest(project=project, text=question.text, limit=HITS, profile=profile, include_rejected=True)
    if question.valid_at is not None:
        request.valid_at.CopyFrom(_timestamp(question.valid_at))
    if branch is not None:
        request.branches.append(index_pb.SearchBranch.ValueType(branch))
    if labelled:
        request.states.extend(_ALL_STATES)
    return request


async def _ask(question: Question, request: pb.SearchRequest, search: Search, names: Mapping[str, str]) -> Answer:
    start = time.perf_counter()
    response = await search(request)
    milliseconds = (time.perf_counter() - start) * 1000
    # An abstention still ranks what it held back: ranking and the decision to answer are measured apart.
    hits = response.hits or response.rejected
    ranked = tuple(names.get(hit.head.family.identity_key, hit.head.family.name) for hit in hits)
    current = tuple(name for name, hit in zip(ranked, hits, strict=True) if hit.head.state == ledger_pb.STATE_ACTIVE)
    abstained = (
        pb.AbstentionReason.Name(response.abstention.reason).removeprefix("ABSTENTION_REASON_")
        if response.HasField("abstention")
        else ""
    )
    return Answer(
        question,
        ranked,
        current,
        abstained,
        response.support.total if response.HasField("support") else math.nan,
        response.support_z if response.HasField("support_z") else math.nan,
        milliseconds,
    )


def _baseline(dataset: Dataset) -> list[Answer]:
    engine = PlainBm25(dataset.documents)
    answers = []
    for question in dataset.questions:
        found = engine.rank(question.text, HITS)
        ranked = tuple(name for name, _ in found)
        answers.append(Answer(question, ranked, ranked, "", found[0][1] if found else 0.0, math.nan, 0.0))
    return answers


def _presented_stale(dataset: Dataset, answer: Answer) -> list[dict[str, Any]]:
    """Return what came back as in force although the question names it as stale.

    A question about a date also names the answer of today; where the source says that this one was in force then as
    well, showing it is not wrong, only not the answer.
    """
    moment = answer.question.valid_at
    return [
        {
            "question": answer.question.id,
            "document": name,
            "rank": rank,
            "counts": moment is None or not dataset.in_force_at(name, moment),
        }
        for rank, name in enumerate(answer.ranked, 1)
        if name in answer.question.stale and name in answer.current
    ]


def _groups(answers: Sequence[Answer], in_force: set[str]) -> dict[str, list[Answer]]:
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        question = answer.question
        if question.kind == "unanswerable":
            continue
        groups[f"{question.kind} {question.lang}"].append(answer)
        groups["all answerable"].append(answer)
        if question.kind == "current":
            groups["current"].append(answer)
            if _is_labelled(question, in_force):
                groups["current, not in force"].append(answer)
            else:
                groups["current, in force"].append(answer)
    return dict(sorted(groups.items()))


def _ranking(answers: Sequence[Answer], in_force: set[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for group, members in _groups(answers, in_force).items():
        metrics = rank_metrics([(member.ranked, member.question.expected) for member in members])
        table[group] = {name: getattr(metrics, name) for name in metrics.__dataclass_fields__}
    return table


def _differences(ours: Sequence[Answer], theirs: Sequence[Answer], in_force: set[str]) -> dict[str, Any]:
    other = _groups(theirs, in_force)
    table = {}
    for group, members in _groups(ours, in_force).items():
        mean, low, high = paired_bootstrap(
            [reciprocal_rank(a.ranked, a.question.expected) for a in members],
            [reciprocal_rank(a.ranked, a.question.expected) for a in other[group]],
        )
        table[group] = {"mrr": mean, "low": low, "high": high}
    return table


def _latency(answers: Sequence[Answer]) -> dict[str, float]:
    times = [answer.milliseconds for answer in answers]
    return {"p50_ms": percentile(times, 0.5), "p95_ms": percentile(times, 0.95)}


def _abstention(answers: Sequence[Answer]) -> dict[str, Any]:
    """Measure on current and superseded questions against unanswerable ones, as the data set's own baseline does."""
    answerable = [a for a in answers if a.question.kind in {"current", "superseded"}]
    silent = [a for a in answers if a.question.kind == "unanswerable"]
    if not answerable or not silent:
        return {}
    rows: dict[str, Any] = {}
    halves = {"all": silent, "short": silent[: len(silent) // 2], "long": silent[len(silent) // 2 :]}
    halves["near misses"] = [a for a in silent if a.question.near_miss]
    for label, group in halves.items():
        if not group:
            continue
        rows[label] = {
            "questions": len(group),
            "auroc": auroc([a.score for a in answerable], [a.score for a in group]),
            "auroc_length_matched": matched_auroc(
                [(a.score, a.question.words) for a in answerable], [(a.score, a.question.words) for a in group]
            ),
            "auroc_word_count": auroc([a.question.words for a in answerable], [a.question.words for a in group]),
            "abstained": sum(bool(a.abstained) for a in group) / len(group),
        }
    answered = [a for a in answers if not a.abstained]
    right = sum(bool(a.ranked) and a.ranked[0] in a.question.expected for a in answered)
    return {
        "answerable": len(answerable),
        "against": rows,
        # Precise twice: what is answered can be answered; and its first hit is a right answer.
        "coverage_at_95_precision": coverage_at_precision(
            [(a.score, True) for a in answerable], [a.score for a in silent]
        ),
        "coverage_at_95_precision_of_first_hit": coverage_at_precision(
            [(a.score, bool(a.ranked) and a.ranked[0] in a.question.expected) for a in answerable],
            [a.score for a in silent],
        ),
        "answerable_abstained": sum(bool(a.abstained) for a in answerable) / len(answerable),
        "precision_of_answers": right / len(answered) if answered else math.nan,
        "reasons": dict(sorted(_count(a.abstained for a in answers if a.abstained).items())),
    }


def _count(values: Any) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    return counts


async def _as_of(rows: Sequence[AsOf], status_as_of: StatusAsOf, progress: Progress) -> dict[str, Any]:
    wrong = []
    for done, row in enumerate(rows, 1):
        status = await status_as_of(row)
        if status != row.status:
            wrong.append(
                {"document": row.document, "at": row.valid_at.isoformat(), "expected": row.status, "actual": status}
            )
        progress("as-of", done, len(rows))
    return {"questions": len(rows), "accuracy": 1 - len(wrong) / len(rows) if rows else math.nan, "wrong": wrong[:20]}


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
