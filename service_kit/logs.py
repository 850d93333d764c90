"""Structured logs on standard error: one JSON object a line, or coloured text for a person.

Content of memories, tokens and requests never goes into a log; ids, names, counts and codes do.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from service_kit.context import current_request_id

Format = Literal["json", "console"]
Level = Literal["debug", "info", "warning", "error"]

_TALKATIVE = ("httpcore", "httpx", "neo4j", "openai")
"""Libraries whose debug lines hold whole requests: texts, headers, parameters of queries."""


def _add_request_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if (request_id := current_request_id()) is not None:
        event.setdefault("request_id", request_id)
    return event


def configure(
    level: Level = "info",
    form: Format = "json",
    stream: TextIO | None = None,
) -> None:
    """Send this process's log lines, those of libraries included, to one stream. Call it once, at the start."""
    target = stream or sys.stderr
    shared: list[Processor] = [
        _add_request_id,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Neither form shows the local variables of a traceback: they hold content and tokens.
    tail: list[Processor]
    if form == "json":
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        tail = [
            structlog.processors.ExceptionRenderer(tracebacks),
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        tail = [structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=plain)]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail]
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.INFO, root.level))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str, **values: Any) -> FilteringBoundLogger:
    """Return a logger for a part of a service, with values that every line of it carries."""
    logger: FilteringBoundLogger = structlog.get_logger(name, **values)
    return logger
