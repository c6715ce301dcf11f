"""The prompts of the serving benches, and one request with what came back."""

from __future__ import annotations

import random
import time

import msgspec
import trio

from tripower.bench.http_client import EventSplitter, HttpConnection, build_request
from tripower.runtime.kernel import Unavailable

REQUEST_SECONDS_MAX = 1800.0
WORDS = ("harbour", "light", "paper", "seven", "river", "stone", "morning", "garden", "under", "winter", "letter", "north", "quiet",
         "machine", "bread", "table", "yellow", "window", "often", "small", "travel", "story", "between", "music", "water", "answer",
         "mountain", "clock", "island", "before", "second", "market", "silver")  # fmt: skip
TOPICS = (
    "Explain to a child why the sea is salty.",
    "Write a short letter to a neighbour about a borrowed ladder.",
    "Describe how a clock with a pendulum keeps time.",
    "List what to pack for a walk of three days in autumn.",
    "Tell the story of a lighthouse keeper and a lost boat.",
    "Compare a bicycle and a small boat as a way to travel.",
    "Give a recipe for bread that needs no kneading.",
    "Explain what a queue is and where one meets it.",
)


class Generated(msgspec.Struct, frozen=True):
    """What one streamed request gave. Seconds count from its sending."""

    prompt_tokens: int
    tokens: int
    first_seconds: float
    seconds: float
    complete: bool
    """Whether the stream came to its regular end."""


def short_prompt(number: int) -> str:
    """A prompt of some thirty tokens that begins unlike any other, so that no server has a part of it ready."""
    first, second = random.Random(number).sample(WORDS, 2)
    return f"{first} {second} {number}. {TOPICS[number % len(TOPICS)]} Answer in plain words.\n"


def long_prompt(number: int, words: int) -> str:
    """So many words in an order that no other number gives, for evaluating prompts."""
    choose = random.Random(-1 - number)
    return f"{number} " + " ".join(choose.choice(WORDS) for _ in range(words))


def completion_request(model: str, prompt: str, tokens: int) -> bytes:
    """Exactly `tokens` tokens, the likeliest ones, as a stream with its counts at the end."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return build_request("POST", "/v1/completions", msgspec.json.encode(body))


async def generate(connection: HttpConnection, model: str, prompt: str, tokens: int) -> Generated:
    """One streamed completion. Blocks; raises `Unavailable` with the server's own words when it fails."""
    with trio.move_on_after(REQUEST_SECONDS_MAX):
        return await _generate(connection, completion_request(model, prompt, tokens))
    raise Unavailable(f"an answer of {tokens} tokens took more than {REQUEST_SECONDS_MAX:.0f} seconds")


async def _generate(connection: HttpConnection, request: bytes) -> Generated:
    began = time.perf_counter()
    status = await connection.begin(request)
    if status != 200:
        raise Unavailable(f"the server answered {status}: {(await connection.read_piece())[:500].decode(errors='replace')}")
    splitter = EventSplitter()
    first, usage = 0.0, {"prompt_tokens": 0, "completion_tokens": 0}
    while piece := await connection.read_piece():
        for payload in splitter.feed(piece):
            event = msgspec.json.decode(payload)
            if "error" in event:
                raise Unavailable(f"the server failed in the middle of an answer: {event['error'].get('message')}")
            if not first and event["choices"]:
                first = time.perf_counter() - began
            usage = event.get("usage") or usage
    seconds = time.perf_counter() - began
    return Generated(usage["prompt_tokens"], usage["completion_tokens"], first, seconds, splitter.ended)
