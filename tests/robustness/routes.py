"""The ways in which a text can be asked for, as data, so that one test can ask through all of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs

from tests.api.serving import Answer, Server, serving_toy
from tripower.actors.runtime import RuntimePlan, toy_plan

CONTEXT = 128
"""Tokens, hence bytes, of the small toy."""


@attrs.frozen
class Route:
    """One endpoint that writes text, and what it calls the things that all of them have."""

    path: str
    prompt: str
    limit: str = "max_tokens"
    stop: str = "stop"
    takes: frozenset[str] = frozenset()
    """Which of the fields exist that not all of them have."""

    def body(self, text: str = "Hi", **fields: Any) -> dict[str, Any]:
        """A request for three tokens of the toy, unless `fields` say something else."""
        asked: Any = [{"role": "user", "content": text}] if self.prompt == "messages" else text
        return {"model": "toy", self.prompt: asked, self.limit: 3} | fields

    def error(self, answer: Answer) -> dict[str, Any]:
        """The error of an answer that is not streamed; never anything but valid JSON of a few kilobytes."""
        assert answer.headers["content-type"].startswith("application/json"), answer
        assert len(answer.body) < 4096
        error: dict[str, Any] = json.loads(answer.body)["error"]
        assert "tripower." not in error["message"] and "Traceback" not in error["message"]
        return error

    def reason(self, answer: Answer) -> str:
        """Why a whole answer ended, in this route's word."""
        body = answer.json
        if self.path == "/v1/responses":
            return str((body["incomplete_details"] or {"reason": body["status"]})["reason"])
        return str(body["stop_reason"] if self.path == "/v1/messages" else body["choices"][0]["finish_reason"])


OPENAI = frozenset({"n", "seed", "logit_bias", "ignore_eos", "min_tokens", "strict_room"})
ROUTES = [
    Route("/v1/chat/completions", "messages", takes=OPENAI),
    Route("/v1/completions", "prompt", takes=OPENAI),
    Route("/v1/responses", "input", "max_output_tokens", takes=frozenset({"seed", "ignore_eos", "strict_room"})),
    Route("/v1/messages", "messages", stop="stop_sequences"),
]


def small_plan(*, context: int = CONTEXT, **changes: Any) -> RuntimePlan:
    """The toy with a small context."""
    plan = toy_plan(**changes)
    return attrs.evolve(plan, limits=attrs.evolve(plan.limits, context=context))


@asynccontextmanager
async def serving_small(**changes: Any) -> AsyncIterator[Server]:
    """A server on the real actors with the small toy; nothing may be held when a test is done."""
    async with serving_toy(small_plan(**changes)) as server:
        yield server
        await server.actors.settle()
        assert server.actors.active() == 0
