"""The generated stubs are those of the contracts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROTO = Path(__file__).parents[2] / "proto"


def test_stubs_are_fresh(tmp_path: Path):
    """Whoever changed a .proto and did not run `make proto` is told, before the old stub is."""
    command = [sys.executable, PROTO / "generate_stubs.py", tmp_path]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*_pb2*") if path.is_file()}
    assert made
    stale = [str(name) for name, text in made.items() if (PROTO / name).read_bytes() != text]
    assert not stale, "run `make proto`"
