"""The ways in which a text can be asked for, as data, so that one test can ask through all of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs

from tests.api.serving import Answer, Server, serving_toy, until
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
    """A server on the real actors with the small toy; waits until nothing is held when a test is done."""
    async with serving_toy(small_plan(**changes)) as server:
        yield server
        await until(lambda: not server.actors.active())


def text_of(route: Route, answer: Answer) -> str:
    """What was said, by a whole answer or by a stream."""
    if answer.headers["content-type"].startswith("application/json"):
        return _whole_text(route, answer.json)
    events = [
        json.loads(line.removeprefix("data: ")) for line in answer.body.decode().splitlines() if line.startswith("data: {")
    ]
    return "".join(_piece(route, event) for event in events)


def _whole_text(route: Route, body: Any) -> str:
    if route.path == "/v1/responses":
        return "".join(part["text"] for item in body["output"] for part in item["content"])
    if route.path == "/v1/messages":
        return "".join(block["text"] for block in body["content"])
    (choice,) = body["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def _piece(route: Route, event: Any) -> str:
    if route.path == "/v1/responses":
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""
    if route.path == "/v1/messages":
        return str(event["delta"]["text"]) if event["type"] == "content_block_delta" else ""
    choices = event["choices"]
    if not choices:
        return ""
    return str(choices[0]["delta"].get("content") or "" if "delta" in choices[0] else choices[0]["text"])
