"""tripower inside a program that runs Trio."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import tripower
from tripower import EmbeddedRuntime, GenerationFinished, GenerationStarted, TokenChunk, open_runtime
from tripower.actors.queueing import QueueStatistics
from tripower.api.embedding import make_request
from tripower.runtime.store import Store

ROOT = Path(__file__).resolve().parents[2]
HELLO = [{"role": "user", "content": "hello"}]
SLOW = "slow=toy:20000"
"""A step of 20 ms: an answer of a hundred tokens is still running when a test has looked at it."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def queues(runtime: EmbeddedRuntime) -> list[QueueStatistics]:
    return [actor.details for actor in runtime.statistics() if isinstance(actor.details, QueueStatistics)]


async def wait_until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until it is so; a test that waits for what never comes is ended by its own limit."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in actors, which set no event for it
            await trio.sleep(0.001)


async def read(events: AsyncIterator[Any]) -> str:
    return "".join([event.text async for event in events])


def lanes() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tripower-lane")]


async def test_an_answer_is_iterated_over_without_a_block(store: Store) -> None:
    async with open_runtime(models=["toy"], store=store) as runtime:
        events = [event async for event in runtime.chat("toy", HELLO, max_tokens=12, seed=3, ignore_eos=True)]
        assert isinstance(events[0], GenerationStarted)
        assert all(isinstance(event, TokenChunk) for event in events[1:-1])
        assert isinstance(events[-1], GenerationFinished)
        assert events[-1].reason == "length"
        assert events[-1].usage.completion_tokens == len(events) - 2 == 12
        async with runtime.chat("toy", HELLO, max_tokens=12, seed=3, ignore_eos=True) as answer:
            assert (answer.seed, answer.prompt_tokens) == (3, len("user: hello\nassistant: "))
            assert await read(answer) == "".join(event.text for event in events)


async def test_text_and_token_ids_are_completed(store: Store) -> None:
    async with open_runtime(models=["toy"], store=store) as runtime:
        texts = [await read(runtime.complete("toy", prompt, seed=3)) for prompt in ("abc", [97, 98, 99], (97, 98, 99))]
    assert texts[0] == texts[1] == texts[2]
    assert 0 < len(texts[0]) <= 16


async def test_leaving_the_loop_frees_the_seat_at_once(store: Store) -> None:
    async with open_runtime(models=[SLOW], store=store) as runtime:
        async for event in runtime.chat("slow", HELLO, max_tokens=1000, ignore_eos=True):
            if isinstance(event, TokenChunk):
                break
        await wait_until(lambda: runtime.runtime.active() == 0)
        assert queues(runtime)[0].cancelled == 1


async def test_a_forgotten_answer_frees_its_seat_when_it_is_collected(store: Store) -> None:
    async with open_runtime(models=[SLOW], store=store) as runtime:
        answer = runtime.chat("slow", HELLO, max_tokens=1000, ignore_eos=True)
        await anext(answer)
        cycle: list[Any] = [answer]
        cycle.append(cycle)
        del answer, cycle
        await trio.to_thread.run_sync(gc.collect)  # on another thread, as it happens
        await wait_until(lambda: runtime.runtime.active() == 0)


async def test_an_answer_forgotten_until_after_the_end_does_no_harm(store: Store) -> None:
    async with open_runtime(models=[SLOW], store=store) as runtime:
        answer = runtime.chat("slow", HELLO, max_tokens=1000)
        await anext(answer)
    with pytest.raises(tripower.Unavailable):
        await read(answer)
    del answer
    gc.collect()


async def test_aclosing_ends_an_answer(store: Store) -> None:
    async with open_runtime(models=[SLOW], store=store) as runtime:
        async with aclosing(runtime.chat("slow", HELLO, max_tokens=1000, ignore_eos=True)) as answer:
            await anext(answer)
            assert runtime.runtime.active() == 1
        await wait_until(lambda: runtime.runtime.active() == 0)
        with pytest.raises(StopAsyncIteration):
            await anext(answer)


async def test_a_cancelled_loop_frees_the_seat_even_while_something_holds_the_answer(store: Store) -> None:
    async with open_runtime(models=[SLOW], store=store) as runtime:
        answer = runtime.chat("slow", HELLO, max_tokens=1000, ignore_eos=True)
        with trio.move_on_after(0.1) as scope:
            await read(answer)
        assert scope.cancelled_caught
        await wait_until(lambda: runtime.runtime.active() == 0)


