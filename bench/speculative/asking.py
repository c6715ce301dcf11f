"""One answer over HTTP, of our server or of a peer's, with what it tells of guesses and of what it had kept of the prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tripower.bench.children import Server
from tripower.bench.http_client import EventSplitter, HttpConnection, build_request
from tripower.bench.serving.subject import Subject
from tripower.bench.speculative.closed_loop import run_closed_loop
from tripower.bench.workloads.prompts import Prompt
from tripower.runtime.kernel import Unavailable


class Answered(msgspec.Struct, frozen=True):
    """An answer. `seconds` count from the request to the end of the stream."""

    text: str
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    drafted: int
    accepted: int


class AnsweredGroup(msgspec.Struct, frozen=True):
    """Answers that ran side by side."""

    answers: tuple[Answered, ...]
    seconds: float

    @property
    def speed(self) -> float:
        """Tokens a second, prompts included."""
        return sum(each.tokens for each in self.answers) / self.seconds


def request_for(model: str, prompt: Prompt, *, chats: bool, tokens: int, reuse: bool) -> bytes:
    """The likeliest tokens as a stream, until the model ends its answer. Without `reuse` nothing that is kept of the prompt counts."""
    body: dict[str, Any] = {
        "model": model, "max_tokens": tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "cache_prompt": reuse,
    }  # fmt: skip
    if chats:
        body["messages"] = [{"role": "user", "content": prompt.message}]
        return build_request("POST", "/v1/chat/completions", msgspec.json.encode(body))
    body["prompt"] = prompt.plain
    return build_request("POST", "/v1/completions", msgspec.json.encode(body))


async def ask_group(
    subject: Subject, prompts: Sequence[Prompt], *, chats: bool, tokens: int, reuse: bool, at_once: int = 1
) -> AnsweredGroup:
    """Ask for so many at once, for the next one whenever one is complete, and wait for all.

    Blocks; raises `Unavailable` with the server's words when one fails.
    """
    requests = [request_for(subject.model, prompt, chats=chats, tokens=tokens, reuse=reuse) for prompt in prompts]
    began = time.perf_counter()
    answers = await run_closed_loop(len(requests), at_once, lambda place: ask(subject.server, requests[place]))
    return AnsweredGroup(answers, time.perf_counter() - began)


async def ask(server: Server, request: bytes) -> Answered:
    """One streamed answer. Blocks; raises `Unavailable`."""
    async with HttpConnection(server.port) as connection:
        began = time.perf_counter()
        status = await connection.begin(request)
        if status != 200:
            raise Unavailable(f"the server answered {status}: {(await connection.read_piece())[:500].decode(errors='replace')}")
        splitter, events = EventSplitter(), list[bytes]()
        while piece := await connection.read_piece():
            events += splitter.feed(piece)
        return read_events(events, time.perf_counter() - began)


def read_events(events: Sequence[bytes], seconds: float) -> Answered:
    """What the payloads of a stream come to. Raises `Unavailable` for one that failed, or that told no usage."""
    texts, usage, timings = list[str](), dict[str, Any](), dict[str, Any]()
    for payload in events:
        event = msgspec.json.decode(payload)
        if "error" in event:
            raise Unavailable(f"the server failed in the middle of an answer: {event['error'].get('message')}")
        for choice in event.get("choices", ()):
            texts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        usage, timings = event.get("usage") or usage, event.get("timings") or timings
    if not usage:
        raise Unavailable("the server did not tell how many tokens its answer has")
    return Answered(
        text="".join(texts),
        seconds=seconds,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) or timings.get("cache_n", 0),
        tokens=usage["completion_tokens"],
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
    )
