"""The few lines of HTTP that a peer without a server of its own is measured through.

It answers `GET /health` and streams `POST /v1/completions` as OpenAI does, a thread a connection. It does next to nothing beside the
peer's own work, and nothing that ours does not do as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import msgspec


class Piece(msgspec.Struct, frozen=True):
    """What a peer gave at one step: text, and counts in the last one."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Generate(Protocol):
    """Greedy text of exactly `tokens` tokens, whatever end tokens come; any number of threads may ask at once."""

    def __call__(self, prompt: str, tokens: int) -> Iterator[Piece]: ...


def peer_options(about: str | None) -> argparse.Namespace:
    """The command line of every peer."""
    return peer_parser(about).parse_args()


def peer_parser(about: str | None) -> argparse.ArgumentParser:
    """What every peer is told, for those that are told more."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="a GGUF file")
    for name in ("port", "threads", "parallel", "context"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser


def serve_peer(generate: Generate, port: int) -> None:
    """Answer on `port` until the process is ended."""
    peer_server(generate, port).serve_forever()


def peer_server(generate: Generate, port: int) -> ThreadingHTTPServer:
    """A server on `port`, bound but not running."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._head(200, ("content-length", "2"))
            self.wfile.write(b"ok")

        def do_POST(self) -> None:
            body: dict[str, Any] = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
            self._head(200, ("content-type", "text/event-stream"), ("transfer-encoding", "chunked"))
            try:
                for piece in generate(body["prompt"], body["max_tokens"]):
                    self._event(event_of(piece))
            except Exception as error:  # noqa: BLE001 - whatever a peer raises is its answer
                self._event({"error": {"message": f"{type(error).__name__}: {error}"}})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _head(self, status: int, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()

        def _event(self, event: dict[str, Any]) -> None:
            self._chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:
            """No line for each request."""

    class Threads(ThreadingHTTPServer):
        request_queue_size = 256

    return Threads(("127.0.0.1", port), Handler)


def event_of(piece: Piece) -> dict[str, Any]:
    event: dict[str, Any] = {"choices": [{"index": 0, "text": piece.text}]}
    if piece.completion_tokens:
        event["usage"] = {"prompt_tokens": piece.prompt_tokens, "completion_tokens": piece.completion_tokens}
    return event