async def test_a_timeout_bounds_the_whole_and_says_so(store: Store) -> None:
    async with open_runtime(models=[SLOW], store=store) as runtime:
        for options in ({"timeout": 0.1}, {"deadline": trio.current_time() + 0.2, "timeout": 60}):
            with pytest.raises(tripower.DeadlineExceeded):
                await read(runtime.chat("slow", HELLO, max_tokens=1000, ignore_eos=True, **options))  # type: ignore[arg-type]
        await wait_until(lambda: runtime.runtime.active() == 0)
        assert queues(runtime)[0].expired == 2


async def test_models_load_when_they_are_first_asked_for(store: Store) -> None:
    stages: list[tuple[str, float]] = []
    async with open_runtime(store=store) as runtime:
        assert await runtime.models() == ()
        assert await read(runtime.chat("toy", HELLO, max_tokens=3, seed=1))
        card = await runtime.load("other=toy:1", progress=lambda stage, fraction: stages.append((stage, fraction)))
        assert (card.name, card.state, card.backend) == ("other=toy:1", "loaded", "toy")
        assert [model.name for model in await runtime.models()] == ["toy", "other=toy:1"]
        assert runtime.health().status == "ok"
    assert stages == [("weights", 1.0)]


async def test_models_that_are_named_are_loaded_before_the_block_and_progress_is_told(store: Store) -> None:
    stages: list[str] = []
    configuration = tripower.Configuration(models=("toy",))
    async with open_runtime(
        configuration, models=["toy", "mine=toy"], store=store, progress=lambda stage, fraction: stages.append(stage)
    ) as runtime:
        assert {card.name: card.state for card in await runtime.models()} == {"toy": "loaded", "mine": "loaded"}
    assert stages == ["weights", "weights"]


@pytest.mark.parametrize(
    ("models", "error", "text"),
    [
        (["smollm2"], tripower.NotFound, "tripower pull smollm2"),
        (["./missing.gguf"], tripower.NotFound, "there is no file"),
        (["a b"], tripower.InvalidRequest, "Accepted"),
        (["toy", "toy=toy:5"], tripower.InvalidConfiguration, "two models are called toy"),
        (["toy:fast"], tripower.ModelRefused, "MICROSECONDS"),
    ],
)
async def test_what_cannot_be_opened_says_why_and_leaves_nothing(
    models: list[str], error: type[Exception], text: str, store: Store
) -> None:
    with pytest.raises(error, match=text):
        async with open_runtime(models=models, store=store):
            pytest.fail("the block must not begin")
    assert lanes() == []


async def test_settings_out_of_range_are_refused_before_anything_is_opened() -> None:
    wrong = tripower.Configuration(
        engine=tripower.EngineSettings(threads=-1), scheduler=tripower.SchedulerSettings(batch_members=100_000)
    )
    with pytest.raises(tripower.InvalidConfiguration) as caught:
        async with open_runtime(wrong):
            pytest.fail("the block must not begin")
    assert "engine.threads" in caught.value.message
    assert "scheduler.batch_members" in caught.value.message


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": float("nan")}, "temperature is from 0 to 2, not nan"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is from 0.01 to 10, not 0.0"),
        ({"logit_bias": {257: 1.0}}, "names the token 257"),
        ({"temperature": "hot"}, "temperature"),
        ({"nonsense": 1}, "nonsense is no option"),
        ({"max_token": 1}, r"max_token is no option \(did you mean max_tokens\?\)"),
        ({"sampling": {}}, "sampling is no option"),
        ({"seed": 2**64}, "64 bits"),
        ({"stop": 5}, "stop"),
        ({"deadline": float("nan")}, "a deadline is a number"),
        ({"timeout": "soon"}, "a deadline is a number"),
        ({"stop": ["x", ""]}, "a stop string is empty"),
        ({"max_tokens": -1}, "max_tokens is from 0 to 2147483647, not -1"),
        ({"max_tokens": 100_000}, "context length is 8192 tokens"),
    ],
)
async def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, Any], text: str, store: Store) -> None:
    async with open_runtime(models=["toy"], store=store) as runtime:
        with pytest.raises(tripower.InvalidRequest, match=text):
            await read(runtime.chat("toy", HELLO, **options))
        assert runtime.runtime.active() == 0


@pytest.mark.parametrize(
    "messages", [[{"content": "x"}], [{"role": "user", "content": 5}], ["hello"], [{"role": "user", "x": 1}, 5]]
)
async def test_messages_that_are_none_are_refused(messages: list[Any], store: Store) -> None:
    async with open_runtime(store=store) as runtime:
        with pytest.raises(tripower.InvalidRequest, match="a message is a role and a content"):
            runtime.chat("toy", messages)


