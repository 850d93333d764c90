"""A small HTTP server that speaks the OpenAI chat completions API on loopback, with faults on demand."""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(slots=True)
class Reply:
    """What a request gets: a completion with ``content``, or raw bytes, or a status, or silence."""

    content: str | None = None
    refusal: str | None = None
    finish_reason: str = "stop"
    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False


def memory(**changes: Any) -> dict[str, Any]:
    """Return a memory as a model answers it."""
    return {
        "category": "DesignRule",
        "title": "Retries are bounded",
        "summary": "Every retry has a limit.",
        "details": "",
        "objective": "",
        "trigger": "",
        "rationale": "An endless retry took the service down.",
        "alternatives": [],
        "examples": [],
        "rules": [],
        "steps": [],
        "domain": "",
        "modules": [],
        "files": [],
        "task": "",
        "outcome": "",
        "tags": [],
        "importance": 0.6,
        "confidence": 0.9,
        "quotes": ["we decided that every retry is bounded"],
        **changes,
    }


def memories(*items: dict[str, Any]) -> str:
    """Return the content of a completion."""
    return json.dumps({"memories": list(items)})


class ChatServer:
    """Starts on a free port; ``requests`` keeps every decoded body, ``replies`` are used up one per request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.replies: deque[Reply] = deque()
        self.otherwise = Reply(content=memories())
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append({"path": self.path, **body})
                reply = outer.replies.popleft() if outer.replies else outer.otherwise
                if reply.hang:
                    outer.released.wait(30)
                    self.close_connection = True
                    return
                data = reply.body if reply.body is not None else outer.completion(reply, body)
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
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

    def completion(self, reply: Reply, body: dict[str, Any]) -> bytes:
        """Return a chat completion."""
        message = {"role": "assistant", "content": reply.content, "refusal": reply.refusal}
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
        return json.dumps(
            {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
        ).encode()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
