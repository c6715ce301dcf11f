"""What is asked of a server in this bench, and what came back."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tripower.bench.children import Server
from tripower.bench.http_client import EventSplitter, HttpConnection, build_request
from tripower.bench.serving.workload import TOPICS, long_prompt
from tripower.runtime.kernel import Unavailable

MILLI = 1e3


class Answered(msgspec.Struct, frozen=True):
    """Times in milliseconds. `prefill_ms` is the server's own figure, 0 where it has none."""

    text: str
    first_ms: float
    prefill_ms: float
    prompt_tokens: int
    cached_tokens: int


def beginning(number: int, words: int) -> str:
    """A text that no other number gives."""
    return long_prompt(number, words)


def question(number: int) -> str:
    """What follows the beginning; no two have the same first words."""
    return f"\n\nQuestion {number}: {TOPICS[number % len(TOPICS)]}\nAnswer:"


async def ask(server: Server, model: str, prompt: str, *, tokens: int, reuse: bool = True) -> Answered:
    """One streamed completion of the likeliest tokens. Blocks; raises `Unavailable` with the server's words when it fails."""
    body: dict[str, Any] = {
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True}, "cache_prompt": reuse,
    }  # fmt: skip
    request = build_request("POST", "/v1/completions", msgspec.json.encode(body))
    async with HttpConnection(server.port) as connection:
        began = time.perf_counter()
        status = await connection.begin(request)
        if status != 200:
            raise Unavailable(f"the server answered {status}: {(await connection.read_piece())[:500].decode(errors='replace')}")
        first, texts, last = 0.0, list[str](), dict[str, Any]()
        splitter = EventSplitter()
        while piece := await connection.read_piece():
            for payload in splitter.feed(piece):
                event = msgspec.json.decode(payload)
                if choices := event.get("choices"):
                    first = first or time.perf_counter() - began
                    texts.append(choices[0].get("text") or "")
                last |= {key: event[key] for key in ("usage", "timings") if event.get(key)}
    usage, timings = last.get("usage", {}), last.get("timings", {})
    return Answered(
        text="".join(texts),
        first_ms=MILLI * first,
        prefill_ms=timings.get("prompt_ms", 0.0),
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
    )
