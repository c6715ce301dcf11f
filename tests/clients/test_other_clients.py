"""Clients in other words and other libraries: Responses, Anthropic's, LangChain, LiteLLM and `llm`."""

from __future__ import annotations

import json

import pytest

from tests.clients.conftest import Clients, Served

pytestmark = pytest.mark.long


def test_the_openai_client_speaks_the_responses_dialect(clients: Clients, served: Served) -> None:
    facts = clients.facts("openai_responses", served)
    answered = facts["answered"]
    assert "Paris" in answered["text"]
    assert answered["text"] == answered["deltas"] == answered["final"]
    assert answered["kinds"][0] == "response.created" and answered["kinds"][1] in ("response.completed", "response.incomplete")
    assert answered["numbers"] == list(range(len(answered["numbers"])))
    assert answered["counted"] == answered["usage"]["input_tokens"]
    assert facts["called"]["name"] == "weather" and set(facts["called"]["arguments"]) == {"city"} and facts["called"]["text"]
    assert facts["parsed"]["type"] == "City" and set(facts["parsed"]["text"]) == {"city"}
    assert facts["refused"] == {"class": "BadRequestError", "param": "previous_response_id"}


def test_anthropics_client_is_served(clients: Clients, served: Served, crowded: Served) -> None:
    facts = clients.facts("anthropic_messages", served, crowded)
    answered = facts["answered"]
    assert "Paris" in answered["text"]
    assert answered["text"] == answered["streamed"] == answered["final"]
    assert len(set(answered["reasons"])) == 1
    for usage in answered["usage"]:  # what a cache of prefixes had is counted apart
        assert usage["input_tokens"] + (usage["cache_read_input_tokens"] or 0) == answered["counted"]
    assert len({usage["output_tokens"] for usage in answered["usage"]}) == 1
    called = facts["called"]
    assert (called["reason"], called["call"][:2], called["answer"]) == ("tool_use", ["tool_use", "weather"], ["text"])
    assert set(called["call"][2]) == {"city"} and called["streamed"] == called["call"][2]
    expected = {
        "key": ("AuthenticationError", 401, "authentication_error"),
        "model": ("NotFoundError", 404, "not_found_error"),
        "field": ("BadRequestError", 400, "invalid_request_error"),
        "late": ("DeadlineExceededError", 504, "timeout_error"),
        "full": ("OverloadedError", 503, "overloaded_error"),
    }
    for name, (_, status, kind) in expected.items():
        seen = facts["failures"][name]
        assert (seen["status"], seen["type"], seen["same_id"]) == (status, kind, True)


def test_langchain_is_served(clients: Clients, served: Served) -> None:
    facts = clients.facts("langchain_chat", served)
    invoked, streamed = facts["invoked"], facts["streamed"]
    assert "Paris" in invoked["text"] and invoked["model"] == "smollm2"
    assert streamed["text"] == invoked["text"] and streamed["pieces"] > 3
    assert streamed["usage"]["total_tokens"] == invoked["usage"]["total_tokens"] > 0
    called = facts["called"]
    assert called["name"] == "weather" and called["result"] == f"clear in {called['arguments']['city']}" and called["text"]
    assert facts["structured"] == {"json_schema": "City", "function_calling": "City", "json_mode": "dict"}
    assert facts["batched"] == [invoked["text"]] * 2
    assert facts["embedded"] == [384, 384]


def test_litellm_is_served(clients: Clients, served: Served, crowded: Served) -> None:
    facts = clients.facts("litellm_calls", served, crowded)
    completed, streamed = facts["completed"], facts["streamed"]
    assert "Paris" in completed["text"] and "Paris" in facts["plain"]
    assert streamed["text"] == streamed["rebuilt"] == completed["text"]
    assert streamed["usage"] == completed["usage"]
    assert facts["called"]["name"] == "weather" and set(facts["called"]["arguments"]) == {"city"}
    assert facts["embedded"] == [384, 384]
    assert facts["refused"] == {
        "key": "AuthenticationError",
        "model": "NotFoundError",
        "long": "ContextWindowExceededError",
    }


def test_the_llm_command_is_served(clients: Clients, served: Served) -> None:
    """As a user sets it up: a file that names the model, and a key."""
    folder = clients.home / "llm"
    folder.mkdir()
    entry = f"- model_id: ours\n  model_name: smollm2\n  api_base: {served.url}/v1\n  api_key_name: tripower\n  supports_schema: true\n"
    (folder / "extra-openai-models.yaml").write_text(entry)
    (folder / "keys.json").write_text(json.dumps({"tripower": served.key}))
    variables = {"LLM_USER_PATH": str(folder)}
    question = ("-m", "llm", "-m", "ours", "What is the capital of France?", "-o", "temperature", "0", "-o", "max_tokens", "12")
    streamed = clients.run(*question, variables=variables)
    whole = clients.run(*question, "--no-stream", variables=variables)
    assert streamed.returncode == 0, streamed.stderr
    assert "Paris" in streamed.stdout and streamed.stdout == whole.stdout
    schema = ("-m", "llm", "-m", "ours", "The capital of France", "-o", "max_tokens", "60", "--schema", "city str")
    structured = clients.run(*schema, variables=variables)
    assert structured.returncode == 0, structured.stderr
    assert set(json.loads(structured.stdout)) == {"city"}
