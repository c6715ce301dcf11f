"""What the HTTP service is measured against: the least that an ASGI application on the same Hypercorn can do.

    python -m tripower.bench.overhead.bare_app --port PORT --answer BYTES --event BYTES --events COUNT [--our-listener]

It runs on Hypercorn's own Trio server, or on our listener, which has Hypercorn's protocol on a transport of ours. It reads the body of every request. A path that ends in `/stream` gets so many events of that many bytes, each written on its own; every
other path gets one fixed JSON answer.
"""

from __future__ import annotations

import argparse
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

KEEP_ALIVE_REQUESTS = 2**62
JSON_HEADERS = [(b"content-type", b"application/json")]
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class BareApp:
    """See the module."""

    def __init__(self, *, answer_bytes: int, event_bytes: int, events: int) -> None:
        self._answer = b'{"text":"' + b"x" * (answer_bytes - 11) + b'"}'
        self._answer_headers = [*JSON_HEADERS, (b"content-length", str(len(self._answer)).encode())]
        self._event = b"data: " + b"x" * (event_bytes - 8) + b"\n\n"
        self._events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("only http")  # tells the server that there is no lifespan
        while (await receive()).get("more_body"):
            continue
        if scope["path"].endswith("/stream"):
            await self._stream(send)
        else:
            await send({"type": "http.response.start", "status": 200, "headers": self._answer_headers})
            await send({"type": "http.response.body", "body": self._answer})

    async def _stream(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        for _ in range(self._events):
            await send({"type": "http.response.body", "body": self._event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("port", "answer", "event", "events"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--our-listener", action="store_true")
    options = parser.parse_args()
    app = BareApp(answer_bytes=options.answer, event_bytes=options.event, events=options.events)
    if options.our_listener:
        trio.run(_serve_on_our_listener, app, options.port)
    else:
        trio.run(serve, app, _hypercorn(options.port))


def _hypercorn(port: int) -> Config:
    """Nothing that costs: no logs, no `server` header, connections that are kept."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    config.accesslog = None
    config.include_server_header = False
    config.keep_alive_max_requests = KEEP_ALIVE_REQUESTS
    return config


async def _serve_on_our_listener(app: BareApp, port: int) -> None:
    from tripower.api.http import bind
    from tripower.api.http.listener import Listener
    from tripower.runtime.configuration import ServerSettings

    settings = ServerSettings(host="127.0.0.1", port=port)
    with bind(settings) as bound:
        await Listener(app, bound.sockets, settings).run()


if __name__ == "__main__":
    main()
