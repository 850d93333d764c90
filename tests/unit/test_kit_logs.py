"""Log lines: one JSON object each, tied to the request, without the contents of variables."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from service_kit import logs
from service_kit.context import acting_as


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_line_is_one_json_object_with_the_request_id() -> None:
    """Lines of ours and of libraries have the same form, and carry the id of the request in progress."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    with acting_as(None, request_id="req-7"):
        logs.get_logger("ledger", shard=1).info("applied", título="decisão")
        logging.getLogger("library").warning("slow %s", "disk")
    logs.get_logger("ledger").debug("not shown")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["título"], first["shard"], first["request_id"]) == ("applied", "decisão", 1, "req-7")
    assert (first["level"], first["logger"]) == ("info", "ledger")
    assert (second["event"], second["level"], second["request_id"]) == ("slow disk", "warning", "req-7")


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_never_shows_the_values_of_variables(form: logs.Format) -> None:
    """S2: local variables hold content and tokens; a stack in the log has lines of code only."""
    stream = io.StringIO()
    logs.configure(form=form, stream=stream)

    def fail() -> None:
        token = "S3CRET".lower()
        raise RuntimeError(len(token))

    try:
        fail()
    except RuntimeError as error:
        logs.get_logger("boundary").error("bug", exc_info=error)
    text = stream.getvalue()
    assert "RuntimeError" in text
    assert "s3cret" not in text
    assert len(text.splitlines()) == 1 or form == "console"