async def test_a_text_in_place_of_a_conversation_is_told_so(store: Store) -> None:
    async with open_runtime(store=store) as runtime:
        for messages in ("hi", HELLO[0]):
            with pytest.raises(tripower.InvalidRequest, match="a conversation is a list of messages"):
                runtime.chat("toy", messages)  # type: ignore[arg-type]  # what a type checker would say too


def test_what_openai_calls_tools_and_formats_is_understood() -> None:
    function = {"name": "f", "description": "d", "parameters": SCHEMA}
    expected = tripower.ToolDefinition("f", "d", SCHEMA)
    for tool in (expected, function, {"type": "function", "function": function}, {"type": "function", **function}):
        assert make_request("m", {"tools": [tool]}, messages=()).chat.tools == (expected,)
    openai = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    for asked in (SCHEMA, openai, {"type": "json_schema", "schema": SCHEMA}, tripower.JsonSchemaFormat(SCHEMA)):
        assert make_request("m", {"format": asked}, prompt="p").format == tripower.JsonSchemaFormat(SCHEMA)
    assert make_request("m", {"format": {"enum": [1]}}, prompt="p").format == tripower.JsonSchemaFormat({"enum": [1]})
    assert make_request("m", {"format": {"type": "text"}}, prompt="p").format is None
    assert make_request("m", {"format": {"type": "regex", "pattern": "a"}}, prompt="p").format == tripower.RegexFormat("a")
    assert make_request("m", {"top_k": -1}, prompt="p").sampling.top_k == 0


def test_every_section_of_the_settings_can_be_named() -> None:
    for field in msgspec.structs.fields(tripower.Configuration):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            assert getattr(tripower, field.type.__name__) is field.type


def test_options_become_the_request_that_every_way_in_makes() -> None:
    request = make_request(
        "m", {"max_tokens": 5, "stop": "x", "seed": -1, "logit_bias": {3: 1.5}, "temperature": None, "top_p": 1}, prompt="p"
    )
    assert (request.model, request.prompt, request.max_tokens, request.stop) == ("m", "p", 5, ("x",))
    assert (request.sampling.seed, request.sampling.logit_bias) == (2**64 - 1, ((3, 1.5),))
    assert (request.sampling.temperature, request.sampling.top_p) == (None, 1.0)


async def test_the_blocks_own_error_comes_through_as_it_is(store: Store) -> None:
    with pytest.raises(KeyError) as caught:
        async with open_runtime(models=["toy"], store=store):
            raise KeyError("mine")
    assert caught.value.__context__ is None
    with trio.CancelScope() as scope, pytest.raises(KeyError):
        async with open_runtime(models=["toy"], store=store):
            scope.cancel()
            raise KeyError("mine, while cancelled")


async def test_two_runtimes_in_one_process_know_nothing_of_each_other(store: Store) -> None:
    async with open_runtime(models=["toy"], store=store) as first:
        async with open_runtime(models=["mine=toy"], store=store) as second:
            assert len(lanes()) == 1
            texts = [await read(one.chat(name, HELLO, seed=1)) for one, name in ((first, "toy"), (second, "mine"))]
            assert texts[0] == texts[1]
            with pytest.raises(tripower.NotFound):
                await second.load("nonsense")
            assert [card.name for card in await second.models()] == ["mine"]
        assert await read(first.chat("toy", HELLO, seed=1)) == texts[0]
        assert sum(queue.arrivals for queue in queues(first)) == 2
    assert lanes() == []


async def test_two_loops_in_two_threads_have_a_runtime_each(store: Store) -> None:
    texts: list[str] = []

    async def ask() -> None:
        async with open_runtime(models=["toy"], store=store) as runtime:
            texts.append(await read(runtime.chat("toy", HELLO, seed=1)))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(trio.to_thread.run_sync, trio.run, ask)
    assert texts[0] == texts[1]
    assert lanes() == []


async def test_it_opens_no_listener_and_takes_no_signal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(socket.socket, "listen", lambda *_: pytest.fail("no listener is asked for"))
    async with open_runtime(models=["toy"], store=store) as runtime:
        await read(runtime.chat("toy", HELLO))
        assert {number: signal.getsignal(number) for number in before} == before


