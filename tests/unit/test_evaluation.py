"""The measures that the figures in README rest on."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.evaluation.baseline import PlainBm25, words
from dsearch.evaluation.dataset import DatasetError, Document, identity_key, load
from dsearch.evaluation.metrics import (
    auroc,
    coverage_at_precision,
    matched_auroc,
    ndcg,
    paired_bootstrap,
    rank_metrics,
    reciprocal_rank,
)

RIGHT = frozenset({"b", "d"})


def test_rank_metrics_of_a_known_list():
    """MRR, NDCG, P@1 and recall of a list worked out by hand."""
    metrics = rank_metrics([(["a", "b", "c", "d"], RIGHT), (["d"], RIGHT), (["x"], RIGHT)])
    assert metrics.mrr == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert metrics.p1 == pytest.approx(1 / 3)
    assert metrics.r5 == pytest.approx(2 / 3)
    ideal = 1 + 1 / math.log2(3)
    assert ndcg(["a", "b", "c", "d"], RIGHT) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)


def test_an_answer_below_rank_ten_earns_nothing():
    """MRR is at depth 10: rank 11 counts as a miss."""
    assert reciprocal_rank([str(i) for i in range(10)] + ["b"], RIGHT) == 0.0


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_auroc_is_the_share_of_ordered_pairs(positive: list[float], negative: list[float]):
    """AUROC equals the naive count over pairs, ties counting half."""
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert auroc(positive, negative) == pytest.approx(sum(pairs) / len(pairs))


def test_length_matching_compares_only_pairs_of_equal_length():
    """A score that only counts words is worth nothing once lengths are matched."""
    answerable = [(20.0, 20), (10.0, 10)]
    unanswerable = [(10.0, 10), (5.0, 5)]
    assert auroc([s for s, _ in answerable], [s for s, _ in unanswerable]) > 0.8
    assert matched_auroc(answerable, unanswerable) == 0.5


def test_coverage_at_precision_counts_only_thresholds_that_hold():
    """Coverage stops before the threshold at which too many answers are wrong, and ties stand or fall together."""
    assert coverage_at_precision([(3.0, True), (2.0, True), (1.0, True)], [1.5], precision=0.95) == pytest.approx(2 / 3)
    assert coverage_at_precision([(3.0, True)], [3.0], precision=0.95) == 0.0


def test_bootstrap_interval_holds_the_mean_and_is_reproducible():
    """The paired interval surrounds the mean difference and is the same on every run."""
    ours = [1.0, 0.5, 0.0, 1.0, 0.3] * 10
    theirs = [0.5, 0.5, 0.0, 0.5, 0.2] * 10
    mean, low, high = paired_bootstrap(ours, theirs)
    assert low < mean < high
    assert low > 0
    assert paired_bootstrap(ours, theirs) == (mean, low, high)


def test_plain_bm25_folds_accents_and_ranks_the_matching_document_first():
    """The baseline finds 'decisão' by 'decisao' and prefers the document that has the words."""
    assert words("Decisão nº 7") == ["decisao", "no", "7"]
    engine = PlainBm25([Document("A", "Refund window", "thirty days", ""), Document("B", "Other", "things", "")])
    assert engine.rank("refund window")[0][0] == "A"
    assert engine.rank("nothing here matches") == []


def test_a_broken_data_set_names_file_line_and_remedy(tmp_path: Path):
    """A missing file and a bad row are refused with what to mend."""
    with pytest.raises(DatasetError, match=r"documents\.jsonl is missing"):
        load(tmp_path)
    (tmp_path / "documents.jsonl").write_text(json.dumps({"id": "PEP 1", "title": "t"}) + "\n")
    (tmp_path / "queries.jsonl").write_text('{"id": "q"}\n')
    with pytest.raises(DatasetError, match=r"queries\.jsonl:1: text, lang, kind, expected missing"):
        load(tmp_path)


def test_what_the_source_had_in_force_at_a_date_is_known(tmp_path: Path):
    """A question about a date may name today's answer as stale; whether that was in force then too is in the events."""
    (tmp_path / "documents.jsonl").write_text('{"id": "PEP 1", "title": "t"}\n')
    (tmp_path / "queries.jsonl").write_text("")
    changes = [("2010-01-01", "Draft"), ("2011-01-01", "Active"), ("2012-01-01", "Superseded"), ("2013-01-01", None)]
    (tmp_path / "events.jsonl").write_text(
        "".join(
            json.dumps({"time": f"{day}T09:00:00Z", "pep": "PEP 1", "field": "Status", "new": status}) + "\n"
            for day, status in changes
        )
    )
    found = load(tmp_path)
    years = {year: found.in_force_at("PEP 1", datetime(year, 6, 1, tzinfo=UTC)) for year in range(2009, 2014)}
    assert years == {2009: False, 2010: False, 2011: True, 2012: False, 2013: False}
    assert not found.in_force_at("PEP 2", datetime(2011, 6, 1, tzinfo=UTC))


def test_document_ids_become_identity_keys():
    """PEP 517 is pep/517 in the ledger; other ids are kept in lower case."""
    assert identity_key("PEP 517") == "pep/517"
    assert identity_key("ADR-0007") == "adr-0007"
