"""A real Neo4j Community server for the tests, without assuming that one is installed.

Taken in this order: ``DECISIONSSEARCH_TEST_NEO4J_URI`` (with ``..._USER``, ``..._PASSWORD``), Docker, Java with Maven,
and, for root on Debian, Java and Maven from apt. The server is a process of its own, on loopback, spoken to over Bolt;
nothing of it is imported or shipped. Only a server that was started here can be killed and restarted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

VERSION = "5.26.30"
START_SECONDS = 120
STOP_SECONDS = 30
_POM = Path(__file__).parent / "neo4j" / "pom.xml"
_JAVA_FLAGS = (
    "-Xms256m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-Dlog4j2.disable.jmx=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
_CONF = """\
server.default_listen_address=127.0.0.1
server.bolt.listen_address=127.0.0.1:{port}
server.http.enabled=false
server.https.enabled=false
server.memory.heap.initial_size=256m
server.memory.heap.max_size=256m
server.memory.pagecache.size=32m
dbms.usage_report.enabled=false
"""


class Neo4jUnavailableError(RuntimeError):
    """No way to a server here; the message says what was tried and what would help."""


@dataclass(slots=True)
class Neo4jServer:
    """Where to connect, and, when it was started here, the process."""

    uri: str
    user: str
    password: str
    source: str
    home: Path | None = None
    _command: list[str] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def owned(self) -> bool:
        """Whether it may be killed and restarted."""
        return bool(self._command)

    def start(self) -> None:
        """Start the process and wait until it takes a query."""
        assert self.home is not None
        log = (self.home / "console.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        self._wait()

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """End it cleanly; by force when it does not listen."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        if self.owned and self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)

    def _wait(self) -> None:
        from neo4j import GraphDatabase
        from neo4j.exceptions import DriverError, Neo4jError

        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                raise Neo4jUnavailableError(
                    f"the server ended with code {self._process.returncode}: see {self.home}/console.log"
                )
            try:
                with GraphDatabase.driver(self.uri, auth=(self.user, self.password)) as driver:
                    driver.verify_connectivity()
                    return
            except (DriverError, Neo4jError, OSError):
                if time.monotonic() > deadline:
                    raise
                # The one wait without an event: the server tells nobody when it is ready.
                time.sleep(0.1)


def obtain() -> Neo4jServer:
    """Return a running server.

    Raises:
        Neo4jUnavailableError: None can be had here.
    """
    uri = os.environ.get("DECISIONSSEARCH_TEST_NEO4J_URI")
    if uri:
        user = os.environ.get("DECISIONSSEARCH_TEST_NEO4J_USER", "neo4j")
        return Neo4jServer(uri, user, os.environ.get("DECISIONSSEARCH_TEST_NEO4J_PASSWORD", ""), f"environment ({uri})")
    tried = []
    for way in (_docker, _java):
        try:
            return way()
        except Neo4jUnavailableError as error:
            tried.append(str(error))
    raise Neo4jUnavailableError("; ".join(tried))


def _docker() -> Neo4jServer:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, timeout=20, check=False).returncode != 0:
        raise Neo4jUnavailableError("Docker: no engine answers")
    port, password = _free_port(), secrets.token_urlsafe(12)
    home = Path(tempfile.mkdtemp(prefix="neo4j-test-"))
    command = [docker, "run", "--rm", "-p", f"127.0.0.1:{port}:7687", "-e", f"NEO4J_AUTH=neo4j/{password}"]
    server = Neo4jServer(f"bolt://127.0.0.1:{port}", "neo4j", password, "Docker", home)
    server._command = [*command, f"neo4j:{VERSION}-community"]
    try:
        server.start()
    except Exception as error:
        server.close()
        raise Neo4jUnavailableError(f"Docker: {error}") from error
    return server


def _java() -> Neo4jServer:
    if not (shutil.which("java") and shutil.which("mvn")):
        _install_java()
    jars = _jars()
    port = _free_port()
    password = secrets.token_urlsafe(12)
    home = Path(tempfile.mkdtemp(prefix="neo4j-test-"))
    conf = home / "conf"
    conf.mkdir()
    (conf / "neo4j.conf").write_text(_CONF.format(port=port), encoding="utf-8")
    server = Neo4jServer(f"bolt://127.0.0.1:{port}", "neo4j", "neo4j", f"Java, Neo4j Community {VERSION}", home)
    server._command = [
        *("java", *_JAVA_FLAGS, "-cp", f"{jars}/*", "org.neo4j.server.CommunityEntryPoint"),
        *(f"--home-dir={home}", f"--config-dir={conf}", "--console-mode"),
    ]
    try:
        _start_with_password(server, password)
    except Exception as error:
        server.close()
        raise Neo4jUnavailableError(f"Java: {error}") from error
    return server


def _start_with_password(server: Neo4jServer, password: str) -> None:
    """Start it and replace the initial password, as its users must."""
    from neo4j import GraphDatabase

    assert server.home is not None
    server.password = "neo4j"
    log = (server.home / "console.log").open("ab")
    with log:
        server._process = subprocess.Popen(
            server._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    deadline = time.monotonic() + START_SECONDS
    from neo4j.exceptions import DriverError, Neo4jError

    while True:
        if server._process.poll() is not None:
            raise Neo4jUnavailableError(f"the server ended with code {server._process.returncode}")
        try:
            with (
                GraphDatabase.driver(server.uri, auth=("neo4j", "neo4j")) as driver,
                driver.session(database="system") as s,
            ):
                s.run("ALTER CURRENT USER SET PASSWORD FROM 'neo4j' TO $new", new=password).consume()
            break
        except (DriverError, Neo4jError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    server.password = password
    server._wait()


def _jars() -> Path:
    """Return the folder with the server's jars, fetched once into a cache outside the work tree."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "decisionssearch" / f"neo4j-{VERSION}"
    library = cache / "lib"
    if not (cache / "complete").exists():
        done = subprocess.run(
            [
                *("mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", "-DincludeScope=runtime"),
                f"-DoutputDirectory={library}",
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise Neo4jUnavailableError(
                f"Java: Maven could not fetch the server: {done.stdout[-500:]}{done.stderr[-500:]}"
            )
        (cache / "complete").touch()
    return library


def _install_java() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Neo4jUnavailableError(
            "Java: java and mvn are not installed (openjdk-17-jre-headless and maven on Debian)"
        )
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "openjdk-17-jre-headless", "maven"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise Neo4jUnavailableError(f"apt: {done.stderr[-500:]}")


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
