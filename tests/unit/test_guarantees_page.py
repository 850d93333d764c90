"""docs/guarantees.md is true: it names tests that exist and that state the guarantee."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([LIRGS]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
# Built by later issues; the page says so in the row.
NOT_BUILT = {"L11"}
ALL = (
    {f"L{n}" for n in range(1, 20)}
    | {f"I{n}" for n in range(1, 9)}
    | {f"R{n}" for n in range(1, 9)}
    | {f"G{n}" for n in range(1, 7)}
    | {f"S{n}" for n in range(1, 7)}
)


def rows() -> dict[str, list[tuple[str, str]]]:
    """Return the tests of each row as (file, name)."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    return {
        number: [(file, name) for file, name in re.findall(r"`([\w/.]+)::(\w+)`", tests)]
        for number, _, tests in ROW.findall(page)
    }


def docstring_of(file: str, name: str) -> str:
    """Return the docstring of a test, empty when there is no such test."""
    path = ROOT / "tests" / file
    if not path.exists():
        return ""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
    return ""


def test_every_guarantee_has_a_row_with_tests():
    """A guarantee without a test that fails when it is broken is a wish."""
    page = rows()
    assert set(page) == ALL
    assert {number for number, tests in page.items() if not tests} == NOT_BUILT


def test_named_tests_exist_and_state_the_guarantee():
    """Every test on the page exists, and its docstring carries the number of the row."""
    wrong = [
        f"{number}: {file}::{name}"
        for number, tests in rows().items()
        for file, name in tests
        if not re.search(rf"\b{number}\b", docstring_of(file, name))
    ]
    assert not wrong
