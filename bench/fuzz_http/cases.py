"""Requests as bytes: any route, any verb, odd heads, bodies that are cut, and bytes that are no request.

A case depends on the seed and on its own number only, so that any of them can be sent again by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from random import Random

import msgspec

from tripower.bench.fuzz_http.documents import make_body

VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "post", "G\x7fT", "")
ODD_PATHS = (
    "/", "//", "/v1", "/v1/", "/v1/models/", "/v1/models/a/b%2Fc", "/v1/models/%00", "/v1/models/%ff%fe", "/V1/models", "/v1//models",
    "/v1/../metrics", "/%2e%2e/etc", "/v1/models/" + "m" * 3000, "/slots?model=nobody", "/slots?" + "a=b&" * 200, "/tokenizer_info?model=",
    "/metrics?x=%zz", "http://127.0.0.1/v1/models", "http://elsewhere/v1/models", "*", "/v1/requests/%F0%9F%92%A9", "/v1/requests/a/cancel",
    "/caf\xe9", "/v1/models#x", "/v1/chat/completions/", "?", "/v1/requests/" + "r" * 200,
)  # fmt: skip
ODD_HEADERS: Sequence[tuple[str, str]] = (
    ("x-tripower-deadline-ms", "1"), ("x-tripower-deadline-ms", "-1"), ("x-tripower-deadline-ms", "1e9"), ("x-tripower-deadline-ms", "9" * 40),
    ("x-slo-ttft-ms", "0"), ("x-slo-ttft-ms", "5000"), ("x-tripower-strict", "1"), ("x-tripower-strict", "yes"), ("x-tripower-priority", "5"),
    ("x-tripower-priority", "high"), ("x-vllm-priority", "-" * 50), ("x-request-id", "mine-1"), ("x-request-id", "not plain \x7f"),
    ("x-request-id", "i" * 500), ("traceparent", "00-zz-11-01"), ("content-type", "text/plain"), ("content-type", "multipart/form-data; boundary=x"),
    ("content-type", "\xff"), ("accept-encoding", "br"), ("authorization", "Basic x"), ("authorization", "Bearer"), ("x-api-key", "\xe9"),
    ("origin", "https://elsewhere.example"), ("origin", "null"), ("origin", "http://localhost:1"), ("connection", "close"),
    ("connection", "upgrade"), ("upgrade", "h2c"), ("expect", "200-maybe"), ("host", "elsewhere.example"), ("host", ""), ("host", "[::1"),
    ("cookie", "c=" + "v" * 5000), ("x-huge", "h" * 40_000), ("content-length", "5"), ("content-length", "-1"), ("content-length", "1 1"),
    ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked"), ("te", "trailers"), ("range", "bytes=0-"), ("anthropic-version", "\t"),
    ("bad header", "x"), ("x-empty", ""), (":path", "/"), ("x-line", "a\r\n folded"),
)  # fmt: skip


class Ending(StrEnum):
    """What the client does when it has sent a case."""

    WAITS = "waits"
    """It keeps the connection open, and an answer has to come."""
    STOPS = "stops"
    """It has no more to say and closes its side: an answer may come."""


class Case(msgspec.Struct, frozen=True):
    """One request, if it is one."""

    number: int
    method: str
    path: str
    data: bytes
    ending: Ending


def make_case(seed: int, number: int, routes: Sequence[tuple[str, str]]) -> Case:
    """A case of this seed. `routes` are the (method, path) pairs that the server offers."""
    choose = Random(f"{seed}/{number}")
    kind = choose.random()
    if kind < 0.03:
        return Case(number, "", "", noise(choose), Ending.STOPS)
    method, path = choose.choice(routes)
    if kind < 0.12:
        method = choose.choice(VERBS)
    if kind < 0.2:
        path = choose.choice(ODD_PATHS) if choose.random() < 0.7 else path + choose.choice(("/", "?", "?a=%00", "%20", "x"))
    path = path.replace("{id}", choose.choice(("toy", "nobody", "a%2Fb"))).replace("{id:path}", "toy")
    body = make_body(path, choose) if method == "POST" or choose.random() < 0.1 else b""
    headers = [("host", "127.0.0.1"), ("content-type", "application/json")]
    if 0.2 <= kind < 0.45:
        headers = add_odd_headers(headers, choose)
    data = frame(method, path, headers, body, choose if 0.45 <= kind < 0.5 else None)
    if 0.5 <= kind < 0.54:
        return Case(number, method, path, data[: choose.randrange(1, len(data))], Ending.STOPS)
    return Case(number, method, path, data, Ending.WAITS if is_well_framed(headers, method, path) else Ending.STOPS)


def add_odd_headers(headers: list[tuple[str, str]], choose: Random) -> list[tuple[str, str]]:
    """One or two odd ones, in the place of those of the same name or beside them; or very many."""
    if choose.random() < 0.03:
        return [*headers, *((f"x-{number}", "v") for number in range(400))]
    odd = [choose.choice(ODD_HEADERS) for _ in range(choose.randint(1, 2))]
    names = {name for name, _ in odd} if choose.random() < 0.7 else set()
    return [*(each for each in headers if each[0] not in names), *odd]


FRAMING = frozenset(
    {
        "content-length",
        "transfer-encoding",
        "expect",
        "upgrade",
        "bad header",
        ":path",
        "x-huge",
        "x-line",
        "host",
        "connection",
    }
)
"""Headers after which a server may take the request for something else, or refuse it before it is one."""


def is_well_framed(headers: Sequence[tuple[str, str]], method: str, path: str) -> bool:
    """Whether any server has to understand where the request ends, so that the client may wait for its answer."""
    names = [name for name, _ in headers]
    plain = method.isalpha() and path.startswith("/") and path.isascii()
    return plain and names.count("host") == 1 and len(names) < 100 and not FRAMING & set(names[2:]) - {"host"}


def frame(method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes, chunked: Random | None) -> bytes:
    """The bytes of a request; with `chunked` its body in pieces."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    named = {name for name, _ in headers}
    if chunked is not None:
        lines.append("transfer-encoding: chunked")
        body = in_chunks(body, chunked)
    elif not {"content-length", "transfer-encoding"} & named:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1", errors="replace") + b"\r\n\r\n" + body


def in_chunks(body: bytes, choose: Random) -> bytes:
    pieces = []
    while body:
        size = choose.randint(1, max(1, len(body)))
        pieces.append(b"%x\r\n" % size + body[:size] + b"\r\n")
        body = body[size:]
    return b"".join(pieces) + b"0\r\n\r\n"


def noise(choose: Random) -> bytes:
    """No request, or hardly one."""
    return choose.choice(
        (
            choose.randbytes(choose.randint(1, 3000)),
            b"\r\n" * 50,
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /v1/models HTTP/1.0\r\n\r\n",
            b"GET /v1/models\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + choose.randbytes(100),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + choose.randbytes(choose.randint(0, 200)),
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
        )
    )
