"""Real processes for system tests: the four services in one process, or in four, on ports that the system chooses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from all_in_one.folder import DataFolder
from dsearch.client import DecisionsClient, Endpoints

START_SECONDS = 60.0
STOP_SECONDS = 30.0


def environment(**settings: str) -> dict[str, str]:
    """Return an environment with no settings but these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DSEARCH_")}
    return {**kept, **settings}


@dataclass
class Process:
    """A service in a process of its own; its log goes to a file."""

    module: str
    log: Path
    settings: Mapping[str, str]
    arguments: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start it and return the address that it listens on."""
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.arguments],
                env=environment(**self.settings),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for line in self.log.read_bytes()[begin:].decode("utf-8", "replace").splitlines():
                address = _listening(line)
                if address:
                    return address
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        tail = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-15:])
        raise AssertionError(f"{self.module} did not start:\n{tail}")

    def stop(self) -> int:
        """Ask it to stop and return its exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def kill(self) -> None:
        """End it without warning, its workers included."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _listening(line: str) -> str:
    try:
        body = json.loads(line)
    except ValueError:
        return ""
    return str(body.get("address", "")) if isinstance(body, dict) and body.get("event") == "listening" else ""


@dataclass
class Stack:
    """A deployment of the four services on one data folder: "all_in_one", "serve" (the command line's) or "four"."""

    kind: str
    root: Path
    processes: list[Process] = field(default_factory=list)
    endpoints: Endpoints | None = None

    @property
    def folder(self) -> DataFolder:
        """Its data folder."""
        return DataFolder(self.root)

    def start(self) -> None:
        """Start every process."""
        self.folder.create()
        self.folder.issue_first_tokens()
        if self.kind in {"all_in_one", "serve"}:
            one = Process("all_in_one", self.root / "all.log", {"DSEARCH_ALL_DATA_DIR": str(self.root)})
            if self.kind == "serve":
                one = Process(
                    "dsearch",
                    self.root / "all.log",
                    {"DSEARCH_ALL_LOG_LEVEL": "info"},
                    ("serve", "--data", str(self.root)),
                )
            self.processes = [one]
            self.endpoints = Endpoints.at(one.start())
            return
        shared = {"BIND": "127.0.0.1:0", "TOKENS_FILE": str(self.folder.tokens_file)}
        ledger = self._process("ledger", **shared, DATABASE=str(self.folder.ledger_file))
        at_ledger = ledger.start()
        index = self._process(
            "index",
            **shared,
            DATA_DIR=str(self.folder.index_folder),
            LEDGER_ADDRESS=at_ledger,
            LEDGER_TOKEN_FILE=str(self.folder.token_file("indexer")),
        )
        at_index = index.start()
        both = {**shared, "LEDGER_ADDRESS": at_ledger, "INDEX_ADDRESS": at_index}
        retrieval, ingest = self._process("retrieval", **both), self._process("ingest", **both)
        self.processes = [ledger, index, retrieval, ingest]
        self.endpoints = Endpoints(at_ledger, at_index, retrieval.start(), ingest.start())

    def _process(self, name: str, **settings: str) -> Process:
        prefixed = {f"DSEARCH_{name.upper()}_{key}": value for key, value in settings.items()}
        return Process(f"{name}_svc", self.root / f"{name}.log", prefixed)

    def stop(self) -> list[int]:
        """Stop every process, those first that call others; return their exit codes."""
        return [process.stop() for process in reversed(self.processes)]

    def kill(self) -> None:
        """End every process without warning."""
        for process in self.processes:
            process.kill()

    def client(self, name: str, **settings: Any) -> DecisionsClient:
        """Return a client as one of the first principals."""
        assert self.endpoints is not None
        token = self.folder.token_file(name).read_text().strip()
        return DecisionsClient(self.endpoints, token, **{"timeout_seconds": 30.0, "wait_for_ready": True, **settings})
