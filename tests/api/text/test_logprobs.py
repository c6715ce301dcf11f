"""What is told of tokens: finite, complete, and the same in whole answers and in streams."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.fake_runtime import Script, finished
from tests.api.serving import ASK, CHAT, COMPLETIONS, Answer, serving, serving_toy
from tripower.actors.dialogue import TokenChunk
from tripower.api.http.text.token_texts import CompletionLogprobs, chat_logprobs
from tripower.backends.toy import ToyText
from tripower.runtime.engine import TokenLogprobs

SEEDED = {"model": "toy", "prompt": "abc", "seed": 7, "max_tokens": 6, "ignore_eos": True}
TALK = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "seed": 7, "max_tokens": 6, "ignore_eos": True}
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def strict(answer: Answer) -> Any:
    """The JSON, which has no numbers that JSON does not know."""
    assert answer.status == 200, answer.body

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    return json.loads(answer.body, parse_constant=refuse)


@pytest.mark.parametrize("top", [0, 1, 5])
@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99]])
async def test_a_repeated_prompt_and_its_answer_have_one_entry_for_each_token(prompt: Any, top: int) -> None:
    """What lm-eval slices: exactly prompt and answer, the first entry null, the token that stands there in each table."""
    async with serving_toy() as server:
        body = strict(
            await server.ask(COMPLETIONS, SEEDED | {"prompt": prompt, "echo": True, "logprobs": top, "max_tokens": 1})
        )
        only = strict(
            await server.ask(COMPLETIONS, SEEDED | {"prompt": prompt, "echo": True, "logprobs": top, "max_tokens": 0})
        )
    for answer, length in ((body, 4), (only, 3)):
        (choice,) = answer["choices"]
        lists = choice["logprobs"]
        assert [len(lists[name]) for name in LISTS] == [length] * 4
        assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
        assert all(logprob <= 0 for logprob in lists["token_logprobs"][1:])
        assert lists["text_offset"] == list(range(length)) and "".join(lists["tokens"]) == choice["text"]
        for token, table in zip(lists["tokens"][1:], lists["top_logprobs"][1:], strict=True):
            assert token in table and len(table) in (max(top, 1), top + 1)


async def test_the_likeliest_token_of_a_greedy_answer_is_the_one_that_came() -> None:
    async with serving_toy() as server:
        body = strict(await server.ask(COMPLETIONS, SEEDED | {"logprobs": 1, "temperature": 0}))
    lists = body["choices"][0]["logprobs"]
    assert [max(table, key=table.get) for table in lists["top_logprobs"]] == lists["tokens"]
    assert len(lists["tokens"]) == 6


@pytest.mark.parametrize(
    "fields", [{"logprobs": 2}, {"logprobs": 2, "echo": True}, {"logprobs": 2, "echo": True, "prompt": "a"}]
)
async def test_a_stream_of_a_completion_tells_the_same(fields: Any) -> None:
    async with serving_toy() as server:
        whole = strict(await server.ask(COMPLETIONS, SEEDED | fields))
        events = (await server.ask(COMPLETIONS, SEEDED | fields | {"stream": True})).events
    told = [choice for event in events[:-1] for choice in event["choices"] if choice["logprobs"]]
    joined: dict[str, list[Any]] = {name: [] for name in LISTS}
    for choice in told:
        for name in LISTS:
            joined[name] += choice["logprobs"][name]
    assert joined == whole["choices"][0]["logprobs"]


async def test_a_chat_tells_tokens_with_their_bytes_and_alternatives() -> None:
    async with serving_toy() as server:
        whole = strict(await server.ask(CHAT, TALK | {"logprobs": True, "top_logprobs": 3}))
        bare = strict(await server.ask(CHAT, TALK | {"logprobs": True}))
        events = (await server.ask(CHAT, TALK | {"logprobs": True, "top_logprobs": 3, "stream": True})).events
    content = whole["choices"][0]["logprobs"]["content"]
    text = whole["choices"][0]["message"]["content"]
    assert len(content) == 6 and bytes(byte for each in content for byte in each["bytes"]).decode() == text
    assert all(len(each["top_logprobs"]) == 3 and math.isfinite(each["logprob"]) for each in content)
    assert all(each["top_logprobs"] == [] for each in bare["choices"][0]["logprobs"]["content"])
    streamed = [choice["logprobs"] for event in events[:-1] for choice in event["choices"] if choice["logprobs"]]
    assert [each for told in streamed for each in told["content"]] == content


async def test_the_prompts_figures_come_in_vllms_words() -> None:
    async with serving_toy() as server:
        completion = strict(await server.ask(COMPLETIONS, SEEDED | {"prompt_logprobs": 2}))
        chat = strict(await server.ask(CHAT, TALK | {"prompt_logprobs": 0}))
        streamed = await server.ask(CHAT, TALK | {"prompt_logprobs": 0, "stream": True})
    first, *others = completion["choices"][0]["prompt_logprobs"]
    assert first is None and len(others) == 2
    assert others[0][str(ord("b"))]["decoded_token"] == "b"
    assert sorted(rank for each in others[0].values() if (rank := each["rank"])) == [1, 2]
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert (streamed.status, streamed.error["param"]) == (400, "prompt_logprobs")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (CHAT, {"logprobs": 5}, "logprobs"),
        (CHAT, {"top_logprobs": 5}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"prompt_logprobs": -1}, "prompt_logprobs"),
    ],
)
async def test_a_number_of_alternatives_that_cannot_be_is_refused(path: str, fields: Any, param: str) -> None:
    async with serving_toy() as server:
        answer = await server.ask(path, (SEEDED if path == COMPLETIONS else TALK) | fields)
    assert (answer.status, answer.error["param"]) == (400, param)


SMILE = "😀".encode()


def smile() -> list[TokenLogprobs]:
    """A character over four tokens, the last of them as good as impossible."""
    return [TokenLogprobs(byte, -0.5 if byte != SMILE[-1] else -math.inf, ((byte, -0.5), (1, math.nan))) for byte in SMILE]


def test_parts_of_a_character_have_their_true_bytes() -> None:  # BB-023
    told = chat_logprobs(smile(), ToyText(), 1)
    assert bytes(byte for each in told.content for byte in each.bytes or ()) == SMILE
    assert [each.token for each in told.content] == ["\\xf0", "\\x9f", "\\x98", "\\x80"]
    lists = CompletionLogprobs(ToyText(), 1).tokens([*smile(), TokenLogprobs(97, -1.0)])
    assert lists.tokens[0] == "bytes:\\xf0" and lists.text_offset == (0, 0, 0, 0, 1)


@given(
    pieces=st.lists(st.sampled_from([b"a", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xc3", b"\xff", b"\xe6", b"b"]), max_size=12)
)
@settings(deadline=None, max_examples=80)
def test_offsets_are_those_into_the_text_with_its_replaced_characters(pieces: list[bytes]) -> None:
    text = b"".join(pieces).decode(errors="replace")
    lists = CompletionLogprobs(ToyText(), 0).tokens([TokenLogprobs(piece[0], -1.0) for piece in pieces])
    for offset, name in zip(lists.text_offset, lists.tokens, strict=True):
        assert name.startswith("bytes:") or text.startswith(name, offset)
    assert list(lists.text_offset) == sorted(lists.text_offset)


async def test_what_is_not_finite_never_gets_into_the_json() -> None:  # BB-022
    script = Script([[TokenChunk(each.token, "", each) for each in smile()], finished(held="😀", generated=4)])
    async with serving(script) as server:
        body = strict(await server.ask(CHAT, ASK | {"logprobs": True, "top_logprobs": 2}))
        assert (await server.ask(CHAT, ASK | {"logprobs": True, "stream": True})).text == "😀"
    assert body["choices"][0]["message"]["content"] == "😀"
    assert [each["logprob"] for each in body["choices"][0]["logprobs"]["content"]] == [-0.5, -0.5, -0.5, -9999.0]
