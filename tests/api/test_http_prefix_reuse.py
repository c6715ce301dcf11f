"""What clients see of reused prompts: the figures of an answer, the keys, the metrics."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.serving import Server, serving_toy
from tripower.actors.runtime import toy_plan
from tripower.api.cli.ps import read_figures
from tripower.api.embedding import make_request
from tripower.runtime.prefix_cache import PrefixSettings

PROMPT = "what both of them begin with"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def plan() -> Any:
    return toy_plan(prefix=PrefixSettings())


async def complete(server: Server, prompt: str = PROMPT, **fields: Any) -> Any:
    answer = await server.ask(COMPLETIONS, {"model": "toy", "prompt": prompt, "max_tokens": 2, "temperature": 0} | fields)
    assert answer.status == 200, answer.body
    return answer.json


async def test_usage_and_timings_tell_what_was_there_and_what_was_evaluated() -> None:
    async with serving_toy(plan()) as server:
        cold = await complete(server)
        warm = await complete(server, PROMPT + "!")
    cached = len(PROMPT)
    for body, reused, prompt in ((cold, 0, cached), (warm, cached, cached + 1)):
        assert body["usage"]["prompt_tokens"] == prompt
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": reused}
        assert (body["timings"]["cache_n"], body["timings"]["prompt_n"]) == (reused, prompt - reused)


async def test_a_stream_tells_the_same_at_its_end_and_in_its_progress() -> None:
    async with serving_toy(plan()) as server:
        await complete(server)
        body = {"model": "toy", "prompt": PROMPT, "max_tokens": 2, "stream": True, "return_progress": True}
        events = (await server.ask(COMPLETIONS, body | {"stream_options": {"include_usage": True}})).events
    events = [event for event in events if isinstance(event, dict)]
    (last,) = [event for event in events if event.get("usage")]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": len(PROMPT) - 1}
    assert last["timings"]["cache_n"] == len(PROMPT) - 1
    assert [event["prompt_progress"]["cache"] for event in events if "prompt_progress" in event] == [len(PROMPT) - 1]


async def test_answers_of_one_request_count_only_what_all_of_them_found() -> None:
    async with serving_toy(plan()) as server:
        cold = await complete(server, n=3)
        warm = await complete(server, n=3)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPT) - 1
    assert [choice["text"] for choice in cold["choices"]] == [choice["text"] for choice in warm["choices"]]


async def test_a_key_keeps_prompts_apart_and_cache_prompt_switches_reuse_off() -> None:
    async with serving_toy(plan()) as server:
        found = [
            (await complete(server, **fields))["timings"]["cache_n"]
            for fields in (
                {"prompt_cache_key": "a"}, {}, {"prompt_cache_key": "b"}, {"prompt_cache_key": "a"},
                {"cache_prompt": False}, {"cache_prompt": True}, {"prompt_cache_key": None},
            )
        ]  # fmt: skip
    assert found == [0, 0, 0, len(PROMPT) - 1, 0, len(PROMPT) - 1, len(PROMPT) - 1]


# SCH-P1
@pytest.mark.parametrize("key", ["", " k", "k ", "a\nb", "x" * 257, "é" * 129])
@pytest.mark.parametrize(
    ("path", "fields"), [(COMPLETIONS, {"prompt": "p"}), (CHAT, {"messages": [{"role": "user", "content": "p"}]})]
)
async def test_a_key_that_breaks_the_rules_is_refused_before_the_model_is_looked_up(path: str, fields: Any, key: str) -> None:
    async with serving_toy(plan()) as server:
        answer = await server.ask(path, fields | {"model": "nobody", "prompt_cache_key": key})
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("invalid_prompt_cache_key", "prompt_cache_key")
    assert key.strip() == "" or key not in answer.error["message"]


async def test_responses_and_messages_tell_it_in_their_own_words() -> None:
    async with serving_toy(plan()) as server:
        responses = {"model": "toy", "input": PROMPT, "max_output_tokens": 2, "temperature": 0, "prompt_cache_key": "k"}
        messages = {"model": "toy", "max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": PROMPT}]}
        before, after = [(await server.ask("/v1/responses", responses)).json["usage"] for _ in range(2)]
        first, then = [(await server.ask("/v1/messages", messages)).json["usage"] for _ in range(2)]
    assert before["input_tokens_details"]["cached_tokens"] == 0
    assert after["input_tokens_details"]["cached_tokens"] == after["input_tokens"] - 1
    assert (first["cache_read_input_tokens"], then["input_tokens"]) == (0, 1)
    assert then["input_tokens"] + then["cache_read_input_tokens"] == first["input_tokens"]


async def test_metrics_count_hits_misses_and_memory_under_our_names_and_vllms() -> None:
    async with serving_toy(plan(), metrics_families=("vllm",)) as server:
        await complete(server)
        await complete(server)
        await complete(server, "something else")
        text = (await server.ask("/metrics")).body.decode()
    told = dict(line.rsplit(" ", 1) for line in text.splitlines() if "prefix" in line and not line.startswith("#"))
    reused, evaluated = len(PROMPT) - 1, len(PROMPT) + 1 + len("something else")
    label = 'model="toy"'
    for name, value in {
        f"tripower_prefix_requests_total{{{label}}}": 3,
        f"tripower_prefix_hits_total{{{label}}}": 1,
        f'tripower_prefix_misses_total{{{label},reason="cold"}}': 1,
        f'tripower_prefix_misses_total{{{label},reason="no_common_prefix"}}': 1,
        f'tripower_prefix_tokens_total{{kind="reused",{label}}}': reused,
        f'tripower_prefix_tokens_total{{kind="evaluated",{label}}}': evaluated,
        f"tripower_prefix_entries{{{label}}}": 2,
        'vllm:prefix_cache_queries_total{engine="0",model_name="toy"}': reused + evaluated,
        'vllm:prefix_cache_hits_total{engine="0",model_name="toy"}': reused,
    }.items():
        assert float(told[name]) == value, (name, told)


async def test_ps_reads_what_is_kept_and_reused_from_them() -> None:
    async with serving_toy(plan()) as server:
        await complete(server)
        await complete(server)
        metrics = (await server.ask("/metrics")).body.decode()
    models = {"data": [{"id": "toy", "status": {"value": "loaded"}}]}
    (figures,) = read_figures("", {"status": "ok", "reasons": []}, models, metrics).models
    assert figures.reused_share == pytest.approx((len(PROMPT) - 1) / (2 * len(PROMPT)))
    assert figures.kept_bytes == 0, "the toy has no state"


def test_the_options_of_the_embedding_are_the_requests_own() -> None:
    asked = make_request("toy", {"prompt_cache_key": "k", "cache_prompt": False}, prompt="p")
    assert (asked.prompt_cache_key, asked.cache_prompt) == ("k", False)
