"""`dsearch eval` as a whole: its own server, the import, index and calibration, every variant, every measure."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from stacks import environment

HARBOUR = Path(__file__).resolve().parent / "data" / "harbour"
"""Twelve rules of an invented harbour office with their history, and twelve questions."""


async def evaluate(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the command; return its exit code, what it printed for programs, and its remarks."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsearch", "eval", *arguments, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 150)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, json.loads(out) if out else {}, err.decode()


@pytest.mark.slow
@pytest.mark.timeout(320)
async def test_a_small_data_set_goes_through_the_whole_command(tmp_path: Path) -> None:
    """R1, R3, R6, G4, L8: nothing stale as current, exact as-of answers, default at least as good; again is a no-op."""
    code, found, remarks = await evaluate(str(HARBOUR), "--keep", str(tmp_path))
    assert (code, remarks) == (0, "")
    assert found["import"]["published"] == found["import"]["sent"]
    assert set(found["stale_as_current"].values()) == {0}
    assert found["as_of"] == {"questions": 12, "accuracy": 1.0, "wrong": []}
    variants = found["ranking"]
    assert {"plain-bm25", "default", "article", "article-no-recency", "dense alone", "sparse alone"} <= set(variants)
    best = max(table["current"]["mrr"] for table in variants.values())
    assert variants["default"]["current"]["mrr"] == best
    assert variants["default"]["superseded en"]["p1"] == 1.0
    assert variants["default"]["as_of en"]["p1"] == 1.0
    assert found["abstention"]["against"]["all"]["auroc"] > 0.9
    assert found["latency"]["default"]["p50_ms"] > 0

    code, again, _ = await evaluate(str(HARBOUR), "--keep", str(tmp_path), "--no-ablations", "--limit", "2")
    assert code == 0
    assert again["import"]["replayed"] == again["import"]["sent"] == found["import"]["sent"]
    assert set(again["ranking"]) == {"plain-bm25", "default", "article"}
    assert again["ranking"]["default"]["current"]["questions"] == 2


async def test_a_folder_that_is_no_data_set_is_refused(tmp_path: Path) -> None:
    """A missing file is named, with exit code 2, before any server starts."""
    code, found, remarks = await evaluate(str(tmp_path))
    assert (code, found) == (2, {})
    assert "documents.jsonl is missing" in remarks
