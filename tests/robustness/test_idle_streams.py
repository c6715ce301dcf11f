"""Streams in which nothing comes for a while, read by the official client: it takes no notice, and the bytes go on."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import trio

from tests.api.fake_runtime import Script, finished, tokens
from tests.api.serving import serving
from tests.robustness.routes import ROUTES

IDLE = 0.05
COMMENT_EVERY = 0.01
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def read(url: str) -> list[str]:
    """What the blocking official client reads from three kinds of streams; runs in a thread."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        texts = ["".join(chunk.choices[0].delta.content or "" for chunk in chat if chunk.choices)]
        completion = client.completions.create(model="fake", prompt="Hi", stream=True)
        texts.append("".join(chunk.choices[0].text for chunk in completion if chunk.choices))
        response = client.responses.create(model="fake", input="Hi", stream=True)
        texts.append("".join(event.delta for event in response if event.type == "response.output_text.delta"))
    return texts


async def test_the_official_client_takes_no_notice_of_silence() -> None:  # BB-094, BB-095
    script = Script([IDLE, tokens("Hel"), IDLE, tokens("lo") + finished(generated=2)])
    async with serving(script, keep_alive_comment_s=COMMENT_EVERY) as server:
        assert await trio.to_thread.run_sync(read, server.url) == ["Hello"] * 3


# BB-094, BB-095
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
async def test_bytes_come_before_the_first_token_and_every_event_has_data(route: Any) -> None:
    go = trio.Event()
    script = Script([go, tokens("Hello") + finished(generated=1)])
    async with serving(script, keep_alive_comment_s=COMMENT_EVERY) as server, server.client() as client:
        await client.send_request(route.path, route.body(stream=True, model="fake"))
        assert (await client.read_head()).status == 200
        received = await client.read_chunk() + await client.read_chunk()
        go.set()
        while piece := await client.read_chunk():
            received += piece
    for block in received.decode().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        assert not lines or any(line.startswith("data: ") for line in lines), block
        assert not any(line.startswith(("id:", "retry:")) for line in lines)
