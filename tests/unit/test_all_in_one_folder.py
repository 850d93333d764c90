"""The data folder: one server at a time, private tokens, and an endpoint that is either whole or not there."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from all_in_one.folder import FIRST_PRINCIPALS, DataFolder, FolderInUseError
from service_kit.principals import Kind, Role
from service_kit.tokens import TokenFile


def test_a_second_server_on_the_same_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """A folder that is held is refused, naming the server that holds it; after its end it is free again."""
    folder = DataFolder(tmp_path / "data")
    with folder.exclusive():
        folder.write_endpoint("127.0.0.1:4711")
        with pytest.raises(FolderInUseError, match=r"127\.0\.0\.1:4711.*--data"), DataFolder(folder.root).exclusive():
            pytest.fail("two servers hold one folder")
    with folder.exclusive():
        pass


def test_a_killed_server_leaves_no_lock_behind(tmp_path: Path) -> None:
    """The lock goes with the process, however it ended."""
    code = (
        "import os, pathlib, sys\nfrom all_in_one.folder import DataFolder\n"
        "with DataFolder(pathlib.Path(sys.argv[1])).exclusive():\n    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    with DataFolder(tmp_path).exclusive():
        pass


def test_first_tokens_are_private_and_stay_the_same(tmp_path: Path) -> None:
    """L6: the first start makes a token for each principal, mode 0600; the next start finds the same ones."""
    folder = DataFolder(tmp_path / "data")
    folder.create()
    first = folder.issue_first_tokens()
    assert folder.issue_first_tokens() == first
    assert set(first) == set(FIRST_PRINCIPALS) == {"owner", "reviewer", "agent", "importer", "indexer", "reader"}
    for name in first:
        assert stat.S_IMODE(folder.token_file(name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.tokens_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700


def test_nobody_of_the_first_principals_can_approve_what_they_may_propose(tmp_path: Path) -> None:
    """L6: the agent acts for the owner and reviews nothing; only the reviewer reviews, and proposes nothing."""
    folder = DataFolder(tmp_path)
    tokens = folder.issue_first_tokens()
    who = {name: TokenFile(folder.tokens_file).find(token) for name, token in tokens.items()}
    agent, reviewer, indexer = who["agent"], who["reviewer"], who["indexer"]
    assert agent is not None
    assert (agent.kind, agent.on_behalf_of) == (Kind.AGENT, "owner")
    assert [name for name, p in who.items() if p and p.can("any", Role.REVIEWER)] == ["reviewer"]
    assert reviewer is not None
    assert not reviewer.can("any", Role.PROPOSER)
    assert indexer is not None
    assert indexer.kind is Kind.SERVICE


def test_a_damaged_endpoint_file_means_that_nobody_listens(tmp_path: Path) -> None:
    """An endpoint file that is half written or foreign is no endpoint."""
    folder = DataFolder(tmp_path)
    for text in ("{", "[]", '{"ledger": 1}', ""):
        folder.endpoint_file.write_text(text)
        assert folder.read_endpoint() is None
    folder.write_endpoint("127.0.0.1:1")
    found = folder.read_endpoint()
    assert found is not None
    assert found["retrieval"] == "127.0.0.1:1"
    folder.remove_endpoint()
    assert folder.read_endpoint() is None