class CancelAt(trio.abc.Instrument):
    """Cancels a scope before the n-th step of whatever task."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self._scope = scope
        self._left = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


async def _open_and_chat() -> None:
    async with open_runtime(models=["toy"]) as runtime:
        async for _ in runtime.chat("toy", HELLO, max_tokens=30, seed=1):
            pass


async def _open_and_chat_in_a_block() -> None:
    async with open_runtime() as runtime, runtime.chat("toy", HELLO, max_tokens=30, seed=1) as answer:
        while not answer.ended:
            await answer.receive()


@pytest.mark.parametrize("scenario", [_open_and_chat, _open_and_chat_in_a_block])
def test_it_may_be_cancelled_at_every_step_and_leaves_nothing(scenario: Callable[[], Awaitable[None]]) -> None:
    async def cancelled_at(step: int) -> bool:
        with trio.CancelScope() as scope:
            instrument = CancelAt(scope, step)
            trio.lowlevel.add_instrument(instrument)
            with contextlib.closing(contextlib.ExitStack()) as cleanup:
                cleanup.callback(trio.lowlevel.remove_instrument, instrument)
                await scenario()
        return scope.cancelled_caught

    uncancelled = 0
    for step in range(1, 400):
        uncancelled = 0 if trio.run(cancelled_at, step) else uncancelled + 1
        assert lanes() == []
        if uncancelled == 5:  # the number of steps varies a little with the lane's thread
            break
    assert uncancelled == 5


@pytest.mark.parametrize("model", ["toy", "smollm2"])
def test_the_example_of_the_documentation_runs(model: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    reference = model if model == "toy" else str(request.getfixturevalue("smollm2_path"))
    finished = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "docs" / "examples" / "embedded.py"), reference],
        env={
            **os.environ,
            "GOMP_SPINCOUNT": "3000",
        },  # as docs/embedding.md says for a machine that is shared, which a test's is
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    assert "tokens" in finished.stdout
    if model == "smollm2":
        assert "Paris" in finished.stdout


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}


async def test_a_whole_message_has_the_format_that_was_asked_for(store: Store) -> None:
    async with open_runtime(models=["toy"], store=store) as runtime:
        for asked in ({"type": "json_schema", "schema": SCHEMA}, tripower.JsonSchemaFormat(SCHEMA)):
            message = await runtime.chat("toy", HELLO, max_tokens=200, format=asked, logprobs=1, prompt_logprobs=0).message()
            assert message.content in ('{"a":"x"}', '{"a":"y"}', '{"a": "x"}', '{"a": "y"}')
            assert (message.finish_reason, len(message.logprobs)) == ("stop", message.usage.completion_tokens - 1)
            assert len(message.prompt_logprobs) == message.usage.prompt_tokens - 1


def test_tools_and_template_variables_become_options_of_the_conversation() -> None:
    request = make_request(
        "m", {"tools": [{"name": "f"}], "tool_choice": "required", "template_arguments": {"a": 1}, "priority": 3}, messages=()
    )
    assert [tool.name for tool in request.chat.tools] == ["f"] and request.chat.arguments == {"a": 1}
    assert (request.tool_choice.mode, request.priority) == ("required", 3)
    assert make_request("m", {"continue_final_message": True}, messages=()).chat.add_generation_prompt is False


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": -1}, "temperature is from 0 to 2, not -1"),
        ({"top_p": 1.5}, "top_p is from 0 to 1"),
        ({"logprobs": 50}, "logprobs is from 0 to 20"),
        ({"tool_choice": "required"}, "add tools"),
        ({"tool_choice": "sometimes"}, "cannot be used"),
        ({"format": {"type": "xml"}}, "cannot be used: a format is a tripower.JsonSchemaFormat"),
        ({"format": "json"}, "JsonSchemaFormat"),
        ({"tools": {"name": "f"}}, "tools is a list"),
        ({"tools": [{"type": "function", "function": {"nom": "f"}}]}, r"tools\[0\]: nom is no field of it.*ToolDefinition"),
        ({"tools": [{"description": "d"}]}, r"tools\[0\]: it has no name.*ToolDefinition"),
        ({"temperature": 2.5}, "temperature is from 0 to 2, not 2.5"),
        ({"logit_bias": {1: 101.0}}, "logit_bias is from -100 to 100"),
        ({"stop_token_ids": [999]}, "no token of a vocabulary"),
    ],
)
async def test_the_same_is_refused_as_over_http(options: dict[str, Any], text: str, store: Store) -> None:
    async with open_runtime(models=["toy"], store=store) as runtime:
        with pytest.raises(tripower.InvalidRequest, match=text):
            await runtime.chat("toy", HELLO, **options).message()
        assert runtime.runtime.active() == 0
