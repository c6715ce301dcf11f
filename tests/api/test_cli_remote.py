"""The client behind `--url`: what it sends, what it makes of answers and of failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import trio

from tripower.api.cli.answers import Question, Summary
from tripower.api.cli.problems import ServerRefused, StreamCut, describe
from tripower.api.cli.remote import RemoteService, error_of, request_of
from tripower.runtime.kernel import DeadlineExceeded

QUESTION = Question(messages=({"role": "user", "content": "hi"},), options={"max_tokens": 5})


def events(*chunks: Any) -> bytes:
    return b"".join(
        b"data: " + (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()) + b"\n\n" for chunk in chunks
    )


def delta(text: str | None, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


async def ask(handler: Callable[[httpx.Request], httpx.Response], question: Question = QUESTION) -> tuple[Summary, str]:
    pieces: list[str] = []
    async with httpx.AsyncClient(base_url="http://server/", transport=httpx.MockTransport(handler)) as client:
        summary = await RemoteService(client, "m").answer(question, pieces.append)
    return summary, "".join(pieces)


async def test_an_answer_is_streamed_and_its_figures_are_the_servers() -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "timings": {"predicted_per_second": 9.5}}
        return httpx.Response(200, content=events(delta(""), delta("Hé"), delta("llo"), delta(None, "stop"), usage, b"[DONE]"))

    summary, text = await ask(handler)
    assert text == "Héllo"
    assert (summary.finish_reason, summary.prompt_tokens, summary.tokens, summary.tokens_per_second) == ("stop", 3, 2, 9.5)
    body = json.loads(requests[0].content)
    assert str(requests[0].url) == "http://server/v1/chat/completions"
    assert (body["model"], body["stream"], body["max_tokens"], body["temperature"]) == ("m", True, 5, 0.7)
    assert "x-tripower-deadline-ms" not in requests[0].headers


async def test_plain_text_goes_to_completions_and_the_timeout_goes_along() -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, content=events({"choices": [{"text": "x"}]}, b"[DONE]"))

    summary, text = await ask(handler, Question(prompt="p", options={"temperature": 0}, timeout=1.5))
    assert (text, summary.tokens) == ("x", None)
    assert requests[0].url.path == "/v1/completions"
    assert json.loads(requests[0].content)["temperature"] == 0
    assert requests[0].headers["x-tripower-deadline-ms"] == "1500"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"error": {"message": "no room", "code": "queue_full"}}', "503 queue_full: no room"),
        (b'{"error": {"message": "no room", "type": "overloaded_error", "code": null}}', "503 overloaded_error: no room"),
        (b'{"detail": "x"}', "503"),
        (b"plain words", "503 error: plain words"),
        (b"", "503"),
    ],
)
async def test_a_refusal_is_told_in_the_servers_words(content: bytes, line: str) -> None:
    with pytest.raises(ServerRefused) as caught:
        await ask(lambda request: httpx.Response(503, content=content))
    assert describe([caught.value])[0] == line


async def test_a_body_that_cannot_be_read_says_so() -> None:
    class Broken(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            raise httpx.ReadError("reset")
            yield b""

    with pytest.raises(ServerRefused, match="cannot be read"):
        await ask(lambda request: httpx.Response(500, stream=Broken()))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (events(delta("par")), StreamCut),
        (b"", StreamCut),
        (events(delta("par"), b"{not json"), StreamCut),
        (events(delta("par"), {"error": {"message": "out", "code": "device_failed"}}, b"[DONE]"), ServerRefused),
    ],
)
async def test_a_stream_that_does_not_end_well_is_a_failure(content: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await ask(lambda request: httpx.Response(200, content=content))


async def test_the_timeout_holds_for_a_server_that_ignores_it() -> None:
    class Silent(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            await trio.sleep_forever()
            yield b""

    with pytest.raises(DeadlineExceeded):
        await ask(lambda request: httpx.Response(200, stream=Silent()), Question(prompt="p", timeout=0.05))


def test_errors_may_be_words_only() -> None:
    assert error_of(200, "words").message == "words"
    assert request_of("m", QUESTION)[0] == "v1/chat/completions"


@pytest.mark.parametrize(
    ("key", "cure"), [("", "set TRIPOWER_API_KEY to your key"), ("x", "the key in TRIPOWER_API_KEY is not one")]
)
async def test_want_of_a_key_names_the_variable(key: str, cure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPOWER_API_KEY", key)
    body = b'{"error": {"message": "an API key is needed", "code": "invalid_api_key"}}'
    with pytest.raises(ServerRefused) as caught:
        await ask(lambda request: httpx.Response(401, content=body))
    assert describe([caught.value])[0].startswith(f"401 invalid_api_key: an API key is needed; {cure}")
