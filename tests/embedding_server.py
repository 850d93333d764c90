"""A small HTTP server that speaks the OpenAI embeddings API on loopback, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(slots=True)
class Fault:
    """What the next request gets instead of vectors."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False


def vector_of(text: str, dimensions: int) -> list[float]:
    """Return a vector that depends on the text's words only, so that shared words mean nearness."""
    values = [0.0] * dimensions
    for word in text.lower().split() or [""]:
        digest = hashlib.sha256(word.encode()).digest()
        values[digest[0] % dimensions] += 1.0 + digest[1] / 255
    length = math.sqrt(sum(v * v for v in values))
    return [v / length for v in values]


class EmbeddingServer:
    """Starts on a free port; ``requests`` keeps every decoded body, ``faults`` are used up one per request."""

    def __init__(self, *, dimensions: int = 16) -> None:
        self.dimensions = dimensions
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.faults: deque[Fault] = deque()
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(body)
                outer.keys.append(self.headers.get("authorization", ""))
                fault = outer.faults.popleft() if outer.faults else Fault()
                if fault.hang:
                    outer.released.wait(30)
                    self.close_connection = True
                    return
                data = fault.body if fault.body is not None else outer.answer(body)
                self.send_response(fault.status)
                for name, value in {"content-type": "application/json", **fault.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def base_url(self) -> str:
        """Address for the client."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, body: dict[str, Any]) -> bytes:
        """Return vectors, last one first: the order of the rows is the client's business."""
        size = body.get("dimensions", self.dimensions)
        rows = [
            {"object": "embedding", "index": i, "embedding": vector_of(text, size)}
            for i, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return json.dumps({"object": "list", "data": rows[::-1], "model": body["model"], "usage": usage}).encode()

    def rows(self, vectors: list[list[float]], model: str = "m") -> bytes:
        """Return a body with given vectors."""
        data = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return json.dumps({"object": "list", "data": data, "model": model, "usage": usage}).encode()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
