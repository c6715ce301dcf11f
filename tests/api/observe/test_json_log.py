"""Log lines for programs: one JSON object each, with nothing of a prompt in it."""

from __future__ import annotations

import json
import logging

from tests.api.fake_runtime import HELLO, Script
from tests.api.serving import ASK, CHAT, serving
from tripower.api.http.observe.json_log import JsonFormatter

SECRET = "marzipan"


class Lines(logging.Handler):
    """Keeps what it is told, as JSON lines."""

    def __init__(self, *, with_tracebacks: bool = False) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(with_tracebacks=with_tracebacks))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


async def test_a_request_is_an_object_with_its_own_fields() -> None:
    handler, logger = Lines(), logging.getLogger("tripower")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        async with serving(HELLO, Script([RuntimeError(SECRET)])) as server:
            asking = ASK | {"messages": [{"role": "user", "content": SECRET}], "moon": 1}
            await server.ask(CHAT, asking, headers={"x-request-id": "one"})
            await server.ask(CHAT, asking, headers={"x-request-id": "two"})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    told = [json.loads(line) for line in handler.lines]
    assert SECRET not in "".join(handler.lines)
    first = next(line for line in told if line["event"] == "request")
    assert first["target"] == "tripower.http" and first["level"] == "info"
    request = first["request"]
    assert (request["request_id"], request["route"], request["status"], request["end"]) == ("one", CHAT, 200, "stop")
    assert (request["prompt_tokens"], request["completion_tokens"], request["ignored"]) == (3, 3, ["moon"])
    assert (request["wait_seconds"], request["prefill_seconds"], request["decode_seconds"]) == (0.5, 0.25, 2.0)
    failure = next(line for line in told if line["level"] == "error")
    assert failure["exception"] == "RuntimeError" and "traceback" not in failure


def test_a_line_stays_one_line_and_tracebacks_are_for_debugging() -> None:
    for wanted in (False, True):
        formatter = JsonFormatter(with_tracebacks=wanted)
        try:
            raise ValueError("first\nsecond")
        except ValueError as error:
            record = logging.LogRecord("tripower", logging.ERROR, "", 1, "a\nb", (), (type(error), error, error.__traceback__))
        text = formatter.format(record)
        assert "\n" not in text
        assert ("traceback" in json.loads(text)) is wanted
