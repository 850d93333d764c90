"""The evaluation as tables for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from dsearch.evaluation.run import Evaluation


def render(evaluation: Evaluation, console: Console) -> None:
    """Print ranking, differences to the default profile, governance, abstention and latency."""
    console.print(f"[bold]{evaluation.dataset}[/bold]: {evaluation.documents} documents\n")
    ranking = Table(title="Ranking (governance on, but for plain-bm25)", title_justify="left")
    for heading in ("questions", "variant"):
        ranking.add_column(heading)
    for heading in ("n", "MRR@10", "NDCG@10", "P@1", "R@5", "R@10", "default - this, MRR [95 %]"):
        ranking.add_column(heading, justify="right")
    groups = sorted({group for table in evaluation.ranking.values() for group in table})
    for group in groups:
        for variant, table in evaluation.ranking.items():
            row = table[group]
            difference = evaluation.differences.get(variant, {}).get(group)
            ranking.add_row(
                group,
                variant,
                str(row["questions"]),
                *(f"{row[name]:.3f}" for name in ("mrr", "ndcg10", "p1", "r5", "r10")),
                f"{difference['mrr']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]" if difference else "",
            )
        ranking.add_section()
    console.print(ranking)

    served = Table(title="Governance and latency", title_justify="left")
    for heading in ("variant", "stale as current", "p50 ms", "p95 ms"):
        served.add_column(heading, justify="left" if heading == "variant" else "right")
    for variant, count in evaluation.stale_as_current.items():
        latency = evaluation.latency[variant]
        served.add_row(variant, str(count), f"{latency['p50_ms']:.1f}", f"{latency['p95_ms']:.1f}")
    console.print(served)

    if evaluation.as_of.get("questions"):
        console.print(
            f"As-of answers: {evaluation.as_of['accuracy']:.1%} of {evaluation.as_of['questions']} right"
            + "".join(f"\n  wrong: {wrong}" for wrong in evaluation.as_of["wrong"])
        )
    if evaluation.abstention:
        silent = Table(title="Abstention: AUROC of support, answerable against", title_justify="left")
        for heading in ("unanswerable", "n", "AUROC", "length-matched", "word count alone", "abstained"):
            silent.add_column(heading, justify="left" if heading == "unanswerable" else "right")
        for label, row in evaluation.abstention["against"].items():
            silent.add_row(
                label,
                str(row["questions"]),
                f"{row['auroc']:.3f}",
                f"{row['auroc_length_matched']:.3f}",
                f"{row['auroc_word_count']:.3f}",
                f"{row['abstained']:.0%}",
            )
        console.print(silent)
        console.print(
            f"Coverage at 95 % precision: {evaluation.abstention['coverage_at_95_precision']:.1%} "
            f"(with the first hit right: {evaluation.abstention['coverage_at_95_precision_of_first_hit']:.1%}); "
            f"answerable questions abstained on: {evaluation.abstention['answerable_abstained']:.1%}; "
            f"reasons: {evaluation.abstention['reasons']}"
        )
