"""The log of a block, kept for a test to read."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from service_kit.logs import configure


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Everything that is logged during a block, at the lowest level."""
    root = logging.getLogger()
    before, level, was = list(root.handlers), root.level, structlog.get_config()
    stream = io.StringIO()
    configure("debug", "json", stream)
    for noisy in ("asyncio", "grpc", "hpack"):
        logging.getLogger(noisy).setLevel(logging.INFO)
    try:
        yield stream
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        structlog.configure(**was)
