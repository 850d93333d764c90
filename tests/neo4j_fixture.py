"""One Neo4j server for a whole run of the tests, started when the first test asks for it.

Where none can be had its tests are skipped, and the last line of the run says so; with CI set that is a failure.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from ledger_svc.store_neo4j import Neo4jConnection
from tests import neo4j_server

_OURS = "tests"


class _Run:
    """What this run of the tests has."""

    server: neo4j_server.Neo4jServer | None = None
    missing: str = ""


def server() -> neo4j_server.Neo4jServer:
    """Return the server of this run; skip the test when there is none."""
    if _Run.server is None and not _Run.missing:
        try:
            found = neo4j_server.obtain()
        except neo4j_server.Neo4jUnavailableError as error:
            _Run.missing = str(error)
        else:
            _check_ours(found)
            _Run.server = found
    if _Run.server is None:
        if os.environ.get("CI"):
            pytest.fail(f"no Neo4j server, and CI is set: {_Run.missing}")
        pytest.skip(f"no Neo4j server: {_Run.missing}")
    return _Run.server


def connection(**more: Any) -> Neo4jConnection:
    """Return how to reach the server; what it warns of fails the test."""
    found = server()
    reach = {"uri": found.uri, "user": found.user, "password": found.password}
    return Neo4jConnection(**{**reach, "warnings": True, "retry_seconds": 10.0, **more})


def run(query: str, **parameters: Any) -> list[list[Any]]:
    """Run one statement past the adapter, to look at or to spoil what is stored."""
    from neo4j import GraphDatabase

    found = server()
    with (
        GraphDatabase.driver(found.uri, auth=(found.user, found.password), notifications_min_severity="OFF") as driver,
        driver.session() as session,
    ):
        return session.run(query, parameters).values()


def wipe() -> None:
    """Remove all nodes; the schema stays. Only in a database that the tests own."""
    # Edges first: a node with ten thousand of them is too much for one transaction of a small server.
    run("MATCH ()-[e]->() CALL (e) { DELETE e } IN TRANSACTIONS OF 5000 ROWS")
    run("MATCH (n) WHERE NOT n:TestMark CALL (n) { DETACH DELETE n } IN TRANSACTIONS OF 2000 ROWS")


def report() -> str:
    """Return the line that a run ends with; empty when no test asked for a server."""
    if _Run.server is not None:
        return f"Neo4j: {_Run.server.source}"
    return f"Neo4j: tests were skipped: {_Run.missing}" if _Run.missing else ""


def close() -> None:
    """Stop the server, when it was started here."""
    if _Run.server is not None:
        _Run.server.close()


def _check_ours(found: neo4j_server.Neo4jServer) -> None:
    """Refuse a database that holds anything but what tests left there: they remove everything."""
    _Run.server = found
    try:
        if not found.owned and not run("MATCH (m:TestMark {name: $name}) RETURN m", name=_OURS):
            if run("MATCH (n) RETURN n LIMIT 1"):
                pytest.fail(f"the database at {found.uri} is not empty, and the tests would remove what is in it")
            run("CREATE (m:TestMark {name: $name})", name=_OURS)
    except BaseException:
        _Run.server = None
        raise
