"""How a client tells the endings of its request apart, answer by answer."""

from __future__ import annotations

import pytest
import trio

from tests.bench.test_http_client import answering
from tripower.bench.overload.client import Ending, Outcome, Pool, perform
from tripower.bench.overload.requests import Ask, Kind

HEAD = "HTTP/1.1 {status} x\r\nx-request-id: {id}\r\n{more}content-length: {length}\r\n\r\n"
TOKEN = 'data: {"choices":[{"finish_reason":null}],"usage":null}\n\n'
LAST = 'data: {"choices":[{"finish_reason":"length"}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n'
DONE = "data: [DONE]\n\n"
ADVICE = "retry-after: 2\r\nretry-after-ms: 1500\r\n"


def error(code: str) -> str:
    return f'{{"error":{{"code":"{code}","message":"m","type":"t"}}}}'


def answer(status: int, body: str, *, more: str = "", id: str = "me") -> bytes:
    return HEAD.format(status=status, id=id, more=more, length=len(body)).encode() + body.encode()


async def ended(answer: bytes, *, stream: bool = True, kind: Kind = Kind.STREAM, patience: float = 0.0) -> Ending:
    ask = Ask(id="me", key="k", kind=kind, request=b"GET", stream=stream, tokens=2, patience=patience)
    async with answering(answer) as port:
        pool = Pool(port)
        ending = await perform(pool, ask)
        pool.close()
    return ending


@pytest.mark.parametrize(
    ("body", "outcome", "code"),
    [
        (TOKEN + TOKEN + LAST + USAGE % 2 + DONE, Outcome.WHOLE, ""),
        (TOKEN + f"data: {error('deadline_exceeded')}\n\n" + DONE, Outcome.EXPIRED, "deadline_exceeded"),
        (f": keep-alive\n\ndata: {error('share_exceeded')}\n\n" + DONE, Outcome.REFUSED, "share_exceeded"),
        (TOKEN + f"data: {error('share_exceeded')}\n\n" + DONE, Outcome.LOST, ""),
        (TOKEN + f"data: {error('device_failed')}\n\n" + DONE, Outcome.LOST, ""),
        (TOKEN + LAST + USAGE % 1 + DONE, Outcome.LOST, ""),
        (TOKEN + TOKEN + LAST + LAST + USAGE % 2 + DONE, Outcome.LOST, ""),
        (TOKEN + TOKEN + LAST + USAGE % 2, Outcome.LOST, ""),
        (TOKEN + TOKEN + LAST + USAGE % 2 + DONE + TOKEN, Outcome.LOST, ""),
    ],
)
async def test_a_stream_is_whole_refused_expired_or_lost(body: str, outcome: Outcome, code: str) -> None:
    ending = await ended(answer(200, body))
    assert (ending.outcome, ending.code) == (outcome, code)
    assert bool(ending.fault) is (outcome is Outcome.LOST)


@pytest.mark.parametrize(
    ("status", "body", "more", "outcome", "advised"),
    [
        (200, '{"choices":[{"finish_reason":"length"}],"usage":{"completion_tokens":2}}', "", Outcome.WHOLE, True),
        (200, '{"choices":[{"finish_reason":"length"}],"usage":{"completion_tokens":3}}', "", Outcome.LOST, True),
        (429, error("share_exceeded"), ADVICE, Outcome.REFUSED, True),
        (503, error("queue_full"), "retry-after: 2\r\n", Outcome.REFUSED, False),
        (503, error("queue_full"), "", Outcome.REFUSED, False),
        (504, error("deadline_exceeded"), "", Outcome.EXPIRED, True),
        (400, error("invalid_value"), "", Outcome.INVALID, True),
        (400, "{}", "", Outcome.LOST, True),
        (500, error("internal_error"), "", Outcome.LOST, True),
        (504, error("upstream"), "", Outcome.LOST, True),
        (400, "no json", "", Outcome.LOST, True),
    ],
)
async def test_an_answer_in_one_piece_is_what_its_status_and_code_say(
    status: int, body: str, more: str, outcome: Outcome, advised: bool
) -> None:
    ending = await ended(answer(status, body, more=more), stream=False)
    assert (ending.outcome, ending.advised) == (outcome, advised)


async def test_another_requests_answer_is_a_loss() -> None:
    ending = await ended(answer(429, error("queue_full"), id="somebody-else"))
    assert ending.outcome is Outcome.LOST and "somebody-else" in ending.fault


async def test_a_connection_that_ends_too_early_is_a_loss() -> None:
    assert (await ended(answer(200, TOKEN)[:-5])).outcome is Outcome.LOST


async def test_who_leaves_before_the_answer_has_left() -> None:
    with trio.fail_after(5):
        assert (await ended(b"", kind=Kind.LEAVING, patience=0.0)).outcome is Outcome.LEFT
