"""What an answer has to be."""

from __future__ import annotations

import pytest

from tripower.bench.fuzz_http.cases import Case, Ending
from tripower.bench.fuzz_http.judge import NOTHING, Reply, fault_of, read_reply, tracebacks

ID = {b"x-request-id": b"1"}
ERROR = b'{"error":{"message":"m","type":"t","param":null,"code":"c"}}'
MESSAGES_ERROR = b'{"type":"error","error":{"type":"t","message":"m","code":"c","param":null},"request_id":"1"}'


def case(method: str = "POST", path: str = "/tokenize", ending: Ending = Ending.WAITS) -> Case:
    return Case(1, method, path, b"", ending)


@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        (Reply(200, ID, b"whatever"), case()),
        (Reply(400, ID, ERROR), case()),
        (Reply(404, ID, MESSAGES_ERROR), case()),
        (Reply(405, ID, b""), case("HEAD")),
        (Reply(503, ID, b'{"ready":false}'), case("GET", "/ready")),
        (NOTHING, case(ending=Ending.STOPS)),
    ],
)
def test_an_answer_as_it_should_be(reply: Reply, asked: Case) -> None:
    assert fault_of(asked, reply) == ""


@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        (NOTHING, case()),
        (Reply(200, {}, b""), case()),
        (Reply(500, ID, ERROR), case()),
        (Reply(200, ID, b'data: {"error":{"code":"internal_error"}}'), case()),
        (Reply(101, ID, b""), case()),
        (Reply(400, ID, b""), case()),
        (Reply(400, ID, b"<html>"), case()),
        (Reply(400, ID, b'{"error":"no"}'), case()),
        (Reply(400, ID, b'{"error":{"message":"","type":"t","code":"c"}}'), case()),
        (Reply(503, ID, b'{"ready":false}'), case("GET", "/slots")),
    ],
)
def test_an_answer_that_is_not(reply: Reply, asked: Case) -> None:
    assert fault_of(asked, reply)


def test_the_first_answer_of_a_connection_is_read_and_a_fault_in_any_of_them_seen() -> None:
    first = b"HTTP/1.1 400 x\r\nX-Request-Id: 7\r\ncontent-length: 2\r\n\r\n{}"
    assert read_reply(first + b"HTTP/1.1 404 x\r\n\r\n") == Reply(400, {b"x-request-id": b"7", b"content-length": b"2"}, b"{}")
    assert read_reply(first + b'HTTP/1.1 500 x\r\n\r\n{"code":"internal_error"}').status == 500
    assert read_reply(b"\x00\x00\x12\x04\x00") == NOTHING


def test_an_interim_answer_is_not_the_answer() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert read_reply(interim * 2 + b"HTTP/1.1 200 \r\n\r\n{}") == Reply(200, {}, b"{}")
    assert read_reply(interim) == NOTHING
    assert read_reply(b"HTTP/1.1 101 \r\n\r\n").status == 101


@pytest.mark.parametrize(
    ("log", "count"),
    [
        (b"INFO all is well\n", 0),
        (b"12:00 ERROR tripower.http: request 1 failed\nTraceback (most recent call last):\n  File\n", 1),
        (b"12:00 ERROR a\n12:00 CRITICAL b\n", 2),
        (b"Traceback (most recent call last):\n", 1),
    ],
)
def test_tracebacks_and_logged_errors_are_found(log: bytes, count: int) -> None:
    assert tracebacks(log) == count
