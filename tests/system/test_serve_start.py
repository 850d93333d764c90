"""The start of `dsearch serve`: what a person sees, whoever comes too early, and whoever stops it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import environment

DSEARCH = (sys.executable, "-m", "dsearch")


def serving(data: Path) -> subprocess.Popen[str]:
    """Start a server and return it once it has said that it starts."""
    process = subprocess.Popen(
        [*DSEARCH, "serve", "--data", str(data)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == f"starting on {data} ...\n"
    return process


@pytest.mark.timeout(120)
def test_a_command_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    """`dsearch serve & dsearch init x` works; a stop in service ends with 0; what went well is not logged."""
    server = serving(tmp_path)
    try:
        made = subprocess.run(
            [*DSEARCH, "init", "billing", "--data", str(tmp_path)],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        assert made.returncode == 0, made.stderr
        assert "made projects/billing" in made.stdout
    finally:
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=30)
    assert server.returncode == 0, err
    assert err == ""
    assert out.splitlines()[0].startswith("serving 127.0.0.1:")
    assert out.splitlines()[-1] == "stopped"


@pytest.mark.timeout(120)
def test_an_interrupted_start_ends_without_a_traceback(tmp_path: Path) -> None:
    """Ctrl-C while the models load: exit code 130 and one word."""
    server = serving(tmp_path)
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=60)
    assert (server.returncode, out, err) == (130, "", "interrupted\n")
    assert not (tmp_path / "endpoint.json").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("options", "words"),
    [(["--data", "FILE"], "cannot be the data folder"), (["--bind", "nonsense"], "is no address")],
)
def test_a_start_that_cannot_be_says_so_in_a_line(options: list[str], words: str, tmp_path: Path) -> None:
    """A data folder that is a file, and an address that is none, are usage errors."""
    file = tmp_path / "file"
    file.touch()
    given = [str(file) if option == "FILE" else option for option in options]
    data = [] if "--data" in given else ["--data", str(tmp_path / "data")]
    run = subprocess.run(
        [*DSEARCH, "serve", *given, *data], env=environment(), capture_output=True, text=True, check=False, timeout=50
    )
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
