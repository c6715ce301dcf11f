"""What every answer has to be, whatever the request was."""

from __future__ import annotations

import msgspec

from tripower.bench.fuzz_http.cases import Case, Ending

INTERNAL = b"internal_error"
"""The code of a fault that nobody expected, also as the last event of a stream."""
STATES = ("/ready", "/health")
"""Paths whose answer is a state, also where it is a bad one."""
SHOWN_BYTES = 160


class Detail(msgspec.Struct):
    message: str
    type: str
    code: str


class Body(msgspec.Struct):
    """What both dialects of errors have in common."""

    error: Detail


class Reply(msgspec.Struct, frozen=True):
    """An answer, as far as one came. `status` is 0 where none did."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


NOTHING = Reply(0, {}, b"")


def fault_of(case: Case, reply: Reply) -> str:
    """What is wrong with this answer; empty if nothing."""
    if not reply.status:
        return "no answer" if case.ending is Ending.WAITS else ""
    shown = reply.body[:SHOWN_BYTES]
    if reply.status == 500 or INTERNAL in reply.body:
        return f"{reply.status} {shown!r}"
    if not 200 <= reply.status < 600:
        return f"a status of {reply.status}"
    if not reply.headers.get(b"x-request-id"):
        return f"{reply.status} without a request id: {shown!r}"
    if reply.status < 400 or case.method == "HEAD" or (reply.status == 503 and case.path.startswith(STATES)):
        return ""
    try:
        detail = msgspec.json.decode(reply.body, type=Body).error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"{reply.status} whose body is no error ({error}): {shown!r}"
    return "" if detail.message and detail.type and detail.code else f"{reply.status} that says nothing: {shown!r}"


def read_reply(data: bytes) -> Reply:
    """The first answer of all that came on a connection, past interim ones: a client that has ended its side may get `100 Continue`.

    HTTP/2 is not looked at, but for a fault of ours in its text.
    """
    while data.startswith(b"HTTP/1.1 100 "):
        data = data.partition(b"\r\n\r\n")[2]
    if not data.startswith(b"HTTP/1.1 "):
        return NOTHING if INTERNAL not in data else Reply(500, {}, data)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    status = int(first.split(b" ")[1])
    length = headers.get(b"content-length", b"")
    if length.isdigit():
        body = body[: int(length)]
    if b" 500 " in data and INTERNAL in data:
        return Reply(500, headers, data)
    return Reply(status, headers, body)


def tracebacks(log: bytes) -> int:
    """How many tracebacks, and errors that were logged without one, there are in a log."""
    errors = sum(b" ERROR " in line or b" CRITICAL " in line for line in log.split(b"\n"))
    return max(log.count(b"Traceback (most recent call last)"), errors)
