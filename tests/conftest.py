"""What every test shares: fixed seeds for hypothesis and no network beyond loopback."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import neo4j_fixture

# Fixed seeds: a red run is red again. `HYPOTHESIS_PROFILE=explore` looks further, by hand.
settings.register_profile(
    "default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def _is_local(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # A Unix socket.
    host = str(address[0])
    if host in {"localhost", ""}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Refuse every Python socket that leaves the machine: the embedded default needs no network."""
    patch = pytest.MonkeyPatch()
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if not _is_local(address):
            raise RuntimeError(f"a test tried to reach {address!r}; tests talk to loopback only")
        connect(self, address)

    patch.setattr(socket.socket, "connect", guarded)
    yield
    patch.undo()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which Neo4j server the tests took, or that there was none."""
    line = neo4j_fixture.report()
    if line:
        terminalreporter.write_line(line)


def pytest_unconfigure() -> None:
    """Stop the Neo4j server, when one was started."""
    neo4j_fixture.close()
