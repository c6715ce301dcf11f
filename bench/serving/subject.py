"""A server under measurement: what is asked of it, and the figures that come back."""

from __future__ import annotations

import statistics
import time
from typing import Any

import msgspec
import trio

from tripower.bench.children import Server
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.serving.workload import Generated, generate, long_prompt, short_prompt
from tripower.runtime.kernel import Unavailable

CALIBRATION_WORDS = 200
SAFE_SHARE = 0.97
"""How much of the wanted length a long prompt aims for, since words differ in their tokens."""
MILLI = 1e3
NOT_MEASURED = 0
"""A prompt that no measured one begins like: counting begins at 1."""

Figures = dict[str, float]


class Subject:
    """A running server under measurement. Its prompts are numbered, and both subjects count alike."""

    def __init__(self, server: Server, *, model: str) -> None:
        self.server = server
        self.model = model
        self._number = 0

    @classmethod
    async def open(cls, server: Server) -> Subject:
        """Ours, with the name under which it serves its model."""
        answer = await get_json(server, "/v1/models")
        return cls(server, model=answer["data"][0]["id"])

    def next_number(self) -> int:
        self._number += 1
        return self._number

    async def run_streams(self, concurrency: int, tokens: int) -> Figures:
        """One answer of `tokens` tokens for each of so many clients at once.

        `rate` is tokens a second of all together, `first` the median of milliseconds to a first token; `seconds` is what all of it took
        and `soonest` the seconds to the very first token.
        """
        results: list[Generated] = []

        async def client(number: int) -> None:
            async with HttpConnection(self.server.port) as connection:
                results.append(await generate(connection, self.model, short_prompt(number), tokens))

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                nursery.start_soon(client, self.next_number())
        seconds = time.perf_counter() - began
        for result in results:
            if result.tokens != tokens or not result.complete:
                raise Unavailable(f"an answer of {tokens} tokens had {result.tokens}: the figures would not be comparable")
        first = statistics.median(result.first_seconds for result in results)
        soonest = min(result.first_seconds for result in results)
        return {"rate": concurrency * tokens / seconds, "first": first * MILLI, "seconds": seconds, "soonest": soonest}

    async def evaluate_prompt(self, words: int, *, number: int | None = None) -> Figures:
        """A long prompt and one token: prompt tokens a second. `number` names one out of the count."""
        prompt = long_prompt(self.next_number() if number is None else number, words)
        async with HttpConnection(self.server.port) as connection:
            result = await generate(connection, self.model, prompt, 1)
        seconds = result.first_seconds
        return {"rate": result.prompt_tokens / seconds, "tokens": result.prompt_tokens, "seconds": seconds, "soonest": 0.0}


async def get_json(server: Server, path: str) -> Any:
    async with HttpConnection(server.port) as connection:
        answer = await connection.fetch(build_request("GET", path))
    if answer.status != 200:
        raise Unavailable(f"GET {path} was answered with {answer.status}")
    return msgspec.json.decode(answer.body)


async def words_for(subject: Subject, tokens: int, room: int) -> int:
    """How many words make a prompt of about so many tokens, or of as many as the model's context holds beside `room`."""
    words = min(CALIBRATION_WORDS, tokens // 2)
    figures = await subject.evaluate_prompt(words, number=NOT_MEASURED)
    context = (await get_json(subject.server, "/v1/models"))["data"][0].get("max_model_len", tokens + room)
    return max(1, int(min(tokens, context - room) * SAFE_SHARE / (figures["tokens"] / words)))
