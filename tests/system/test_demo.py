"""`make demo` shows what it claims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stacks import environment


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    """The demo starts a server of its own, checks every step, stops it, leaves nothing behind, and exits with 0."""
    run = subprocess.run(
        [sys.executable, "-m", "dsearch", "demo"],
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all 16 steps showed what they claim" in run.stdout
    assert "in force" in run.stdout
    assert "No answer." in run.stdout
    assert "Traceback" not in run.stdout + run.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("dsearch-demo")] == []


@pytest.mark.timeout(60)
def test_a_demo_that_cannot_show_something_fails(tmp_path: Path) -> None:
    """A demo on samples that do not hold what it claims ends with an exit code that is not 0."""
    samples = tmp_path / "adr"
    samples.mkdir()
    run = subprocess.run(
        [sys.executable, "-m", "dsearch", "demo", "--samples", str(samples)],
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert run.returncode == 1
    assert "should show" in run.stdout
