"""The official `openai` client in a process of its own, against `tripower serve` with SmolLM2, MiniLM and the toy."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.clients.conftest import Clients, Facts, Served

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def chat(clients: Clients, served: Served) -> Facts:
    return clients.facts("openai_chat", served)


@pytest.fixture(scope="module")
def plain(clients: Clients, served: Served) -> Facts:
    return clients.facts("openai_plain", served)


@pytest.fixture(scope="module")
def failures(clients: Clients, crowded: Served) -> Facts:
    return clients.facts("openai_failures", crowded)


def test_a_chat_answer_and_its_stream_say_the_same(chat: Facts) -> None:
    whole, stream = chat["chat"], chat["stream"]
    [choice] = whole["choices"]
    assert "Paris" in choice["message"]["content"]
    assert choice["message"]["tool_calls"] is None  # an empty list makes clients branch wrongly
    assert (stream["text"], stream["reasons"]) == (choice["message"]["content"], [choice["finish_reason"]])
    assert (stream["roles"], stream["ids"], stream["choices_of_last"]) == (["assistant"], 1, [])
    assert {name: stream["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        name: whole["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    assert whole["model"] == "smollm2" and whole["usage"]["completion_tokens"] <= 12


def test_the_clients_own_accumulator_gets_the_same_text(chat: Facts) -> None:
    assert chat["accumulated"]["text"] == chat["chat"]["choices"][0]["message"]["content"]
    assert {"chunk", "content.delta", "content.done"} <= set(chat["accumulated"]["kinds"])


def test_an_answer_is_parsed_into_a_model_of_pydantic(chat: Facts) -> None:
    assert chat["parsed"]["type"] == "City"
    assert json.loads(chat["parsed"]["text"]) == {"city": chat["parsed"]["city"]}


def test_a_forced_tool_is_called_and_its_result_is_answered(chat: Facts) -> None:
    forced = chat["forced_tool"]
    assert (forced["reason"], forced["content"], forced["name"], forced["named"]) == ("tool_calls", None, "weather", "weather")
    assert set(forced["arguments"]) == {"city"}
    assert forced["answer"]["content"] and not forced["answer"]["tool_calls"]


def test_tools_that_may_be_called_leave_the_choice_to_the_model(chat: Facts) -> None:
    automatic = chat["automatic_tool"]
    assert automatic["calls"] or automatic["content"]
    assert (automatic["reason"] == "tool_calls") == bool(automatic["calls"])
    assert automatic["answered"] in ("stop", "length", "tool_calls")


def test_a_streamed_call_adds_up_to_the_whole_one(chat: Facts) -> None:
    assert chat["streamed_tool"]["arguments"] == chat["forced_tool"]["arguments"]
    assert "tool_calls.function.arguments.delta" in chat["streamed_tool"]["kinds"]


def test_log_probabilities_belong_to_the_tokens_of_the_text(chat: Facts) -> None:
    content: list[Any] = chat["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == chat["logprobs"]["text"]
    for entry in content:
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        assert entry["logprob"] == values[0] <= 0  # greedy
        assert sum(map(math.exp, values)) <= 1 + 1e-6


def test_two_choices_are_two_and_the_prompt_counts_once(chat: Facts) -> None:
    usage = chat["two_choices"]["usage"]
    assert chat["two_choices"]["indices"] == [0, 1]
    assert usage["prompt_tokens"] == chat["chat"]["usage"]["prompt_tokens"]
    assert 2 <= usage["completion_tokens"] <= 16


def test_a_plain_prompt_is_continued(plain: Facts) -> None:
    [choice] = plain["completion"]["whole"]["choices"]
    assert "Paris" in choice["text"] and plain["completion"]["streamed"] == choice["text"]


def test_an_echo_scores_the_prompt_in_the_legacy_shape(plain: Facts) -> None:
    echoed = plain["echoed"]
    assert "".join(echoed["tokens"]) == echoed["text"]
    assert echoed["token_logprobs"][0] is None and all(value <= 0 for value in echoed["token_logprobs"][1:])
    for token, offset in zip(echoed["tokens"], echoed["text_offset"], strict=True):
        assert echoed["text"][offset:].startswith(token)
    for token, value, table in list(zip(echoed["tokens"], echoed["token_logprobs"], echoed["top_logprobs"], strict=True))[1:]:
        assert table[token] == value


def test_prompts_of_a_list_are_answered_as_they_are_alone(plain: Facts) -> None:
    assert plain["prompts"]["indices"] == [0, 1]
    assert plain["prompts"]["together"] == plain["prompts"]["alone"]


def test_embeddings_come_packed_and_plain_alike(plain: Facts) -> None:
    found = plain["embeddings"]
    assert found["same"] < 1e-7
    assert (found["lengths"], found["dimensions"]) == ([384] * 3, 8)
    assert found["near"] > 0.5 > found["far"] and found["tokens"] > 10


def test_models_are_listed(plain: Facts) -> None:
    assert plain["models"] == {"listed": ["minilm", "smollm2"], "one": "model"}


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("field", ("BadRequestError", 400, "invalid_value", "temperature")),
        ("long", ("BadRequestError", 400, "context_length_exceeded", "messages")),
        ("key", ("AuthenticationError", 401, "invalid_api_key", None)),
        ("model", ("NotFoundError", 404, "model_not_found", "model")),
        ("late", ("InternalServerError", 504, "deadline_exceeded", None)),
    ],
)
def test_each_refusal_has_its_class(failures: Facts, use: str, expected: tuple[Any, ...]) -> None:
    refused = failures["classes"][use]
    assert (refused["class"], refused["status"], refused["code"], refused["param"]) == expected
    if use == "late":
        assert refused["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("use", "name", "status", "code"),
    [
        ("full_server", "InternalServerError", 503, "queue_full"),
        ("busy_key", "RateLimitError", 429, "concurrency_exceeded"),
    ],
)
def test_a_refusal_says_when_to_come_back_and_the_client_does(
    failures: Facts, use: str, name: str, status: int, code: str
) -> None:
    refused = failures[use]["refused"]
    assert (refused["class"], refused["status"], refused["code"]) == (name, status, code)
    assert int(refused["retry-after"]) >= 1 and int(refused["retry-after-ms"]) >= 1
    *before, last = failures[use]["statuses"]
    assert before and set(before) == {status} and last == 200
    assert failures[use]["tokens"] <= 2


def test_a_client_that_leaves_frees_its_seat(failures: Facts) -> None:
    assert len(failures["cancels"]) == 4


def test_a_request_that_is_cancelled_by_id_says_so(failures: Facts) -> None:
    assert failures["cancelled_by_id"] == {"listed": ["mine"], "ended": 200, "heard": ["request_cancelled"]}
