"""What is asked of mistral.rs and what becomes of its answers, with a stand-in for its runner. The wheel itself: `test_served_contract`."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tripower.backends.mistralrs.backend import check_installed, first_line, open_runner
from tripower.backends.mistralrs.engine import MistralrsEngine
from tripower.backends.mistralrs.question import chat_options, completion_options
from tripower.runtime.engine import (
    ChatMessage,
    DelegateEnd,
    DelegateEvent,
    DelegatePiece,
    DelegateRequest,
    EngineInfo,
    SamplingChoices,
)
from tripower.runtime.kernel import DeviceFailed, InvalidRequest, ModelRefused, TripowerError

CHAT = DelegateRequest(messages=(ChatMessage("user", "Hi"),), max_tokens=5)
PLAIN = DelegateRequest(prompt="Once", max_tokens=5, stop=("x",))
USAGE = SimpleNamespace(prompt_tokens=3, completion_tokens=2)


class Panic(BaseException):
    """What a panic in Rust arrives as."""


def chunk(text: str, reason: str | None = None, usage: Any = None) -> Any:
    return SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=text), finish_reason=reason)], usage=usage)


class Runner:
    """Gives these chunks, or raises; knows whether two threads sent at once and whether its stream was dropped."""

    def __init__(self, *answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self.dropped = threading.Event()

    def send_chat_completion_request(self, asking: Any) -> Iterator[Any]:
        self.asked.append(asking)
        if isinstance(self.answer[0], ValueError):
            raise self.answer[0]
        return self._chunks()

    def _chunks(self) -> Iterator[Any]:
        try:
            for item in self.answer:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.dropped.set()

    def send_completion_request(self, asking: Any) -> Any:
        self.asked.append(asking)
        return SimpleNamespace(choices=[SimpleNamespace(text="upon a time", finish_reason="length")], usage=USAGE)


@pytest.fixture(autouse=True)
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mistralrs")
    module.__dict__.update(ChatCompletionRequest=SimpleNamespace, CompletionRequest=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "mistralrs", module)


def engine_of(runner: Any, *, chat: bool = True) -> MistralrsEngine:
    info = EngineInfo(backend="mistralrs", architecture="llama", context_max=100, vocabulary_size=0, sequences_max=1)
    return MistralrsEngine(runner, info, chat=chat)


async def ask(runner: Runner, request: DelegateRequest = CHAT) -> list[DelegateEvent]:
    async with engine_of(runner).stream(request, seconds=math.inf) as events:
        return [event async for event in events]


async def test_a_chat_is_streamed_and_ends_once() -> None:
    runner = Runner(chunk("a"), chunk(""), chunk("b", "stop", USAGE), chunk("never"))
    assert await ask(runner) == [DelegatePiece("a"), DelegatePiece("b"), DelegateEnd("stop", 3, 2)]
    (asked,) = runner.asked
    assert (asked.model, asked.stream, asked.max_tokens) == ("default", True, 5)
    assert runner.dropped.is_set()


async def test_a_plain_prompt_is_one_piece() -> None:
    assert await ask(Runner(), PLAIN) == [DelegatePiece("upon a time", 2), DelegateEnd("length", 3, 2)]


async def test_leaving_drops_the_stream() -> None:
    runner = Runner(*[chunk(str(number)) for number in range(100)])
    async with engine_of(runner).stream(CHAT, seconds=math.inf) as events:
        assert await anext(events) == DelegatePiece("0")
    assert runner.dropped.is_set()


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        ((chunk("a"),), DeviceFailed, "delegate_truncated"),
        ((chunk("a"), ValueError("tensor is not contiguous")), DeviceFailed, "device_failed"),
        ((ValueError("Prompt sequence length is greater than 8192, perhaps"),), InvalidRequest, "context_length_exceeded"),
        ((RuntimeError(),), DeviceFailed, "device_failed"),
        ((chunk("a"), Panic("the library panicked")), DeviceFailed, "device_failed"),
    ],
)
async def test_what_goes_wrong_has_its_reaction(answer: tuple[Any, ...], kind: type[TripowerError], code: str) -> None:
    with pytest.raises(kind) as caught:
        await ask(Runner(*answer))
    assert caught.value.code == code


async def test_a_model_that_was_closed_answers_nothing_more() -> None:
    engine = engine_of(Runner(chunk("a", "stop")))
    await engine.close()
    await engine.close()
    with pytest.raises(DeviceFailed):
        async with engine.stream(CHAT, seconds=math.inf) as events:
            await anext(events)


def test_every_option_is_said_under_its_name_and_nothing_else() -> None:
    sampling = SamplingChoices(
        temperature=0.0, top_k=5, top_p=0.5, min_p=0.1, repeat_penalty=1.1, presence_penalty=1.0, frequency_penalty=-1.0,
        logit_bias=((7, 2.0),),
    )  # fmt: skip
    request = DelegateRequest(
        messages=(ChatMessage("user", "Hi", name="Ann"),), ignore_eos=True, sampling=sampling, stop=("x",)
    )
    assert chat_options(request) == {
        "messages": [{"role": "user", "content": "Hi", "name": "Ann"}], "max_tokens": None, "ignore_eos": True,
        "temperature": 0.0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 1.0,
        "frequency_penalty": -1.0, "logit_bias": {7: 2.0},
    }  # fmt: skip
    assert completion_options(PLAIN) == {"prompt": "Once", "stop_seqs": ["x"], "max_tokens": 5, "ignore_eos": False}
    everything = DelegateRequest(prompt="a", max_tokens=1, sampling=SamplingChoices(top_k=0))
    assert completion_options(everything) == {"prompt": "a", "max_tokens": 1, "ignore_eos": False}


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (DelegateRequest(messages=CHAT.messages, sampling=SamplingChoices(seed=1)), "seed"),
        (DelegateRequest(messages=CHAT.messages, sampling=SamplingChoices(repeat_last_n=9)), "repeat_last_n"),
        (DelegateRequest(messages=CHAT.messages, max_tokens=0), "max_tokens"),
        (DelegateRequest(messages=(ChatMessage("judge", "x"),)), "messages"),
        (DelegateRequest(prompt="a", max_tokens=257), "max_tokens"),
        (DelegateRequest(prompt="a"), "max_tokens"),
        (DelegateRequest(prompt=(1, 2), max_tokens=1), "prompt"),
    ],
)
def test_what_the_wheel_cannot_do_is_refused_by_name(request_: DelegateRequest, param: str) -> None:
    with pytest.raises(InvalidRequest, match="mistralrs") as caught:
        engine_of(Runner()).abilities.check(request_, "mistralrs")
    assert (caught.value.code, caught.value.param) == ("unsupported_by_engine", param)


def test_a_model_without_a_template_holds_no_conversations() -> None:
    with pytest.raises(InvalidRequest, match="conversations"):
        engine_of(Runner(), chat=False).abilities.check(CHAT, "mistralrs")


def test_a_missing_wheel_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tripower.backends.mistralrs.backend.find_spec", lambda name: None)
    with pytest.raises(ModelRefused, match=r"pip install 'tripower\[mistralrs\]'"):
        check_installed()


@pytest.mark.parametrize("kind", [ValueError, Panic])
def test_a_load_that_fails_is_a_refused_model_and_stays_offline(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("HF_HUB_OFFLINE", "RAYON_NUM_THREADS", "RUST_LOG"):
        monkeypatch.setenv(variable, "")  # so that it is put back afterwards
        monkeypatch.delenv(variable)
    monkeypatch.setenv("RUST_LOG", "debug")

    def refuse(**options: Any) -> None:
        assert options["which"].quantized_filename == "some.gguf" and options["token_source"] == "none"
        raise kind("needs 6957 bytes\n   0: <candle_core::error::Error>::bt")

    which = SimpleNamespace(GGUF=SimpleNamespace)
    monkeypatch.setattr(sys.modules["mistralrs"], "Runner", refuse, raising=False)
    monkeypatch.setattr(sys.modules["mistralrs"], "Which", which, raising=False)
    with pytest.raises(ModelRefused, match=r"some\.gguf: needs 6957 bytes$"):
        open_runner(tmp_path / "some.gguf", 3)
    assert [os.environ[name] for name in ("HF_HUB_OFFLINE", "RAYON_NUM_THREADS", "RUST_LOG")] == ["1", "3", "debug"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("path: x needs 6957 bytes\n   0: <candle_core::error::Error>::bt\n   1: more", "path: x needs 6957 bytes"),
        ("one\ntwo", "one two"),
        ("", "ValueError"),
        ("a" * 999, "a" * 300),
    ],
)
def test_of_a_backtrace_only_the_reason_is_kept(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
